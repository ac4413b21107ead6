//! The words of the page: how values are packed into them, and when what they say has expired.

use crate::page::{GUEST_EXPIRY_NS, HOST_EXPIRY_NS};

/// Bits that a host word's value is shifted up by.
pub const VALUE_SHIFT: u32 = 16;
/// The biggest value of a host word.
pub const VALUE_MAX: u64 = (1 << 48) - 1;
/// Times in host words are in units of `1 << TIME_SHIFT` ns.
pub const TIME_SHIFT: u32 = 10;

/// What every host word of one offer is xor-ed with; its low 16 bits are not 0, so that scrubbed memory never passes as
/// a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// A seed from 64 random bits.
    pub fn from_random(random: u64) -> Self {
        if random & 0xffff == 0 { Self(random | 1) } else { Self(random) }
    }

    /// The seed that stands in a page; `None` if it is not one.
    pub fn from_raw(raw: u64) -> Option<Self> {
        (raw & 0xffff != 0).then_some(Self(raw))
    }

    /// As it stands in the page; also the word whose value is 0.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The word in memory of a value; bits above [`VALUE_MAX`] are lost.
    pub fn pack(self, value: u64) -> u64 {
        (value << VALUE_SHIFT) ^ self.0
    }

    /// The value of a word in memory; 0 for a word that is not of this pairing.
    pub fn unpack(self, word: u64) -> u64 {
        if self.owns(word) { (word ^ self.0) >> VALUE_SHIFT } else { 0 }
    }

    /// Whether the word can be of this pairing.
    pub fn owns(self, word: u64) -> bool {
        (word ^ self.0) & 0xffff == 0
    }
}

/// The state of the pairing, `ENTRAIN_LINK_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LinkState {
    /// Nothing yet.
    None = 0,
    /// Guest: the page is complete, a host may pair.
    Offered = 1,
    /// Host: publishes.
    Paired = 2,
    /// Guest: wants the page back.
    Releasing = 3,
    /// Host: has let go.
    Released = 4,
    /// Guest: took the page back.
    Withdrawn = 5,
}

/// The link word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Raised by the guest with every offer.
    pub generation: u32,
    /// Where the pairing stands.
    pub state: LinkState,
}

impl Link {
    /// The word in memory.
    pub fn raw(self) -> u64 {
        u64::from(self.generation) << 32 | self.state as u64
    }

    /// Takes a word apart; `None` if no side that keeps to the protocol wrote it.
    pub fn from_raw(raw: u64) -> Option<Self> {
        let state = match raw as u32 {
            0 => LinkState::None,
            1 => LinkState::Offered,
            2 => LinkState::Paired,
            3 => LinkState::Releasing,
            4 => LinkState::Released,
            5 => LinkState::Withdrawn,
            _ => return None,
        };
        Some(Self { generation: (raw >> 32) as u32, state })
    }

    /// The same generation in another state.
    pub fn with(self, state: LinkState) -> Self {
        Self { state, ..self }
    }
}

/// What the host knows of a vCPU, `ENTRAIN_VCPU_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Vcpu {
    /// Not published, or a number from the future.
    Unknown = 0,
    /// On a pCPU.
    Running = 1,
    /// Blocked: in halt, or in the VMM waiting.
    Halted = 2,
    /// Runnable, waiting for a pCPU.
    Preempted = 3,
}

impl Vcpu {
    /// By its number; [`Vcpu::Unknown`] for one from the future.
    pub fn from_raw(number: u32) -> Self {
        match number {
            1 => Self::Running,
            2 => Self::Halted,
            3 => Self::Preempted,
            _ => Self::Unknown,
        }
    }

    /// Its name in lower case, as in logs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Running => "running",
            Self::Halted => "halted",
            Self::Preempted => "preempted",
        }
    }
}

/// The value of `host_fast.state`, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuState {
    /// Where the vCPU stands.
    pub vcpu: Vcpu,
    /// Was in a critical section when it was preempted.
    pub in_cs: bool,
    /// Runs on an extended slice.
    pub extended: bool,
    /// The pCPU it is on or was on last.
    pub pcpu: u16,
    /// Counts the changes of state, modulo 2^24.
    pub seq: u32,
}

