//! `memcheck`: fills memory with patterns and verifies them, to find writes that nobody here made.
//!
//! What it finds: a host (or device, or another kernel part) that writes to a page which the guest has taken back
//! and uses again. Every word holds a value made of its address and of the round in which it was written. Each pass
//! verifies a page, writes the next round's pattern, and gives a share of the pages back to the kernel and takes new
//! ones (`--reuse`), so that pages that others gave up come by. Exit status 1 if a word was wrong.

use crate::pages::Pages;
use crate::session::{Common, Session};
use crate::sync::{Counter, Phase};
use anyhow::{Context, Result};
use entrain_workloads::catalog;
use std::fs::File;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Fills memory with patterns and verifies them: finds stray writes into pages that are used again
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Memory to fill, in MiB; by default half of what is free
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20), value_name = "MIB")]
    mib: Option<u64>,
    /// Share of the pages to give back and take anew in each pass, in percent
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=100), value_name = "PERCENT")]
    reuse: u64,
}

/// Corruptions that are told one by one; more of them tell no more.
const TOLD: u64 = 20;

/// What the threads found.
struct Found<'a> {
    session: &'a Session,
    corruptions: AtomicU64,
    error: Mutex<Option<anyhow::Error>>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let session = Session::new(&args.common)?;
    let mib = match args.mib {
        Some(mib) => mib,
        None => (free_mib().context("cannot read /proc/meminfo; give --mib")? / 2).max(1),
    };
    let page_size = Pages::new(1)?.page_size();
    let pages = (mib as usize * (1 << 20) / page_size / session.threads()).max(1);
    let (checked, reused) = (Counter::many(session.threads()), Counter::many(session.threads()));
    let phase = Phase::default();
    let found = Found { session: &session, corruptions: AtomicU64::new(0), error: Mutex::new(None) };
    let sum = |counters: &[Counter]| Counter::values(counters).iter().sum::<u64>();
    let measured = std::thread::scope(|scope| {
        for index in 0..session.threads() {
            let (session, phase, found, checked, reused) = (&session, &phase, &found, &checked[index], &reused[index]);
            scope.spawn(move || {
                session.enter(index);
                if !phase.wait_start() {
                    return;
                }
                if let Err(error) = check(pages, args.reuse, phase, found, checked, reused) {
                    *found.error.lock().expect("no thread panics with it") = Some(error);
                }
            });
        }
        session.measure(&phase, || (sum(&checked), sum(&reused)), |_, _| Ok(()))
    })?;
    if let Some(error) = found.error.into_inner().expect("all threads are joined") {
        return Err(error);
    }
    let corruptions = found.corruptions.into_inner();
    let (before, after) = (measured.before, measured.after);
    let out = session.out;
    out.metric(&catalog::CORRUPTIONS, corruptions as f64)?;
    out.metric(&catalog::PAGES_CHECKED, (after.0 - before.0) as f64 / measured.seconds)?;
    out.metric(&catalog::PAGES_REUSED, (after.1 - before.1) as f64 / measured.seconds)?;
    out.end(measured.reason, measured.seconds)?;
    Ok(if corruptions == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One thread: fills its memory, then passes over it until the run stops.
fn check(pages: usize, reuse: u64, phase: &Phase, found: &Found, checked: &Counter, reused: &Counter) -> Result<()> {
    let memory = Pages::small(pages)?;
    let mut rounds = vec![1u64; pages];
    for page in 0..pages {
        fill(&memory, page, 1);
        if !phase.running() {
            return Ok(());
        }
    }
    let mut turn = 0u64;
    loop {
        for (page, round) in rounds.iter_mut().enumerate() {
            if !phase.running() {
                return Ok(());
            }
            for (word, got) in wrong_words(&memory, page, *round) {
                found.tell(&memory, page, word, *round, got)?;
            }
            checked.add(1);
            turn += reuse;
            if turn >= 100 {
                turn -= 100;
                memory.give_back(page)?;
                reused.add(1);
            }
            *round += 1;
            fill(&memory, page, *round);
        }
    }
}

impl Found<'_> {
    fn tell(&self, memory: &Pages, page: usize, word: usize, round: u64, got: u64) -> Result<()> {
        if self.corruptions.fetch_add(1, Relaxed) >= TOLD {
            return Ok(());
        }
        let address = address(memory, page, word);
        let wanted = pattern(address, round);
        let at = match physical(memory, page) {
            Some(start) => format!("physical {:#x}", start + word as u64 * 8),
            None => "physical address unknown (needs root)".into(),
        };
        let text = format!("corruption at {address:#x} ({at}): {got:#018x} instead of {wanted:#018x}, round {round}");
        Ok(self.session.out.note(text)?)
    }
}

/// What the word at an address holds in a round; the mixing makes two words alike by accident only.
fn pattern(address: usize, round: u64) -> u64 {
    (address as u64 ^ round.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn address(memory: &Pages, page: usize, word: usize) -> usize {
    memory.address(page) + word * 8
}

fn fill(memory: &Pages, page: usize, round: u64) {
    for word in 0..memory.words() {
        memory.word(page, word).store(pattern(address(memory, page, word), round), Relaxed);
    }
}

/// The words of a page that do not hold the round's pattern, with what they hold.
fn wrong_words(memory: &Pages, page: usize, round: u64) -> impl Iterator<Item = (usize, u64)> {
    (0..memory.words()).filter_map(move |word| {
        let got = memory.word(page, word).load(Relaxed);
        (got != pattern(address(memory, page, word), round)).then_some((word, got))
    })
}

/// The physical address of a page.
fn physical(memory: &Pages, page: usize) -> Option<u64> {
    let frame = memory.frame(&File::open("/proc/self/pagemap").ok()?, page).ok()??;
    Some(frame * memory.page_size() as u64)
}

pub(crate) fn free_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_is_found() {
        let memory = Pages::small(3).unwrap();
        (0..3).for_each(|page| fill(&memory, page, 7));
        assert!((0..3).all(|page| wrong_words(&memory, page, 7).next().is_none()));
        memory.word(1, 5).fetch_xor(1 << 17, Relaxed);
        let wrong: Vec<_> = wrong_words(&memory, 1, 7).collect();
        assert_eq!(wrong, [(5, pattern(memory.address(1) + 40, 7) ^ 1 << 17)]);
        assert_eq!(
            wrong_words(&memory, 0, 8).count(),
            memory.words(),
            "the pattern of another round is not this one's"
        );
    }
}
