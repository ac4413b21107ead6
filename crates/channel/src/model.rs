//! Model check of the protocol: loom runs the real state machine through every order of events of two or three sides (with
//! a bounded number of preemptions), and the memory's next owner looks whether anybody wrote into it.
//!
//! Each model has a counterpart with a broken host that must be caught: a check that can't fail proves nothing.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use loom::thread;

use crate::protocol::{Guest, GuestView, Host, HostView, HostWord, Shared, Snapshot, Word};
use crate::word::{Link, LinkState, Seed};

const PATTERN: u64 = 0x5a5a_5a5a_5a5a_0000;

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(SeqCst)
    }
    fn store(&self, value: u64) {
        // loom orders plain stores to one word only partially, and so lets a compare-and-swap succeed from a value that
        // has been overwritten; coherent memory does not. An exchange has a place in the order of the word.
        AtomicU64::swap(self, value, SeqCst);
    }
    fn swap(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
}

/// A page cut down to one header word and two host words: more of the same kind add orders but no new behaviour.
struct Memory {
    link: AtomicU64,
    seed: AtomicU64,
    header: AtomicU64,
    host: [AtomicU64; 2],
}

impl Shared for Memory {
    type Word = AtomicU64;
    type Header = u64;
    fn link(&self) -> &AtomicU64 {
        &self.link
    }
    fn seed(&self) -> &AtomicU64 {
        &self.seed
    }
    fn host_words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.host.iter()
    }
    fn load_header(&self) -> u64 {
        Word::load(&self.header)
    }
    fn store_header(&self, header: u64) {
        Word::store(&self.header, header);
    }
}

impl Memory {
    /// Memory that has been offered once, header 1.
    fn offered() -> (Arc<Self>, Guest) {
        let zero = || AtomicU64::new(0);
        let memory = Arc::new(Self { link: zero(), seed: zero(), header: zero(), host: [zero(), zero()] });
        let mut guest = Guest::new(0xcafe_0000);
        assert!(guest.offer(&*memory, seed(1), 1));
        (memory, guest)
    }

    fn words(&self) -> [&AtomicU64; 4] {
        [&self.link, &self.seed, &self.host[0], &self.host[1]]
    }

    /// The guest kernel gives the memory to somebody else, who fills it and later finds what he wrote.
    fn next_owner_writes(&self) {
        for (i, word) in self.words().into_iter().enumerate() {
            Word::store(word, PATTERN + i as u64);
        }
    }

    fn next_owner_checks(&self) {
        for (i, word) in self.words().into_iter().enumerate() {
            assert_eq!(Word::load(word), PATTERN + i as u64, "the host wrote to memory that the guest took back");
        }
    }
}

fn seed(n: u64) -> Seed {
    Seed::from_random(0x1111_2222_3333_4441 * n)
}

/// How a host publishes; the model runs with the real way and with ways that must be caught.
type Publish = fn(&mut HostWord, &AtomicU64, u64) -> bool;

fn really(word: &mut HostWord, at: &AtomicU64, value: u64) -> bool {
    word.publish(at, value)
}

/// Looks and then stores: the classic check before use.
fn by_store(word: &mut HostWord, at: &AtomicU64, value: u64) -> bool {
    let ours = Word::load(at) == word.mirror();
    if ours {
        Word::store(at, value << 16);
    }
    ours
}

