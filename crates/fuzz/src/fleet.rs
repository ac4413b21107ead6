//! The whole fleet over time: two VMs whose owner lays out memory and vCPUs as he likes, whose guests offer, ring, take
//! back, re-use and forge, while the host searches, pairs, switches, ticks and lets go.
//!
//! After each step of the host all memory is compared with what the guests have written: the host may have stepped a link
//! as the protocol lets it, and written host words of a pairing that stands, and nothing else.

use std::cell::RefCell;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use arbitrary::{Result, Unstructured};
use entrain_channel::page::{PAGE_SIZE, Page};
use entrain_channel::protocol::{Guest, GuestView, Shared};
use entrain_channel::word::{Link, LinkState, Seed};
use entrain_host::untrusted::fleet::{Fleet, RawVm};

use crate::page::good;

const VMS: usize = 2;
/// vCPUs of a VM, and pages of its memory: one for each, and some beside.
const VCPUS: usize = 3;
const PAGES: usize = 6;
const BASE: u64 = 0x4000_0000;
const WORDS: usize = PAGE_SIZE / 8;
/// Host words, in words of the page.
const HOST_WORDS: std::ops::Range<usize> = 0x20..0x30;
const LINK: usize = 0x10;
const SEED: usize = 0x11;
const STEPS: usize = 48;

type Memory = [[u64; WORDS]; PAGES];

/// The VMs' memory, and threads that stand for their vCPUs.
struct Ground {
    memory: [*mut Memory; VMS],
    tids: Vec<i32>,
}

thread_local! {
    static GROUND: RefCell<Ground> = RefCell::new(Ground::new());
}

impl Ground {
    fn new() -> Self {
        let memory = std::array::from_fn(|_| {
            let bytes = PAGES * PAGE_SIZE;
            // SAFETY: a new file of memory and a shared mapping of it, which is never unmapped.
            unsafe {
                let file = libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC);
                assert!(file >= 0 && libc::ftruncate(file, bytes as i64) == 0);
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let base = libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0);
                assert!(base != libc::MAP_FAILED && libc::close(file) == 0);
                base.cast()
            }
        });
        let tids = (0..VMS * VCPUS + 1).map(|_| {
            let (put, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                // SAFETY: gettid touches no memory.
                let _ = put.send(unsafe { libc::gettid() });
                loop {
                    std::thread::park();
                }
            });
            told.recv().expect("it starts")
        });
        Self { memory, tids: tids.collect() }
    }

    fn page(&self, vm: usize, page: usize) -> &Page {
        // SAFETY: inside the mapping; all of a page are atomic words.
        unsafe { &*(&raw const (*self.memory[vm])[page]).cast() }
    }

    fn word(&self, vm: usize, page: usize, word: usize) -> *mut u64 {
        // SAFETY: inside the mapping.
        unsafe { &raw mut (*self.memory[vm])[page][word] }
    }

    fn copy(&self) -> [Box<Memory>; VMS] {
        // SAFETY: the mapping; whoever else writes to it does so in calls of this thread.
        std::array::from_fn(|vm| Box::new(unsafe { self.memory[vm].read_volatile() }))
    }
}

/// A guest's side: what it has done with each of its pages.
struct Pages {
    sides: [Guest; PAGES],
    seeds: u64,
}

/// One input. How many steps had a page paired.
fn one(data: &mut Unstructured<'_>, ground: &Ground) -> Result<usize> {
    for vm in 0..VMS {
        // SAFETY: as in `copy`.
        unsafe { ground.memory[vm].write_volatile([[0; WORDS]; PAGES]) };
    }
    let mut guests: [Pages; VMS] = std::array::from_fn(|vm| Pages {
        sides: std::array::from_fn(|page| Guest::new((vm * 16 + page) as u32)),
        seeds: 1,
    });
    let mut fleet = Fleet::new().expect("memory for the tables");
    fleet.follow(&vms(data, ground, true)?);
    let mut paired = 0;
    for _ in 0..data.int_in_range(1..=STEPS)? {
        if data.is_empty() {
            break;
        }
        let vm = data.int_in_range(0..=VMS - 1)?;
        let before = ground.copy();
        match data.int_in_range(0..=9)? {
            0 => fleet.follow(&vms(data, ground, false)?),
            1 => {
                let page: u64 = data.int_in_range(0..=PAGES as u64)?;
                fleet.ring(*data.choose(&ground.tids)?, BASE + page * PAGE_SIZE as u64 + u64::from(data.ratio(1, 8)?));
            }
            2 | 3 => fleet.pair(),
            4 => fleet.switch(),
            5 => fleet.tick(),
            _ => {
                guest_step(data, ground, vm, &mut guests[vm])?;
                continue;
            }
        }
        compare(&before, ground);
        paired += usize::from(fleet.paired() > 0);
    }
    let before = ground.copy();
    fleet.end();
    compare(&before, ground);
    fleet.follow(&[]);
    Ok(paired)
}

