#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the machine under test, as root: a FIFO task already spins on the isolated CPU; the module is loaded hot.
# Usage: hot.sh PROBE MODULE. The module stays until the machine is booted anew.
probe=$1 module=$2 failed=0
fail() { echo "FAILED: $*"; failed=1; }
echo -1 > /proc/sys/kernel/sched_rt_runtime_us
for f in /sys/kernel/debug/sched/fair_server/cpu*/runtime; do echo 0 > "$f"; done
now() { cut -d' ' -f1 /proc/uptime; }

$probe spin 2 20 fifo /tmp/pfns &
spinner=$!
sleep 0.5
start=$(now)
insmod "$module" hot=1 || fail "insmod hot=1"
echo "result: hot load took $(awk "BEGIN { print $(now) - $start }") s of a spinner's 20 s"
for op in compact_memory drop_caches; do
    ms=$($probe write /proc/sys/vm/$op 1)
    echo "result: hot $op $ms ms"
    awk "BEGIN { exit !($ms < 6000) }" || fail "$op waited"
done
echo "result: hot mbind $($probe mbind) ms"
kill -0 $spinner 2>/dev/null || fail "the spinner ended before: nothing is shown"
echo "result: hot n_remote $(cat /sys/module/entrain_qpw/parameters/n_remote)"
wait $spinner
rmmod entrain_qpw 2>/dev/null && fail "a hot module was removed"
dmesg | grep -E 'WARNING:|BUG:|Oops:|lockup -|detected stall' -A 25 && fail "the kernel's log"
exit $failed
