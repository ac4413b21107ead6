#!/usr/bin/env bash
# Runs packaging/kubernetes in a real cluster: API server, controllers and scheduler on this computer, and a node (kubelet,
# containerd, Linux with EL2) in an emulated aarch64 machine, whose pods are Entrain's DaemonSet and VMs laid out as KubeVirt's.
#
#   scripts/kubernetes/run.sh api [PROGRAM]       the manifests against the API server alone: a minute
#   scripts/kubernetes/run.sh node [PROGRAM]      the same, and the node: some fifteen minutes, emulated
#
# PROGRAM is entrain for aarch64 (make build).
# KEEP=FOLDER keeps the logs there. The first time Kubernetes is built from its Go module: half an hour, 4 GB of disk
# in the cache, and Go's own.
# Needs root (for namespaces of its own: nothing outside of them is touched), mmdebstrap, and Go 1.24 or newer.
set -euo pipefail
what=${1:-}
[[ $what == api || $what == node ]] || { sed -n '2,12p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
program=${2:-$repo/target/aarch64-unknown-linux-gnu/release/entrain}
[[ $(id -u) == 0 ]] || { echo "kubernetes: run as root" >&2; exit 1; }
[[ $what == api || -x $program ]] || { echo "kubernetes: no $program: make build" >&2; exit 1; }
"$repo/scripts/setup.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/entrain/kubernetes
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
"$here/programs.sh" "$cache" "$what"
room=$(mktemp -d "${TMPDIR:-/tmp}/entrain-kubernetes-XXXXXX")
trap 'if [[ -n ${KEEP:-} ]]; then mkdir -p "$KEEP"; cp -r "$room"/log/. "$KEEP"; fi; rm -rf --one-file-system "$room"' EXIT
mkdir "$room/log"
if [[ $what == node ]]; then unshare --mount "$here/node.sh" "$cache" "$room" "$(realpath "$program")"; fi
# All that is started ends with this: a namespace of processes ends with its first.
unshare --mount --net --pid --fork --kill-child --mount-proc "$here/cluster.sh" "$what" "$cache" "$room" || {
    status=$?
    tail -n 5 "$room"/log/*.log >&2
    exit $status
}
