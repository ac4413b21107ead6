//! `entrain record` in a guest: every switch of every CPU.

use anyhow::bail;
use entrain_bpf::Features;

use crate::programs::Programs;
use crate::recorder::{Outcome, Recorder, Wish};

/// Records until the time is over or a signal comes.
pub(crate) fn capture(wish: &Wish) -> anyhow::Result<Outcome> {
    let features = Features::probe();
    if !features.capable {
        bail!("recording needs root's capabilities (SYS_ADMIN, BPF, PERFMON): run as root");
    }
    if !features.btf {
        bail!("this kernel has no type information: use one built with CONFIG_DEBUG_INFO_BTF");
    }
    entrain_bpf::quiet();
    let mut recorder = Recorder::open(wish, Programs::load_guest()?)?;
    recorder.host.guest = true;
    let cpus = recorder.host.pcpus as usize;
    recorder.attach()?;
    let outcome = recorder.run(wish, |_| Ok(()))?;
    Ok(Outcome { vcpus: cpus, ..outcome })
}
