//! Numbers of entries in BPF's tables.

/// Numbers that are given out and taken back, lowest first.
#[derive(Debug)]
pub(super) struct Numbers {
    used: Vec<bool>,
}

impl Numbers {
    pub(super) fn new(count: usize) -> Self {
        Self { used: vec![false; count] }
    }
    pub(super) fn take(&mut self) -> Option<u32> {
        let free = self.used.iter().position(|used| !used)?;
        self.used[free] = true;
        Some(free as u32)
    }
    pub(super) fn give_back(&mut self, number: u32) {
        self.used[number as usize] = false;
    }
    /// Highest used number + 1.
    pub(super) fn end(&self) -> u32 {
        self.used.iter().rposition(|used| *used).map_or(0, |last| last as u32 + 1)
    }
}
