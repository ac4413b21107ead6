#!/bin/sh
# cargo's RUSTC_WORKSPACE_WRAPPER for `make fuzz`: compiles the workspace's own crates with the coverage that libFuzzer
# reads, optimised and with all checks. Libraries and build scripts stay as they are and are shared with other builds.
set -eu
case " $* " in
*" --target "*) ;;
*) exec "$@" ;;
esac
# Linked dynamically, unlike the rest of the project: libFuzzer puts itself before memcmp and the like and asks the
# dynamic linker for the real ones. Of two opposite settings rustc follows the positive one, so it is replaced.
for argument; do
    shift
    [ "$argument" != target-feature=+crt-static ] || argument=target-feature=-crt-static
    set -- "$@" "$argument"
done
exec "$@" -C opt-level=2 -C debug-assertions=on -C overflow-checks=on -C passes=sancov-module \
    -C llvm-args=-sanitizer-coverage-level=4 -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
    -C llvm-args=-sanitizer-coverage-pc-table -C llvm-args=-sanitizer-coverage-trace-compares
