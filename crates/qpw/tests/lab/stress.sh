#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the machine under test, as root: drains of every kind against busy CPUs, while isolated CPUs go and come.
# Usage: stress.sh PROBE MODULE [SECONDS]; MODULE "none": the same without it, to compare with. Exits with 1 if the kernel's log holds a warning or anything hangs.
probe=$1 module=$2 seconds=${3:-60}
failed=0
param=/sys/module/entrain_qpw/parameters
fail() { echo "FAILED: $*"; failed=1; }
counters() { for c in n_calls n_remote n_work n_lru n_sheaf n_rcu_sheaf; do printf '%s=%s ' $c "$(cat $param/$c)"; done; }

if [ "$module" != none ]; then
    insmod "$module" || { fail insmod; exit 1; }
    while [ "$(cat /sys/kernel/livepatch/entrain_qpw/transition)" = 1 ]; do sleep 0.5; done
fi
end=$(($(cut -d. -f1 /proc/uptime) + seconds))
running() { [ "$(cut -d. -f1 /proc/uptime)" -lt $end ]; }

mkdir -p /sys/fs/cgroup/stress
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
echo 24M > /sys/fs/cgroup/stress/memory.max
for cpu in 1 2 3; do
    # Faults and slab objects on each CPU; a spinner whose CPU goes away is moved, and started anew here.
    while running; do $probe spin $cpu 3 other /tmp/s$cpu dirty 2>/dev/null || sleep 0.1; done &
done
while running; do $probe mbind > /dev/null; done &
while running; do echo 1 > /proc/sys/vm/drop_caches; done &
while running; do for s in filp kmalloc-64 maple_node vm_area_struct; do echo 1 > /sys/kernel/slab/$s/shrink; done; done &
# A cgroup at its limit drains the stocks of all CPUs at each turn.
while running; do
    sh -c 'echo 0 > /sys/fs/cgroup/stress/cgroup.procs; dd if=/dev/zero of=/tmp/big bs=1M count=40 2>/dev/null; rm -f /tmp/big'
    echo 8M > /sys/fs/cgroup/stress/memory.reclaim 2>/dev/null
done &
turns=0
while running; do
    for cpu in 3 2; do
        echo 0 > /sys/devices/system/cpu/cpu$cpu/online || fail "CPU $cpu offline"
        echo 1 > /sys/devices/system/cpu/cpu$cpu/online || fail "CPU $cpu online"
    done
    turns=$((turns + 1))
done
wait
echo "result: stress ${seconds} s, $turns turns of hotplug of 2 CPUs"
if [ "$module" != none ]; then
    echo "result: counters $(counters)"
    echo 0 > /sys/kernel/livepatch/entrain_qpw/enabled
    n=0
    while [ -e /sys/kernel/livepatch/entrain_qpw ] && [ $n -lt 120 ]; do sleep 0.5; n=$((n + 1)); done
    rmmod entrain_qpw || fail rmmod
    echo "result: unloaded"
fi
dmesg | grep -E 'WARNING:|BUG:|Oops:|lockup -|detected stall|blocked for more|Bad page' -A 25 && fail "the kernel's log"
exit $failed
