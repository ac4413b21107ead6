#!/bin/sh
# entrain-rtos SECONDS DUTY: boots the guest on this host machine, with 8 vCPUs, and prints its figures. It works DUTY percent
# of the time. With a scheduler of Entrain's on the host it waits for the host to pair; while /run/rtos-silent exists, it says
# nothing to the host.
set -e
offer=1 wait=0
if [ -e /run/rtos-silent ]; then offer=0; fi
if [ $offer = 1 ] && grep -q enabled /sys/kernel/sched_ext/state 2>/dev/null; then wait=20000; fi
word() { echo "-device loader,addr=$1,data=$2,data-len=8"; }
# shellcheck disable=SC2046
exec qemu-system-aarch64 -name rtos,debug-threads=on -accel kvm -M virt,gic-version=host -cpu host -smp 8 -m 64 \
	-object memory-backend-memfd,id=ram,size=64M,share=on -machine memory-backend=ram \
	-nodefaults -no-user-config -display none -no-reboot -serial stdio -kernel /usr/lib/entrain/guest/rtos.elf \
	$(word 0x40200000 "$(awk "BEGIN { print int($1 * 1000) }")") $(word 0x40200008 $wait) \
	$(word 0x40200010 "$2") $(word 0x40200018 $offer) </dev/null
