//! The pairing of host and guest as a state machine over one page: the guest's side, and what the host reads before it
//! accepts an offer. The host's side is `entrain_host.h`, which its BPF programs run, and `hosting`, the daemon.
//!
//! The same code drives real pages and the model check, which tries every order of events (crates/channel-native).
//!
//! Why no host write reaches memory that the guest took back: the host changes a word by compare-and-swap alone, from the
//! 64 bits that it knows to be there (the random seed of the offer, later what it wrote last). Whoever has written the
//! word since, the guest's scrub or the memory's next owner, made the swap fail. So the guest need not wait for a dead
//! host, and a host that was stopped for an hour may go on in the middle of a write.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::page::{HeaderValues, Page};
use crate::word::{Link, LinkState, Seed};

/// Host words of a page: lines 4 and 5, the reserved ones included.
pub const HOST_WORDS: usize = 16;

/// An aligned 64-bit word that both sides see.
pub trait Word {
    /// Reads it.
    fn load(&self) -> u64;
    /// Writes it, whatever it holds.
    fn store(&self, value: u64);
    /// Compare-and-swap: writes `to` if it holds `from`; whether it did.
    fn swap(&self, from: u64, to: u64) -> bool;
}

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(SeqCst)
    }
    fn store(&self, value: u64) {
        self.store(value, SeqCst);
    }
    fn swap(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
}

/// The words of a page that the pairing is made of.
pub trait Shared {
    /// Kind of its words.
    type Word: Word;
    /// What the guest fills in before an offer, as the host reads it before it pairs.
    type Header: Copy;
    /// The link word.
    fn link(&self) -> &Self::Word;
    /// The seed.
    fn seed(&self) -> &Self::Word;
    /// Every word that the host may write, besides the link.
    fn host_words(&self) -> impl Iterator<Item = &Self::Word>;
    /// Reads the header, word by word.
    fn load_header(&self) -> Self::Header;
    /// Writes the header, word by word.
    fn store_header(&self, header: Self::Header);
}

impl Shared for Page {
    type Word = AtomicU64;
    type Header = HeaderValues;
    fn link(&self) -> &AtomicU64 {
        &self.link.link
    }
    fn seed(&self) -> &AtomicU64 {
        &self.link.seed
    }
    fn host_words(&self) -> impl Iterator<Item = &AtomicU64> {
        let (slow, fast) = (&self.host_slow, &self.host_fast);
        let slow: [&AtomicU64; 8] = [
            &slow.features,
            &slow.version,
            &slow.heartbeat,
            &slow.capacity,
            &slow.perf,
            &slow.entitlement,
            &slow.reserved[0],
            &slow.reserved[1],
        ];
        let fast: [&AtomicU64; 8] = [
            &fast.state,
            &fast.since,
            &fast.steal,
            &fast.preemptions,
            &fast.preemptions_cs,
            &fast.boosts,
            &fast.instant,
            &fast.reserved,
        ];
        slow.into_iter().chain(fast)
    }
    fn load_header(&self) -> HeaderValues {
        HeaderValues::load(&self.header)
    }
    fn store_header(&self, header: HeaderValues) {
        header.store(&self.header);
    }
}

/// What the guest sees when it looks at a page of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestView {
    /// Nobody has accepted the offer yet.
    Offered,
    /// A host publishes.
    Paired,
    /// The guest asked for the page; the host has not answered.
    Releasing,
    /// The page is the guest's alone: it may offer it again, or scrub and free it.
    Own,
    /// The link holds what no host that keeps to the protocol writes; the guest takes the page back by [`Guest::force`].
    Foreign,
}

/// The guest's side of one page.
#[derive(Clone, Debug)]
pub struct Guest {
    generation: u32,
}

impl Guest {
    /// For a page that was never offered; `random` starts the generations, so that they do not repeat after a reboot.
    pub fn new(random: u32) -> Self {
        Self { generation: random }
    }

    /// For a page that an agent left behind: goes on from the generation that stands there.
    pub fn recover<S: Shared>(page: &S, random: u32) -> Self {
        let generation = Link::from_raw(page.link().load()).map_or(random, |link| link.generation);
        Self { generation }
    }

    /// The generation of the latest offer.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Where the pairing stands.
    pub fn look<S: Shared>(&self, page: &S) -> GuestView {
        let Some(link) = Link::from_raw(page.link().load()) else { return GuestView::Foreign };
        match link.state {
            LinkState::None => GuestView::Own,
            _ if link.generation != self.generation => GuestView::Foreign,
            LinkState::Offered => GuestView::Offered,
            LinkState::Paired => GuestView::Paired,
            LinkState::Releasing => GuestView::Releasing,
            LinkState::Released | LinkState::Withdrawn => GuestView::Own,
        }
    }

