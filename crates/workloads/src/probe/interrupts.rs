//! `/proc/interrupts`: interrupts between CPUs and timer ticks, by the same names on both architectures.

use super::{Counters, ProbeError};
use entrain_system::Root;

/// What the kernel calls it at the end of a line, and our name.
const KINDS: &[(&str, &str)] = &[
    ("Rescheduling interrupts", "reschedule"),
    ("Function call interrupts", "call"),
    ("TLB shootdowns", "tlb"),
    ("Local timer interrupts", "timer"),
    ("arch_timer", "timer"),
    ("IRQ work interrupts", "irq_work"),
];

pub(super) fn read(root: &Root) -> Result<Counters, ProbeError> {
    let mut counters = Counters::new();
    for line in root.read("proc/interrupts")?.lines() {
        if let Some((name, count)) = parse(line) {
            *counters.entry(name.to_owned()).or_default() += count;
        }
    }
    Ok(counters)
}

/// A line is a label, a count for each CPU, and words: `IPI0:   12   34   Rescheduling interrupts`. In the first
/// words of a device's line a number may stand too (`GICv3  27 Level arch_timer`), but never before a word.
fn parse(line: &str) -> Option<(&'static str, u64)> {
    let (_, rest) = line.split_once(':')?;
    let (_, name) = KINDS.iter().find(|(text, _)| rest.trim_end().ends_with(text))?;
    Some((name, rest.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use entrain_system::fake::tree;
    use proptest::prelude::*;

    #[test]
    fn x86_lines_are_read() {
        let (_machine, root) = tree(&[(
            "proc/interrupts",
            "            CPU0       CPU1       
   4:         12          0  IO-APIC   4-edge      ttyS0
 NMI:          0          0   Non-maskable interrupts
 LOC:       1000       2000   Local timer interrupts
 RES:         10         20   Rescheduling interrupts
 CAL:          3          4   Function call interrupts
 TLB:          5          6   TLB shootdowns
 ERR:          0
",
        )]);
        let counters = read(&root).unwrap();
        let wanted = [("call", 7), ("reschedule", 30), ("timer", 3000), ("tlb", 11)];
        assert_eq!(counters, wanted.map(|(name, count)| (name.to_owned(), count)).into());
    }

    #[test]
    fn aarch64_lines_are_read() {
        let (_machine, root) = tree(&[(
            "proc/interrupts",
            "           CPU0       CPU1       
 11:       1500       1600     GICv3  27 Level     arch_timer
 13:          1          0     GICv3  33 Level     uart-pl011
IPI0:        15         25       Rescheduling interrupts
IPI1:       300        400       Function call interrupts
IPI2:         0          0       CPU stop interrupts
Err:          0
",
        )]);
        let counters = read(&root).unwrap();
        let wanted = [("call", 700), ("reschedule", 40), ("timer", 3100)];
        assert_eq!(counters, wanted.map(|(name, count)| (name.to_owned(), count)).into());
    }

    proptest! {
        #[test]
        fn any_line_is_taken_or_left(line in "\\PC{0,120}") {
            let _ = parse(&line);
        }

        #[test]
        fn counts_of_all_cpus_are_added(counts in proptest::collection::vec(0u64..1 << 50, 1..300)) {
            let columns: String = counts.iter().map(|count| format!(" {count:>10}")).collect();
            let line = format!(" RES:{columns}   Rescheduling interrupts");
            prop_assert_eq!(parse(&line), Some(("reschedule", counts.iter().sum())));
        }
    }
}
