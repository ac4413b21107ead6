//! The host kernel's own record of who ran when: ftrace's sched_switch of the vCPU threads, on one clock for all guests.
//!
//! Nothing of the product is asked: what is measured here holds for stock arms as well.

use entrain_lab_machine::Result;
use entrain_lab_machine::machine::Target;

use super::product::{shell, unmet};
use crate::rig::Rig;

const FOLDER: &str = "/sys/kernel/tracing";

/// The vCPU threads of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Threads {
    /// The guest's name, as given to its QEMU.
    pub(super) name: String,
    /// Thread ids, in the order of the vCPUs.
    pub(super) tids: Vec<u32>,
}

/// The vCPU threads of all guests, by name.
pub(super) fn threads(rig: &dyn Rig) -> Result<Vec<Threads>> {
    let line = "for v in /sys/kernel/debug/kvm/*-*; do p=${v##*/}; p=${p%%-*}; \
                tr '\\0' '\\n' < /proc/$p/cmdline | grep ,debug-threads=on; \
                for t in /proc/$p/task/*; do read -r c < $t/comm; case $c in CPU*KVM) echo ${t##*/};; esac; done; done";
    let mut all: Vec<Threads> = Vec::new();
    for word in shell(rig, Target::Host, line)?.lines() {
        match (word.parse(), all.last_mut()) {
            (Ok(tid), Some(guest)) => guest.tids.push(tid),
            _ => all.push(Threads { name: word.split(',').next().unwrap_or_default().to_owned(), tids: Vec::new() }),
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    // The shell sorts numbers as text; QEMU starts its vCPUs in their order.
    all.iter_mut().for_each(|guest| guest.tids.sort_unstable());
    Ok(all)
}

/// A context switch from or to a watched thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Switch {
    /// Seconds of the host's monotonic clock.
    pub(super) at: f64,
    /// The thread that left the CPU.
    pub(super) from: u32,
    /// The thread that got it.
    pub(super) to: u32,
}

/// A recording; ends with [`Self::end`], or without its text when dropped.
pub(super) struct Recording<'a> {
    rig: &'a dyn Rig,
    probe: bool,
}

impl<'a> Recording<'a> {
    /// Prepares a recording of these threads; `probe` is one more event, in the words of the kernel's dynamic_events, by the
    /// name `entrain`.
    pub(super) fn prepare(rig: &'a dyn Rig, tids: &[u32], probe: Option<&str>) -> Result<Self> {
        let terms: Vec<String> = tids.iter().map(|tid| format!("prev_pid=={tid}||next_pid=={tid}")).collect();
        let recording = Self { rig, probe: probe.is_some() };
        let line = format!(
            "cd {FOLDER} && echo 0 > tracing_on && echo mono > trace_clock && echo 32768 > buffer_size_kb && \
             echo '{}' > events/sched/sched_switch/filter && echo 1 > events/sched/sched_switch/enable",
            terms.join("||"),
        );
        shell(rig, Target::Host, &line)?;
        if let Some(probe) = probe {
            let line =
                format!("cd {FOLDER} && echo '{probe}' > dynamic_events && echo 1 > events/fprobes/entrain/enable");
            shell(rig, Target::Host, &line)?;
        }
        shell(rig, Target::Host, &format!("echo > {FOLDER}/trace"))?;
        Ok(recording)
    }

    /// Records from now on.
    pub(super) fn begin(&self) -> Result<()> {
        shell(self.rig, Target::Host, &format!("echo 1 > {FOLDER}/tracing_on")).map(drop)
    }

    /// Records for so long, in seconds, by the host machine's own clock.
    pub(super) fn record(&self, seconds: f64) -> Result<()> {
        let line = format!("cd {FOLDER} && echo 1 > tracing_on && sleep {seconds}; echo 0 > tracing_on");
        shell(self.rig, Target::Host, &line).map(drop)
    }

