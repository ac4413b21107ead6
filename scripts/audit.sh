#!/usr/bin/env bash
# Checks the dependencies by deny.toml, inside the toolchain: licences, sources, bans, and known vulnerabilities where
# their database can be had. cargo-deny is built once into the cache (some minutes), from the registry, by its own lock file.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.20.2
tools=${XDG_CACHE_HOME:-$HOME/.cache}/entrain/tools
deny=$tools/bin/cargo-deny

if [[ $("$deny" --version 2>/dev/null) != "cargo-deny $version" ]]; then
    echo "audit: building cargo-deny $version into $tools"
    # Its own settings for a release (one unit, link-time optimisation of everything) take longer than all its work here ever will.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        CARGO_TARGET_DIR=$tools/build cargo install --locked --no-default-features --quiet \
        --root "$tools" --version "$version" cargo-deny
    rm -rf "$tools/build"
fi
"$deny" --log-level warn check licenses sources bans

# The database is a git repository on the network. Without it the rest still counts, and that it is missing is said.
if log=$("$deny" --log-level warn fetch db 2>&1); then
    "$deny" --log-level warn check --disable-fetch advisories
else
    echo "audit: known vulnerabilities: SKIPPED, their database cannot be fetched: $(tail -n 1 <<<"$log")"
fi
