//! Agents that die, hosts that meet, entries that are used again: one pairing never disturbs the next.

use loom::thread;

use super::*;

/// Two daemons, or two hosts that see the same memory.
#[test]
fn one_offer_has_one_owner() {
    check(3, || {
        let (host, guest) = Host::offered(Broken::No);
        let claim = |side: usize| {
            let host = host.clone();
            move || {
                let memory = host.world.page(0);
                let snapshot = Snapshot::read(&memory);
                let Some(offer) = Link::from_raw(snapshot.link) else { return false };
                host.world.fill(side, snapshot.seed, snapshot.header, offer.generation);
                // A kernel of its own: the thread's place in this one is not asked for.
                Paired::accept(&*host, (0, side), offer.generation).is_ok()
            }
        };
        let other = thread::spawn(claim(1));
        let mine = claim(0)();
        assert!(mine != other.join().expect("host"), "one of them");
        assert_eq!(guest.look(&host.world.page(0)), GuestView::Paired);
    });
}

/// A pairing is neither lost nor half: a guest that leaves the offer standing is paired, and reads what was published.
#[test]
fn an_offer_that_stands_is_accepted() {
    check(3, || {
        let (host, guest) = Host::offered(Broken::No);
        let daemon = thread::spawn({
            let host = host.clone();
            move || {
                let _paired = host.pair(0, 0).expect("the offer stands");
                host.switch(0, 3);
            }
        });
        // The guest looks on meanwhile: what it reads is nothing or the whole.
        let memory = host.world.page(0);
        let seen = seed(1).unpack(Word::load(memory.host(STATE)));
        assert!(seen == 0 || seen == 3);
        assert_ne!(guest.look(&memory), GuestView::Foreign);
        daemon.join().expect("daemon");
        assert_eq!(guest.look(&memory), GuestView::Paired);
        assert_eq!(seed(1).unpack(Word::load(memory.host(STATE))), 3);
    });
}

/// An agent dies, the next one recovers its page and offers it anew. A writer of the old pairing is late: it finds its
/// word changed when the new pairing is there. That ends the old one and not the new one.
fn an_agent_dies(told_of: impl Fn(&Paired<(usize, usize)>, u64) -> bool + Copy + Send + Sync + 'static) {
    check(2, move || {
        let (host, _) = Host::offered(Broken::No);
        let old = host.pair(0, 0).expect("on offer");
        let late = thread::spawn({
            let host = host.clone();
            move || host.switch(0, 5)
        });
        let memory = host.world.page(0);
        let mut agent = Guest::recover(&memory, 0);
        if agent.take_back(&memory) != GuestView::Own {
            agent.force(&memory);
        }
        assert!(agent.offer(&memory, seed(2), 2));
        // The tick finds the link changed; the daemon drops the old pairing, without a grace period, and pairs anew.
        host.tick(1);
        let told = host.gone.load(SeqCst);
        assert!(old.gone(told).is_some());
        old.drop_pins(&*host);
        let new = host.pair(0, 1).expect("offered again");
        assert!(!told_of(&new, told), "the old pairing's end is taken for the new one's");
        host.switch(0, 8);
        late.join().expect("writer");
        host.tick(2);
        assert_eq!(host.gone.load(SeqCst), 0, "the old pairing's writer ended the new one");
        assert_eq!(agent.look(&memory), GuestView::Paired, "the old host spoilt the link");
        assert!([5, 8].contains(&seed(2).unpack(Word::load(memory.host(STATE)))));
    });
}

#[test]
fn an_old_pairing_never_disturbs_the_next_generation() {
    an_agent_dies(|paired, told| paired.gone(told).is_some());
}

#[test]
#[should_panic(expected = "taken for the new one's")]
fn an_end_that_is_told_without_its_generation_is_caught() {
    an_agent_dies(|_, told| told != 0);
}

/// A host that pairs has read the header of the very generation that it paired with, however often the guest renews it.
#[test]
fn a_paired_host_has_read_a_whole_header() {
    check(3, || {
        let (host, mut guest) = Host::offered(Broken::No);
        let first = guest.generation();
        let daemon = thread::spawn({
            let host = host.clone();
            move || {
                if let Some(paired) = host.pair(0, 0) {
                    let n = u64::from(paired.generation().wrapping_sub(first)) + 1;
                    // SAFETY: a side of the world, which this thread has filled.
                    let (header, its_seed) = unsafe { ((*host.world.side(0)).cookie, (*host.world.side(0)).seed) };
                    assert_eq!(header, n, "a header of another generation");
                    assert_eq!(its_seed, seed(n).raw(), "a seed of another generation");
                }
            }
        });
        let memory = host.world.page(0);
        if guest.take_back(&memory) == GuestView::Own {
            assert!(guest.offer(&memory, seed(2), 2));
        }
        daemon.join().expect("daemon");
    });
}

/// The guest asks for the page in the moment in which the host leaves by itself.
#[test]
fn both_sides_may_end_it_at_once() {
    check(3, || {
        let (host, guest) = Host::offered(Broken::No);
        let paired = host.pair(0, 0).expect("on offer");
        let leaving = thread::spawn({
            let host = host.clone();
            move || entrain_channel::hosting::let_go(&*host, vec![paired])
        });
        let memory = host.world.page(0);
        let view = guest.take_back(&memory);
        assert_eq!(leaving.join().expect("host"), Ok(1));
        assert!(matches!(view, GuestView::Own | GuestView::Releasing));
        let link = Link::from_raw(Word::load(memory.link())).expect("a link");
        assert_eq!(link.state, LinkState::Released);
    });
}

/// A vCPU leaves, and its entry becomes another's, with another page: whoever finds a vCPU by its entry, as idle
/// transitions do, is at any moment with one of the two, and never with a page that was given back.
fn an_entry_is_used_again(change: fn(&mut Host)) {
    check(2, move || {
        let (host, guest) = Host::with(Broken::No, change);
        let mut other = Guest::new(7);
        assert!(other.offer(&host.world.page(1), seed(2), 2));
        let paired = host.pair(0, 0).expect("on offer");
        let idle = thread::spawn({
            let host = host.clone();
            move || host.idle(1, IDLE)
        });
        assert_eq!(entrain_channel::hosting::let_go(&*host, vec![paired]), Ok(1));
        assert_eq!(guest.look(&host.world.page(0)), GuestView::Own);
        host.world.is_free(0);
        host.entry.store(1, SeqCst);
        let _next = host.pair(1, 1).expect("on offer");
        idle.join().expect("writer");
        host.tick(1);
        assert_eq!(host.gone.load(SeqCst), 0);
        let told = seed(2).unpack(Word::load(host.world.page(1).host(INSTANT)));
        assert_eq!(told, Word::load(host.world.hint_word(0)));
    });
}

#[test]
fn an_entry_of_another_vcpu_leads_to_that_one() {
    an_entry_is_used_again(|_| {});
}

#[test]
#[should_panic(expected = "the host reached for a page")]
fn an_entry_that_is_used_again_without_a_grace_period_is_caught() {
    an_entry_is_used_again(|host| host.waits = false);
}
