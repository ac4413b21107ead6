#!/usr/bin/env bash
# Builds the Debian packages entrain (hosts) and entrain-guest (the agent alone) of programs that are built already, by
# debhelper, for the architecture of the programs.
#
#   scripts/package.sh BINARIES OUTPUT [REVISION]
#
# BINARIES is a folder with the programs entrain and entrain-guest, OUTPUT takes the packages. NATIVE=PROGRAM is an entrain of
# the same version that runs here, for manuals and completions, where those in BINARIES do not. REVISION is Debian's, instead
# of that in debian/changelog. The same input gives the same bytes (SOURCE_DATE_EPOCH: the last commit's time).
# An SBOM that lies in target/sbom.cdx.json (make sbom) is shipped.
set -euo pipefail

[[ $# -ge 2 ]] || { sed -n '2,11p' "$0" >&2; exit 2; }
binaries=$(cd "$1" && pwd) revision=${3:-}
repo=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
native=${NATIVE:-$binaries/entrain}
native=$(realpath "$native")
"$repo/scripts/setup.sh" packages
# By the program's ELF header (e_machine), not by where this runs.
case $(od -An -t u2 -j 18 -N 2 "$binaries/entrain" | tr -d ' ') in
62) arch=amd64 cpu=x86_64 ;;
183) arch=arm64 cpu=aarch64 ;;
*) echo "package: $binaries/entrain is for no architecture that is known here" >&2; exit 1 ;;
esac
umask 022
# Where the toolchain sees it, and each build alone.
mkdir -p "$repo/target"
room=$(mktemp -d "$repo/target/package-XXXXXX")
trap 'rm -rf "$room"' EXIT
stage=$room/entrain
mkdir "$stage" "$stage/bin"
cp -r "$repo/debian" "$repo/packaging" "$repo/docs" "$stage/"
cp "$repo"/{README.md,CHANGELOG.md,SECURITY.md,LICENSE} "$stage/"
# The stored results are for the project's own tools; their pages are there.
rm -f "$stage"/docs/results/*.json*
if [[ -e $repo/target/sbom.cdx.json ]]; then cp "$repo/target/sbom.cdx.json" "$stage/"; else sed -i '/sbom/d' "$stage/debian/entrain.docs"; fi
cp "$binaries/entrain" "$binaries/entrain-guest" "$stage/bin/"
toolchain() { (cd "$repo" && scripts/toolchain.sh run "$@"); }
# Without the symbols that only a debugger needs.
toolchain llvm-strip-19 --strip-unneeded "$stage/bin/entrain" "$stage/bin/entrain-guest"
for package in entrain entrain-guest; do
    toolchain scripts/copyright.sh $package $cpu-unknown-linux-gnu >"$stage/debian/$package.copyright"
done
# The program's version is the package's; debian/changelog is told when the project's changes.
version=$("$native" --version | cut -d' ' -f2)
grep -q "^entrain ($version-" "$stage/debian/changelog" || {
    echo "package: debian/changelog does not begin with version $version" >&2; exit 1; }
if [[ -n $revision ]]; then sed -i "1s/($version-[^)]*)/($version-$revision)/" "$stage/debian/changelog"; fi
find "$stage" -print0 | xargs -0 touch -h -d "@$SOURCE_DATE_EPOCH"
(cd "$stage" && BINARIES=$stage/bin NATIVE=$native STRIP=true DEB_BUILD_OPTIONS=nocheck \
    dpkg-buildpackage --build=binary --unsigned-changes --unsigned-buildinfo --no-check-builddeps --host-arch "$arch" \
    >"$room/log" 2>&1) || { tail -n 30 "$room/log" >&2; exit 1; }
for deb in "$room"/*.deb; do
    mv "$deb" "$output/"
    echo "$output/${deb##*/}: $(stat -c %s "$output/${deb##*/}") bytes"
done