    /// The record. An error if the kernel had no room for all of it.
    pub(super) fn end(self) -> Result<String> {
        shell(self.rig, Target::Host, &format!("echo 0 > {FOLDER}/tracing_on"))?;
        let text = String::from_utf8_lossy(&self.rig.get(Target::Host, &format!("{FOLDER}/trace"))?).into_owned();
        // "# entries-in-buffer/entries-written: 120/120   #P:2"
        let counts = text.lines().find_map(|line| line.split("entries-written:").nth(1)).unwrap_or_default();
        let kept = counts.split_whitespace().next().and_then(|both| both.split_once('/'));
        match kept {
            Some((there, written)) if there == written => Ok(text),
            _ => Err(unmet(format!("the kernel's trace is not whole:{counts}; measure for a shorter time"))),
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let probe = if self.probe { "echo 0 > events/fprobes/entrain/enable; echo > dynamic_events;" } else { "" };
        let line = format!(
            "cd {FOLDER}; echo 0 > tracing_on; echo 0 > events/sched/sched_switch/enable; {probe} \
             echo 0 > events/sched/sched_switch/filter; echo > trace; echo 1 > buffer_size_kb; echo local > trace_clock"
        );
        if let Err(error) = shell(self.rig, Target::Host, &line) {
            tracing::warn!("the kernel's tracing is left as it was used: {error}");
        }
    }
}

/// Time and rest of a line of the event `name`.
pub(super) fn event<'a>(line: &'a str, name: &str) -> Option<(f64, &'a str)> {
    let (head, rest) = line.split_once(&format!(": {name}: "))?;
    Some((head.rsplit(' ').next()?.parse().ok()?, rest))
}

/// A number behind `key=`.
pub(super) fn number(text: &str, key: &str) -> Option<u32> {
    let at = text.find(&format!("{key}="))? + key.len() + 1;
    let digits: String = text[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A line of sched_switch.
pub(super) fn switch(line: &str) -> Option<Switch> {
    let (at, rest) = event(line, "sched_switch")?;
    Some(Switch { at, from: number(rest, "prev_pid")?, to: number(rest, "next_pid")? })
}

/// A stretch of time for which a thread had a CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) tid: u32,
    pub(super) start: f64,
    pub(super) end: f64,
}

/// When these threads ran, in order of their starts. A stretch that the record does not hold both ends of is left out.
pub(super) fn runs(text: &str, tids: &[u32]) -> Vec<Run> {
    let mut open = std::collections::BTreeMap::new();
    let mut runs = Vec::new();
    for switch in text.lines().filter_map(switch) {
        if let Some(start) = open.remove(&switch.from) {
            runs.push(Run { tid: switch.from, start, end: switch.at });
        }
        if tids.contains(&switch.to) {
            open.insert(switch.to, switch.at);
        }
    }
    runs.sort_by(|a, b| a.start.total_cmp(&b.start));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# entries-in-buffer/entries-written: 3/3   #P:2
       CPU 0/KVM-1234    [001] d..2.    12.500000: sched_switch: prev_comm=CPU 0/KVM prev_pid=1234 prev_prio=120 prev_state=R+ ==> next_comm=CPU 1/KVM next_pid=1235 next_prio=120
       CPU 1/KVM-1235    [001] d..2.    12.503000: sched_switch: prev_comm=CPU 1/KVM prev_pid=1235 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
       CPU 1/KVM-1235    [001] .....    12.504000: entrain: (yield_to+0x0/0x3c0) pid=1240
";

    #[test]
    fn lines_of_the_trace_are_read() {
        let first = TEXT.lines().nth(1).unwrap();
        assert_eq!(switch(first), Some(Switch { at: 12.5, from: 1234, to: 1235 }));
        let (at, rest) = event(TEXT.lines().nth(3).unwrap(), "entrain").unwrap();
        assert_eq!((at, number(rest, "pid")), (12.504, Some(1240)));
        assert_eq!(switch("# comment"), None);
    }

    #[test]
    fn only_whole_stretches_count() {
        assert_eq!(runs(TEXT, &[1234, 1235]), [Run { tid: 1235, start: 12.5, end: 12.503 }]);
    }
}
