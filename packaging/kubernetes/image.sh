#!/usr/bin/env bash
# Makes the container image of entrain host as an OCI layout in an archive, for all architectures whose programs are given,
# without a container engine. Programs are static: an image is the program alone.
#
#   packaging/kubernetes/image.sh OUTPUT.tar amd64=target/x86_64-unknown-linux-gnu/release/entrain \\
#       arm64=target/aarch64-unknown-linux-gnu/release/entrain
#   skopeo copy --all oci-archive:OUTPUT.tar docker://REGISTRY/entrain:0.1.0        # or: ctr images import OUTPUT.tar
set -euo pipefail
[[ $# -ge 2 ]] || { sed -n '2,8p' "$0" >&2; exit 2; }
output=$1
shift
repo=$(cd "$(dirname "$0")/../.." && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repo" log -1 --format=%ct)}
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$repo/Cargo.toml" | head -1)
room=$(mktemp -d "${TMPDIR:-/tmp}/entrain-image-XXXXXX")
trap 'rm -rf "$room"' EXIT
layout=$room/layout
mkdir -p "$layout/blobs/sha256"
# Moves a file among the blobs, under its digest; prints "sha256:DIGEST SIZE".
blob() {
    local sum
    sum=$(sha256sum <"$1" | cut -d' ' -f1)
    printf 'sha256:%s %s' "$sum" "$(stat -c %s "$1")"
    mv "$1" "$layout/blobs/sha256/$sum"
}
packed() { tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" "$@"; }
manifests=
for given in "$@"; do
    arch=${given%%=*} program=${given#*=}
    rm -rf "$room/root"
    install -D -m 755 "$program" "$room/root/usr/bin/entrain"
    install -D -m 644 "$repo/LICENSE" "$room/root/usr/share/licenses/entrain/LICENSE"
    packed -C "$room/root" -cf "$room/layer" .
    plain=sha256:$(sha256sum <"$room/layer" | cut -d' ' -f1)
    gzip -9n <"$room/layer" >"$room/layer.gz"
    read -r layer size <<<"$(blob "$room/layer.gz")"
    printf '{"created":"%s","architecture":"%s","os":"linux","config":{"Entrypoint":["/usr/bin/entrain"],"Cmd":["host"]},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
        "$created" "$arch" "$plain" >"$room/config"
    read -r config config_size <<<"$(blob "$room/config")"
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"%s","size":%s}],"annotations":{"org.opencontainers.image.licenses":"GPL-2.0-only","org.opencontainers.image.version":"%s"}}' \
        "$config" "$config_size" "$layer" "$size" "$version" >"$room/manifest"
    read -r manifest manifest_size <<<"$(blob "$room/manifest")"
    manifests+=${manifests:+,}$(printf '{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"%s","size":%s,"platform":{"architecture":"%s","os":"linux"}}' \
        "$manifest" "$manifest_size" "$arch")
done
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' "$manifests" >"$room/index"
read -r index index_size <<<"$(blob "$room/index")"
printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"%s","size":%s,"annotations":{"org.opencontainers.image.ref.name":"%s","io.containerd.image.name":"docker.io/library/entrain:%s"}}]}' \
    "$index" "$index_size" "$version" "$version" >"$layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
packed -C "$layout" -cf "$output" .
echo "$output: entrain $version for ${*%%=*}, $(stat -c %s "$output") bytes"