/// What discovery finds: as VMs ordinarily are, or changed by their owner.
fn vms(data: &mut Unstructured<'_>, ground: &Ground, ordinary: bool) -> Result<Vec<RawVm>> {
    let mut found = Vec::new();
    for vm in 0..VMS {
        let way = if ordinary { 0 } else { data.int_in_range(0..=9)? };
        if way == 9 {
            continue;
        }
        let (hva, size) = (ground.memory[vm] as u64, (PAGES * PAGE_SIZE) as u64);
        let slots = match way {
            // Laid out anew, copied (live migration), in two parts of which one overlaps, somebody else's.
            1 => vec![(BASE + 0x10_0000, size, hva, 0)],
            2 => vec![(BASE, size, hva, 1)],
            3 => vec![(BASE, size / 2, hva, 0), (BASE + size / 2 - 4096, size / 2, hva + size / 2, 0)],
            4 => vec![(BASE, size, ground.memory[1 - vm] as u64, 0)],
            _ => vec![(BASE, size, hva, 0)],
        };
        let mut vcpus: Vec<(u32, i32, u64)> = (0..VCPUS)
            .map(|id| (id as u32, ground.tids[vm * VCPUS + id], 0x1000 * (1 + (vm * VCPUS + id) as u64)))
            .collect();
        match way {
            // A vCPU is unplugged, is plugged again in another's thread or one of its own, all go to other threads.
            5 => drop(vcpus.pop()),
            6 => vcpus[2].1 = *data.choose(&ground.tids)?,
            7 => vcpus[1] = (1, ground.tids[VMS * VCPUS], 0x9000),
            8 => vcpus.iter_mut().rev().for_each(|vcpu| vcpu.1 = ground.tids[(vcpu.0 as usize + 1) % VCPUS]),
            _ => {}
        }
        found.push((1 + vm as u64, 1000 + vm as u32, slots, vcpus));
    }
    Ok(found)
}

/// One step of a guest with its pages.
fn guest_step(data: &mut Unstructured<'_>, ground: &Ground, vm: usize, guest: &mut Pages) -> Result<()> {
    let number = data.int_in_range(0..=PAGES - 1)?;
    let page = ground.page(vm, number);
    match data.int_in_range(0..=9)? {
        // An agent starts: all pages are offered, as by an honest one.
        0..=3 => {
            let gpas: Vec<u64> = (0..VCPUS as u64).map(|page| BASE + page * PAGE_SIZE as u64).collect();
            guest.seeds += 1;
            for number in 0..VCPUS {
                offer(ground, vm, number, guest, &gpas);
            }
        }
        // It ends as it ought to, or by force.
        4 => drop(guest.sides[number].take_back(page)),
        5 => {
            guest.sides[number].force(page);
            guest.sides[number].scrub(page);
        }
        // Its kernel uses the memory for something else.
        6 => {
            let value: u64 = data.arbitrary()?;
            // SAFETY: a word of the mapping.
            (0..WORDS).for_each(|word| unsafe { ground.word(vm, number, word).write_volatile(value) });
        }
        // A process of it writes what it likes.
        _ => {
            for _ in 0..data.int_in_range(0..=4)? {
                let word =
                    if data.arbitrary()? { data.int_in_range(0..=0x2f)? } else { data.int_in_range(0..=WORDS - 1)? };
                let value = if data.arbitrary()? { data.arbitrary()? } else { u64::from(data.arbitrary::<u8>()?) };
                // SAFETY: a word of the mapping.
                unsafe { ground.word(vm, number, word).write_volatile(value) };
            }
        }
    }
    Ok(())
}

