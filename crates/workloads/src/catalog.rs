//! The catalogue: every load, every metric it can report, with unit and direction.
//!
//! The loads take their metrics from here and the lab its units and directions, so the two cannot drift apart.

/// Which direction of a metric is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is better: throughput, fairness.
    Higher,
    /// Less is better: latency, jitter.
    Lower,
    /// Neither: it describes the run.
    Neither,
}

/// One figure that a load reports.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name in the JSON lines.
    pub name: &'static str,
    /// Unit: `1/s`, `ns`, `us`, `ms`, `s`, `ratio`, `MB/s`, `pages` or `1`.
    pub unit: &'static str,
    /// Direction.
    pub better: Better,
    /// What it is, in one line.
    pub about: &'static str,
}

/// One load: a subcommand of `entrain-load`.
#[derive(Debug)]
pub struct Load {
    /// Its name: `wake`, …, or `run dbench`.
    pub name: &'static str,
    /// The arguments of `entrain-load` that select it.
    pub argv: &'static [&'static str],
    /// The program that has to be there besides `entrain-load`.
    pub program: Option<&'static str>,
    /// What it measures, in one line.
    pub about: &'static str,
    /// All metrics that it can report. The first is the one to show if only one is shown.
    pub metrics: &'static [&'static Metric],
}