    /// Offers a page that is the guest's own to any host, as a new generation. Returns false, and does nothing, when the
    /// page is not [`GuestView::Own`].
    pub fn offer<S: Shared>(&mut self, page: &S, seed: Seed, header: S::Header) -> bool {
        if self.look(page) != GuestView::Own {
            return false;
        }
        // The host accepts only the very generation that it has read the header of, so the order here is free up to the
        // link, which comes last.
        let before = page.link().load();
        page.store_header(header);
        page.seed().store(seed.raw());
        for word in page.host_words() {
            word.store(seed.raw());
        }
        self.generation = self.generation.wrapping_add(1);
        page.link().swap(before, Link { generation: self.generation, state: LinkState::Offered }.raw())
    }

    /// Takes an offer back, or asks the host for the page. Then [`GuestView::Own`] means done, [`GuestView::Releasing`]
    /// that the host's answer is to be waited for, as long as the host lives; after that, [`Guest::force`].
    pub fn take_back<S: Shared>(&self, page: &S) -> GuestView {
        // At most one step of the host can come between look and swap: offered becomes paired, paired becomes released.
        // A host that makes more is not one of ours.
        for _ in 0..3 {
            let (from, to) = match self.look(page) {
                GuestView::Offered => (LinkState::Offered, LinkState::Withdrawn),
                GuestView::Paired => (LinkState::Paired, LinkState::Releasing),
                view => return view,
            };
            let link = Link { generation: self.generation, state: from };
            if page.link().swap(link.raw(), link.with(to).raw()) {
                return if to == LinkState::Withdrawn { GuestView::Own } else { GuestView::Releasing };
            }
        }
        GuestView::Foreign
    }

    /// Takes the page back from a host that is silent or does not keep to the protocol. Safe at any time.
    pub fn force<S: Shared>(&self, page: &S) {
        page.link().store(Link { generation: self.generation, state: LinkState::Withdrawn }.raw());
        for word in page.host_words() {
            word.store(0);
        }
    }

    /// Makes a page that is the guest's own ready to be freed: from here on no swap of any host succeeds.
    pub fn scrub<S: Shared>(&self, page: &S) {
        page.link().store(0);
        page.seed().store(0);
        for word in page.host_words() {
            word.store(0);
        }
    }
}

/// What the host reads of a page before it decides whether to pair. Consistent once the link word that was read has been
/// exchanged for *paired*.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<H> {
    /// The link word as it stood before the rest was read.
    pub link: u64,
    /// The seed as it stands in the page.
    pub seed: u64,
    /// The header.
    pub header: H,
}

impl<H: Copy> Snapshot<H> {
    /// Reads a page, the link first.
    pub fn read<S: Shared<Header = H>>(page: &S) -> Self {
        let link = page.link().load();
        Self { link, seed: page.seed().load(), header: page.load_header() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 0x1234_5678_9abc_def1;

    fn offered() -> (Box<Page>, Guest) {
        let page = Page::zeroed();
        let mut guest = Guest::new(41);
        assert!(guest.offer(&*page, Seed::from_random(SEED), HeaderValues::default()));
        (page, guest)
    }

    #[test]
    fn an_offer_is_taken_back_and_made_again() {
        let (page, mut guest) = offered();
        assert_eq!(guest.look(&*page), GuestView::Offered);
        assert!(!guest.offer(&*page, Seed::from_random(1), HeaderValues::default()), "it is not the guest's own");
        assert_eq!(guest.take_back(&*page), GuestView::Own);
        let before = guest.generation();
        assert!(guest.offer(&*page, Seed::from_random(SEED + 1), HeaderValues::default()));
        assert_eq!(guest.generation(), before + 1);
    }

    #[test]
    fn a_recovered_page_goes_on_counting() {
        let (page, guest) = offered();
        let mut next = Guest::recover(&*page, 9);
        assert_eq!(next.take_back(&*page), GuestView::Own);
        assert!(next.offer(&*page, Seed::from_random(3), HeaderValues::default()));
        assert_eq!(next.generation(), guest.generation() + 1);
    }

    #[test]
    fn a_link_that_nobody_of_ours_wrote_is_foreign() {
        let (page, guest) = offered();
        for raw in [u64::MAX, 6, 0xff00, Link { generation: 1, state: LinkState::Paired }.raw()] {
            page.link.link.store(raw, SeqCst);
            assert_eq!(guest.look(&*page), GuestView::Foreign);
            assert_eq!(guest.take_back(&*page), GuestView::Foreign);
        }
        guest.force(&*page);
        assert_eq!(guest.look(&*page), GuestView::Own);
    }

    #[test]
    fn the_host_words_are_two_whole_lines() {
        let page = Page::zeroed();
        let start = std::ptr::from_ref(&*page) as usize;
        let offsets: Vec<usize> = page.host_words().map(|word| std::ptr::from_ref(word) as usize - start).collect();
        assert_eq!(offsets, (0..HOST_WORDS).map(|i| 0x100 + 8 * i).collect::<Vec<_>>());
    }
}
