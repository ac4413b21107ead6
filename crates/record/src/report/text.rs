//! The summary on the terminal; 80 columns.

use std::fmt::Write as _;

use super::{limits, percent, time};
use crate::analysis::{Analysis, State, Times};

/// The whole summary.
pub(crate) fn render(analysis: &Analysis) -> String {
    let vcpus: usize = analysis.vms.iter().map(|vm| vm.vcpus.len()).sum();
    let mut text = format!(
        "{} VMs, {vcpus} vCPUs, {} pCPUs, {:.2} s, {} events; Linux {} ({})\n",
        analysis.vms.len(),
        analysis.pcpus,
        analysis.span_ns as f64 / 1e9,
        analysis.events,
        analysis.kernel,
        analysis.arch
    );
    for limit in limits(analysis) {
        let _ = writeln!(text, "note: {limit}");
    }
    let _ = writeln!(
        text,
        "\nshare of the time, %\n{:<16} {:>4} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9}",
        "VM", "vCPU", "running", "polling", "sibling", "ready", "holder", "halted", "max wait"
    );
    for vm in &analysis.vms {
        let name: String = vm.name.chars().take(16).collect();
        let longest = vm.vcpus.iter().map(|vcpu| vcpu.longest_wait_ns).max().unwrap_or(0);
        text.push_str(&line(&name, "all", &vm.times, longest));
        for vcpu in &vm.vcpus {
            text.push_str(&line("", &vcpu.id.to_string(), &vcpu.times, vcpu.longest_wait_ns));
        }
    }
    if !analysis.culprits.is_empty() {
        text.push_str("\nwho ran while vCPUs were ready\n");
        for culprit in &analysis.culprits {
            let holder = if culprit.holder_ns > 0 {
                format!(", {} of it while they held something", time(culprit.holder_ns))
            } else {
                String::new()
            };
            let _ =
                writeln!(text, "  {:>10}  {} ({} waits{holder})", time(culprit.ns), culprit.who.name, culprit.waits);
        }
    }
    if !analysis.longest_waits.is_empty() {
        text.push_str("\nlongest waits\n");
        for wait in analysis.longest_waits.iter().take(8) {
            let who = wait.ran.first().map_or("nobody known", |(who, _)| who.name.as_str());
            let _ = writeln!(
                text,
                "  {:>10}  {} vCPU {} at {:.3} s, {}: {who}",
                time(wait.ns),
                wait.vm,
                wait.vcpu,
                wait.start_ns as f64 / 1e9,
                wait.reason.words()
            );
        }
    }
    text
}

fn line(vm: &str, vcpu: &str, times: &Times, longest: u64) -> String {
    let share = |state| percent(times.share(state));
    format!(
        "{vm:<16} {vcpu:>4} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9}\n",
        share(State::Running),
        share(State::Polling),
        share(State::Sibling),
        share(State::Ready),
        share(State::Holder),
        share(State::Halted),
        time(longest)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::tests::recording;

    #[test]
    fn it_names_times_culprits_and_waits() {
        let text = render(&Analysis::of(&recording()));
        assert!(text.contains("db vCPU 0 (1 waits, 10.00 ms of it while they held something)"), "{text}");
        assert!(text.contains("web vCPU 0 at 0.020 s, preempted in a critical section: db vCPU 0"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