impl VcpuState {
    /// The value, for [`Seed::pack`].
    pub fn pack(self) -> u64 {
        self.vcpu as u64
            | u64::from(self.in_cs) << 5
            | u64::from(self.extended) << 6
            | u64::from(self.pcpu) << 8
            | u64::from(self.seq & 0xff_ffff) << 24
    }

    /// Takes a value apart.
    pub fn unpack(value: u64) -> Self {
        Self {
            vcpu: Vcpu::from_raw((value & 0xf) as u32),
            in_cs: value & (1 << 5) != 0,
            extended: value & (1 << 6) != 0,
            pcpu: (value >> 8) as u16,
            seq: (value >> 24) as u32 & 0xff_ffff,
        }
    }
}

/// When a heartbeat was last seen to change, by the clock of the side that looks, and so whether the other side lives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pulse {
    last: u64,
    seen: u64,
}

impl Pulse {
    /// Starts watching at `now`: the other side has a full expiry to show its first beat.
    pub fn start(heartbeat: u64, now: u64) -> Self {
        Self { last: heartbeat, seen: now.max(1) }
    }

    /// Looks at the heartbeat; `now` in ns.
    pub fn look(&mut self, heartbeat: u64, now: u64) {
        if heartbeat != self.last {
            *self = Self::start(heartbeat, now);
        }
    }

    /// When it was last seen to change, ns.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Whether the host's hints may be used.
    pub fn host_alive(&self, now: u64) -> bool {
        fresh(now, self.seen, HOST_EXPIRY_NS)
    }

    /// Whether the guest's words may be used.
    pub fn guest_alive(&self, now: u64) -> bool {
        fresh(now, self.seen, GUEST_EXPIRY_NS)
    }
}

/// The rule of expiry: what was last seen alive at `seen` (ns, 0 is never) still counts at `now` if that is less than
/// `expiry` ago. A clock that steps back expires nothing.
pub fn fresh(now: u64, seen: u64, expiry: u64) -> bool {
    seen != 0 && (now <= seen || now - seen < expiry)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_survives_packing(random: u64, value in 0..=VALUE_MAX) {
            let seed = Seed::from_random(random);
            prop_assert_eq!(seed.unpack(seed.pack(value)), value);
        }

        #[test]
        fn scrubbed_memory_is_never_a_word(random: u64) {
            prop_assert!(!Seed::from_random(random).owns(0));
            prop_assert_eq!(Seed::from_random(random).unpack(0), 0);
        }

        #[test]
        fn any_state_word_can_be_read(value: u64) {
            let state = VcpuState::unpack(value);
            prop_assert_eq!(VcpuState::unpack(state.pack()), state);
        }

        #[test]
        fn any_link_word_can_be_read(raw: u64) {
            if let Some(link) = Link::from_raw(raw) {
                prop_assert_eq!(link.raw(), raw);
            }
        }

        #[test]
        fn freshness_only_fades(seen: u64, a: u64, b: u64, expiry: u64) {
            let (early, late) = (a.min(b), a.max(b));
            prop_assert!(fresh(early, seen, expiry) || !fresh(late, seen, expiry) || late <= seen);
        }
    }

    #[test]
    fn a_pulse_expires_and_comes_back() {
        let mut pulse = Pulse::start(7, 1_000);
        assert!(pulse.host_alive(1_000 + HOST_EXPIRY_NS - 1));
        pulse.look(7, 1_000 + HOST_EXPIRY_NS);
        assert!(!pulse.host_alive(1_000 + HOST_EXPIRY_NS));
        assert!(pulse.guest_alive(1_000 + HOST_EXPIRY_NS));
        pulse.look(8, 2 * HOST_EXPIRY_NS);
        assert!(pulse.host_alive(2 * HOST_EXPIRY_NS));
    }

    #[test]
    fn never_seen_is_never_fresh() {
        assert!(!fresh(0, 0, u64::MAX));
        assert!(!Pulse::default().host_alive(0));
    }
}
