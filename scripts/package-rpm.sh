#!/usr/bin/env bash
# Builds the RPM packages of programs that are built already, by rpmbuild (Debian's package rpm, or the system's own).
#
#   scripts/package-rpm.sh BINARIES OUTPUT [RELEASE]
#
# RELEASE is rpm's, instead of 1. The same input gives the same bytes (SOURCE_DATE_EPOCH: the last commit's time).
set -euo pipefail
[[ $# -ge 2 ]] || { sed -n '2,6p' "$0" >&2; exit 2; }
binaries=$(cd "$1" && pwd)
repo=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$2" "$repo/target"
output=$(cd "$2" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
command -v rpmbuild >/dev/null || "$repo/scripts/setup.sh" rpm
room=$(mktemp -d "$repo/target/package-XXXXXX")
trap 'rm -rf "$room"' EXIT
case $(od -An -t u2 -j 18 -N 2 "$binaries/entrain" | tr -d ' ') in
62) cpu=x86_64 ;;
183) cpu=aarch64 ;;
*) echo "package-rpm: $binaries/entrain is for no architecture that is known here" >&2; exit 1 ;;
esac
mkdir "$room/bin"
cp "$binaries/entrain" "$binaries/entrain-guest" "$room/bin/"
(cd "$repo" && scripts/toolchain.sh run llvm-strip-19 --strip-unneeded "$room/bin/entrain" "$room/bin/entrain-guest")
for package in entrain entrain-guest; do
    (cd "$repo" && scripts/toolchain.sh run scripts/copyright.sh $package $cpu-unknown-linux-gnu) >"$room/bin/$package.copyright"
done
# --nodeps: rpm's own database knows nothing of a system of another kind. Debian's rpm has no default for this folder.
rpmbuild -bb --nodeps --quiet --target "$cpu" --define "_topdir $room/rpm" --define "binaries $room/bin" --define "sources $repo" \
    --define "native ${NATIVE:-$binaries/entrain}" --define "_mandir /usr/share/man" --define "_bindir /usr/bin" \
    --define "release_number ${3:-1}" --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
    "$repo/packaging/rpm/entrain.spec"
find "$room/rpm/RPMS" -name '*.rpm' -exec mv -t "$output" {} +
ls -l "$output"/*.rpm
