//! Whatever writer runs at whatever moment: nothing is written where it must not be, and what is told is true.

use loom::thread;

use super::*;

/// Pairs, lets one writer run, and ends as the guest wishes.
fn life(host: &Host, write: impl Fn(&Host)) {
    if let Some(paired) = host.pair(0, 0) {
        write(host);
        host.tick(1);
        match paired.gone(host.gone.load(SeqCst)) {
            Some(_) => paired.drop_pins(host),
            None => assert!(entrain_channel::hosting::let_go(host, vec![paired]).is_ok()),
        }
    }
}

/// The guest takes the page back at any moment and does not wait for the host at all, as when the host is silent.
fn forced_take_back(broken: Broken, write: impl Fn(&Host) + Copy + Send + Sync + 'static) {
    check(3, move || {
        let (host, guest) = Host::offered(broken);
        let daemon = thread::spawn({
            let host = host.clone();
            move || life(&host, write)
        });
        guest_takes_back(&host, &guest);
        daemon.join().expect("daemon");
        next_owner_checks(&host, 0);
    });
}

#[test]
fn no_write_reaches_memory_taken_back() {
    forced_take_back(Broken::No, |host| host.switch(0, 5));
    forced_take_back(Broken::No, |host| host.idle(1, IDLE));
}

#[test]
#[should_panic(expected = "the host wrote to memory")]
fn a_host_that_stores_is_caught() {
    forced_take_back(Broken::Stores, |host| host.switch(0, 5));
}

/// Reboot, kexec, panic: the memory has a new owner without any scrub.
#[test]
fn no_write_reaches_memory_of_the_next_kernel() {
    check(3, || {
        let (host, _) = Host::offered(Broken::No);
        let daemon = thread::spawn({
            let host = host.clone();
            move || life(&host, |host| host.switch(0, 5))
        });
        next_owner_writes(&host, 0);
        daemon.join().expect("daemon");
        next_owner_checks(&host, 0);
    });
}

/// Switch, tick, an idle transition and the daemon, which lets go, all at once, while the guest takes the page back.
#[test]
fn four_writers_and_a_guest_that_leaves() {
    check(1, || {
        let (host, guest) = Host::offered(Broken::No);
        let paired = host.pair(0, 0).expect("on offer");
        let run = |write: fn(&Host)| {
            let host = host.clone();
            thread::spawn(move || write(&host))
        };
        let writers = [run(|host| host.switch(0, 5)), run(|host| host.tick(1)), run(|host| host.idle(1, IDLE))];
        let daemon = thread::spawn({
            let host = host.clone();
            move || entrain_channel::hosting::let_go(&*host, vec![paired])
        });
        guest_takes_back(&host, &guest);
        writers.into_iter().for_each(|writer| writer.join().expect("writer"));
        assert!(daemon.join().expect("daemon").is_ok());
        next_owner_checks(&host, 0);
    });
}

/// When the guest waits for the host's answer, no writer reaches for the page any more once it is the guest's own.
fn released(change: fn(&mut Host)) {
    check(2, move || {
        let (host, guest) = Host::with(Broken::No, change);
        let paired = host.pair(0, 0).expect("on offer");
        let writer = thread::spawn({
            let host = host.clone();
            move || host.switch(0, 5)
        });
        let daemon = thread::spawn({
            let host = host.clone();
            move || entrain_channel::hosting::let_go(&*host, vec![paired])
        });
        let memory = host.world.page(0);
        let waited = guest.take_back(&memory) == GuestView::Releasing;
        if waited && guest.look(&memory) == GuestView::Own {
            host.world.is_free(0);
        }
        writer.join().expect("writer");
        assert_eq!(daemon.join().expect("daemon"), Ok(1));
        assert_eq!(guest.look(&memory), GuestView::Own);
    });
}

#[test]
fn released_means_that_no_writer_is_left() {
    released(|_| {});
}

#[test]
#[should_panic(expected = "the host reached for a page")]
fn a_daemon_that_waits_for_nobody_is_caught() {
    released(|host| host.waits = false);
}

