//! How much the log says of what users and their guests do: a burst, then less than a line a second, of each VM, of each
//! user and of all together. What was left out is counted and told with the next line.
//!
//! Whoever may start VMs could else fill the log with their coming and going. A host that starts its VMs at once has room
//! in the burst; `entrain top` and the status tell of all at any time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

/// Lines at once, of one VM, of one user and of all.
const BURST: (u32, u32, u32) = (8, 64, 256);
/// One more after so long.
const LINE: Duration = Duration::from_secs(2);
/// Users that are kept in mind; of the others, those come first who have said nothing for longest.
const USERS: usize = 1024;

static LINES: Mutex<Option<Lines>> = Mutex::new(None);

/// Whether a line about a VM of this user may be written now; `vm` is its number, which another VM may have had before.
pub(crate) fn may(user: u32, vm: u32) -> bool {
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let left_out = lines.get_or_insert_with(|| Lines::new(Instant::now())).take(user, vm, Instant::now());
    if let Some(count @ 1..) = left_out {
        warn!("{count} lines about VMs of user {user} were left out of the log: there were too many at once");
    }
    left_out.is_some()
}

#[derive(Debug)]
struct Bucket {
    lines: f64,
    most: u32,
    at: Instant,
    left_out: u64,
}

impl Bucket {
    fn new(now: Instant, most: u32) -> Self {
        Self { lines: most.into(), most, at: now, left_out: 0 }
    }

    fn has(&mut self, needed: f64, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.at).as_secs_f64() / LINE.as_secs_f64();
        (self.lines, self.at) = ((self.lines + more).min(self.most.into()), now);
        self.lines >= needed
    }
}

#[derive(Debug)]
struct Lines {
    users: BTreeMap<u32, Bucket>,
    /// By their numbers, of which there are not many.
    vms: BTreeMap<u32, Bucket>,
    all: Bucket,
}

impl Lines {
    fn new(now: Instant) -> Self {
        Self { users: BTreeMap::new(), vms: BTreeMap::new(), all: Bucket::new(now, BURST.2) }
    }

    /// Takes a line; how many of this user were left out before it, or `None`: this one is, too. To tell of what was left
    /// out is a line as well.
    fn take(&mut self, user: u32, vm: u32, now: Instant) -> Option<u64> {
        if self.users.len() >= USERS
            && !self.users.contains_key(&user)
            && let Some(oldest) = self.users.iter().min_by_key(|(_, bucket)| bucket.at).map(|(user, _)| *user)
        {
            self.users.remove(&oldest);
        }
        let of_user = self.users.entry(user).or_insert_with(|| Bucket::new(now, BURST.1));
        let of_vm = self.vms.entry(vm).or_insert_with(|| Bucket::new(now, BURST.0));
        let needed = if of_user.left_out > 0 { 2.0 } else { 1.0 };
        let mut buckets = [of_vm, of_user, &mut self.all];
        if !buckets.iter_mut().all(|bucket| bucket.has(needed, now)) {
            buckets[1].left_out += 1;
            return None;
        }
        buckets.iter_mut().for_each(|bucket| bucket.lines -= needed);
        Some(std::mem::take(&mut buckets[1].left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 23: log lines whose number users decide.
    #[test]
    fn one_vm_is_said_little_of() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let said = (0..1000).filter(|_| lines.take(1000, 7, start).is_some()).count();
        assert_eq!(said, BURST.0 as usize);
        assert!(lines.take(1000, 8, start).is_some(), "another VM of the same user");
    }

    #[test]
    fn vms_that_come_and_go_without_end_make_less_than_a_line_a_second() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let (mut said, mut left_out, mut now) = (0, 0, start);
        for vm in 0..100_000 {
            now += Duration::from_millis(10);
            if let Some(count) = lines.take(1000, vm % 1024, now) {
                said += if count > 0 { 2 } else { 1 };
                left_out += count;
            }
        }
        assert!(said <= BURST.1 + 500, "{said} lines in 1,000 s");
        assert!(left_out > 99_000, "{left_out}");
        // Another user's are written meanwhile.
        assert_eq!(lines.take(1001, 1024, now), Some(0));
    }

    #[test]
    fn ever_new_users_gain_no_more() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let said = (0..4_000).filter(|user| lines.take(*user, user % 1024, start).is_some()).count();
        assert_eq!(said, BURST.2 as usize);
        assert!(lines.users.len() <= USERS);
    }
}
