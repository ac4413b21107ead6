//! Memory as the model sees it: every word that `entrain_host.h` or the guest touches is one of loom's.
//!
//! Pages and pairings are laid out in ordinary memory, of which the header's code gets addresses; the accesses to what
//! others may touch at the same time come here and find loom's word by its address.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::HashMap;
use std::mem::offset_of;
use std::ops::Range;
use std::rc::Rc;

use entrain_channel::page::{Header, LinkLine, MAGIC0, MAGIC1, Page, VERSION};
use entrain_channel::protocol::{Shared, Word};
use entrain_channel::word::Seed;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::Side;

/// A word of loom's.
pub(super) struct Atomic(AtomicU64);

impl Word for Atomic {
    fn load(&self) -> u64 {
        self.0.load(SeqCst)
    }
    fn store(&self, value: u64) {
        // loom orders plain stores to one word only partially, and so lets a compare-and-swap succeed from a value that
        // has been overwritten; coherent memory does not. An exchange has a place in the order of the word.
        self.0.swap(value, SeqCst);
    }
    fn swap(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
}

/// A word that has one writer at a time: loom ends the run where two threads reach it without an order between them.
type Own = loom::cell::UnsafeCell<u64>;

/// What is wrong with the host in a model that must be caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Nothing.
    No,
    /// It looks at a word of the page and then stores, instead of a compare-and-swap.
    Stores,
    /// It writes the words at which writers take turns without waiting for its own.
    TakesNoTurns,
}

/// The words by address.
pub(super) struct Space {
    atomics: HashMap<usize, Atomic>,
    owns: HashMap<usize, Own>,
    pages: Vec<(Range<usize>, Rc<Cell<bool>>)>,
    broken: Broken,
}

thread_local! {
    /// loom's threads all run in one of the system's, in turns.
    static SPACE: RefCell<Option<Rc<Space>>> = const { RefCell::new(None) };
}

fn space() -> Rc<Space> {
    SPACE.with(|space| space.borrow().clone()).expect("a model runs")
}

impl Space {
    fn atomic(&self, at: usize) -> &Atomic {
        self.atomics.get(&at).unwrap_or_else(|| panic!("no word of the model at {at:#x}"))
    }

    /// Where the host touches a page that it has told its guest to be its own again, memory may be touched that is
    /// somebody else's by now.
    fn host_reaches(&self, at: usize) {
        let page = self.pages.iter().find(|(range, _)| range.contains(&at));
        assert!(page.is_none_or(|(_, free)| !free.get()), "the host reached for a page that it had let go of");
    }

    fn is_host_word(&self, at: usize) -> bool {
        let words = offset_of!(Page, host_slow)..offset_of!(Page, host_slow) + 128;
        self.pages.iter().any(|(range, _)| range.contains(&at) && words.contains(&(at - range.start)))
    }
}

/// What a model is made of: made at the begin of each order of events, gone at its end.
pub(super) struct World<const PAGES: usize, const SIDES: usize> {
    space: Rc<Space>,
    pages: Box<[[u64; 512]; PAGES]>,
    sides: Box<[UnsafeCell<Side>; SIDES]>,
    free: [Rc<Cell<bool>>; PAGES],
    /// Outside of any pairing: the vCPU's hint, what is withheld, how often writers met; its pCPU's capacity and level.
    pub(super) hint: Box<[u32; 5]>,
}

// SAFETY: loom's threads take turns in one thread of the system.
unsafe impl<const P: usize, const S: usize> Send for World<P, S> {}
// SAFETY: as above; what threads share they reach through loom's words.
unsafe impl<const P: usize, const S: usize> Sync for World<P, S> {}

impl<const PAGES: usize, const SIDES: usize> World<PAGES, SIDES> {
    pub(super) fn new(broken: Broken) -> Self {
        let pages = Box::new([[0u64; 512]; PAGES]);
        let sides: Box<[UnsafeCell<Side>; SIDES]> = Box::new(std::array::from_fn(|_| UnsafeCell::new(empty())));
        let hint = Box::new([0u32; 5]);
        let (mut atomics, mut owns) = (HashMap::new(), HashMap::new());
        let mut atomic = |at: usize, value: u64| {
            atomics.insert(at, Atomic(AtomicU64::new(value)));
        };
        for page in pages.iter() {
            let base = page.as_ptr() as usize;
            let header = |field| base + offset_of!(Page, header) + field;
            atomic(header(offset_of!(Header, magic)), MAGIC0);
            atomic(header(offset_of!(Header, magic) + 8), MAGIC1);
            atomic(header(offset_of!(Header, version)), VERSION.into());
            for field in [offset_of!(Header, cookie), offset_of!(Header, gpa), offset_of!(Header, boot_id)] {
                atomic(header(field), 0);
            }
            atomic(base + offset_of!(Page, link) + offset_of!(LinkLine, link), 0);
            atomic(base + offset_of!(Page, link) + offset_of!(LinkLine, seed), 0);
            (0..16).for_each(|word| atomic(base + offset_of!(Page, host_slow) + 8 * word, 0));
        }
        for side in sides.iter() {
            let base = side.get() as usize;
            atomic(base + offset_of!(Side, closed), 1);
            atomic(base + offset_of!(Side, instant_busy), 0);
            atomic(base + offset_of!(Side, level_busy), 0);
            for word in 0..16 {
                owns.insert(base + offset_of!(Side, slow) + 8 * word, Own::new(0));
            }
        }
        (0..5).for_each(|word| atomic(&raw const hint[word] as usize, 0));
        let free: [Rc<Cell<bool>>; PAGES] = std::array::from_fn(|_| Rc::default());
        let ranges = pages.iter().zip(&free).map(|(page, free)| {
            let base = page.as_ptr() as usize;
            (base..base + size_of::<Page>(), free.clone())
        });
        let pages_of = ranges.collect();
        let space = Rc::new(Space { atomics, owns, pages: pages_of, broken });
        SPACE.with(|current| *current.borrow_mut() = Some(space.clone()));
        Self { space, pages, sides, free, hint }
    }

