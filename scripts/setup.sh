#!/usr/bin/env bash
# Installs what building Entrain and running its lab need from the system: only what is missing, without questions.
#
#   scripts/setup.sh [packages|rpm|foreign]   what building Debian or RPM packages needs as well, or running those of
#                                             another architecture
#
# Everything bigger (compilers, emulators, kernels, guests' programs) lives in the user's cache and is not installed.
set -euo pipefail

# command or file that must exist -> Debian package that has it
needs=(
    "mmdebstrap mmdebstrap"
    "git git"
    "make make"
    "unshare util-linux"
    "xz xz-utils"
    "/etc/ssl/certs/ca-certificates.crt ca-certificates"
    "/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring"
)

case ${1:-} in
packages) needs+=("dh debhelper" "dpkg-buildpackage dpkg-dev") ;;
rpm) needs+=("rpmbuild rpm" "rpmlint rpmlint") ;;
foreign) needs+=("arch-test arch-test" "qemu-aarch64-static qemu-user-static" "update-binfmts binfmt-support") ;;
esac

missing=()
for need in "${needs[@]}"; do
    read -r what package <<<"$need"
    if [[ $what == /* ]]; then
        [[ -e $what ]] || missing+=("$package")
    else
        command -v "$what" >/dev/null || missing+=("$package")
    fi
done
if [[ ${#missing[@]} == 0 ]]; then exit 0; fi

id='' version=''
if [[ -r /etc/os-release ]]; then
    # shellcheck disable=SC1091
    . /etc/os-release
    id=${ID:-} version=${VERSION_ID:-}
fi
if [[ $id != debian || ($version != 12 && $version != 13) ]]; then
    echo "setup: this is ${PRETTY_NAME:-an unknown system}; Entrain installs packages on Debian 12 and 13 only." >&2
    echo "setup: please install what provides: ${missing[*]}" >&2
    exit 1
fi
if [[ $(id -u) != 0 ]]; then
    echo "setup: missing packages: ${missing[*]}" >&2
    echo "setup: run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
fi

echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || echo "setup: apt-get update failed; going on with the lists that are there" >&2
if ! apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "setup: apt-get could not install ${missing[*]}; its message is above. Is the network up?" >&2
    exit 1
fi