macro_rules! metrics {
    ($($id:ident = $name:literal $unit:literal $better:ident $about:literal;)*) => {
        $(#[doc = $about] pub static $id: Metric = Metric { name: $name, unit: $unit, better: Better::$better, about: $about };)*
    };
}

metrics! {
    OPS = "ops_per_s" "1/s" Higher "operations per second, all threads together";
    FAIRNESS = "fairness" "ratio" Higher "operations of the slowest thread over those of the fastest (0 to 1)";
    REQUESTS = "requests_per_s" "1/s" Higher "requests served per second";
    WAKE_P50 = "wake_p50" "us" Lower "median time from wake-up to the worker running";
    WAKE_P75 = "wake_p75" "us" Lower "75 % of the wake-ups took no longer";
    WAKE_P90 = "wake_p90" "us" Lower "90 % of the wake-ups took no longer";
    WAKE_P95 = "wake_p95" "us" Lower "95 % of the wake-ups took no longer";
    WAKE_P99 = "wake_p99" "us" Lower "99 % of the wake-ups took no longer";
    WAKE_P995 = "wake_p995" "us" Lower "99.5 % of the wake-ups took no longer";
    WAKE_P999 = "wake_p999" "us" Lower "99.9 % of the wake-ups took no longer";
    WAKE_MAX = "wake_max" "us" Lower "the longest time from wake-up to the worker running";
    REQUEST_P50 = "request_p50" "us" Lower "median time from wake-up to the end of the request's work";
    REQUEST_P99 = "request_p99" "us" Lower "99 % of the requests ended within this time of their wake-up";
    RATE_MISSED = "rate_missed" "ratio" Lower "share of the requests of a fixed rate for which no worker was free";
    ON_TIME = "on_time_share" "ratio" Higher "share of the due ticks that came 0.925 to 1.079 periods after the tick before";
    MISSED = "missed_share" "ratio" Lower "share of the due ticks that came together with a later one";
    JITTER_MAX = "jitter_max" "ms" Lower "the latest tick: counter at the tick minus counter when it was due";
    JITTER_P50 = "jitter_p50" "us" Lower "median lateness of the ticks";
    JITTER_P99 = "jitter_p99" "us" Lower "99 % of the ticks were no later than this";
    INTERVAL_MAX = "interval_max" "ms" Lower "the longest time between two ticks";
    ITERATIONS = "iterations_per_s" "1/s" Higher "fixed pieces of arithmetic per second, all threads together";
    PROGRESS_MIN = "progress_min" "ratio" Higher "iterations in the worst second over those of an average second";
    SECTIONS = "sections_per_s" "1/s" Higher "critical sections entered per second, all threads together";
    SECTION_P50 = "section_p50" "us" Neither "median length of a critical section, with the system call around it taken off";
    SECTION_MAX = "section_max" "us" Neither "the longest critical section, preemption of the CPU included";
    SECTION_SHARE = "section_share" "ratio" Neither "share of the threads' time that was spent in critical sections";
    FRAMES = "frames_per_s" "1/s" Higher "frames made per second, for a display of 60 Hz";
    FRAMES_IN_TIME = "in_time_per_s" "1/s" Higher "frames per second that were done before the next tick of the display";
    FRAME_P50 = "frame_p50" "ms" Lower "median time from the tick at which a frame began to its end";
    FRAME_P99 = "frame_p99" "ms" Lower "99 % of the frames took no longer";
    RAMP_P50 = "ramp_p50" "ms" Lower "median time from a burst's begin until the CPU was as fast as at its end";
    RAMP_P90 = "ramp_p90" "ms" Lower "90 % of the bursts took no longer until the CPU was as fast as at their end";
    SPEED = "speed" "ratio" Higher "speed at the end of the bursts, of the CPU's full speed";
    INFERENCES = "inferences_per_s" "1/s" Higher "requests answered per second";
    INFERENCE_P50 = "inference_p50" "ms" Lower "median time from when a request was due to its answer";
    INFERENCE_P99 = "inference_p99" "ms" Lower "99 % of the requests took no longer";
    SCORE = "score" "1" Higher "1,000 where each step took what it takes at full speed, 500 where it took twice as long";
    STEP_MEAN = "step_mean" "ms" Lower "mean time from a step's begin to its end";
    CORRUPTIONS = "corruptions" "1" Lower "words that did not hold what was written to them";
    PAGES_CHECKED = "pages_per_s" "1/s" Higher "pages verified per second";
    PAGES_REUSED = "reused_per_s" "1/s" Neither "pages given back to the kernel and taken again per second";
    VCPU_WAKES = "vcpu_wakes_per_s" "1/s" Neither "times per second that a halted vCPU was woken, all VMs together";
    SWAPS = "swaps_per_s" "1/s" Neither "times per second that another file was put in the place of the VM's memory";
    REPLUGS = "replugs_per_s" "1/s" Neither "memory slots plugged in or out per second";
    CANARY = "canary_changed" "1" Lower "1 if a file that the VM's owner may only read was changed";
    VCPU_LATE_P99 = "vcpu_late_p99" "us" Lower "99 % of the vCPUs' wake-ups came no later than this after their time";
    SPIN_SHARE = "spin_share" "ratio" Lower "share of the CPUs' time in which the kernel spun for a lock, time without a CPU included";
    SYSCALL = "syscall" "ns" Lower "a system call that does nothing";
    PAGE_FAULT = "page_fault" "ns" Lower "the first touch of an anonymous page";
    SWITCH = "switch" "ns" Lower "from one thread to another of its CPU through a pipe";
    PROCESS_SWITCH = "process_switch" "ns" Lower "from one process to another of its CPU through a pipe";
    COPY = "copy" "MB/s" Higher "memory copied within the caches";
    TIMER_LATE = "timer_late" "ns" Lower "median lateness of a sleep's end";
    IPI_RUNNING = "ipi_running" "ns" Lower "an interrupt to a CPU that computes, and its answer";
    WAKE_HALTED = "wake_halted" "ns" Lower "from a wake-up until the thread runs, on a CPU that was idle";
    HYPERCALL = "hypercall" "ns" Lower "a VM's exit into KVM and back";
    CLOCK_READ = "clock_read" "ns" Lower "one look at the monotonic clock";
    CLOCK_READ_BOTH = "clock_read_both" "ns" Lower "one look at the monotonic clock while another CPU looks, too";
    THROUGHPUT = "throughput" "MB/s" Higher "dbench's throughput";
    LATENCY_MAX = "latency_max" "ms" Lower "the longest operation of any client";
    MESSAGES = "messages_per_s" "1/s" Higher "messages passed per second in hackbench's timed phase";
    ROUND_TIME = "round_time" "s" Lower "median time of one hackbench round of 100 messages a pair";
    ROUNDS = "rounds" "1" Neither "rounds of hackbench that ended within the time";
    TIMER_AVG = "timer_avg" "us" Lower "mean lateness of cyclictest's timers";
    TIMER_P50 = "timer_p50" "us" Lower "median lateness of cyclictest's timers";
    TIMER_P99 = "timer_p99" "us" Lower "99 % of cyclictest's timers were no later than this";
    TIMER_MAX = "timer_max" "us" Lower "the latest of cyclictest's timers";
    BOGO_OPS = "bogo_ops_per_s" "1/s" Higher "stress-ng's bogus operations per second of real time";
    READ_IOPS = "read_iops" "1/s" Higher "reads per second";
    WRITE_IOPS = "write_iops" "1/s" Higher "writes per second";
    READ_P99 = "read_p99" "us" Lower "99 % of the reads took no longer";
    WRITE_P99 = "write_p99" "us" Lower "99 % of the writes took no longer";
}

/// All loads.
pub static LOADS: &[Load] = &[
    Load {
        name: "wake",
        argv: &["wake"],
        program: None,
        about: "message threads wake worker threads that do a piece of work: wake-up latency and requests per second",
        metrics: &[
            &WAKE_P99,
            &REQUESTS,
            &WAKE_P50,
            &WAKE_P75,
            &WAKE_P90,
            &WAKE_P95,
            &WAKE_P995,
            &WAKE_P999,
            &WAKE_MAX,
            &REQUEST_P50,
            &REQUEST_P99,
            &RATE_MISSED,
        ],
    },
    Load {
        name: "lock",
        argv: &["lock"],
        program: None,
        about: "all threads on one kernel lock: what a preempted lock holder or waiter costs",
        metrics: &[&OPS, &FAIRNESS],
    },
    Load {
        name: "shootdown",
        argv: &["shootdown"],
        program: None,
        about: "one thread drops a page that all CPUs may hold in their TLB: what waiting for every CPU's answer costs",
        metrics: &[&OPS],
    },
    Load {
        name: "tick",
        argv: &["tick"],
        program: None,
        about: "a 2 ms periodic clock on each CPU against the CPU's own counter: share on time, worst jitter",
        metrics: &[&JITTER_MAX, &ON_TIME, &MISSED, &JITTER_P50, &JITTER_P99, &INTERVAL_MAX],
    },
    Load {
        name: "spin",
        argv: &["spin"],
        program: None,
        about: "burns CPU in user mode: how much the guest gets, and how evenly",
        metrics: &[&ITERATIONS, &FAIRNESS, &PROGRESS_MIN],
    },
    Load {
        name: "critical",
        argv: &["critical"],
        program: None,
        about: "keeps the kernel in non-preemptible sections of a chosen length, by fcntl(F_GETLK) on a file with many locks",
        metrics: &[&SECTIONS, &SECTION_P50, &SECTION_MAX, &SECTION_SHARE],
    },
    Load {
        name: "frames",
        argv: &["frames"],
        program: None,
        about: "UI thread and render thread make frames for a 60 Hz display, with bursts of heavier ones",
        metrics: &[&FRAMES, &FRAMES_IN_TIME, &FRAME_P50, &FRAME_P99],
    },
    Load {
        name: "burst",
        argv: &["burst"],
        program: None,
        about: "sleeps, then works: how long the CPU takes to become fast once it is needed",
        metrics: &[&RAMP_P50, &RAMP_P90, &SPEED],
    },
    Load {
        name: "inference",
        argv: &["inference"],
        program: None,
        about: "small matrix multiplications on demand, with pauses between them",
        metrics: &[&INFERENCE_P50, &INFERENCE_P99, &INFERENCES],
    },
    Load {
        name: "office",
        argv: &["office"],
        program: None,
        about: "steps of work and pauses as of a person at a tablet, in five shapes",
        metrics: &[&SCORE, &STEP_MEAN],
    },
    Load {
        name: "roles",
        argv: &["roles"],
        program: None,
        about: "one heavy thread and light ones, each on a CPU of its own; roles go round",
        metrics: &[&ITERATIONS],
    },
    Load {
        name: "memcheck",
        argv: &["memcheck"],
        program: None,
        about: "fills memory with patterns and verifies them: finds a stray write into pages that are used again",
        metrics: &[&CORRUPTIONS, &PAGES_CHECKED, &PAGES_REUSED],
    },
    Load {
        name: "vms",
        argv: &["vms"],
        program: None,
        about: "on a KVM host: many tiny virtual machines whose vCPUs halt and are woken: what a daemon's work grows with",
        metrics: &[&VCPU_WAKES, &VCPU_LATE_P99],
    },
    Load {
        name: "besiege",
        argv: &["besiege"],
        program: None,
        about: "on a KVM host: a VM whose owner misleads and holds up whoever looks into it",
        metrics: &[&SWAPS, &REPLUGS, &CANARY],
    },
    Load {
        name: "costs",
        argv: &["costs"],
        program: None,
        about: "what single operations cost: system call, fault, switch, interrupt, timer, hypercall, copy",
        metrics: &[
            &SYSCALL,
            &PAGE_FAULT,
            &SWITCH,
            &PROCESS_SWITCH,
            &COPY,
            &TIMER_LATE,
            &CLOCK_READ,
            &CLOCK_READ_BOTH,
            &IPI_RUNNING,
            &WAKE_HALTED,
            &HYPERCALL,
        ],
    },
    Load {
        name: "spinning",
        argv: &["spinning"],
        program: None,
        about: "the share of the CPUs' time in which the kernel spins for locks while a command runs",
        metrics: &[&SPIN_SHARE, &OPS, &THROUGHPUT, &MESSAGES],
    },
    Load {
        name: "dbench",
        argv: &["run", "dbench"],
        program: Some("dbench"),
        about: "dbench on tmpfs, one client a thread: a file server's mix of system calls",
        metrics: &[&THROUGHPUT, &LATENCY_MAX],
    },
    Load {
        name: "hackbench",
        argv: &["run", "hackbench"],
        program: Some("hackbench"),
        about: "hackbench over pipes, rounds until the time is over: wake-ups and run-queue locks",
        metrics: &[&MESSAGES, &ROUND_TIME, &ROUNDS],
    },
    Load {
        name: "cyclictest",
        argv: &["run", "cyclictest"],
        program: Some("cyclictest"),
        about: "cyclictest, one FIFO thread a CPU: how late timers fire",
        metrics: &[&TIMER_P99, &TIMER_AVG, &TIMER_P50, &TIMER_MAX],
    },
    Load {
        name: "stress-ng",
        argv: &["run", "stress-ng"],
        program: Some("stress-ng"),
        about: "one of stress-ng's stressors",
        metrics: &[&BOGO_OPS],
    },
    Load {
        name: "fio",
        argv: &["run", "fio"],
        program: Some("fio"),
        about: "fio, random 4 KiB reads and writes on tmpfs",
        metrics: &[&READ_IOPS, &WRITE_IOPS, &READ_P99, &WRITE_P99],
    },
];

/// The load of that name.
pub fn load(name: &str) -> Option<&'static Load> {
    LOADS.iter().find(|load| load.name == name)
}

impl Load {
    /// This load's metric of that name.
    pub fn metric(&self, name: &str) -> Option<&'static Metric> {
        self.metrics.iter().copied().find(|metric| metric.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn names_are_unique_and_a_metric_means_one_thing() {
        let mut loads = BTreeMap::new();
        let mut units = BTreeMap::new();
        for load in LOADS {
            assert!(loads.insert(load.name, ()).is_none(), "{} is listed twice", load.name);
            assert!(!load.metrics.is_empty(), "{} reports nothing", load.name);
            for metric in load.metrics {
                let known = units.entry(metric.name).or_insert((metric.unit, metric.better));
                assert_eq!(*known, (metric.unit, metric.better), "{} has two meanings", metric.name);
            }
        }
    }
}
