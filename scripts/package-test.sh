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
# shellcheck source=scripts/package-test/room.sh
. "$(dirname "$0")/package-test/room.sh"
"$repo/scripts/package.sh" "$binaries" "$room/debs" 1
"$repo/scripts/package.sh" "$binaries" "$room/debs" 2
"$repo/scripts/package.sh" "$binaries" "$room/again" 2 >/dev/null
same "$room/again" "$room/debs"
arch=$(dpkg-deb --field "$room"/debs/entrain_*-1_*.deb Architecture)
if [[ $arch != $(dpkg --print-architecture) ]]; then "$repo/scripts/setup.sh" foreign; fi
echo "$name: base Debian $suite, $arch"
mmdebstrap --quiet --variant=minbase --format=directory --architectures="$arch" "$suite" "$room/root" "deb $mirror $suite main"
mkdir "$room/root/debs"
cp "$room"/debs/*.deb "$room/root/debs/"

cat >"$room/root/test.sh" <<'TEST'
. /checks.sh
everything /var/lib/dpkg >/tmp/before

dpkg -i /debs/entrain_*-1_*.deb /debs/entrain-guest_*-1_*.deb >/dev/null
say "installed: $(dpkg-query -W -f '${Package} ${Version}; ' 'entrain*')"
programs_run
for file in /usr/lib/systemd/system/entrain-host.service /usr/share/bash-completion/completions/entrain \
    /usr/share/doc/entrain/copyright /usr/share/entrain/ignition/entrain-guest.bu; do
    # minbase may leave documentation out.
    dpkg -L entrain | sed 's,^/lib/,/usr/lib/,' | grep -qx $file || fail "$file is missing"
done
for page in entrain.1 entrain-host.8 entrain-top.1 entrain-trial.1 entrain-doctor.1 entrain-guest.8; do
    # minbase has no manuals, and dpkg leaves them out where it is told to.
    dpkg -L entrain entrain-guest | grep -q "/man${page##*.}/$page.gz" || fail "no manual $page"
done

operator_configures
dpkg -i --force-confold /debs/entrain_*-2_*.deb /debs/entrain-guest_*-2_*.deb >/dev/null
# A unit that systemd would run is asked of deb-systemd-invoke, which goes by policy-rc.d.
grep -q 'deb-systemd-invoke try-restart .*entrain-host' /var/lib/dpkg/info/entrain.postinst || fail "upgrades restart nothing"
grep -q 'deb-systemd-invoke stop entrain-host' /var/lib/dpkg/info/entrain.prerm || fail "a removal stops nothing"
if grep -q 'systemctl.*restart\|systemctl.*start ' /var/lib/dpkg/info/entrain*.p*; then fail "not by policy-rc.d"; fi
say "upgraded: $(dpkg-query -W -f '${Package} ${Version}; ' 'entrain*')"
operators_configuration_is_kept

dpkg -r entrain entrain-guest >/dev/null
[ -e /etc/entrain/host.toml ] || fail "removal took the configuration"
if [ -e /usr/bin/entrain ] || [ -e /usr/bin/entrain-guest ]; then fail "removal left a program"; fi
dpkg -P entrain entrain-guest >/dev/null
nothing_is_left /var/lib/dpkg
say "removed and purged: nothing is left"
TEST
test_root
