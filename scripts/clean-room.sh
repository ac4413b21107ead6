#!/usr/bin/env bash
# Runs a make target as a newcomer would: base Debian, empty cache, fresh clone of HEAD.
#
#   scripts/clean-room.sh [bookworm|trixie] [make targets, default: lab test]
#
# The base system has nothing but git and make beyond Debian's minimum. It is made in a temporary folder and removed.
set -euo pipefail

suite=${1:-bookworm}
shift || true
targets=("${@:-}")
[[ -n ${targets[0]} ]] || targets=(lab test)
repo=$(cd "$(dirname "$0")/.." && pwd)
[[ $(id -u) == 0 ]] || { echo "clean-room: run as root" >&2; exit 1; }
command -v mmdebstrap >/dev/null || "$repo/scripts/setup.sh"

mirror=$("$repo/scripts/toolchain.sh" mirror)
[[ -n $mirror ]] || { echo "clean-room: apt knows no Debian mirror; run apt-get update" >&2; exit 1; }

room=$(mktemp -d "${TMPDIR:-/tmp}/entrain-clean-room-XXXXXX")
trap 'rm -rf --one-file-system "$room"' EXIT
echo "clean-room: base Debian $suite in $room"
mmdebstrap --quiet --variant=minbase --include=ca-certificates,make,git "$suite" "$room/root" "deb $mirror $suite main"

# The machine's own certificate authorities and resolver: what an installed system would have.
cp /etc/resolv.conf "$room/root/etc/resolv.conf"
if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then
    cp /etc/ssl/certs/ca-certificates.crt "$room/root/etc/ssl/certs/"
fi
git clone -q "$repo" "$room/root/root/entrain"

unshare --mount --pid --fork --kill-child bash -euc '
    root=$1; shift
    # A mount point of its own, as the root of a system is: what runs inside makes mount namespaces, too.
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}" CI="${CI:-}" \
        make -C /root/entrain "$@"
' clean-room "$room/root" "${targets[@]}"