fn offer(ground: &Ground, vm: usize, number: usize, guest: &mut Pages, gpas: &[u64]) {
    let page = ground.page(vm, number);
    let own = &mut guest.sides[number];
    if own.take_back(page) != GuestView::Own {
        own.force(page);
        own.scrub(page);
    }
    let seed = Seed::from_random((guest.seeds * 64 + number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut text = good(gpas[number], number as u32, VCPUS as u32, gpas);
    // One cookie for each start of an agent.
    text[0x20..0x28].copy_from_slice(&guest.seeds.to_le_bytes());
    for (word, bytes) in text.chunks_exact(8).enumerate().filter(|(word, _)| !(LINK..0x30).contains(word)) {
        // SAFETY: a word of the mapping.
        unsafe { ground.word(vm, number, word).write_volatile(u64::from_le_bytes(bytes.try_into().expect("8 bytes"))) };
    }
    let header = page.load_header();
    own.offer(page, seed, header);
}

/// What the host has changed, and whether it may.
fn compare(before: &[Box<Memory>; VMS], ground: &Ground) {
    let after = ground.copy();
    for (before, after) in before.iter().zip(&after) {
        for (old, new) in before.iter().zip(after.iter()) {
            if old == new {
                continue;
            }
            let (from, to) = (Link::from_raw(old[LINK]), Link::from_raw(new[LINK]));
            let state = |link: Option<Link>| link.map(|link| link.state);
            let stepped = match (state(from), state(to)) {
                (a, b) if a == b => true,
                (Some(LinkState::Offered), Some(LinkState::Paired | LinkState::Released)) => true,
                (Some(LinkState::Paired | LinkState::Releasing), Some(LinkState::Released)) => true,
                _ => false,
            };
            assert!(stepped, "the link went from {from:?} to {to:?}");
            assert!(from.map(|link| link.generation) == to.map(|link| link.generation), "another generation");
            for word in (0..WORDS).filter(|word| old[*word] != new[*word] && *word != LINK) {
                assert!(HOST_WORDS.contains(&word), "the host wrote word {word:#x} of a page");
                // Of the pairing by whose seed the word stood there: the guest may have changed its page since.
                assert_eq!((old[word] ^ new[word]) & 0xffff, 0, "the host wrote over what it had not written");
            }
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    GROUND.with(|ground| {
        let _ = one(&mut Unstructured::new(data), &ground.borrow());
    });
}

/// Whether an honest guest is paired with all its vCPUs, told, and left at the end: otherwise the target would only test
/// refusals. `None`: this process may not open the files behind mappings, which needs a right.
pub fn seed() -> Option<usize> {
    GROUND.with(|ground| {
        let ground = ground.borrow();
        // SAFETY: as in `one`.
        unsafe { ground.memory[0].write_volatile([[0; WORDS]; PAGES]) };
        let mut pages = Pages { sides: std::array::from_fn(|page| Guest::new(page as u32)), seeds: 1 };
        let gpas: Vec<u64> = (0..VCPUS as u64).map(|page| BASE + page * PAGE_SIZE as u64).collect();
        (0..VCPUS).for_each(|number| offer(&ground, 0, number, &mut pages, &gpas));
        let mut fleet = Fleet::new().expect("memory for the tables");
        let all = vms(&mut Unstructured::new(&[]), &ground, true).expect("no bytes are asked for");
        fleet.follow(&all[..1]);
        fleet.ring(ground.tids[0], BASE);
        fleet.pair();
        let paired = fleet.paired();
        if paired == 0 && std::fs::read_dir("/proc/self/map_files").is_ok_and(|mut files| files.next().is_none()) {
            return None;
        }
        fleet.switch();
        fleet.tick();
        let told = (0..VCPUS).filter(|number| {
            let page = ground.page(0, *number);
            let words = &page.host_fast.state;
            words.load(Relaxed) != page.link.seed.load(Relaxed)
        });
        assert_eq!(told.count(), paired, "those are told");
        // SAFETY: a word of the mapping.
        assert_ne!(unsafe { ground.word(0, 0, SEED).read_volatile() }, 0);
        fleet.end();
        let left = (0..VCPUS).filter(|number| pages.sides[*number].look(ground.page(0, *number)) == GuestView::Own);
        assert_eq!(left.count(), paired, "their pages are their own again");
        fleet.follow(&[]);
        Some(paired)
    })
}
