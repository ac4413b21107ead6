#!/usr/bin/env bash
# Writes the list of what is linked into the programs, for programs: CycloneDX, JSON. Runs in the toolchain, at packaging time
# alone. cargo-cyclonedx is built once into the cache (some minutes), from the registry, by its own lock file.
#
#   scripts/toolchain.sh run scripts/sbom.sh OUTPUT
set -euo pipefail
[[ $# == 1 ]] || { sed -n '2,6p' "$0" >&2; exit 2; }
output=$(realpath "$1")
cd "$(dirname "$0")/.."
version=0.5.9
tools=${XDG_CACHE_HOME:-$HOME/.cache}/entrain/tools
program=$tools/bin/cargo-cyclonedx
if [[ $("$program" cyclonedx --version 2>/dev/null) != *" $version" ]]; then
    echo "sbom: building cargo-cyclonedx $version into $tools"
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        CARGO_TARGET_DIR=$tools/build-cyclonedx cargo install --locked --quiet --root "$tools" --version "$version" cargo-cyclonedx
    rm -rf "$tools/build-cyclonedx"
fi
"$program" cyclonedx --manifest-path crates/entrain/Cargo.toml --format json --spec-version 1.5 \
    --target x86_64-unknown-linux-gnu --no-build-deps --override-filename entrain-sbom >/dev/null
# It writes one beside the manifest of every crate of the workspace.
mv crates/entrain/entrain-sbom.json "$output"
find crates -name entrain-sbom.json -delete
echo "$output: $(grep -c '"purl"' "$output") components"