    /// A page as the guest reaches it.
    pub(super) fn page(&self, number: usize) -> Memory<'_> {
        Memory { space: &self.space, base: self.base(number) }
    }

    fn base(&self, number: usize) -> usize {
        self.pages[number].as_ptr() as usize
    }

    /// A page for the header's code: an address that nothing follows.
    pub(super) fn address(&self, number: usize) -> *const Page {
        self.base(number) as *const Page
    }

    pub(super) fn side(&self, number: usize) -> *mut Side {
        self.sides[number].get()
    }

    /// Fills a pairing before it is attached; nobody has found it yet.
    pub(super) fn fill(&self, number: usize, seed: u64, header: u64, generation: u32) {
        let side = self.sides[number].get();
        // SAFETY: fields of the model's own memory; `closed` and the mirrors are loom's words.
        unsafe {
            ((*side).seed, (*side).cookie, (*side).boot_id, (*side).gpa) = (seed, header, header, header);
            (*side).generation = generation;
        }
        for word in 0..16 {
            let mirror = &self.space.owns[&(side as usize + offset_of!(Side, slow) + 8 * word)];
            // SAFETY: loom answers for the order.
            mirror.with_mut(|at| unsafe { *at = seed });
        }
    }

    /// From here on the host must not reach for the page: it has been told that the page is free.
    pub(super) fn is_free(&self, number: usize) {
        self.free[number].set(true);
    }

    pub(super) fn hint_at(&self, word: usize) -> *mut u32 {
        (&raw const self.hint[word]).cast_mut()
    }

    pub(super) fn hint_word(&self, word: usize) -> &Atomic {
        self.space.atomic(self.hint_at(word) as usize)
    }
}

impl<const P: usize, const S: usize> Drop for World<P, S> {
    fn drop(&mut self) {
        SPACE.with(|current| *current.borrow_mut() = None);
    }
}

fn empty() -> Side {
    Side {
        seed: 0,
        cookie: 0,
        boot_id: 0,
        gpa: 0,
        epoch: 0,
        generation: 0,
        closed: 1,
        instant_busy: 0,
        level_busy: 0,
        slow: [0; 8],
        fast: [0; 8],
    }
}

/// A page as the guest reaches it: the words of loom.
#[derive(Clone, Copy)]
pub(super) struct Memory<'a> {
    space: &'a Space,
    base: usize,
}

impl Memory<'_> {
    fn at(&self, offset: usize) -> &Atomic {
        self.space.atomic(self.base + offset)
    }

    /// A host word by its number, the slow line first.
    pub(super) fn host(&self, word: usize) -> &Atomic {
        self.at(offset_of!(Page, host_slow) + 8 * word)
    }
}

impl Shared for Memory<'_> {
    type Word = Atomic;
    /// One number in cookie, address and boot id: more of the same kind add orders but no new behaviour.
    type Header = u64;
    fn link(&self) -> &Atomic {
        self.at(offset_of!(Page, link) + offset_of!(LinkLine, link))
    }
    fn seed(&self) -> &Atomic {
        self.at(offset_of!(Page, link) + offset_of!(LinkLine, seed))
    }
    fn host_words(&self) -> impl Iterator<Item = &Atomic> {
        // Those that the models write.
        super::WORDS.iter().map(|word| self.host(*word))
    }
    fn load_header(&self) -> u64 {
        Word::load(self.at(offset_of!(Header, cookie)))
    }
    fn store_header(&self, header: u64) {
        for field in [offset_of!(Header, cookie), offset_of!(Header, gpa), offset_of!(Header, boot_id)] {
            Word::store(self.at(field), header);
        }
    }
}

/// The words of a seed.
pub(super) fn seed(n: u64) -> Seed {
    Seed::from_random(0x1111_2222_3333_4441 * n)
}

// What side.c calls for each access.

#[unsafe(no_mangle)]
extern "C-unwind" fn entrain_model_load(at: *const u8) -> u64 {
    let space = space();
    space.host_reaches(at as usize);
    // Of the page and of `closed` alike: a CPU may see them late.
    space.atomic(at as usize).0.load(Relaxed)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn entrain_model_store(at: *mut u8, value: u64) {
    let space = space();
    space.host_reaches(at as usize);
    space.atomic(at as usize).0.swap(value, Relaxed);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn entrain_model_exchange(at: *mut u8, value: u64) -> u64 {
    space().atomic(at as usize).0.swap(value, SeqCst)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn entrain_model_swap(at: *mut u8, from: u64, to: u64) -> u64 {
    let space = space();
    let at = at as usize;
    space.host_reaches(at);
    let word = space.atomic(at);
    match space.broken {
        Broken::Stores if space.is_host_word(at) => {
            let was = word.0.load(SeqCst);
            if was == from {
                word.0.swap(to, SeqCst);
            }
            was
        }
        Broken::TakesNoTurns if from == 0 && to == 1 => 0,
        _ => word.0.compare_exchange(from, to, SeqCst, SeqCst).unwrap_or_else(|was| was),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn entrain_model_own_load(at: *const u8) -> u64 {
    // SAFETY: loom answers for the order.
    space().owns[&(at as usize)].with(|at| unsafe { *at })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn entrain_model_own_store(at: *mut u8, value: u64) {
    // SAFETY: loom answers for the order.
    space().owns[&(at as usize)].with_mut(|at| unsafe { *at = value });
}
