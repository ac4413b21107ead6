#!/usr/bin/env bash
# Builds the RPM packages twice, has rpmlint read them, and installs, runs, upgrades and erases them by rpm in a root with a
# package database of rpm's own, looking whether anything is left.
#
#   scripts/package-rpm-test.sh BINARIES
#
# BINARIES is a folder with the programs, as for scripts/package-rpm.sh. No distribution with RPM can be had from Debian's
# archive: the root's files are Debian's, what it lacks of RPM's world (dependencies) is not asked for.
# Needs root, mmdebstrap and apt's mirror.
set -euo pipefail

[[ $# == 1 ]] || { sed -n '2,9p' "$0" >&2; exit 2; }
binaries=$(cd "$1" && pwd)
repo=$(cd "$(dirname "$0")/.." && pwd)
[[ $(id -u) == 0 ]] || { echo "package-rpm-test: run as root" >&2; exit 1; }
"$repo/scripts/setup.sh" rpm
mirror=$("$repo/scripts/toolchain.sh" mirror)
[[ -n $mirror ]] || { echo "package-rpm-test: apt knows no Debian mirror; run apt-get update" >&2; exit 1; }

room=$(mktemp -d "${TMPDIR:-/tmp}/entrain-rpm-test-XXXXXX")
trap 'rm -rf --one-file-system "$room"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
"$repo/scripts/package-rpm.sh" "$binaries" "$room/1" 1
"$repo/scripts/package-rpm.sh" "$binaries" "$room/2" 2
"$repo/scripts/package-rpm.sh" "$binaries" "$room/again" 2 >/dev/null
for rpm in "$room"/again/*.rpm; do
    cmp "$rpm" "$room/2/${rpm##*/}" || { echo "package-rpm-test: built twice, ${rpm##*/} differs" >&2; exit 1; }
done
rpm --checksig --nosignature "$room"/2/*.rpm
# Its answer is its status: errors fail, warnings are read.
rpmlint --config "$repo/packaging/rpm/rpmlint.toml" "$room"/2/*.rpm

echo "package-rpm-test: base Debian bookworm with rpm"
mmdebstrap --quiet --variant=minbase --format=directory --include=rpm bookworm "$room/root" "deb $mirror bookworm main"
cp -r "$room/1" "$room/2" "$room/root/"

cat >"$room/root/test.sh" <<'TEST'
set -eu
say() { echo "package-rpm-test: $*"; }
fail() { echo "package-rpm-test: FAILED: $*" >&2; exit 1; }
everything() {
    find / -xdev \( -path /proc -o -path /sys -o -path /var/lib/rpm -o -path /var/log -o -path /tmp \) -prune -o -print | sort
}
# Debian's rpm asks that one says that this is meant, and keeps its database in the user's home; scripts may need a shell, and
# no package of this root's has told rpm that there is one.
install() { rpm "$@" --force-debian --nodeps --dbpath /var/lib/rpm; }
ask() { rpm --dbpath /var/lib/rpm "$@"; }
rpmdb --initdb --dbpath /var/lib/rpm
# A folder of distributions with RPM, which belongs to their base.
mkdir -p /usr/share/licenses
everything >/tmp/before

install -i /1/*.rpm
say "installed: $(ask -qa 'entrain*' | sort | tr '\n' ' ')"
ask -V --nodeps entrain entrain-guest || fail "files are not as the packages say"
entrain --version
entrain-guest --version
entrain host --check-config --config /etc/entrain/host.toml
# 0 and 1 are answers; 2 would mean that it could not look.
entrain doctor --role host >/tmp/doctor || [ $? = 1 ] || fail "doctor"
head -1 /tmp/doctor
for file in /usr/lib/systemd/system/entrain-host.service /usr/share/bash-completion/completions/entrain \
    /usr/share/licenses/entrain/linked /usr/share/entrain/libvirt/entrain-hook /usr/share/man/man8/entrain-host.8.gz \
    /usr/share/doc/entrain/README.md; do
    [ -e $file ] || fail "$file is missing"
done
[ -x /usr/share/entrain/libvirt/entrain-hook ] || fail "libvirt would not run the hook"
[ ! -e /etc/systemd/system/multi-user.target.wants/entrain-host.service ] || fail "the unit was enabled unasked"

echo 'default = "batch"' >>/etc/entrain/host.toml
install -U /2/*.rpm
say "upgraded: $(ask -qa 'entrain*' | sort | tr '\n' ' ')"
grep -q '^default = "batch"' /etc/entrain/host.toml || fail "the upgrade lost the operator's configuration"
entrain host --check-config --config /etc/entrain/host.toml | grep -q "default 'batch'" || fail "configuration"

install -e entrain entrain-guest
# What the operator has changed stays, under the name that rpm gives it.
[ -e /etc/entrain/host.toml.rpmsave ] || fail "erasing took the configuration"
rm -r /etc/entrain
everything >/tmp/after
diff /tmp/before /tmp/after || fail "these are left"
say "erased: nothing is left"
TEST
unshare --mount --pid --fork --kill-child bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    exec chroot "$1" /usr/bin/env -i HOME=/root LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin sh /test.sh
' package-rpm-test "$room/root"
echo "package-rpm-test: passed"
