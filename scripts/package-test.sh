#!/usr/bin/env bash
# Installs, runs, upgrades, removes and purges the packages in a clean Debian system, and looks whether anything is left.
#
#   scripts/package-test.sh BINARIES [bookworm|trixie]
#
# BINARIES is a folder with the programs, as for scripts/package.sh. Needs root, mmdebstrap and apt's mirror; for programs of
# another architecture qemu-user-static, registered with the kernel (binfmt_misc), and NATIVE as for scripts/package.sh.
set -euo pipefail

[[ $# -ge 1 ]] || { sed -n '2,7p' "$0" >&2; exit 2; }
binaries=$(cd "$1" && pwd) suite=${2:-bookworm}
repo=$(cd "$(dirname "$0")/.." && pwd)
[[ $(id -u) == 0 ]] || { echo "package-test: run as root" >&2; exit 1; }
mirror=$("$repo/scripts/toolchain.sh" mirror)
[[ -n $mirror ]] || { echo "package-test: apt knows no Debian mirror; run apt-get update" >&2; exit 1; }

room=$(mktemp -d "${TMPDIR:-/tmp}/entrain-package-test-XXXXXX")
trap 'rm -rf --one-file-system "$room"' EXIT
# One time for all: somebody may commit meanwhile.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
"$repo/scripts/package.sh" "$binaries" "$room/debs" 1
"$repo/scripts/package.sh" "$binaries" "$room/debs" 2
"$repo/scripts/package.sh" "$binaries" "$room/again" 2 >/dev/null
for deb in "$room"/again/*.deb; do
    cmp "$deb" "$room/debs/${deb##*/}" || { echo "package-test: built twice, ${deb##*/} differs" >&2; exit 1; }
done
arch=$(dpkg-deb --field "$room"/debs/entrain_*-1_*.deb Architecture)
if [[ $arch != $(dpkg --print-architecture) ]]; then "$repo/scripts/setup.sh" foreign; fi
echo "package-test: base Debian $suite, $arch"
mmdebstrap --quiet --variant=minbase --format=directory --architectures="$arch" "$suite" "$room/root" "deb $mirror $suite main"
mkdir "$room/root/debs"
cp "$room"/debs/*.deb "$room/root/debs/"

cat >"$room/root/test.sh" <<'TEST'
set -eu
say() { echo "package-test: $*"; }
fail() { echo "package-test: FAILED: $*" >&2; exit 1; }
everything() { find / -xdev \( -path /proc -o -path /sys -o -path /var/lib/dpkg -o -path /var/log -o -path /tmp \) -prune -o -print | sort; }
everything >/tmp/before

dpkg -i /debs/entrain_*-1_*.deb /debs/entrain-guest_*-1_*.deb >/dev/null
say "installed: $(dpkg-query -W -f '${Package} ${Version}; ' 'entrain*')"
entrain --version
entrain-guest --version
entrain host --check-config --config /etc/entrain/host.toml
# 0 and 1 are answers; 2 would mean that it could not look.
entrain doctor --role host >/tmp/doctor || [ $? = 1 ] || fail "doctor"
head -1 /tmp/doctor
for file in /usr/lib/systemd/system/entrain-host.service /usr/share/bash-completion/completions/entrain \
    /usr/share/doc/entrain/copyright /usr/share/entrain/ignition/entrain-guest.bu; do
    # minbase may leave documentation out.
    dpkg -L entrain | sed 's,^/lib/,/usr/lib/,' | grep -qx $file || fail "$file is missing"
done
[ -x /usr/share/entrain/libvirt/entrain-hook ] || fail "libvirt would not run the hook"
for page in entrain.1 entrain-host.8 entrain-top.1 entrain-trial.1 entrain-doctor.1 entrain-guest.8; do
    # minbase has no manuals, and dpkg leaves them out where it is told to.
    dpkg -L entrain entrain-guest | grep -q "/man${page##*.}/$page.gz" || fail "no manual $page"
done
[ ! -e /etc/systemd/system/multi-user.target.wants/entrain-host.service ] || fail "the unit was enabled unasked"

echo 'default = "batch"' >>/etc/entrain/host.toml
dpkg -i --force-confold /debs/entrain_*-2_*.deb /debs/entrain-guest_*-2_*.deb >/dev/null
# A unit that systemd would run is asked of deb-systemd-invoke, which goes by policy-rc.d.
grep -q 'deb-systemd-invoke try-restart .*entrain-host' /var/lib/dpkg/info/entrain.postinst || fail "upgrades restart nothing"
grep -q 'deb-systemd-invoke stop entrain-host' /var/lib/dpkg/info/entrain.prerm || fail "a removal stops nothing"
if grep -q 'systemctl.*restart\|systemctl.*start ' /var/lib/dpkg/info/entrain*.p*; then fail "not by policy-rc.d"; fi
say "upgraded: $(dpkg-query -W -f '${Package} ${Version}; ' 'entrain*')"
grep -q '^default = "batch"' /etc/entrain/host.toml || fail "the upgrade lost the operator's configuration"
entrain host --check-config --config /etc/entrain/host.toml | grep -q "default 'batch'" || fail "configuration"

dpkg -r entrain entrain-guest >/dev/null
[ -e /etc/entrain/host.toml ] || fail "removal took the configuration"
if [ -e /usr/bin/entrain ] || [ -e /usr/bin/entrain-guest ]; then fail "removal left a program"; fi
dpkg -P entrain entrain-guest >/dev/null
everything >/tmp/after
diff /tmp/before /tmp/after || fail "these are left"
say "removed and purged: nothing is left"
TEST
unshare --mount --pid --fork --kill-child bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    exec chroot "$1" /usr/bin/env -i HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        sh /test.sh
' package-test "$room/root"
echo "package-test: passed"
