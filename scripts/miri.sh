#!/usr/bin/env bash
# Runs the channel's tests under Miri, which checks its `unsafe` code for undefined behaviour. Miri is a part of nightly
# compilers only, which the toolchain (Debian's) has none of: rustup's is used where there is one, else that is said and
# nothing is run.
#
#   rustup toolchain install nightly --profile minimal -c miri -c rust-src
#   scripts/miri.sh [TEST…]
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri: SKIPPED, there is no nightly compiler with Miri: rustup toolchain install nightly --profile minimal -c miri -c rust-src"
    exit 0
fi
# Few random cases: each is interpreted, a hundred times slower than it runs. Files are the computer's own.
PROPTEST_CASES=${PROPTEST_CASES:-4} MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation" CARGO_TARGET_DIR=target/miri \
    cargo +nightly miri test --locked --package entrain-channel --lib -- "$@"
