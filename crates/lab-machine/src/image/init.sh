#!/usr/bin/busybox sh
# Init of the host machine and of its guests: mounts, modules, then the lab's agent.
export PATH=/usr/sbin:/usr/bin HOME=/root TERM=linux
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs -o size=75% tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
# insmod does not look at the kernel's command line: "kvm.halt_poll_ns=0" is handed to the module kvm here.
for file in /usr/lib/entrain/modules/*.ko; do
    [ -e "$file" ] || continue
    name=${file##*/??-}
    name=${name%.ko}
    args=
    for word in $(cat /proc/cmdline); do
        case $word in "$name".*) args="$args ${word#"$name".}" ;; esac
    done
    # Only one of kvm_amd and kvm_intel finds its CPU.
    case $name in
    kvm_*) insmod "$file" $args 2>/dev/null ;;
    *) insmod "$file" $args ;;
    esac
done
# The host machine carries its guests' kernel.
if [ -d /usr/lib/entrain/guest ]; then hostname host; else hostname guest; fi
ip link set lo up
ulimit -n 65536
ulimit -l unlimited
entrain-lab-agent
echo "entrain: the agent ended ($?)"
reboot -f
