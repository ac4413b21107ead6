#!/usr/bin/env bash
# Builds the Debian packages: entrain (hosts) and entrain-guest (the agent alone), for the architecture of the programs.
#
#   scripts/package.sh BINARIES OUTPUT [REVISION]
#
# BINARIES is a folder with the programs entrain and entrain-guest, OUTPUT takes the packages. NATIVE=PROGRAM is an entrain of
# the same version that runs here, for manuals and completions, where those in BINARIES do not. Programs are static, so the
# packages depend on nothing. The same input gives the same bytes (SOURCE_DATE_EPOCH: the last commit's time).
set -euo pipefail

[[ $# -ge 2 ]] || { sed -n '2,7p' "$0" >&2; exit 2; }
binaries=$(cd "$1" && pwd) revision=${3:-1}
repo=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
native=${NATIVE:-$binaries/entrain}
version=$("$native" --version | cut -d' ' -f2)-$revision
# By the program's ELF header (e_machine), not by where this runs.
case $(od -An -t u2 -j 18 -N 2 "$binaries/entrain" | tr -d ' ') in
62) arch=amd64 strip=x86_64-linux-gnu-strip ;;
183) arch=arm64 strip=aarch64-linux-gnu-strip ;;
*) echo "package: $binaries/entrain is for no architecture that is known here" >&2; exit 1 ;;
esac
command -v "$strip" >/dev/null || strip=llvm-strip-19
command -v "$strip" >/dev/null || strip=strip
stage=$(mktemp -d "${TMPDIR:-/tmp}/entrain-package-XXXXXX")
trap 'rm -rf "$stage"' EXIT
umask 022

# A program, without the symbols that only a debugger needs.
program() { install -D -m 755 "$binaries/$1" "$stage/$2/usr/bin/$1"; "$strip" --strip-unneeded "$stage/$2/usr/bin/$1" 2>/dev/null || echo "package: $1 keeps its symbols: $strip cannot strip $arch" >&2; }
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
man=$stage/entrain/usr/share/man
"$native" generate man "$man/man1"
# Daemons are in section 8. The manual of `entrain guest` is that of entrain-guest; both packages may be on one machine, so
# only one has it.
mkdir -p "$man/man8" "$stage/entrain-guest/usr/share/man/man8"
mv "$man/man1/entrain-guest.8" "$stage/entrain-guest/usr/share/man/man8/"
mv "$man"/man1/*.8 "$man/man8/"
"$native" generate completions "$stage/completions"
install -D -m 644 "$stage/completions/entrain.bash" "$stage/entrain/usr/share/bash-completion/completions/entrain"
install -D -m 644 "$stage/completions/_entrain" "$stage/entrain/usr/share/zsh/vendor-completions/_entrain"
install -D -m 644 "$stage/completions/entrain.fish" "$stage/entrain/usr/share/fish/vendor_completions.d/entrain.fish"
file packaging/systemd/entrain-host.service entrain/usr/lib/systemd/system/entrain-host.service
file packaging/debian/entrain-host.default entrain/etc/default/entrain-host
file packaging/debian/host.toml entrain/etc/entrain/host.toml
file packaging/prometheus/entrain.rules.yml entrain/usr/share/entrain/prometheus/entrain.rules.yml
file packaging/grafana/entrain.json entrain/usr/share/entrain/grafana/entrain.json
file packaging/proxmox/entrain-hook entrain/usr/share/entrain/proxmox/entrain-hook
file packaging/libvirt/entrain-hook entrain/usr/share/entrain/libvirt/entrain-hook
file packaging/cloud-init/entrain-guest.yaml entrain/usr/share/entrain/cloud-init/entrain-guest.yaml
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
