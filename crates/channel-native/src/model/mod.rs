//! Model check of the pairing: loom runs the real code of both sides through every order of events (with a bounded
//! number of preemptions), and the memory's next owner looks whether anybody wrote into it.
//!
//! The guest is `protocol::Guest`, the daemon `hosting`, the writers are `entrain_host.h` as BPF runs it. What the
//! kernel does for them (finding a pairing, a grace period, the lock of a run queue) is [`Host`] here.
//!
//! Each property has a counterpart with something broken that must be caught: a check that can't fail proves nothing.

mod faults;
mod space;
mod writers;

use std::sync::Arc;

use entrain_channel::hosting::{Kernel, Op, Paired, Refused, Step};
use entrain_channel::page::Page;
use entrain_channel::protocol::{Guest, GuestView, Shared, Snapshot, Word};
use entrain_channel::word::{Link, LinkState};
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::SeqCst;
use loom::sync::{Mutex, MutexGuard};

use crate::{Beat, Side, Told};
use space::{Broken, World, seed};

const PATTERN: u64 = 0x5a5a_5a5a_5a5a_0000;
/// The words that most models write, by their number: heartbeat, since, state, instant. Other values stay 0, which costs the
/// header's code no access.
const HEARTBEAT: usize = 2;
const SINCE: usize = 9;
const STATE: usize = 8;
const INSTANT: usize = 14;
/// Of the pCPU: told in a model of its own, as each word more takes all models longer.
const LEVEL: usize = 4;
const WORDS: [usize; 6] = [0, 1, HEARTBEAT, STATE, SINCE, INSTANT];
/// Kinds of writers: each is at one moment in one run of its program.
const SWITCH: usize = 0;
const TICK: usize = 1;
const IDLE: usize = 2;

unsafe extern "C-unwind" {
    fn entrain_model_step(side: *mut Side, page: *const Page, op: u32, from: u64, to: u64, was: *mut u64) -> i32;
    fn entrain_model_is_closed(side: *const Side) -> i32;
    fn entrain_model_gone(side: *const Side) -> u64;
    fn entrain_model_stands(side: *mut Side, page: *const Page, link: *mut u64) -> i32;
    fn entrain_model_put_state(side: *mut Side, page: *const Page, told: *const Told);
    fn entrain_model_put_instant(
        side: *mut Side,
        page: *const Page,
        instant: *const u32,
        withheld: *const u32,
        races: *mut u32,
    );
    fn entrain_model_put_level(
        side: *mut Side,
        page: *const Page,
        capacity: *const u32,
        perf: *const u32,
        withheld: *const u32,
        races: *mut u32,
    );
    fn entrain_model_put_beat(side: *mut Side, page: *const Page, beat: *const Beat);
}

/// Two pages and two pairings: of one vCPU after the other, or of two.
type Pages = World<2, 2>;

/// The host: its kernel's tables, and what orders who reads them.
struct Host {
    world: Pages,
    /// By thread: 1 + the pairing that BPF's map has for it, 0 for none.
    attached: [AtomicU64; 2],
    /// The thread of the one entry, 0 or 1: entries are used again.
    entry: AtomicU64,
    /// What the tick has told of the entry.
    gone: AtomicU64,
    /// Held by a writer while its program runs; a grace period waits for each once.
    running: [Mutex<()>; 4],
    run_queue: Mutex<()>,
    /// Mutations.
    waits: bool,
    locks: bool,
}