/// Two switches of one vCPU, one after the other by the lock of its run queue: the second's value stands.
fn two_switches(change: fn(&mut Host)) {
    check(2, move || {
        let (host, _) = Host::with(Broken::No, change);
        let _paired = host.pair(0, 0).expect("on offer");
        let other = thread::spawn({
            let host = host.clone();
            move || host.switch(0, 5)
        });
        host.switch(0, 6);
        other.join().expect("writer");
        let memory = host.world.page(0);
        let told = |word| seed(1).unpack(Word::load(memory.host(word)));
        assert!(told(STATE) == told(SINCE) && [5, 6].contains(&told(STATE)));
        // SAFETY: a side of the world.
        assert_eq!(unsafe { entrain_model_gone(host.world.side(0)) }, 0, "no writer ended it");
    });
}

#[test]
fn writers_of_the_state_go_by_the_run_queue() {
    two_switches(|_| {});
}

#[test]
#[should_panic]
fn writers_of_the_state_without_the_run_queue_are_caught() {
    // Both hold the lock that a grace period waits for, which orders them as well: taken by different kinds.
    check(2, || {
        let (host, _) = Host::with(Broken::No, |host| host.locks = false);
        let _paired = host.pair(0, 0).expect("on offer");
        let other = thread::spawn({
            let host = host.clone();
            move || {
                let found = host.found(0);
                if let Some((side, page)) = found {
                    // SAFETY: a side of the world.
                    unsafe { entrain_model_put_state(side, page, &Told { state: 5, ..Told::default() }) };
                }
            }
        });
        host.switch(0, 6);
        other.join().expect("writer");
    });
}

/// Idle transitions meet at the instant word; whatever they leave there, the next tick puts right.
fn idle_transitions(broken: Broken, ticks: bool) {
    check(2, move || {
        let (host, _) = Host::offered(broken);
        let _paired = host.pair(0, 0).expect("on offer");
        let others = [(1, IDLE), (0, IDLE + 1)].map(|(value, writer)| {
            let host = host.clone();
            thread::spawn(move || host.idle(value, writer))
        });
        host.idle(1, SWITCH);
        others.into_iter().for_each(|other| other.join().expect("writer"));
        if ticks {
            host.tick(1);
        }
        let told = seed(1).unpack(Word::load(host.world.page(0).host(INSTANT)));
        assert_eq!(told, Word::load(host.world.hint_word(0)), "what is told is not what is known");
    });
}

#[test]
fn a_tick_puts_the_hint_right() {
    idle_transitions(Broken::No, true);
}

/// Three that meet leave the word as it was: what `entrain_host_put_instant` says of itself.
#[test]
#[should_panic(expected = "what is told is not what is known")]
fn without_a_tick_the_hint_may_stay_wrong() {
    idle_transitions(Broken::No, false);
}

#[test]
#[should_panic]
fn writers_of_the_hint_that_take_no_turns_are_caught() {
    idle_transitions(Broken::TakesNoTurns, true);
}

/// Changes of a pCPU's level and a switch meet at the level's word; whatever they leave there, the next tick puts right.
fn changes_of_level(broken: Broken) {
    check(2, move || {
        let (host, _) = Host::offered(broken);
        // None of the words that the guest of these models fills.
        Word::store(host.world.page(0).host(LEVEL), seed(1).pack(0));
        let _paired = host.pair(0, 0).expect("on offer");
        let others = [(300, IDLE), (700, IDLE + 1)].map(|(value, writer)| {
            let host = host.clone();
            thread::spawn(move || host.level(Some(value), writer))
        });
        host.level(None, SWITCH);
        others.into_iter().for_each(|other| other.join().expect("writer"));
        host.level(None, TICK);
        // SAFETY: a side of the world.
        assert_eq!(unsafe { entrain_model_gone(host.world.side(0)) }, 0, "a writer ended it");
        let told = seed(1).unpack(Word::load(host.world.page(0).host(LEVEL)));
        assert_eq!(told, Word::load(host.world.hint_word(4)), "what is told is not what is known");
    });
}

#[test]
fn a_tick_puts_the_level_right() {
    changes_of_level(Broken::No);
}

#[test]
#[should_panic]
fn writers_of_the_level_that_take_no_turns_are_caught() {
    changes_of_level(Broken::TakesNoTurns);
}
