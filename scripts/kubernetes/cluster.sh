#!/usr/bin/env bash
# Starts etcd, the API server, controllers and scheduler, and, for node, the machine; then tries what test.sh says. In
# namespaces of its own (run.sh): what is started here ends with it.
#
#   scripts/kubernetes/cluster.sh api|node CACHE ROOM
set -euo pipefail
what=$1 cache=$2 room=$3
here=$(cd "$(dirname "$0")" && pwd)
tools=$(realpath "$cache/tools")
export PATH=$cache/programs/amd64:$PATH KUBECONFIG=$room/admin.conf HOME=$room
say() { echo "kubernetes: $*"; }
# Waits for N seconds at most until a command succeeds, or something that was started has ended.
started=0
within() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS > end)); then say "not in time: $what" >&2; return 1; fi
        if (($(jobs -rp | wc -l) < started)); then say "something has ended, waiting for: $what" >&2; return 1; fi
        sleep 1
    done
}
mount --bind "$room" "$tools/mnt"
mount --rbind /dev "$tools/dev"
mount -t proc proc "$tools/proc"
tool() { chroot "$tools" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C "$@"; }
tool ip link set lo up
# The API server's service: there is no kube-proxy.
tool ip addr add 10.70.0.1/32 dev lo
tool ip tuntap add node0 mode tap
tool ip addr add 10.50.0.1/24 dev node0
tool ip link set node0 up
tool ip route add 10.60.0.0/24 via 10.50.0.2

# Three who may come: the operator, the node, and the controllers.
token() { od -An -tx1 -N16 /dev/urandom | tr -d ' \n'; }
admin=$(token) node=$(token)
printf '%s,admin,1,system:masters\n%s,system:node:node1,2,system:nodes\n' "$admin" "$node" >"$room/tokens"
openssl genrsa -out "$room/account.key" 2048 2>/dev/null
cat >"$KUBECONFIG" <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.50.0.1", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $admin}}]
contexts: [{name: c, context: {cluster: c, user: admin}}]
current-context: c
CONFIG

say "starting the control plane"
tool etcd --data-dir /mnt/etcd --log-level error --unsafe-no-fsync --listen-peer-urls http://127.0.0.1:2380 \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380 \
    >"$room/log/etcd.log" 2>&1 &
started=1
# The kubelet's certificate is its own; its network is this one.
kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --advertise-address=10.50.0.1 --secure-port=443 \
    --cert-dir="$room/certs" --token-auth-file="$room/tokens" --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --allow-privileged=true --service-cluster-ip-range=10.70.0.0/24 \
    --service-account-key-file="$room/account.key" --service-account-signing-key-file="$room/account.key" \
    --service-account-issuer=https://kubernetes.default.svc --kubelet-preferred-address-types=InternalIP \
    >"$room/log/apiserver.log" 2>&1 &
started=2
within 300 "the API server answers" kubectl get --raw /readyz
kube-controller-manager --kubeconfig="$KUBECONFIG" --service-account-private-key-file="$room/account.key" \
    --root-ca-file="$room/certs/apiserver.crt" --use-service-account-credentials --node-monitor-grace-period=10m --leader-elect=false --bind-address=127.0.0.1 \
    >"$room/log/controllers.log" 2>&1 &
kube-scheduler --kubeconfig="$KUBECONFIG" --leader-elect=false --bind-address=127.0.0.1 >"$room/log/scheduler.log" 2>&1 &
started=4
within 120 "the controllers have made the default service account" kubectl -n default get serviceaccount default

# shellcheck source=scripts/kubernetes/test-api.sh
. "$here/test-api.sh"
if [[ $what == api ]]; then say "passed"; exit 0; fi

say "booting the node (aarch64, emulated)"
tool qemu-system-aarch64 -name node1 -accel tcg,thread=multi -M virt,virtualization=on,gic-version=3 -cpu neoverse-n1 \
    -smp 2 -m 3072 -nodefaults -no-user-config -display none -no-reboot -serial file:/mnt/log/node.log \
    -kernel /mnt/kernel -initrd /mnt/initrd -drive file=/mnt/disk,format=raw,if=none,id=disk,cache=unsafe \
    -device virtio-blk-pci,drive=disk -netdev tap,id=net,ifname=node0,script=no,downscript=no -device virtio-net-pci,netdev=net,romfile= \
    -device virtio-rng-pci \
    -append "console=ttyAMA0 nokaslr kpti=off mitigations=off watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 panic=-1 net.ifnames=0 systemd.unit=node.target systemd.show_status=no node.token=$node" \
    >"$room/log/qemu.log" 2>&1 &
started=5
within 900 "the node is ready" kubectl wait --for=condition=Ready node/node1 --timeout=1s
# shellcheck source=scripts/kubernetes/test-node.sh
. "$here/test-node.sh"
say "passed"