/// Pairs if it can, publishes, and ends as the guest wishes. Returns whether it paired.
fn host_life(memory: &Memory, publish: Publish) -> bool {
    let Some(host) = Host::pair(memory, &Snapshot::read(memory)) else { return false };
    let mut words = [host.word(), host.word()];
    let alive = publish(&mut words[0], &memory.host[0], 5)
        && publish(&mut words[1], &memory.host[1], 6)
        && publish(&mut words[0], &memory.host[0], 7);
    if alive && host.look(memory) != HostView::Lost {
        host.let_go(memory);
    }
    true
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// The guest takes the page back at any moment and does not wait for the host at all, as when the host is silent.
fn forced_take_back(publish: Publish) {
    check(3, move || {
        let (memory, guest) = Memory::offered();
        let host = thread::spawn({
            let memory = memory.clone();
            move || host_life(&memory, publish)
        });
        if guest.take_back(&*memory) != GuestView::Own {
            guest.force(&*memory);
        }
        guest.scrub(&*memory);
        memory.next_owner_writes();
        host.join().expect("host");
        memory.next_owner_checks();
    });
}

#[test]
fn no_write_reaches_memory_taken_back() {
    forced_take_back(really);
}

#[test]
#[should_panic(expected = "the host wrote to memory")]
fn a_host_that_stores_is_caught() {
    forced_take_back(by_store);
}

/// Reboot, kexec, panic: the memory has a new owner without any scrub.
#[test]
fn no_write_reaches_memory_of_the_next_kernel() {
    check(3, || {
        let (memory, _) = Memory::offered();
        let host = thread::spawn({
            let memory = memory.clone();
            move || host_life(&memory, really)
        });
        memory.next_owner_writes();
        host.join().expect("host");
        memory.next_owner_checks();
    });
}

/// The next owner has zeroed the memory, and 0 is what a host without seeds would swap from first.
#[test]
#[should_panic(expected = "written into zeroed memory")]
fn a_first_write_from_zero_is_caught() {
    check(3, || {
        let (memory, _) = Memory::offered();
        let host = thread::spawn({
            let memory = memory.clone();
            move || {
                if Host::pair(&*memory, &Snapshot::read(&*memory)).is_some() {
                    Word::swap(&memory.host[0], 0, 5 << 16);
                }
            }
        });
        for word in memory.words() {
            Word::store(word, 0);
        }
        host.join().expect("host");
        assert_eq!(Word::load(&memory.host[0]), 0, "written into zeroed memory");
    });
}

/// When the guest waits for the host's answer, the host has really let go (no pin, no mapping) once the page is its own.
#[test]
fn released_means_that_the_host_has_let_go() {
    check(3, || {
        let (memory, guest) = Memory::offered();
        let pinned = Arc::new(AtomicBool::new(false));
        let host = thread::spawn({
            let (memory, pinned) = (memory.clone(), pinned.clone());
            move || {
                let snapshot = Snapshot::read(&*memory);
                // Pinned before it pairs: the guest must not see a pairing whose pin is not yet there to be dropped.
                pinned.store(true, SeqCst);
                let Some(host) = Host::pair(&*memory, &snapshot) else {
                    pinned.store(false, SeqCst);
                    return;
                };
                let mut word = host.word();
                let _ = word.publish(&memory.host[0], 1);
                while host.look(&*memory) == HostView::Paired {
                    thread::yield_now();
                }
                pinned.store(false, SeqCst);
                host.let_go(&*memory);
            }
        });
        let waited = guest.take_back(&*memory) == GuestView::Releasing;
        while guest.look(&*memory) == GuestView::Releasing {
            thread::yield_now();
        }
        assert_eq!(guest.look(&*memory), GuestView::Own);
        assert!(!waited || !pinned.load(SeqCst), "still pinned");
        host.join().expect("host");
    });
}

/// Two daemons, or two hosts that see the same memory.
#[test]
fn one_offer_has_one_owner() {
    check(3, || {
        let (memory, guest) = Memory::offered();
        let claim = |memory: Arc<Memory>| {
            move || Host::pair(&*memory, &Snapshot::read(&*memory)).map(|host| host.word().publish(&memory.host[0], 9))
        };
        let other = thread::spawn(claim(memory.clone()));
        let mine = claim(memory.clone())();
        let other = other.join().expect("host");
        assert_eq!(usize::from(mine.is_some()) + usize::from(other.is_some()), 1);
        assert_eq!(mine.or(other), Some(true), "the owner's words are its own");
        assert_eq!(guest.look(&*memory), GuestView::Paired);
    });
}

/// A pairing is neither lost nor half: a guest that leaves the offer standing is paired, and reads what was published.
#[test]
fn an_offer_that_stands_is_accepted() {
    check(3, || {
        let (memory, guest) = Memory::offered();
        let host = thread::spawn({
            let memory = memory.clone();
            move || {
                let host = Host::pair(&*memory, &Snapshot::read(&*memory)).expect("the offer stands");
                assert!(host.word().publish(&memory.host[0], 3));
            }
        });
        // The guest looks on meanwhile: what it reads is nothing or the whole.
        let seen = seed(1).unpack(Word::load(&memory.host[0]));
        assert!(seen == 0 || seen == 3);
        assert_ne!(guest.look(&*memory), GuestView::Foreign);
        host.join().expect("host");
        assert_eq!(guest.look(&*memory), GuestView::Paired);
        assert_eq!(seed(1).unpack(Word::load(&memory.host[0])), 3);
    });
}

/// An agent dies, the next one recovers its page and offers it anew while the old pairing's host still writes; the new
/// pairing's words and link never suffer from the old one.
#[test]
fn an_old_host_never_disturbs_the_next_generation() {
    check(2, || {
        let (memory, _) = Memory::offered();
        let old = Host::pair(&*memory, &Snapshot::read(&*memory)).expect("offered");
        let zombie = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut word = old.word();
                let _ = word.publish(&memory.host[0], 5) && word.publish(&memory.host[0], 6);
                old.let_go(&*memory);
            }
        });
        let mut agent = Guest::recover(&*memory, 0);
        if agent.take_back(&*memory) != GuestView::Own {
            agent.force(&*memory);
        }
        assert!(agent.offer(&*memory, seed(2), 2));
        let host = Host::pair(&*memory, &Snapshot::read(&*memory)).expect("offered again");
        let mut word = host.word();
        assert!(word.publish(&memory.host[0], 8), "the old host spoilt a word");
        zombie.join().expect("zombie");
        assert_eq!(agent.look(&*memory), GuestView::Paired, "the old host spoilt the link");
        assert_eq!(seed(2).unpack(Word::load(&memory.host[0])), 8);
    });
}

