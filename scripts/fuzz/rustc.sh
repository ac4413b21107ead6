#!/bin/sh
# cargo's RUSTC_WORKSPACE_WRAPPER for `make fuzz`: compiles the workspace's own crates with the coverage that libFuzzer
# reads and with the address sanitizer, optimised and with all checks. Libraries and build scripts stay as they are and
# are shared with other builds.
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
# The sanitizer is an unstable option of the stable compiler. Its runtime is the C compiler's, whose entry points are the
# same; it must come first among the libraries.
export RUSTC_BOOTSTRAP=1
exec "$@" -C opt-level=2 -C debug-assertions=on -C overflow-checks=on -C passes=sancov-module \
    -C llvm-args=-sanitizer-coverage-level=4 -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
    -C llvm-args=-sanitizer-coverage-pc-table -C llvm-args=-sanitizer-coverage-trace-compares \
    -Zsanitizer=address -Zexternal-clangrt -Zpre-link-arg=-Wl,--push-state,--no-as-needed -Zpre-link-arg=-lasan \
    -Zpre-link-arg=-Wl,--pop-state
