#!/usr/bin/env bash
# Prints the copyright file of a package: debian/copyright, and what is linked into its programs, each crate with its
# licence, its copyright lines and the licences' texts, as they lie in the sources that were built. Runs in the toolchain.
#
#   scripts/toolchain.sh run scripts/copyright.sh PACKAGE TRIPLE       PACKAGE: entrain, entrain-guest
set -euo pipefail
[[ $# == 2 ]] || { sed -n '2,6p' "$0" >&2; exit 2; }
package=$1 triple=$2
cd "$(dirname "$0")/.."
texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT

cat debian/copyright
# Names of versions are folders below the registry's sources.
crates=$(cargo tree --locked --target "$triple" --package "$package" --edges normal --prefix none --no-dedupe \
    --format '{p}|{l}' | grep -v '(/' | sort -u)
sources=$(echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/)
while IFS='|' read -r crate license; do
    name=${crate%% *} version=${crate#* v}
    version=${version%% *}
    folder=
    for source in $sources; do [[ -d $source$name-$version ]] && folder=$source$name-$version; done
    [[ -n $folder ]] || { echo "copyright: no sources of $name $version" >&2; exit 1; }
    files=$(find "$folder" -maxdepth 2 -type f \( -iname 'license*' -o -iname 'copying*' -o -iname 'copyright*' \
        -o -iname 'unlicense*' \) ! -name '*.rs' | sort)
    printf '\nFiles: %s-%s (linked)\nCopyright:\n' "$name" "$version"
    holders=
    if [[ -n $files ]]; then
        holders=$(tr '\n' '\0' <<<"$files" | xargs -0 grep -hoiE '^[ *#/]*copyright( \(c\)| ©|:| [0-9]{4}).*' | sed 's/^[ *#/]*/ /' | sort -u | head -20 || true)
    fi
    [[ -n $holders ]] || holders=" $(sed -n 's/^authors = \[\(.*\)\]/\1/p' "$folder/Cargo.toml" | head -1)"
    [[ $holders == " " ]] && holders=" the authors of $name"
    printf '%s\nLicense: %s\n' "$holders" "$license"
    while read -r file; do
        [[ -n $file ]] || continue
        sum=$(sha256sum <"$file" | cut -c1-16)
        [[ -e $texts/$sum ]] || cp "$file" "$texts/$sum"
        printf '%s\n' "$name-$version/${file#"$folder"/}" >>"$texts/$sum.of"
    done <<<"$files"
done <<<"$crates"

# Programs are static: the standard library of Rust and the C library are in them as well.
for library in libstd-rust-dev libc6-dev libgcc-*-dev; do
    for file in /usr/share/doc/$library/copyright; do
        [[ -e $file ]] || continue
        sum=$(sha256sum <"$file" | cut -c1-16)
        cp "$file" "$texts/$sum"
        printf '%s\n' "Debian's $(basename "$(dirname "$file")"), linked statically" >>"$texts/$sum.of"
    done
done
for of in "$texts"/*.of; do
    printf '\nLicense: text-%s\nComment: of %s\n' "$(basename "$of" .of)" "$(paste -sd' ' <"$of")"
    sed 's/[ \t\r]*$//; s/^$/./; s/^/ /' "${of%.of}"
done
