# What the tests of the packages share outside of the root that they install in; sourced by them.
# Sets name, repo, mirror and room, a folder that goes when the test ends.
# shellcheck shell=bash
name=$(basename "$0" .sh)
repo=$(cd "$(dirname "$0")/.." && pwd)
[[ $(id -u) == 0 ]] || { echo "$name: run as root" >&2; exit 1; }
mirror=$("$repo/scripts/toolchain.sh" mirror)
[[ -n $mirror ]] || { echo "$name: apt knows no Debian mirror; run apt-get update" >&2; exit 1; }
room=$(mktemp -d "${TMPDIR:-/tmp}/entrain-$name-XXXXXX")
trap 'rm -rf --one-file-system "$room"' EXIT
# One time for all: somebody may commit meanwhile.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

# same AGAIN FOLDER: the packages in AGAIN, of the same input, are those in FOLDER
same() {
    local built
    for built in "$1"/*; do
        cmp "$built" "$2/${built##*/}" || { echo "$name: built twice, ${built##*/} differs" >&2; exit 1; }
    done
}

# Runs test.sh in the root, with checks.sh beside it.
test_root() {
    cp "$repo/scripts/package-test/checks.sh" "$room/root/"
    unshare --mount --pid --fork --kill-child bash -euc '
        mount -t proc proc "$1/proc"
        mount --rbind /sys "$1/sys"
        exec chroot "$1" /usr/bin/env -i TEST="$0" HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -eu /test.sh
    ' "$name" "$room/root"
    echo "$name: passed"
}
