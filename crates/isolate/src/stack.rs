//! What a kernel stack tells, by the names of its functions.

use entrain_system::kallsyms::Functions;

/// What a kernel stack tells about its sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stack {
    /// Functions, innermost first, without the tracing's own and without the entry code.
    pub(crate) frames: Vec<String>,
    /// The system call that led there.
    pub(crate) syscall: Option<String>,
    /// The interrupt context that led there, in the kernel's words: then the task is only who was interrupted.
    pub(crate) interrupt: Option<&'static str>,
}

impl Stack {
    /// Symbolises the addresses of a stack, innermost first.
    pub(crate) fn of(addresses: &[u64], symbols: &Functions) -> Self {
        let mut stack = Self::default();
        for name in addresses.iter().take_while(|a| **a != 0).filter_map(|address| symbols.name(*address)) {
            let base = name.split(".isra").next().unwrap_or(name);
            if is_tracing(base) {
                // Whatever was above it is the tracing's.
                stack.frames.clear();
                continue;
            }
            if stack.syscall.is_none() {
                stack.syscall = syscall(base);
            }
            stack.interrupt = stack.interrupt.or_else(|| interrupt(base));
            if is_entry(base) {
                if stack.interrupt.is_some() {
                    // What lies below the interrupt belongs to a task that happened to be there.
                    break;
                }
            } else {
                stack.frames.push(base.to_owned());
            }
        }
        stack
    }
}

fn is_tracing(name: &str) -> bool {
    ["bpf_", "__bpf_", "__traceiter_", "trace_event_raw_", "perf_trace_"].iter().any(|start| name.starts_with(start))
}

fn is_entry(name: &str) -> bool {
    ["entry_SYSCALL", "do_syscall_64", "x64_sys_call", "ret_from_fork", "asm_", "el0", "invoke_syscall", "do_el0_svc"]
        .iter()
        .any(|start| name.starts_with(start))
}

fn syscall(name: &str) -> Option<String> {
    let name = ["__x64_sys_", "__arm64_sys_", "__ia32_sys_", "__se_sys_", "ksys_"]
        .iter()
        .find_map(|start| name.strip_prefix(start))?;
    Some(name.to_owned())
}

fn interrupt(name: &str) -> Option<&'static str> {
    Some(match name {
        "delayed_work_timer_fn" => "timer of delayed work",
        "run_timer_softirq" | "__run_timers" | "call_timer_fn" => "timer",
        "rcu_core" | "rcu_do_batch" => "RCU callback",
        "hrtimer_interrupt" | "__hrtimer_run_queues" => "hrtimer",
        "handle_softirqs" | "__do_softirq" => "softirq",
        "handle_irq_event" | "common_interrupt" | "__common_interrupt" | "el1h_64_irq_handler" => "interrupt",
        _ if name.starts_with("sysvec_") || name.starts_with("__sysvec_") => "interrupt",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
ffffffff81000000 T _text
ffffffff81000100 t __pfx_queue_work_on
ffffffff81000110 T queue_work_on
ffffffff81000200 T __lru_add_drain_all
ffffffff81000300 T __x64_sys_mbind
ffffffff81000400 T do_syscall_64
ffffffff81000500 D not_code
ffffffff81000600 t __traceiter_workqueue_queue_work
ffffffff81000700 t run_timer_softirq
ffffffff81000800 T asm_sysvec_apic_timer_interrupt
ffffffffc0000000 t bpf_prog_6deef7357e7b4530_watch_queue_work\t[bpf]
";

    #[test]
    fn a_stack_tells_the_system_call() {
        let symbols = Functions::parse(TEXT);
        let base = 0xffff_ffff_8100_0000;
        let addresses =
            [0xffff_ffff_c000_0010, base + 0x610, base + 0x120, base + 0x210, base + 0x310, base + 0x410, 0];
        let stack = Stack::of(&addresses, &symbols);
        assert_eq!(stack.frames, ["queue_work_on", "__lru_add_drain_all", "__x64_sys_mbind"]);
        assert_eq!((stack.syscall.as_deref(), stack.interrupt), (Some("mbind"), None));
        let below = [base + 0x120, base + 0x710, base + 0x810, base + 0x310];
        let stack = Stack::of(&below, &symbols);
        assert_eq!(
            (stack.interrupt, stack.syscall),
            (Some("timer"), None),
            "the system call is the interrupted task's"
        );
        assert_eq!(stack.frames, ["queue_work_on", "run_timer_softirq"]);
    }
}
