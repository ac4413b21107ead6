#!/usr/bin/env bash
# Builds Kubernetes' programs and Helm, once, from their Go modules, and unpacks etcd and QEMU from Debian: what run.sh needs.
#
#   scripts/kubernetes/programs.sh CACHE api|node
set -euo pipefail
# A minor release whose kubelet runs beside Debian 13's containerd 1.7.
kubernetes=1.34.4 helm=3.18.6 operator=0.85.0
cache=$1 what=$2
repo=$(cd "$(dirname "$0")/../.." && pwd)
mirror=$("$repo/scripts/toolchain.sh" mirror)
[[ -n $mirror ]] || { echo "kubernetes: apt knows no Debian mirror; run apt-get update" >&2; exit 1; }
programs=$cache/programs-$kubernetes
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-mod=mod
# One go at a time: two cores are enough for it.
version="k8s.io/component-base/version"
flags="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=34"

# Kubernetes' own module names the parts that it is published in by paths of its checkout; these are they.
module() {
    local mod
    mkdir -p "$programs/module"
    cd "$programs/module"
    printf 'module node\n\ngo 1.24.0\n' >go.mod
    mod=$(go mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
    # shellcheck disable=SC2046
    go mod edit -require="k8s.io/kubernetes@v$kubernetes" \
        $(awk -v v="v0.${kubernetes#1.}" '$2 == "v0.0.0" { print "-replace=" $1 "=" $1 "@" v }' "$mod")
}
# build ARCH PROGRAM
build() {
    [[ ! -x $programs/$1/$2 ]] || return 0
    command -v go >/dev/null || { echo "kubernetes: Go is missing (Debian 13: apt-get install golang-go)" >&2; exit 1; }
    [[ -e $programs/module/go.mod ]] || module
    cd "$programs/module"
    echo "kubernetes: building $2 for $1"
    GOARCH=$1 go build -ldflags "$flags" -o "$programs/$1/$2" "k8s.io/kubernetes/cmd/$2"
}
for program in kube-apiserver kube-controller-manager kube-scheduler kubectl; do build amd64 $program; done
if [[ $what == node ]]; then build arm64 kubelet; fi
if [[ ! -x $programs/amd64/helm ]]; then
    echo "kubernetes: building helm $helm"
    GOFLAGS='' GOBIN=$programs/amd64 go install -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@v$helm"
fi
# The definitions of PodMonitor and PrometheusRule.
if [[ ! -e $programs/operator.yaml ]]; then
    cd "$programs/module"
    folder=$(go mod download -json "github.com/prometheus-operator/prometheus-operator@v$operator" |
        sed -n 's/.*"Dir": "\(.*\)",/\1/p')
    for kind in podmonitors prometheusrules; do
        cat "$folder/example/prometheus-operator-crd/monitoring.coreos.com_$kind.yaml"
    done >"$programs/operator.part"
    mv "$programs/operator.part" "$programs/operator.yaml"
fi
ln -sfn "programs-$kubernetes" "$cache/programs"

# root NAME VARIANT ARCH SUITES PACKAGES...
root() {
    local name=$1 variant=$2 arch=$3 sources=("deb $mirror trixie main")
    if [[ $4 == backports ]]; then sources+=("deb $mirror trixie-backports main"); fi
    shift 4
    local key
    key=$name-$(printf '%s\n' "$variant" "$arch" "$@" | sha256sum | cut -c1-12)
    if [[ ! -e $cache/$key/.complete ]]; then
        echo "kubernetes: unpacking Debian's packages for $name"
        rm -rf --one-file-system "$cache/$name"-*
        mmdebstrap --quiet --variant="$variant" --architectures="$arch" --aptopt='Apt::Install-Recommends "false"' \
            --include="$(IFS=,; echo "$*")" trixie "$cache/$key" "${sources[@]}"
        touch "$cache/$key/.complete"
    fi
    ln -sfn "$key" "$cache/$name"
}
root tools apt amd64 release etcd-server qemu-system-arm iproute2 e2fsprogs cpio kmod xz-utils openssl
if [[ $what == node ]]; then
    # Of another architecture: unpacked only; node.sh does the little that installing would.
    root node extract arm64 backports linux-image-arm64/trixie-backports systemd systemd-sysv kmod mount util-linux bash dash \
        coreutils base-files base-passwd libc-bin procps iproute2 containerd runc containernetworking-plugins \
        qemu-system-arm busybox-static
fi
