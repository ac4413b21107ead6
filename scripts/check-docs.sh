#!/usr/bin/env bash
# Checks the project's Markdown: its width, its links, and that what it names exists.
#
# Everything is derived from the sources: the commands from clap's enums, the options from its fields, the experiments
# from their files, the targets from the Makefile. No network, nothing but bash, awk, grep and sed.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

WIDTH=100
failed=0
mapfile -t FILES < <(git ls-files -co --exclude-standard '*.md')

complain() { # FILE LINE WHAT
	echo "$1:$2: $3" >&2
	failed=1
}

# The text without code blocks, line by line, so that line numbers stay.
prose() { awk '/^ *```/ { code = !code; print ""; next } { print code || /^    / ? "" : $0 }' "$1"; }

# The variants of a clap enum as command names, one a line: `Isolate(...)` is isolate.
commands() { # FILE ENUM
	sed -n "/^\(pub \)\?enum $2 {/,/^}/p" "$1" | awk '
		match($0, /^    [A-Z][A-Za-z]*/) {
			name = substr($0, 5, RLENGTH - 4)
			gsub(/[A-Z]/, "-&", name)
			print tolower(substr(name, 2))
		}'
}

# A heading's anchor, as GitHub makes it.
anchors() { prose "$1" | sed -n 's/^#\+ //p' | tr '[:upper:]' '[:lower:]' | sed 's/[^[:alnum:] _-]//g; s/ /-/g'; }

width() {
	local line
	while IFS=: read -r line _; do
		complain "$1" "$line" "wider than $WIDTH columns"
	done < <(prose "$1" | grep -nE ".{$((WIDTH + 1))}" | grep -v 'https\?://')
}

links() {
	local line link target path file
	while IFS=: read -r line link; do
		target=${link#*](}
		target=${target%)}
		[[ $target == *://* || $target == mailto:* ]] && continue
		path=${target%%#*}
		file=$(dirname "$1")/$path
		[[ -n $path ]] || file=$1
		if [[ ! -e $file ]]; then
			complain "$1" "$line" "link to $target, which does not exist"
		elif [[ $target == *#* && $file == *.md ]] && ! anchors "$file" | grep -xF -- "${target#*#}" >/dev/null; then
			complain "$1" "$line" "link to $target: no such heading"
		fi
	done < <(prose "$1" | grep -noE '\]\([^) ]+\)')
}

issues() {
	local line
	while IFS=: read -r line _; do
		complain "$1" "$line" "cites an issue by its number; readers have no list of issues"
	done < <(grep -niE '\bissues? #?[0-9]' "$1")
}

# What is in code, by line: fenced and indented blocks, and `spans`. Comments at a line's end are left out.
code() {
	awk '
		function out(text) { sub(/ +# .*/, "", text); print NR ":" text }
		/^ *```/ { fenced = !fenced; next }
		fenced || /^    / { out($0); next }
		{ n = split($0, part, "`"); for (i = 2; i <= n; i += 2) out(part[i]) }' "$1"
}

# Files and folders of the repository that are named as code.
paths() {
	local line path
	while IFS=: read -r line path; do
		compgen -G "$path" >/dev/null || complain "$1" "$line" "no $path in the repository"
	done < <(code "$1" | sed -nE 's/^([0-9]+):((crates|scripts|packaging)\/[A-Za-z0-9_.*\/-]+)$/\1:\2/p')
}

HOST=" $(commands crates/entrain/src/main.rs Command | tr '\n' ' ') "
LAB=" $(commands "$(git grep -l "enum LabCommand {" -- crates)" LabCommand | tr '\n' ' ') "
TARGETS=" $(sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' Makefile | tr '\n' ' ') "
EXPERIMENTS=" $(git ls-files -co --exclude-standard ':(glob)crates/*/experiments/*.toml' | sed 's|.*/||; s|\.toml$||' | tr '\n' ' ') "
OPTIONS=" $(grep -rhA1 --include='*.rs' '#\[arg(' crates | grep -oE 'long = "[a-z-]+"|^ *(pub )?[a-z_]+:' |
	sed 's/^long = "//; s/[": ]//g; s/^pub//; s/_/-/g' | sort -u | tr '\n' ' ') help version "

known() { [[ $1 == *" $2 "* ]]; } # LIST WORD

# One piece of code that begins with the name of one of the project's programs.
command_line() { # FILE LINE WORDS...
	local file=$1 line=$2 words=("${@:3}") word option
	if [[ ${words[0]} == entrain && ${words[1]:-} =~ ^[a-z]+$ ]] && ! known "$HOST" "${words[1]}"; then
		complain "$file" "$line" "no command 'entrain ${words[1]}'"
	fi
	if [[ ${words[1]:-} == lab && ${words[2]:-} =~ ^[a-z]+$ ]] && ! known "$LAB" "${words[2]}"; then
		complain "$file" "$line" "no command 'entrain lab ${words[2]}'"
	fi
	if [[ ${words[1]:-} == lab && ${words[2]:-} == run && ${words[3]:-} =~ ^[a-z-]+$ ]] &&
		! known "$EXPERIMENTS" "${words[3]}"; then
		complain "$file" "$line" "no experiment '${words[3]}'"
	fi
	for word in "${words[@]:1}"; do
		[[ $word == -- || $word == '|' || $word == '&&' || $word == ';' ]] && return
		[[ $word =~ ^--([a-z-]+) ]] || continue
		option=${BASH_REMATCH[1]}
		known "$OPTIONS" "$option" || complain "$file" "$line" "no option --$option of ${words[0]}"
	done
}

names() {
	local line text words
	while IFS=: read -r line text; do
		read -ra words <<<"${text#"${text%%[![:space:]]*}"}"
		if [[ ${words[0]:-} == '$' ]]; then words=("${words[@]:1}"); fi
		case ${words[0]:-} in
		entrain | entrain-guest | entrain-lab | entrain-load) command_line "$1" "$line" "${words[@]}" ;;
		make)
			[[ ! ${words[1]:-} =~ ^[a-z-]+$ ]] || known "$TARGETS" "${words[1]}" ||
				complain "$1" "$line" "no target 'make ${words[1]}'"
			;;
		esac
	done < <(code "$1")
}

[[ $HOST == *" host "* && $LAB == *" run "* && $EXPERIMENTS == *" smoke "* && $OPTIONS == *" json "* ]] ||
	{ echo "check-docs: the sources look different; mend this script" >&2; exit 1; }
for file in "${FILES[@]}"; do
	[[ -e $file ]] || continue
	width "$file"
	links "$file"
	issues "$file"
	names "$file"
	paths "$file"
done
[[ $failed -eq 0 ]] && echo "${#FILES[@]} Markdown files are in order"
exit "$failed"
