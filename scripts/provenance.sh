#!/usr/bin/env bash
# What is built here: the commit, and a digest of the schedulers' sources. The lab writes both into its results.
#
#   scripts/provenance.sh               both, a line each
#   scripts/provenance.sh schedulers    the digest alone
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

# Names and code of all that decides how the schedulers schedule: a comment or a line's break makes no result old. In the
# guest the followed loads run beside none of ours.
schedulers() {
	find crates/bpf/include crates/host/src/bpf crates/guest/src/bpf crates/policy/include -type f -name '*.[ch]' \
		! -name 'loads.bpf.c' -print0 | sort -z | xargs -0 perl -0777 -ne '
			s{/\*.*?\*/|//[^\n]*}{ }gs; s/\s*([^\w\s])\s*/$1/g; s/\s+/ /g; print "$ARGV\n$_\n"' | sha256sum | cut -c1-16
}

case ${1:-} in
schedulers) schedulers ;;
'')
	echo "commit $(git describe --always --abbrev=12 --dirty --exclude '*' 2>/dev/null || echo unknown)"
	echo "schedulers $(schedulers)"
	;;
*) echo "usage: $0 [schedulers]" >&2; exit 2 ;;
esac
