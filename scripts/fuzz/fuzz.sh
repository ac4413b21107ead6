#!/usr/bin/env bash
# Coverage-guided fuzzing of every parser of bytes that a guest, a VMM or a user chooses (docs/fuzzing.md).
#
# All inside the toolchain (scripts/toolchain.sh run), whose libraries the program is linked to:
#
#   scripts/fuzz/fuzz.sh build            build the targets
#   scripts/fuzz/fuzz.sh run [TARGET…]    run them, as many at a time as there are CPUs; all where none is named
#   scripts/fuzz/fuzz.sh merge [TARGET…]  take into crates/fuzz/corpus what earlier runs found and that adds coverage
#
# FUZZ_SECONDS: for each target (60). FUZZ_TOTAL: bound for all of them together (240); less time for each where they
# would take longer. Inputs found stay in target/fuzz/TARGET, inputs that break something in target/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${FUZZ_SECONDS:-60} total=${FUZZ_TOTAL:-240}
program=target/x86_64-unknown-linux-gnu/debug/entrain-fuzz
corpus=crates/fuzz/corpus

build() {
    # libFuzzer itself is C++; its compiler is the toolchain's clang.
    RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/fuzz/rustc.sh ENTRAIN_FUZZ=1 CXX_x86_64_unknown_linux_gnu=clang++-19 \
        cargo build --locked --package entrain-fuzz --features libfuzzer
}

# Read-only inputs beside the corpus: files of the project that have the target's form.
beside() {
    case $1 in
    experiment) echo crates/lab/experiments ;;
    esac
}

one() {
    local name=$1 log=target/fuzz/$1.log status=0
    mkdir -p "target/fuzz/$name" target/fuzz/found
    # shellcheck disable=SC2046
    # Threads that wait when the process ends hold their memory.
    ASAN_OPTIONS=detect_leaks=0 ENTRAIN_FUZZ_TARGET=$name "$program" -detect_leaks=0 -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
        -print_final_stats=1 -artifact_prefix="target/fuzz/found/$name-" \
        "target/fuzz/$name" "$corpus/$name" $(beside "$name") >"$log" 2>&1 || status=$?
    if ((status)); then
        echo "fuzz: $name: FAILED; the input is in target/fuzz/found; the end of $log:" >&2
        tail -n 40 "$log" >&2
        return 1
    fi
    awk -v name="$name" '/ cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
        /stat::number_of_executed_units/ { runs = $2 }
        END { printf "fuzz: %-11s %9d runs, %5d edges\n", name, runs, cov }' "$log"
}

merge() {
    local name=$1 new=target/fuzz/merged/$1
    rm -rf "$new"
    mkdir -p "$new" "target/fuzz/$name"
    ASAN_OPTIONS=detect_leaks=0 ENTRAIN_FUZZ_TARGET=$name "$program" -merge=1 -max_len=2048 "$new" "$corpus/$name" "target/fuzz/$name" \
        >"target/fuzz/$name-merge.log" 2>&1
    # What is kept must be small: the shortest inputs, as many as docs/fuzzing.md says.
    find "$new" -type f -size -4k -printf '%s %p\n' | sort -n | head -n 48 | while read -r _ file; do
        cp "$file" "$corpus/$name/"
    done
}

command=${1:-}
shift || true
# The folders are the list: the test `corpus` holds them against the targets of crates/fuzz.
mapfile -t targets < <(if (($#)); then printf '%s\n' "$@"; else ls "$corpus"; fi)
case $command in
build) build ;;
run)
    jobs=$(nproc)
    each=$((total * jobs / ${#targets[@]}))
    if ((each < seconds)); then
        echo "fuzz: ${#targets[@]} targets, $jobs at a time: $each s for each, so that all end within $total s"
        seconds=$each
    fi
    export seconds program corpus
    export -f one beside
    printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I '{}' bash -euo pipefail -c 'one "$1"' fuzz '{}'
    ;;
merge) for name in "${targets[@]}"; do merge "$name"; done ;;
*)
    sed -n '2,12p' "$0" >&2
    exit 2
    ;;
esac