impl Host {
    fn new(broken: Broken) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            world: World::new(broken),
            attached: [zero(), zero()],
            entry: zero(),
            gone: zero(),
            running: [Mutex::new(()), Mutex::new(()), Mutex::new(()), Mutex::new(())],
            run_queue: Mutex::new(()),
            waits: true,
            locks: true,
        }
    }

    /// Page 0 on offer, header 1.
    fn offered(broken: Broken) -> (Arc<Self>, Guest) {
        Self::with(broken, |_| {})
    }

    fn with(broken: Broken, change: impl FnOnce(&mut Self)) -> (Arc<Self>, Guest) {
        let mut host = Self::new(broken);
        change(&mut host);
        let mut guest = Guest::new(0xcafe_0000);
        assert!(guest.offer(&host.world.page(0), seed(1), 1));
        (Arc::new(host), guest)
    }

    /// What the daemon does with the offer in page `page`, for thread `page`, into pairing `side`.
    fn pair(&self, page: usize, side: usize) -> Option<Paired<(usize, usize)>> {
        let memory = self.world.page(page);
        let snapshot = Snapshot::read(&memory);
        let offer = Link::from_raw(snapshot.link).filter(|link| link.state == LinkState::Offered)?;
        self.world.fill(side, snapshot.seed, snapshot.header, offer.generation);
        self.attached[page].store(1 + side as u64, SeqCst);
        match Paired::accept(self, (page, side), offer.generation) {
            Ok(paired) => Some(paired),
            Err(Refused::Stale | Refused::TakenBack) => None,
            Err(Refused::Error(never)) => match never {},
        }
    }

    fn runs(&self, writer: usize) -> MutexGuard<'_, ()> {
        self.running[writer].lock().expect("no model panics with it")
    }

    /// The open pairing of a thread, as `pairing__of` finds it, with its page.
    fn found(&self, thread: usize) -> Option<(*mut Side, *const Page)> {
        let side = self.world.side(self.attached[thread].load(SeqCst).checked_sub(1)? as usize);
        // SAFETY: a side of the world; accesses are loom's.
        (unsafe { entrain_model_is_closed(side) } == 0).then_some((side, self.world.address(thread)))
    }

    /// A switch of the vCPU in `thread`, which tells `value`.
    fn switch(&self, thread: usize, value: u64) {
        let _runs = self.runs(SWITCH);
        let _queue = self.locks.then(|| self.run_queue.lock().expect("no model panics with it"));
        if let Some((side, page)) = self.found(thread) {
            let told = Told { since: value << 10, state: value, ..Told::default() };
            // SAFETY: as above.
            unsafe { entrain_model_put_state(side, page, &told) };
        }
    }

    /// An idle transition, which makes the hint of the entry's vCPU `value`.
    fn idle(&self, value: u64, writer: usize) {
        let _runs = self.runs(writer);
        self.world.hint_word(0).store(value);
        if let Some((side, page)) = self.found(self.entry.load(SeqCst) as usize) {
            self.put_instant(side, page);
        }
    }

    fn put_instant(&self, side: *mut Side, page: *const Page) {
        let [instant, withheld, races] = [0, 1, 2].map(|word| self.world.hint_at(word));
        // SAFETY: as above.
        unsafe { entrain_model_put_instant(side, page, instant, withheld, races) }
    }

    /// The level of the pCPU under the entry's vCPU changes to `value`; with none, it is told anew, as a tick does.
    fn level(&self, value: Option<u64>, writer: usize) {
        let _runs = self.runs(writer);
        let [withheld, races, capacity, perf] = [1, 2, 3, 4].map(|word| self.world.hint_at(word));
        if let Some(value) = value {
            self.world.hint_word(4).store(value);
        }
        if let Some((side, page)) = self.found(self.entry.load(SeqCst) as usize) {
            // SAFETY: as above.
            unsafe { entrain_model_put_level(side, page, capacity, perf, withheld, races) }
        }
    }

    /// A tick over the one entry, at time `now`.
    fn tick(&self, now: u64) {
        let _runs = self.runs(TICK);
        let thread = self.entry.load(SeqCst) as usize;
        let attached = self.attached[thread].load(SeqCst);
        let Some(number) = attached.checked_sub(1) else { return self.gone.store(0, SeqCst) };
        let (side, page) = (self.world.side(number as usize), self.world.address(thread));
        let mut link = 0;
        // SAFETY: as above.
        unsafe {
            if entrain_model_is_closed(side) == 0 {
                entrain_model_stands(side, page, &mut link);
            }
            self.gone.store(entrain_model_gone(side), SeqCst);
            if entrain_model_is_closed(side) != 0 {
                return;
            }
            self.put_instant(side, page);
            entrain_model_put_beat(side, page, &Beat { now: now << 10, ..Beat::default() });
        }
    }
}

impl Kernel for Host {
    /// Thread (and page), pairing.
    type Place = (usize, usize);
    type Error = std::convert::Infallible;

    fn step(&self, &(page, side): &(usize, usize), op: Op, expected: u64, wanted: u64) -> Result<Step, Self::Error> {
        let mut was = 0;
        let (side, page) = (self.world.side(side), self.world.address(page));
        // SAFETY: as above.
        let done = unsafe { entrain_model_step(side, page, op as u32, expected, wanted, &mut was) };
        Ok(if done == 0 { Step::Stale } else { Step::Was(was) })
    }

    fn detach(&self, &(thread, side): &(usize, usize)) {
        let _ = self.attached[thread].compare_exchange(1 + side as u64, 0, SeqCst, SeqCst);
    }

    fn grace_period(&self) {
        if self.waits {
            self.running.iter().for_each(|one| drop(one.lock().expect("no model panics with it")));
        }
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// The guest kernel gives the memory to somebody else, who fills it and later finds what he wrote.
fn next_owner_writes(host: &Host, page: usize) {
    let memory = host.world.page(page);
    Word::store(memory.link(), PATTERN);
    memory.host_words().for_each(|word| Word::store(word, PATTERN));
}

fn next_owner_checks(host: &Host, page: usize) {
    let memory = host.world.page(page);
    for word in memory.host_words().chain([memory.link()]) {
        assert_eq!(Word::load(word), PATTERN, "the host wrote to memory that the guest took back");
    }
}

/// The guest takes its page back from a host that may not answer, and uses the memory for something else.
fn guest_takes_back(host: &Host, guest: &Guest) {
    let memory = host.world.page(0);
    if guest.take_back(&memory) != GuestView::Own {
        guest.force(&memory);
    }
    guest.scrub(&memory);
    next_owner_writes(host, 0);
}
