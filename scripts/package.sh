#!/usr/bin/env bash
# Builds the Debian packages: entrain (hosts) and entrain-guest (the agent alone).
#
#   scripts/package.sh BINARIES OUTPUT [REVISION]
#
# BINARIES is a folder with the programs entrain and entrain-guest, OUTPUT takes the packages. Programs are static, so the
# packages depend on nothing. The same input gives the same bytes (SOURCE_DATE_EPOCH: the last commit's time).
set -euo pipefail

[[ $# -ge 2 ]] || { sed -n '2,7p' "$0" >&2; exit 2; }
binaries=$(cd "$1" && pwd) revision=${3:-1}
repo=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
version=$("$binaries/entrain" --version | cut -d' ' -f2)-$revision
arch=$(dpkg --print-architecture)
stage=$(mktemp -d "${TMPDIR:-/tmp}/entrain-package-XXXXXX")
trap 'rm -rf "$stage"' EXIT
umask 022

# A program, without the symbols that only a debugger needs.
program() { install -D -m 755 "$binaries/$1" "$stage/$2/usr/bin/$1"; strip --strip-unneeded "$stage/$2/usr/bin/$1" 2>/dev/null || true; }
file() { install -D -m 644 "$repo/$1" "$stage/$2"; }

common() { # package
    file LICENSE "$1/usr/share/doc/$1/copyright"
    file CHANGELOG.md "$1/usr/share/doc/$1/changelog"
    gzip -9n "$stage/$1/usr/share/doc/$1/changelog"
    find "$stage/$1/usr/share/man" -type f -exec gzip -9n {} +
}

# Sizes, checksums, scripts; then the package. Units are neither enabled nor started: that is the operator's word.
finish() { # package, unit, description, conffiles…
    local package=$1 unit=$2 description=$3 dir=$stage/$1
    shift 3
    mkdir -p "$dir/DEBIAN"
    (cd "$dir" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    printf '%s\n' "$@" >"$dir/DEBIAN/conffiles"
    cat >"$dir/DEBIAN/control" <<CONTROL
Package: $package
Version: $version
Architecture: $arch
Maintainer: The Entrain project <entrain@localhost>
Installed-Size: $(du -k -s --apparent-size "$dir" | cut -f1)
Section: admin
Priority: optional
Description: $description
CONTROL
    cat >"$dir/DEBIAN/postinst" <<POSTINST
#!/bin/sh
set -e
if [ "\$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # An upgrade: what ran goes on, as the new version.
    if [ -n "\$2" ]; then systemctl try-restart $unit; fi
fi
POSTINST
    cat >"$dir/DEBIAN/prerm" <<PRERM
#!/bin/sh
set -e
if [ "\$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now $unit; fi
PRERM
    cat >"$dir/DEBIAN/postrm" <<POSTRM
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "\$1" = purge ]; then rm -rf /run/entrain; fi
POSTRM
    chmod 755 "$dir/DEBIAN/postinst" "$dir/DEBIAN/prerm" "$dir/DEBIAN/postrm"
    find "$dir" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch -h -d "@$SOURCE_DATE_EPOCH"
    dpkg-deb --root-owner-group -Zxz --build "$dir" "$output" >/dev/null
    echo "$output/${package}_${version}_$arch.deb: $(stat -c %s "$output/${package}_${version}_$arch.deb") bytes"
}

program entrain entrain
"$binaries/entrain" generate man "$stage/entrain/usr/share/man/man1"
# The manual of `entrain guest` is that of entrain-guest; both packages may be on one machine, so only one has it.
mkdir -p "$stage/entrain-guest/usr/share/man/man1"
mv "$stage/entrain/usr/share/man/man1/entrain-guest.1" "$stage/entrain-guest/usr/share/man/man1/"
"$binaries/entrain" generate completions "$stage/completions"
install -D -m 644 "$stage/completions/entrain.bash" "$stage/entrain/usr/share/bash-completion/completions/entrain"
install -D -m 644 "$stage/completions/_entrain" "$stage/entrain/usr/share/zsh/vendor-completions/_entrain"
install -D -m 644 "$stage/completions/entrain.fish" "$stage/entrain/usr/share/fish/vendor_completions.d/entrain.fish"
file packaging/systemd/entrain-host.service entrain/usr/lib/systemd/system/entrain-host.service
file packaging/debian/entrain-host.default entrain/etc/default/entrain-host
file packaging/debian/host.toml entrain/etc/entrain/host.toml
file packaging/prometheus/entrain.rules.yml entrain/usr/share/entrain/prometheus/entrain.rules.yml
file packaging/grafana/entrain.json entrain/usr/share/entrain/grafana/entrain.json
common entrain
finish entrain entrain-host.service "host and guest schedulers in step, on stock kernels
 Finds the VMs of a KVM host, pairs with their guests, and shows and tells who
 waits for whom. Off until entrain-host.service is started." \
    /etc/default/entrain-host /etc/entrain/host.toml

program entrain-guest entrain-guest
file packaging/systemd/entrain-guest.service entrain-guest/usr/lib/systemd/system/entrain-guest.service
file packaging/debian/entrain-guest.default entrain-guest/etc/default/entrain-guest
common entrain-guest
finish entrain-guest entrain-guest.service "host and guest schedulers in step: the agent of a guest
 Tells the KVM host about this virtual machine, and the machine about its host.
 Off until entrain-guest.service is started." \
    /etc/default/entrain-guest
