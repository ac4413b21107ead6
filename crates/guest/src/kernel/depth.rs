//! The check of the preempt count: it must rise and fall with preempt_disable.

use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::probe::{Depth, Probe, Survey};
use crate::affinity;
use crate::error::{GuestError, Result};

/// On each CPU that is online, the count must rise by as many levels as are entered.
pub(super) fn check(probe: &Probe<'_>, offset: u32, surveys: &[Survey], online: &[u32]) -> Result<()> {
    let before = sched_getaffinity(None).map_err(GuestError::system("sched_getaffinity"))?;
    let checked = online.iter().filter(|&&cpu| (cpu as usize) < surveys.len()).try_for_each(|&cpu| {
        // It may have gone offline since.
        if affinity::bind(cpu as usize).is_err() {
            return Ok(());
        }
        let address = surveys[cpu as usize].preempt_count;
        is_right(cpu, &probe.depth(address, offset)?)
    });
    sched_setaffinity(None, &before).map_err(GuestError::system("sched_setaffinity"))?;
    checked
}

fn is_right(cpu: u32, seen: &Depth) -> Result<()> {
    let rise = (seen.inside & 0xff).wrapping_sub(seen.outside & 0xff);
    if seen.levels == 0 || (seen.error == 0 && rise == seen.levels) {
        return Ok(());
    }
    Err(GuestError::SelfCheck(format!(
        "the preempt count of CPU {cpu} went from {:#x} to {:#x} in {} levels of preempt_disable (read error {})",
        seen.outside, seen.inside, seen.levels, seen.error
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_does_not_rise_is_noticed() {
        let seen = Depth { levels: 3, outside: 1, inside: 4, ..Depth::default() };
        is_right(0, &seen).expect("3 levels");
        is_right(0, &Depth { levels: 0, ..seen }).expect("can't be checked");
        assert!(is_right(0, &Depth { inside: 1, ..seen }).is_err());
        assert!(is_right(0, &Depth { error: -14, ..seen }).is_err());
    }
}