/// A host that pairs has read the header of the very generation that it paired with, however often the guest renews it.
#[test]
fn a_paired_host_has_read_a_whole_header() {
    check(3, || {
        let (memory, mut guest) = Memory::offered();
        let first = guest.generation();
        let host = thread::spawn({
            let memory = memory.clone();
            move || {
                let snapshot = Snapshot::read(&*memory);
                if let Some(host) = Host::pair(&*memory, &snapshot) {
                    let n = u64::from(host.generation().wrapping_sub(first)) + 1;
                    assert_eq!(snapshot.header, n, "a header of another generation");
                    assert_eq!(host.seed(), seed(n), "a seed of another generation");
                }
            }
        });
        if guest.take_back(&*memory) == GuestView::Own {
            assert!(guest.offer(&*memory, seed(2), 2));
        }
        host.join().expect("host");
    });
}

/// The guest asks for the page in the moment in which the host leaves by itself.
#[test]
fn both_sides_may_end_it_at_once() {
    check(3, || {
        let (memory, guest) = Memory::offered();
        let host = Host::pair(&*memory, &Snapshot::read(&*memory)).expect("offered");
        let leaving = thread::spawn({
            let memory = memory.clone();
            move || host.let_go(&*memory)
        });
        let view = guest.take_back(&*memory);
        leaving.join().expect("host");
        assert!(matches!(view, GuestView::Own | GuestView::Releasing));
        let link = Link::from_raw(Word::load(&memory.link)).expect("a link");
        assert_eq!(link.state, LinkState::Released);
    });
}
