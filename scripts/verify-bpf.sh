#!/usr/bin/env bash
# Has the kernel's verifier look at the BPF programs of the working copy, in half a minute and without a build: compiles
# them as the build does, boots the lab's host machine without guests, and loads them there.
#
#   scripts/verify-bpf.sh [ARCH…]     aarch64 (default), x86_64; needs a lab that was built once (make lab)
#
# Of the schedulers: observe.bpf.c wants what the daemon finds out first (which tracepoints KVM has on this architecture).
# Constants that the daemon sets before loading have their defaults here, so that branches for what a host has besides
# (x86's kinds of virtualization) are left out: `make complexity` and the lab's smoke load them as the daemon does.
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/verify
lab=target/release/entrain-lab
[[ -x $lab ]] || lab=$(command -v entrain-lab) || { echo "verify-bpf: no entrain-lab; run 'make build'" >&2; exit 1; }
headers=$(find target -path '*entrain-host-*/out/include' -type d -print -quit)
[[ -n $headers ]] || { echo "verify-bpf: libbpf's headers are not laid out; run 'make build'" >&2; exit 1; }
mkdir -p "$out"
compile() { # SIDE NAME OBJECT
    scripts/toolchain.sh run clang-19 -target bpf -D__TARGET_ARCH_x86 -g -O2 -mcpu=v3 -Wall -Werror \
        -Wno-unused-function -idirafter /usr/include/x86_64-linux-gnu -I "$headers" -I crates/bpf/include \
        -I crates/channel/include -I crates/policy/include -c "crates/$1/src/bpf/$2.bpf.c" -o "$out/$3"
}
compile host sched sched.bpf.o
compile guest sched guest.bpf.o
compile guest spins spins.bpf.o
for arch in "${@:-aarch64}"; do
    {
        for object in sched guest spins; do echo "%put $out/$object.bpf.o /tmp/$object.bpf.o"; done
        echo "bpftool struct_ops register /tmp/sched.bpf.o && echo taken: the scheduler of hosts"
        echo "bpftool struct_ops unregister name entrain_ops || true"
        echo "bpftool struct_ops register /tmp/guest.bpf.o && echo taken: the scheduler of guests"
        echo "bpftool prog loadall /tmp/spins.bpf.o /sys/fs/bpf/spins autoattach && echo taken: who spins"
    } | "$lab" shell --arch "$arch" --guests 0 --program bpftool
done
