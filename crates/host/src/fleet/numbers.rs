//! Numbers of entries in BPF's tables.

/// Numbers that are given out and taken back, lowest first.
#[derive(Debug)]
pub(super) struct Numbers {
    used: Vec<bool>,
    free: usize,
}

/// Entries that one user may have for each that stays free.
const USER: usize = 8;

impl Numbers {
    pub(super) fn new(count: usize) -> Self {
        Self { used: vec![false; count], free: count }
    }
    pub(super) fn take(&mut self) -> Option<u32> {
        let free = self.used.iter().position(|used| !used)?;
        self.used[free] = true;
        self.free -= 1;
        Some(free as u32)
    }
    /// Whether one more may go to a VM that has `vm` and to a user who has `user` of them. A VM may have as many as stay
    /// free, and all of a user's eight times as many: the table is nobody's alone, however many vCPUs a process makes, and
    /// no share of it lies idle for users who don't come.
    pub(super) fn allows(&self, vm: usize, user: usize) -> bool {
        vm < self.free && user < USER * self.free
    }
    pub(super) fn give_back(&mut self, number: u32) {
        self.free += usize::from(std::mem::replace(&mut self.used[number as usize], false));
    }
    /// Highest used number + 1.
    pub(super) fn end(&self) -> u32 {
        self.used.iter().rposition(|used| *used).map_or(0, |last| last as u32 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 23, finding 4: a process with 4,096 vCPUs filled the table for all.
    #[test]
    fn no_process_and_no_user_fills_the_table() {
        let mut numbers = Numbers::new(4096);
        let mut grab = |vm: &mut usize, user: &mut usize| {
            while numbers.allows(*vm, *user) {
                numbers.take().expect("allowed");
                *vm += 1;
                *user += 1;
            }
        };
        let (mut first, mut user) = (0, 0);
        grab(&mut first, &mut user);
        assert_eq!(first, 2048);
        (0..4096).for_each(|_| grab(&mut 0, &mut user));
        assert_eq!(user, 3641);
        // Another user, who has an ordinary VM.
        let mut other = 0;
        grab(&mut 0, &mut other);
        assert!(other >= 200, "{other}");
        numbers.give_back(7);
        numbers.give_back(7);
        assert_eq!(numbers.take(), Some(7));
    }
}
