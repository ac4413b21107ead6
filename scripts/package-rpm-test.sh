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
# shellcheck source=scripts/package-test/room.sh
. "$(dirname "$0")/package-test/room.sh"
"$repo/scripts/setup.sh" rpm
"$repo/scripts/package-rpm.sh" "$binaries" "$room/1" 1
"$repo/scripts/package-rpm.sh" "$binaries" "$room/2" 2
"$repo/scripts/package-rpm.sh" "$binaries" "$room/again" 2 >/dev/null
same "$room/again" "$room/2"
rpm --checksig --nosignature "$room"/2/*.rpm
# Its answer is its status: errors fail, warnings are read.
rpmlint --config "$repo/packaging/rpm/rpmlint.toml" "$room"/2/*.rpm

echo "$name: base Debian bookworm with rpm"
mmdebstrap --quiet --variant=minbase --format=directory --include=rpm bookworm "$room/root" "deb $mirror bookworm main"
cp -r "$room/1" "$room/2" "$room/root/"

cat >"$room/root/test.sh" <<'TEST'
. /checks.sh
# Debian's rpm asks that one says that this is meant, and keeps its database in the user's home; scripts may need a shell, and
# no package of this root's has told rpm that there is one.
install() { rpm "$@" --force-debian --nodeps --dbpath /var/lib/rpm; }
ask() { rpm --dbpath /var/lib/rpm "$@"; }
rpmdb --initdb --dbpath /var/lib/rpm
# A folder of distributions with RPM, which belongs to their base.
mkdir -p /usr/share/licenses
everything /var/lib/rpm >/tmp/before

install -i /1/*.rpm
say "installed: $(ask -qa 'entrain*' | sort | tr '\n' ' ')"
ask -V --nodeps entrain entrain-guest || fail "files are not as the packages say"
programs_run
for file in /usr/lib/systemd/system/entrain-host.service /usr/share/bash-completion/completions/entrain \
    /usr/share/licenses/entrain/linked /usr/share/entrain/libvirt/entrain-hook /usr/share/man/man8/entrain-host.8.gz \
    /usr/share/doc/entrain/README.md; do
    [ -e $file ] || fail "$file is missing"
done

operator_configures
install -U /2/*.rpm
say "upgraded: $(ask -qa 'entrain*' | sort | tr '\n' ' ')"
operators_configuration_is_kept

install -e entrain entrain-guest
# What the operator has changed stays, under the name that rpm gives it.
[ -e /etc/entrain/host.toml.rpmsave ] || fail "erasing took the configuration"
rm -r /etc/entrain
nothing_is_left /var/lib/rpm
say "erased: nothing is left"
TEST
test_root
