//! The daemon's side of pairings: in which order it asks the kernel's programs for what `entrain_host.h` does.
//!
//! The daemon runs it with its BPF programs, the model check with that header's code under every order of events, and
//! the fuzz targets with the same code natively. What reaches the page is the header's alone.

use crate::word::{Link, LinkState};

/// A step of the link word, `enum entrain_link_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Op {
    /// Exchanges the word; on success publishing begins.
    Pair = 1,
    /// No exchange: publishing ends. Writers that run at this moment may still write.
    Close = 2,
    /// Exchanges the word, after a close and a grace period.
    Release = 3,
}

/// What became of a step of the link word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The word as it was; it was exchanged if that is what was expected.
    Was(u64),
    /// The pinned memory is not the page that was verified; nothing was written.
    Stale,
    /// No page is pinned.
    Nothing,
}

/// What the kernel does for the daemon.
pub trait Kernel {
    /// Where a vCPU and its pairing are found.
    type Place;
    /// The programs cannot be called.
    type Error;
    /// One step of the link word, `entrain_host_step`.
    ///
    /// # Errors
    /// See [`Self::Error`].
    fn step(&self, place: &Self::Place, op: Op, expected: u64, wanted: u64) -> Result<Step, Self::Error>;
    /// Nobody finds the pairing from now on. Its pins go when the last writer that has found it is done.
    fn detach(&self, place: &Self::Place);
    /// Returns when every writer that ran at the call is done.
    fn grace_period(&self);
}

/// Why an offer was not accepted. Nothing has been written, and the pairing is detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused<E> {
    /// The pinned memory is not the page that was verified.
    Stale,
    /// The guest took the offer back, or another host was faster.
    TakenBack,
    /// The programs cannot be called.
    Error(E),
}

/// Why a pairing ended without the daemon, `enum entrain_closed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Gone {
    /// A host word was not what the host had written.
    Word = 2,
    /// Magic, cookie or boot id changed.
    Header = 3,
    /// The link word is no longer *paired* with our generation.
    Link = 4,
}

/// An offer that has been accepted.
#[derive(Debug)]
pub struct Paired<P> {
    place: P,
    offer: Link,
}

impl<P> Paired<P> {
    /// Accepts the offer of that generation. Its pairing has been attached at `place`, closed, with all that was verified
    /// of the page and the page pinned.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn accept<K: Kernel<Place = P>>(kernel: &K, place: P, generation: u32) -> Result<Self, Refused<K::Error>> {
        let offer = Link { generation, state: LinkState::Offered };
        let (expected, wanted) = (offer.raw(), offer.with(LinkState::Paired).raw());
        let refused = match kernel.step(&place, Op::Pair, expected, wanted) {
            Ok(Step::Was(was)) if was == expected => return Ok(Self { place, offer }),
            Ok(Step::Stale) => Refused::Stale,
            Ok(_) => Refused::TakenBack,
            Err(error) => Refused::Error(error),
        };
        kernel.detach(&place);
        Err(refused)
    }

    /// The generation of the offer.
    pub fn generation(&self) -> u32 {
        self.offer.generation
    }

    /// The link word while the guest asks for the page.
    pub fn releasing(&self) -> u64 {
        self.offer.with(LinkState::Releasing).raw()
    }

    /// Why this pairing has ended, if `told` by the tick (`ENTRAIN_GONE`) is about it.
    pub fn gone(&self, told: u64) -> Option<Gone> {
        let why = match told as u32 {
            2 => Gone::Word,
            3 => Gone::Header,
            4 => Gone::Link,
            _ => return None,
        };
        (told >> 32 == u64::from(self.offer.generation)).then_some(why)
    }

    /// Drops the pins without another write: the page is no longer ours.
    pub fn drop_pins<K: Kernel<Place = P>>(self, kernel: &K) {
        kernel.detach(&self.place);
    }
}

/// Lets go of pages that still are ours, because their guests ask or because the host leaves: no write is under way any
/// more when the guests are told. Returns how many were told. The wait is the same for one page and for all.
///
/// # Errors
/// The programs cannot be called.
pub fn let_go<K: Kernel>(kernel: &K, pages: Vec<Paired<K::Place>>) -> Result<usize, K::Error> {
    for paired in &pages {
        kernel.step(&paired.place, Op::Close, 0, 0)?;
    }
    if !pages.is_empty() {
        kernel.grace_period();
    }
    let mut told = 0;
    for paired in pages {
        let released = paired.offer.with(LinkState::Released).raw();
        for state in [LinkState::Paired, LinkState::Releasing] {
            let expected = paired.offer.with(state).raw();
            if kernel.step(&paired.place, Op::Release, expected, released)? == Step::Was(expected) {
                told += 1;
                break;
            }
        }
        paired.drop_pins(kernel);
    }
    Ok(told)
}
