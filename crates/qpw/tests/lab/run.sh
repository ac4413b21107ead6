#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Builds the module for Debian's PREEMPT_RT kernel with `entrain isolate qpw build`, boots that kernel in the lab and
# runs drain.sh (who waits for whom) and stress.sh (drains and CPU hotplug) in it. As root; some minutes.
#
#   crates/qpw/tests/lab/run.sh [cli] [drain] [hot] [stress] [stress-stock]     default: cli drain hot stress
set -euo pipefail
repo=$(cd "$(dirname "$0")/../../../.." && pwd)
here=$repo/crates/qpw/tests/lab
cache=${XDG_CACHE_HOME:-$HOME/.cache}/entrain
work=$cache/qpw
entrain=${ENTRAIN:-$repo/target/release/entrain}
# Another program may serve as the lab: a debug build makes large images.
lab=${LAB:-$entrain}
# The command is a hidden one until `isolate` has its own place.
tool() { "$repo/scripts/toolchain.sh" run "$@"; }

# Headers as the lab fetches kernels: a private apt tree with the system's mirror, keys and proxies.
headers() {
    local apt=$work/apt mirror
    release=$(basename "$(echo "$cache"/lab/kernels/rt-amd64/usr/lib/modules/*)")
    if [[ -e $work/$release/tree/.complete ]]; then return; fi
    mirror=$(apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)' 'Created-By: Packages' |
        sed -n 's/|Debian|Debian$//p' | head -1)
    mkdir -p "$apt"/{lists/partial,cache/archives/partial,state,empty} "$work/$release/debs" "$work/$release/tree"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
        "$mirror" trixie "$mirror" trixie-backports > "$apt/sources.list"
    {
        printf 'APT::Architecture "amd64"; APT::Architectures { "amd64"; }; APT::Sandbox::User "root";\n'
        printf 'Debug::NoLocking "true"; Acquire::Languages "none"; Dir::State "%s/state";\n' "$apt"
        printf 'Dir::State::lists "%s/lists"; Dir::State::status "%s/status"; Dir::Cache "%s/cache";\n' "$apt" "$apt" "$apt"
        printf 'Dir::Etc::parts "%s/empty"; Dir::Etc::main "/dev/null"; Dir::Etc::sourcelist "%s/sources.list";\n' "$apt" "$apt"
        printf 'Dir::Etc::sourceparts "%s/empty"; Dir::Etc::preferencesparts "%s/empty";\n' "$apt" "$apt"
        apt-config dump | grep -E '^Acquire::(http|https|Retries|ForceIPv)' || true
    } > "$apt/apt.conf"
    : > "$apt/status"
    local version=${release%-rt-amd64}
    (
        cd "$work/$release/debs"
        export APT_CONFIG=$apt/apt.conf
        apt-get -q update > /dev/null
        apt-get -q download "linux-headers-$release" "linux-headers-$version-common" "linux-kbuild-$version"
        for deb in *.deb; do dpkg-deb -x "$deb" "$work/$release/tree"; done
    )
    touch "$work/$release/tree/.complete"
}

# The compiler is the toolchain's; the headers are laid over it, since they name one another by absolute paths.
build() {
    local out=$work/$release/module
    mkdir -p "$out" "$work/$release"/{up,ovl,root}
    unshare --mount bash -euc '
        toolchain=$1 tree=$2 dir=$3 entrain=$4 release=$5
        mount -t overlay overlay -o "lowerdir=$tree:$toolchain,upperdir=$dir/up,workdir=$dir/ovl" "$dir/root"
        mkdir -p "$dir/root/out"
        mount --bind "$dir/module" "$dir/root/out"
        mount -t proc proc "$dir/root/proc"
        mount --rbind /dev "$dir/root/dev"
        cp "$entrain" "$dir/root/entrain"
        exec chroot "$dir/root" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin \
            /entrain isolate qpw build --release "$release" --headers "/usr/src/linux-headers-$release" --out /out
    ' build "$("$repo/scripts/toolchain.sh" path)" "$work/$release/tree" "$work/$release" "$entrain" "$release"
    # Debugging information is of no use in the machine.
    tool strip -g -o "$work/entrain_qpw.ko" "$out/entrain_qpw.ko"
    tool strip -o "$work/entrain" "$entrain"
    tool gcc -O1 -Wall -Wextra -static -o "$work/probe" "$here/probe.c"
}

# One boot. Kernel parameters as docs/lab.md gives them for RT, and two isolated CPUs.
machine() {
    {
        printf '%%put %s /tmp/entrain\n' "$work/entrain"
        printf '%%put %s /tmp/probe\n%%put %s /tmp/q.ko\n' "$work/probe" "$work/entrain_qpw.ko"
        printf '%%put %s /tmp/drain.sh\n%%put %s /tmp/hot.sh\n%%put %s /tmp/stress.sh\nchmod +x /tmp/probe\n' "$here/drain.sh" "$here/hot.sh" "$here/stress.sh"
        printf 'chmod +x /tmp/entrain\n'
        printf '%s\n' "$1"
    } | "$lab" lab shell --arch x86_64 --rt --guests 0 --pcpus 4 --memory 1024 \
        --append isolcpus=nohz,domain,2-3 --append nohz_full=2-3 --append rcu_nocbs=2-3
}

[[ $# -gt 0 ]] || set -- cli drain hot stress
"$lab" lab images --arch x86_64 --rt
headers
build
for what; do
    case $what in
    drain) machine 'sh /tmp/drain.sh /tmp/probe /tmp/q.ko' ;;
    cli)
        machine "/tmp/entrain isolate qpw load --module /tmp/q.ko && /tmp/entrain isolate qpw status && /tmp/entrain isolate qpw unload && ! /tmp/entrain isolate qpw unload"
        ;;
    stress) machine "sh /tmp/stress.sh /tmp/probe /tmp/q.ko ${SECONDS_OF_STRESS:-60}" ;;
    hot) machine "sh /tmp/hot.sh /tmp/probe /tmp/q.ko" ;;
    stress-stock) machine "sh /tmp/stress.sh /tmp/probe none ${SECONDS_OF_STRESS:-60}" ;;
    *) sed -n 3,7p "$0" >&2; exit 2 ;;
    esac
done
