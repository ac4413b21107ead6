# What tells why a load did not end, in the machine that it ran in or on its host. Each part is bounded in time and
# length; what a machine does not have is left out.
part() { printf '\n== %s\n' "$1"; }
part 'kernel log'; dmesg | tail -n 40
part 'tasks that run, wait for a CPU or sleep uninterruptibly, and all threads of loads and VMMs: state, CPU, stack'
for task in /proc/[0-9]*/task/[0-9]*; do
	name=$(cat "$task/comm" 2>/dev/null) || continue
	state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "$task/status" 2>/dev/null)
	case "$state $name" in [RD]' '* | *' 'entrain* | *' 'dbench* | *' 'hackbench* | *' 'qemu* | *' CPU '*) ;; *) continue ;; esac
	echo "-- ${task##*/} $name state $state cpu $(cut -d' ' -f39 "$task/stat" 2>/dev/null) schedstat $(cat "$task/schedstat" 2>/dev/null)"
	sed -n 's/^.* allowed_list:/allowed/p; /ctxt_switches/p' "$task/status" 2>/dev/null
	head -n 12 "$task/stack" 2>/dev/null
done 2>/dev/null | head -n 600
part 'sched_ext'; grep -s . /sys/kernel/sched_ext/state /sys/kernel/sched_ext/nr_rejected /sys/kernel/sched_ext/root/ops /sys/kernel/sched_ext/root/events
part 'status of this side'
if [ -e /sys/kernel/debug/kvm ] && [ -S /run/entrain/host.sock ]; then entrain top --once --json; else entrain guest --status --json || entrain guest --status; fi 2>&1 | head -n 200
part 'what the daemons said'; tail -n 60 /run/entrain-arm.*.out 2>/dev/null
part 'interrupts'; cat /proc/interrupts
part 'runqueues and timers'
cat /sys/kernel/debug/sched/debug 2>/dev/null | head -n 300
cat /proc/timer_list 2>/dev/null | head -n 200
part 'vCPUs: KVM counters'
for vm in /sys/kernel/debug/kvm/[0-9]*; do echo "$vm"; grep -s . "$vm"/vcpu*/pid "$vm"/exits "$vm"/halt_exits "$vm"/halt_wakeup "$vm"/wfi_exit_stat "$vm"/wfe_exit_stat; done
part 'vCPUs: interrupts that wait for them (arm64)'
for vm in /sys/kernel/debug/kvm/[0-9]*; do echo "$vm"; awk '/TYP/ || $4 ~ /^1/' "$vm/vgic-state" | head -n 100; done 2>/dev/null
part 'the BPF scheduler, as it dumps itself'
trace=/sys/kernel/tracing
if [ -e $trace/events ] || mount -t tracefs tracefs $trace; then
	echo 1 >$trace/events/sched_ext/sched_ext_dump/enable && echo D >/proc/sysrq-trigger
	sed -n 's/^.*sched_ext_dump: //p' $trace/trace | head -n 400
	echo 0 >$trace/events/sched_ext/sched_ext_dump/enable
fi 2>/dev/null
if [ -d /sys/kernel/debug/kvm ]; then
	part 'a second of entrain record'
	entrain record --seconds 1 --output /run/entrain-evidence.rec 2>&1 && entrain report /run/entrain-evidence.rec 2>&1 | head -n 200
	rm -f /run/entrain-evidence.rec
fi
exit 0
