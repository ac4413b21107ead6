#!/bin/sh
# Asks the program whether a kernel is one that the module was written for. Debian's headers hold that kernel's BTF.
exec entrain isolate qpw build --check --release "$1" --headers "$2" --btf "$2/vmlinux"
