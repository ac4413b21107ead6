#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the machine under test, as root: who waits for a FIFO task on an isolated CPU, without and with the module?
# Usage: drain.sh PROBE MODULE [SECONDS]. Prints "result: …" lines and exits with 1 if one of them is not as it must be.
probe=$1 module=$2 life=${3:-3}
cpu=2 failed=0
param=/sys/module/entrain_qpw/parameters

# Else the kernel gives the kworker 5 % of the FIFO task's CPU, and the wait is half a second.
echo -1 > /proc/sys/kernel/sched_rt_runtime_us
for f in /sys/kernel/debug/sched/fair_server/cpu*/runtime; do echo 0 > "$f"; done
echo +memory > /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null

fail() { echo "FAILED: $*"; failed=1; }
counters() { for c in n_calls n_remote n_work n_lru n_sheaf n_rcu_sheaf; do printf '%s=%s ' $c "$(cat $param/$c)"; done; }

# One operation, 0.4 s after a FIFO task began to spin; prints ms.
against_spinner() {
    $probe spin $cpu "$life" fifo /tmp/pfns &
    spinner=$!
    sleep 0.4
    "$@"
    wait $spinner
}
operation() {
    case $1 in
    compact_memory) $probe write /proc/sys/vm/compact_memory 1 ;;
    drop_caches) $probe write /proc/sys/vm/drop_caches 1 ;;
    mbind) $probe mbind ;;
    reclaim) $probe write /sys/fs/cgroup/memory.reclaim 64K 2>/dev/null ;;
    shrink) $probe write /sys/kernel/slab/filp/shrink 1 ;;
    stat_refresh) $probe write /proc/sys/vm/stat_refresh 1 ;;
    esac
}
table() {
    for op in compact_memory drop_caches mbind reclaim shrink $2; do
        ms=$(against_spinner operation $op)
        echo "result: $1 $op $ms ms"
        # The spinner still has life - 0.4 s to go when the operation begins.
        case $1 in
        stock) awk "BEGIN { exit !($ms > ($life - 0.6) * 1000) }" || echo "note: $op did not hang on the stock kernel" ;;
        qpw) awk "BEGIN { exit !($ms < $life * 1000 / 3) }" || fail "$op took $ms ms of the spinner's $life s" ;;
        esac
    done
}
load() {
    insmod "$module" "$@" || { fail "insmod $*"; return 1; }
    n=0
    while [ "$(cat /sys/kernel/livepatch/entrain_qpw/transition 2>/dev/null)" = 1 ] && [ $n -lt 60 ]; do sleep 0.5; n=$((n + 1)); done
    echo "result: loaded $* transition $(cat /sys/kernel/livepatch/entrain_qpw/transition 2>/dev/null)"
}
unload() {
    echo 0 > /sys/kernel/livepatch/entrain_qpw/enabled
    n=0
    while [ -e /sys/kernel/livepatch/entrain_qpw ] && [ $n -lt 60 ]; do sleep 0.5; n=$((n + 1)); done
    rmmod entrain_qpw || fail "rmmod"
}
# Fresh pages lie in the CPU's batch (no flag LRU); one drain from elsewhere puts them onto the LRU.
proof() {
    $probe spin $cpu 3 fifo /tmp/pfns &
    spinner=$!
    sleep 0.6
    before=$($probe lru /tmp/pfns)
    # Not by compaction: that would move the pages elsewhere.
    operation drop_caches > /dev/null
    after=$($probe lru /tmp/pfns)
    wait $spinner
    echo "result: proof LRU before $before after $after of 10"
    [ "$after" = 10 ] && [ "$before" -lt 10 ] || fail "the remote drain did not put the pages onto the LRU"
}
# 50 drains while plain tasks are busy on both isolated CPUs and touch a page now and then.
quiet() {
    $probe spin 2 120 other /tmp/p2 dirty & a=$!
    $probe spin 3 120 other /tmp/p3 dirty & b=$!
    sleep 1
    t=/sys/kernel/tracing
    echo 0 > $t/tracing_on; echo > $t/trace
    echo 'cpu == 2 || cpu == 3' > $t/events/workqueue/workqueue_queue_work/filter
    echo 1 > $t/events/workqueue/workqueue_queue_work/enable
    echo 'prev_comm == "probe"' > $t/events/sched/sched_switch/filter
    echo c > $t/tracing_cpumask
    echo 1 > $t/events/sched/sched_switch/enable
    echo f > $t/tracing_cpumask
    before=$(grep -E '^ *(RES|CAL):' /proc/interrupts | awk '{ s += $4 + $5 } END { print s }')
    echo 1 > $t/tracing_on
    i=0
    while [ $i -lt 50 ]; do echo 1 > /proc/sys/vm/compact_memory; i=$((i + 1)); sleep 0.05; done
    echo 0 > $t/tracing_on
    after=$(grep -E '^ *(RES|CAL):' /proc/interrupts | awk '{ s += $4 + $5 } END { print s }')
    work=$(grep -c 'workqueue_queue_work:.*function=lru_add_drain_per_cpu' $t/trace)
    switches=$(grep -cE '\[00[23]\].*sched_switch: prev_comm=probe.*next_comm=kworker' $t/trace)
    echo 0 > $t/events/enable
    kill $a $b
    wait $a $b 2>/dev/null
    echo "result: quiet $1 work $work preemptions $switches IPIs $((after - before))"
}

table stock stat_refresh
quiet stock
load && {
    table qpw
    proof
    quiet qpw
    echo "result: counters $(counters)"
    [ "$(cat $param/n_work)" = 0 ] || echo "note: n_work is not 0"
    unload
    echo "result: after unload $(against_spinner operation compact_memory) ms"
}
# The one thing without a lock, on request: isolated CPUs are left out.
load skip_stats=1 && {
    ms=$(against_spinner operation stat_refresh)
    echo "result: skip_stats stat_refresh $ms ms"
    awk "BEGIN { exit !($ms < $life * 1000 / 3) }" || fail "stat_refresh took $ms ms"
    unload
}
dmesg | grep -E 'WARNING:|BUG:|Oops:|lockup -|detected stall|blocked for more' && fail "the kernel's log"
exit $failed
