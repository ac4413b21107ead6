#!/usr/bin/env bash
# The build toolchain: a Debian trixie root in the user's cache, so that one pair of compilers
# builds every program for both architectures on Debian 12 and 13 alike, and nothing of it is
# installed on the system.
#
#   scripts/toolchain.sh ensure        make the root if it is missing or out of date
#   scripts/toolchain.sh run CMD…      run CMD inside it, in the current folder
#   scripts/toolchain.sh path          print where it is
#   scripts/toolchain.sh mirror        print the Debian mirror that apt is configured with
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/entrain
repo=$(cd "$(dirname "$0")/.." && pwd)

# Trixie's own rustc is older than our dependencies ask for; the one that Debian keeps for its web browsers is not, and
# is of one version on both architectures. That of backports differs between them for as long as one is still to be
# built, and nothing can be installed meanwhile.
rust=(rustc-web cargo-web rust-web-clippy rustfmt-web libstd-rust-web-dev libstd-rust-web-dev:arm64)
native=(gcc libc6-dev make pkg-config ca-certificates git)
cross=(gcc-aarch64-linux-gnu libc6-dev:arm64)
# libbpf-sys builds its own libelf and zlib: Debian's static libelf lacks a part of itself (libeu).
# Build scripts use the system's, dynamically.
libelf=(autoconf automake autopoint bison flex gawk gettext libtool libelf-dev zlib1g-dev)
bpf=(clang-19 llvm-19 clang-format-19 bpftool)

packages() {
    printf '%s\n' "${rust[@]}" "${native[@]}" "${cross[@]}" "${libelf[@]}" "${bpf[@]}"
}

# The root's name carries a digest of its package list: a changed list makes a new root.
root() { printf '%s/toolchain-%s' "$cache" "$(packages | sha256sum | cut -c1-12)"; }

# The mirror that apt is configured with, as the running system names it.
mirror() {
    apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(CODENAME)' 'Created-By: Packages' |
        awk -F'|' '$2 == "Debian" && $3 == "Debian" { print $1; exit }'
}

ensure() {
    local dir tmp uri
    dir=$(root)
    if [[ -e $dir/.complete ]]; then return; fi
    command -v mmdebstrap >/dev/null || {
        echo "toolchain: mmdebstrap is missing; run 'make setup' or 'apt-get install mmdebstrap' as root" >&2
        exit 1
    }
    uri=$(mirror)
    [[ -n $uri ]] || {
        echo "toolchain: apt knows no Debian mirror; run 'apt-get update' and try again" >&2
        exit 1
    }
    mkdir -p "$cache"
    # Two builds at once: the second waits for the first and finds the root complete.
    exec 9>"$cache/.toolchain.lock"
    flock 9
    if [[ -e $dir/.complete ]]; then return; fi
    echo "toolchain: building $dir from Debian trixie (about 2 GB, some minutes)"
    tmp=$(mktemp -d "$cache/toolchain-part-XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf --one-file-system '$tmp'" EXIT
    mmdebstrap --quiet --variant=apt --architectures=amd64,arm64 \
        --include="$(packages | paste -sd,)" \
        --aptopt='Apt::Install-Recommends "false"' \
        trixie "$tmp" "deb $uri trixie main"
    chmod 755 "$tmp"
    touch "$tmp/.complete"
    rm -rf "$dir"
    mv "$tmp" "$dir"
    trap - EXIT
    # Roots of earlier package lists are of no use to this one.
    find "$cache" -maxdepth 1 -name 'toolchain-*' ! -path "$dir" -exec rm -rf --one-file-system {} +
    flock -u 9
}

# Runs a command in the root with the repository, the cache and /dev, /proc, /sys from outside. The mounts live
# in a mount namespace of their own and vanish with the command.
run() {
    local dir unshare=(unshare --mount)
    dir=$(root)
    [[ -e $dir/.complete ]] || ensure
    [[ $(id -u) == 0 ]] || unshare=(unshare --user --map-root-user --mount)
    # A cargo home of our own: the user's may hold another toolchain's subcommands, which cargo would prefer.
    # The user's settings (mirrors, proxies) hold all the same.
    local settings=${CARGO_HOME:-$HOME/.cargo}/config.toml
    export CARGO_HOME=$cache/cargo
    mkdir -p "$CARGO_HOME"
    if [[ -e $settings ]]; then cp "$settings" "$CARGO_HOME/config.toml"; fi
    exec "${unshare[@]}" bash -euc '
        root=$1 repo=$2 cache=$3 pwd=$4
        shift 4
        for d in "$repo" "$cache" /dev /proc /sys; do
            mkdir -p "$root$d"
            mount --rbind "$d" "$root$d"
        done
        # The system'"'"'s own certificate authorities and name service are the user'"'"'s choice here too.
        if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then mount --bind /etc/ssl/certs "$root/etc/ssl/certs"; fi
        cat /etc/resolv.conf > "$root/etc/resolv.conf" 2>/dev/null || true
        cat /etc/hosts > "$root/etc/hosts" 2>/dev/null || true
        exec chroot "$root" /usr/bin/env -C "$pwd" PATH=/usr/lib/llvm-19/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
    ' toolchain "$dir" "$repo" "$cache" "$PWD" "$@"
}

case ${1:-} in
ensure) ensure ;;
run) shift; run "$@" ;;
path) root; echo ;;
mirror) mirror ;;
*) sed -n '2,11p' "$0" >&2; exit 2 ;;
esac
