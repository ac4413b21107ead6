#!/usr/bin/env bash
# Makes the node's disk with all that it runs, and the initramfs that finds it. In a mount namespace of its own.
#
#   scripts/kubernetes/node.sh CACHE ROOM PROGRAM
set -euo pipefail
cache=$1 room=$2 binary=$3
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
node=$room/node tools=$(realpath "$cache/tools")
mount --bind "$room" "$tools/mnt"
# mke2fs looks there.
: >"$tools/etc/mtab"
tool() { chroot "$tools" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C "$@"; }
put() { install -D -m "${3:-644}" "$here/node/$1" "$node/$2"; }

echo "kubernetes: making the node's disk"
cp -a --reflink=auto "$(realpath "$cache/node")" "$node"
release=$(basename "$node"/usr/lib/modules/*)
tool depmod -b /mnt/node "$release"
cp "$node/usr/lib/modules/$release/vmlinuz" "$room/kernel"
# What installing would have done of what is needed here.
cp "$node/usr/share/base-passwd/passwd.master" "$node/etc/passwd"
cp "$node/usr/share/base-passwd/group.master" "$node/etc/group"
printf '%032x\n' 24 >"$node/etc/machine-id"
echo node1 >"$node/etc/hostname"
printf '127.0.0.1 localhost\n10.50.0.2 node1\n' >"$node/etc/hosts"
# Minutes on an emulated machine, and nobody needs it.
ln -s /dev/null "$node/etc/systemd/system/systemd-hwdb-update.service"
: >"$node/etc/fstab"
rm -f "$node/etc/resolv.conf"
echo 'nameserver 127.0.0.1' >"$node/etc/resolv.conf"
install -D -m 755 "$cache/programs/arm64/kubelet" "$node/usr/bin/kubelet"
put containerd.toml etc/containerd/config.toml
put network.conflist etc/cni/net.d/10-pods.conflist
put kubelet.yaml etc/kubernetes/kubelet.yaml
put start usr/lib/node/start 755
put node.service etc/systemd/system/node.service
put node.target etc/systemd/system/node.target
put launch usr/lib/node/launch 755
# Two guests' kernel, and an initramfs with the agent and work to do.
mkdir -p "$node/usr/lib/node/guest" "$room/guest/usr/bin"
ln "$room/kernel" "$node/usr/lib/node/guest/kernel"
cp "$node/usr/bin/busybox" "$room/guest/usr/bin/"
cp "$binary" "$room/guest/usr/bin/entrain"
install -m 755 "$here/node/guest-init" "$room/guest/init"
tool sh -c 'cd /mnt/guest && find . | cpio -o -H newc --quiet' >"$node/usr/lib/node/guest/initrd"

# Images: Entrain's as it is published; one of busybox for pods' pauses and for launchers, which get the node's /usr.
"$repo/packaging/kubernetes/image.sh" "$node/usr/lib/node/entrain.tar" "arm64=$binary"
# image NAME ENTRYPOINT: of the files in $room/layer
image() {
    local room=$room/image
    rm -rf "$room"
    mkdir "$room"
    tar -C "$layer" --owner=0 --group=0 -cf "$room/layer.tar" .
    printf '{"architecture":"arm64","os":"linux","config":{"Entrypoint":%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$2" "$(sha256sum <"$room/layer.tar" | cut -d' ' -f1)" >"$room/config.json"
    printf '[{"Config":"config.json","RepoTags":["localhost/%s"],"Layers":["layer.tar"]}]' "$1" >"$room/manifest.json"
    tar -C "$room" -cf "$node/usr/lib/node/${1%:*}.tar" .
    rm -rf "$layer"
}
layer=$room/layer
mkdir -p "$layer/usr/bin" "$layer/tmp"
cp "$node/usr/bin/busybox" "$layer/usr/bin/"
for link in bin lib sbin; do ln -s "usr/$link" "$layer/$link"; done
ln -s busybox "$layer/usr/bin/sh"
image busy:1 '["/usr/bin/busybox","sh","-c","while :; do busybox sleep 3600; done"]'

# The initramfs: the modules that find the disk, in the order of their dependencies.
early=$room/early
mkdir -p "$early/usr/bin" "$early/modules"
cp "$node/usr/bin/busybox" "$early/usr/bin/"
install -m 755 "$here/node/early-init" "$early/init"
for module in virtio_blk ext4; do tool modprobe -d /mnt/node -S "$release" --show-depends $module; done |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | nl -w 3 -n rz -s ' ' | while read -r number path; do
        xz -dc "$room/${path#/mnt/}" >"$early/modules/$number.ko"
    done
tool sh -c 'cd /mnt/early && find . | cpio -o -H newc --quiet' >"$room/initrd"
truncate -s 3G "$room/disk"
tool mke2fs -q -t ext4 -d /mnt/node -F /mnt/disk
rm -rf --one-file-system "$node" "$room/image" "$early" "$room/guest"
