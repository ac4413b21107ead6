//! The runner on a machine that is made of a few counters: what it does when all is well, and when it is not.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use entrain_lab_machine::fault::{Fault, FaultClass};
use entrain_lab_machine::machine::{Arch, CpuClock, Outcome};
use entrain_lab_machine::{LabError, Result};

use super::*;
use crate::experiment;
use crate::report::Report;
use crate::rig::Job;

/// What a fake machine does, and what was done to it.
#[derive(Default)]
struct World {
    /// CPUs taken offline by guest.
    offline: BTreeMap<usize, u32>,
    guests: usize,
    paused: Vec<usize>,
    /// Background commands that run: their first word.
    background: Vec<String>,
    /// Every command line, with where it ran.
    log: Vec<String>,
    /// Kernel parameters of every boot.
    cmdlines: Vec<String>,
    /// Boots made, and those that end in a fault when their n-th load starts.
    boots: u32,
    faults: BTreeMap<u32, u32>,
    loads: u32,
    /// Loads of a boot after which its machine is found broken, though they ended well.
    broken_after: BTreeMap<u32, u32>,
    /// Calls of [`Rig::tidy`], with the guests that are to stay.
    tidied: Vec<usize>,
    /// Shares of CPU that the next samples get; quiet when used up.
    shares: Vec<f64>,
    /// While this runs in the background the computer does 80 steps per µs, else 100.
    slow_after: Option<&'static str>,
    clock: CpuClock,
    background_dies: bool,
    /// Guests whose kernel ends what writes to all of their memory.
    short_of_memory: bool,
    /// A machine that answers no shell any more.
    dumb: Option<Target>,
    /// The load at which one does not end in its time.
    late: Option<u32>,
    /// What ran in the background when the machines were asked why.
    asked: Vec<Vec<String>>,
}

struct FakeRig(Rc<RefCell<World>>);

struct FakeJob {
    world: Rc<RefCell<World>>,
    outcome: Option<Result<Outcome>>,
    background: Option<String>,
}

fn fault(class: FaultClass) -> LabError {
    let console = vec!["[   12.3] Kernel panic - not syncing: corrupted stack end".to_owned()];
    LabError::Fault(Box::new(Fault { class, who: Target::Host, emulated: true, detail: "seen".into(), console }))
}

fn deadline(what: String) -> LabError {
    LabError::Deadline { what, limit: std::time::Duration::from_secs(1) }
}

impl Rig for FakeRig {
    fn start(&self, target: Target, command: Command) -> Result<Box<dyn Job>> {
        let world = Rc::clone(&self.0);
        let line = command.argv.join(" ");
        let mut w = self.0.borrow_mut();
        w.log.push(format!("{target}: {line}"));
        let mut background = None;
        let outcome = match command.argv[0].as_str() {
            "measure" => {
                assert_eq!(command.deadline, std::time::Duration::from_secs(2 + 30), "its own window and the timeout");
                w.loads += 1;
                let (boot, load) = (w.boots, w.loads);
                match w.faults.get(&boot) {
                    _ if w.late == Some(load) => Err(deadline(line)),
                    Some(at) if *at == load => Err(fault(FaultClass::StackEnd)),
                    _ => Ok(said(0, &w.measure(target, &command.argv))),
                }
            }
            "offline" | "online" => {
                let Target::Guest(guest) = target else { panic!("{line} on the host") };
                let n = if command.argv[0] == "offline" { command.argv[1].parse().unwrap() } else { 0 };
                w.offline.insert(guest, n);
                Ok(said(0, ""))
            }
            "sh" if line.contains("exec") => {
                let name = command.argv[6].clone();
                if !w.background_dies {
                    w.background.push(name.clone());
                }
                background = Some(name);
                Ok(said(0, ""))
            }
            "sh" if w.dumb == Some(target) => Err(deadline(line)),
            "sh" if line.contains("sched_ext_dump") => {
                let running = w.background.clone();
                w.asked.push(running);
                Ok(said(0, ""))
            }
            "sh" => Ok(said(i32::from(w.background.is_empty()), "")),
            "entrain-load" if w.short_of_memory => Ok(said(137, "")),
            "fail" => Ok(Outcome { status: 3, stderr: b"no such thing".to_vec(), ..Outcome::default() }),
            _ => Ok(said(0, "7.3.4-fake")),
        };
        drop(w);
        Ok(Box::new(FakeJob { world, outcome: Some(outcome), background }))
    }
    fn put(&self, _: Target, _: &str, _: &[u8], _: u32) -> Result<()> {
        Ok(())
    }
    fn get(&self, _: Target, _: &str) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn start_guest(&self, _: &GuestSpec) -> Result<usize> {
        let mut world = self.0.borrow_mut();
        assert_eq!(world.paused.len(), world.guests, "a guest boots while others run");
        world.guests += 1;
        Ok(world.guests - 1)
    }
    fn end_guest_by(&self, _: usize, _: &str) -> Result<()> {
        Ok(())
    }
    fn stop_guest(&self, _: usize) -> Result<()> {
        Ok(())
    }
    fn reset_guest(&self, _: usize) -> Result<()> {
        Ok(())
    }
    fn pause_guest(&self, guest: usize) -> Result<()> {
        assert!(!self.0.borrow().paused.contains(&guest), "paused twice");
        self.0.borrow_mut().paused.push(guest);
        Ok(())
    }
    fn resume_guest(&self, guest: usize) -> Result<()> {
        assert!(self.0.borrow().paused.contains(&guest), "resumed while running");
        self.0.borrow_mut().paused.retain(|one| *one != guest);
        Ok(())
    }
    fn settle(&self) -> Result<()> {
        let world = self.0.borrow();
        let broken = world.broken_after.get(&world.boots).is_some_and(|loads| world.loads >= *loads);
        if broken { Err(fault(FaultClass::SilentCpu)) } else { Ok(()) }
    }
    fn tidy(&self, own: usize) -> Result<()> {
        self.0.borrow_mut().tidied.push(own);
        Ok(())
    }
    fn emulated(&self) -> bool {
        true
    }
    fn cpu_clock(&self) -> CpuClock {
        self.0.borrow().clock
    }
    fn speed(&self) -> f64 {
        let world = self.0.borrow();
        let slow = world.slow_after.is_some_and(|what| world.background.iter().any(|one| one.contains(what)));
        if slow { 80.0 } else { 100.0 }
    }
    fn factor_of(&self, pace: Pace) -> Result<f64> {
        Ok(if pace == Pace::Auto { 7.0 } else { 1.0 })
    }
    fn set_pace(&self, factor: f64) -> Result<()> {
        self.0.borrow_mut().log.push(format!("pace {factor}"));
        Ok(())
    }
    fn now(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
    fn shutdown(self: Box<Self>) -> Result<()> {
        let world = self.0.borrow();
        assert!(world.background.is_empty() && world.offline.values().all(|n| *n == 0), "an arm was left standing");
        Ok(())
    }
}

impl World {
    /// 100 operations a second and guest; three times that with CPUs taken offline, plus the guest's and boot's number.
    fn measure(&mut self, target: Target, argv: &[String]) -> String {
        let Target::Guest(guest) = target else { panic!("load on the host") };
        assert!(!self.paused.contains(&guest), "load in a paused guest");
        let share = if self.shares.is_empty() { 1.0 } else { self.shares.remove(0) };
        self.clock.ran_ns += (share * 1e9) as u64;
        self.clock.waited_ns += ((1.0 - share) * 1e9) as u64;
        let factor = if self.offline.get(&guest).is_some_and(|n| *n > 0) { 3 } else { 1 };
        let value = f64::from(100 * factor) + f64::from(self.boots);
        assert_eq!(argv[1], "--seconds=2");
        format!("{{\"metric\":\"ops\",\"value\":{value},\"unit\":\"1/s\"}}\n")
    }
}

impl Job for FakeJob {
    fn wait(mut self: Box<Self>) -> Result<Outcome> {
        self.outcome.take().expect("waited for once")
    }
    fn kill(&self, _signal: i32) -> Result<()> {
        let mut world = self.world.borrow_mut();
        world.background.retain(|one| Some(one) != self.background.as_ref());
        Ok(())
    }
}

impl Drop for FakeJob {
    fn drop(&mut self) {
        if self.background.is_some() {
            self.kill(9).expect("it is a fake");
        }
    }
}

fn said(status: i32, text: &str) -> Outcome {
    Outcome { status, stdout: text.as_bytes().to_vec(), stderr: Vec::new() }
}

const FILE: &str = r#"
name = "fake"
title = "fake"
boots = 3
lost_boots = 1
[machine]
pcpus = 2
memory_mib = 1024
[[guest]]
name = "a"
vcpus = 2
memory_mib = 256
[[guest]]
name = "b"
vcpus = 4
memory_mib = 256
[[configuration]]
name = "one"
guests = ["a"]
[[configuration]]
name = "two"
guests = ["a", "b"]
[[comparison]]
of = "two"
to = "one"
[[arm]]
name = "stock"
[[arm]]
name = "off"
configurations = ["two"]
[[arm.step]]
on = "guests"
run = ["offline", "1"]
undo = ["online"]
[[arm]]
name = "daemon"
configurations = ["two"]
[[arm.step]]
on = "host"
run = ["served"]
background = true
ready_line = "ready"
[[load]]
name = "lock"
run = ["measure", "--seconds={seconds}"]
seconds = 2
[[load.metric]]
name = "ops"
unit = "1/s"
better = "higher"
[[check]]
name = "off is three times as fast"
load = "lock"
configuration = "two"
metric = "ops"
arm = "off"
of = "ratio"
at_least = 2.9
at_most = 3.0
"#;

fn run_file(text: &str, world: World) -> (Report, Rc<RefCell<World>>) {
    run_choice(text, world, Choice { seed: 1, arch: Arch::Aarch64, ..Choice::default() })
}

fn run_choice(text: &str, world: World, choice: Choice) -> (Report, Rc<RefCell<World>>) {
    let parts = run_part(text, world, &choice, Gathered::default(), &mut |_| ());
    (parts.0, parts.1)
}

/// A run, or its next part.
fn run_part(
    text: &str,
    world: World,
    choice: &Choice,
    earlier: Gathered,
    after_boot: &mut dyn FnMut(&Gathered),
) -> (Report, Rc<RefCell<World>>) {
    let experiment = experiment::parse("fake", text).unwrap();
    let world = Rc::new(RefCell::new(world));
    let boot = |spec: &MachineSpec, _: &dyn Progress| -> Result<Box<dyn Rig>> {
        let mut w = world.borrow_mut();
        assert!(spec.guests.is_empty(), "guests are started one by one");
        w.boots += 1;
        w.cmdlines.push(spec.cmdline.join(" "));
        w.guests = 0;
        w.loads = 0;
        w.offline.clear();
        w.paused.clear();
        w.background.clear();
        drop(w);
        Ok(Box::new(FakeRig(Rc::clone(&world))))
    };
    let spec = machine(&experiment, choice);
    let gathered = go_on(&experiment, choice, &spec, &boot, &Bar::hidden(), earlier, after_boot);
    (Report::new(&experiment, choice, &spec, gathered, 1000), world)
}

fn values(report: &Report, arm: &str, load: &str) -> Vec<f64> {
    report.samples.iter().filter(|s| s.arm == arm && s.load == load).map(|s| s.value).collect()
}

#[test]
fn arms_with_kernel_parameters_have_boots_of_their_own_and_are_paired() {
    let text = FILE.replace("name = \"off\"\n", "name = \"off\"\ncmdline = [\"patience=1\"]\n");
    let (report, world) = run_file(&text, World::default());
    assert!(report.ok(), "{report:#?}");
    assert_eq!(world.borrow().cmdlines, ["", "patience=1", "patience=1", "", "", "patience=1"]);
    let row = report.summary.iter().find(|row| row.arm == "off").unwrap();
    assert_eq!((row.n, row.ratio_to_stock.unwrap().pairs), (3, 3));
}

#[test]
fn all_arms_are_measured_and_paired() {
    let (report, _) = run_file(FILE, World::default());
    assert!(report.ok(), "{report:#?}");
    assert_eq!(values(&report, "stock", "lock@one"), [101.0, 102.0, 103.0]);
    assert_eq!(values(&report, "off", "lock@two"), [602.0, 604.0, 606.0]);
    let row = report.summary.iter().find(|row| row.arm == "off").unwrap();
    let ratio = row.ratio_to_stock.unwrap();
    assert_eq!((row.n, ratio.pairs), (3, 3));
    assert!(ratio.lo.unwrap() <= ratio.median && ratio.median <= ratio.hi.unwrap());
    assert_eq!(report.comparisons[0].ratio.median, 2.0);
    assert_eq!((report.boots.ok, report.boots.lost), (3, 0));
}

#[test]
fn no_load_pays_for_a_guests_first_access_to_its_memory() {
    let touched = |text: &str| {
        let (report, world) = run_file(text, World::default());
        assert!(report.ok(), "{report:#?}");
        let world = world.borrow();
        let loads = world.log.iter().position(|line| line.contains("measure"));
        let touches = world.log.iter().enumerate().filter(|(_, line)| line.ends_with("entrain-load touch"));
        touches.filter(|(at, _)| Some(*at) < loads).map(|(_, line)| line.clone()).collect::<Vec<_>>()
    };
    assert_eq!(touched(FILE), ["guest 0: entrain-load touch", "guest 1: entrain-load touch"]);
    // The host machine would run out of memory.
    assert!(touched(&FILE.replacen("memory_mib = 1024", "memory_mib = 1023", 1)).is_empty());
}

#[test]
fn a_guest_that_could_not_write_to_its_memory_is_noted() {
    let notes = |short_of_memory| run_file(FILE, World { short_of_memory, ..World::default() }).0.notes;
    let told = |notes: Vec<String>| notes.iter().filter(|note| note.contains("free memory")).count();
    assert_eq!([told(notes(false)), told(notes(true))], [0, 1]);
}

#[test]
fn the_order_of_the_arms_rotates_from_boot_to_boot() {
    let (report, _) = run_file(FILE, World::default());
    let order = |boot| -> Vec<String> {
        report.samples.iter().filter(|s| s.boot == boot).map(|s| format!("{} {}", s.arm, s.load)).collect()
    };
    let (first, second) = (order(1), order(2));
    assert_eq!(first.len(), 4);
    let mut rotated = first.clone();
    rotated.rotate_left(1);
    assert_eq!(second, rotated);
}

#[test]
fn a_lost_boot_is_repeated_and_its_samples_stay() {
    let faults = [(2, 4)].into();
    let (report, _) = run_file(FILE, World { faults, ..World::default() });
    assert!(report.ok(), "{report:#?}");
    assert_eq!((report.boots.ok, report.boots.lost), (3, 1));
    let loss = &report.boots.losses[0];
    assert_eq!((loss.boot, loss.class.as_str(), loss.emulator), (2, "stack-end", true));
    assert!(loss.console[0].contains("corrupted stack end"));
    assert_eq!(report.boots.by_arm[loss.arm.as_ref().unwrap()].lost, 1);
    assert!(report.samples.iter().any(|s| s.boot == 2), "samples of the lost boot");
    assert_eq!(report.samples.iter().filter(|s| s.boot == 4).count(), 4, "the repetition is whole");
}

#[test]
fn each_machine_is_asked_why_something_did_not_end() {
    let world = World { dumb: Some(Target::Guest(0)), ..World::default() };
    let rig = FakeRig(Rc::new(RefCell::new(world)));
    let text = evidence::gather(&rig, "lock under stock", &[Target::Guest(0), Target::Guest(1)]);
    let parts: Vec<&str> = text.split("########").collect();
    assert!(parts[0].contains("lock under stock") && parts.len() == 4, "{text}");
    assert!(parts[2].contains("no answer") && !parts[3].contains("no answer"), "one that hangs holds up no other");
    let late = Stop::from(deadline("lock".into()));
    assert!(evidence::is_wanted(&late) && !evidence::is_wanted(&Stop::Cancelled));
}

#[test]
fn a_machine_that_broke_under_a_load_is_lost_to_that_load_and_its_arm() {
    let broken_after = [(2, 1)].into();
    let (report, _) = run_file(FILE, World { broken_after, ..World::default() });
    assert_eq!((report.boots.ok, report.boots.lost), (3, 1));
    let first = report.samples.iter().find(|sample| sample.boot == 3).unwrap();
    let loss = &report.boots.losses[0];
    assert_eq!((loss.arm.as_ref(), loss.load.as_ref()), (Some(&first.arm), Some(&first.load)));
    assert!(report.samples.iter().all(|sample| sample.boot != 2), "it has no figures");
}

#[test]
fn a_load_that_fails_is_tidied_up_after() {
    let text = FILE.replace("run = [\"measure\", \"--seconds={seconds}\"]", "run = [\"fail\"]");
    let (report, world) = run_file(&text, World::default());
    assert_eq!((report.failures.len(), world.borrow().tidied.clone()), (12, vec![2; 12]));
    let (_, world) = run_file(FILE, World::default());
    assert!(world.borrow().tidied.is_empty());
}

#[test]
fn a_longer_window_of_a_quick_run_has_its_own_deadline() {
    let text = FILE.replace("seconds = 2\n", "seconds = 1\n").replace("[machine]", "[quick]\nseconds = 2\n[machine]");
    let (report, _) = run_choice(&text, World::default(), Choice { quick: true, ..Choice::default() });
    assert!(report.ok(), "{report:#?}");
}

#[test]
fn what_was_set_up_still_runs_when_machines_are_asked_why() {
    let asked = (1..8).flat_map(|late| {
        let choice = Choice { arms: vec!["daemon".into()], boots: Some(1), seed: 1, ..Choice::default() };
        let (report, world) = run_choice(FILE, World { late: Some(late), ..World::default() }, choice);
        // Losses of one second share a file.
        let kept: BTreeSet<_> = report.boots.losses.iter().map(|loss| loss.evidence.clone().expect("kept")).collect();
        kept.iter().for_each(|file| std::fs::remove_file(file).expect("it was written just now"));
        let world = world.borrow();
        assert!(!world.asked.is_empty(), "load {late}");
        world.asked.clone()
    });
    assert!(asked.into_iter().any(|running| running == ["served"]));
}

#[test]
fn a_boot_that_is_always_lost_ends_the_run_and_keeps_what_there_is() {
    let faults = (2..20).map(|boot| (boot, 1)).collect();
    let (report, world) = run_file(FILE, World { faults, ..World::default() });
    assert!(!report.ok() && !report.complete);
    assert_eq!((report.boots.ok, report.boots.lost), (1, 2));
    assert_eq!(world.borrow().boots, 3);
    assert_eq!(values(&report, "off", "lock@two").len(), 1);
    assert!(report.notes.iter().any(|note| note.contains("lost 2 times")), "{:?}", report.notes);
}

#[test]
fn a_spoilt_sample_is_taken_anew_and_one_that_stays_spoilt_is_marked() {
    let (report, _) = run_file(FILE, World { shares: vec![0.5, 0.97], ..World::default() });
    assert_eq!(report.samples[0].share, 0.97);
    assert!(report.samples.iter().all(|s| !s.noisy));
    assert!(report.notes.iter().any(|note| note.contains("thrown away")), "{:?}", report.notes);

    let busy: Vec<f64> = vec![0.5; 1000];
    let (report, world) = run_file(FILE, World { shares: busy, ..World::default() });
    assert!(report.samples.iter().all(|s| s.noisy));
    assert!(report.ok(), "noise alone fails nothing");
    assert!(report.notes.iter().any(|note| note.contains("other programs")), "{:?}", report.notes);
    let runs = world.borrow().log.iter().filter(|line| line.contains("measure")).count();
    // Twelve samples of 21 guests; only the first three samples (of up to two guests) are tried three times.
    assert!((21 + 6..=21 + 12).contains(&runs), "{runs}");
}

#[test]
fn an_arm_that_had_a_slower_computer_is_named() {
    let (report, _) = run_file(FILE, World { slow_after: Some("served"), ..World::default() });
    let told: Vec<_> = report.notes.iter().filter(|note| note.contains("this computer was")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("20 % slower while daemon"), "{told:?}");
    assert!(report.ok(), "that fails nothing");
}

#[test]
fn a_step_that_fails_fails_its_arm_alone() {
    let text = FILE.replace("run = [\"offline\", \"1\"]", "run = [\"fail\"]");
    let (report, world) = run_file(&text, World::default());
    assert!(!report.ok());
    assert_eq!(report.failures.len(), 3);
    assert!(report.failures[0].message.contains("no such thing"), "{}", report.failures[0].message);
    assert!(values(&report, "off", "lock@two").is_empty());
    assert_eq!(values(&report, "stock", "lock@two").len(), 3);
    assert!(world.borrow().log.iter().any(|line| line.ends_with("online")), "a step that failed is undone too");
    let check = &report.checks[0];
    assert!(!check.ok && check.detail.contains("no samples"));
}

#[test]
fn a_daemon_that_dies_spoils_no_sample_of_its_arm() {
    let (report, _) = run_file(FILE, World { background_dies: true, ..World::default() });
    assert!(!report.ok());
    assert!(values(&report, "daemon", "lock@two").is_empty());
    assert!(report.failures.iter().all(|f| f.arm == "daemon" && f.message.contains("ended by itself")));
    assert_eq!(report.failures.len(), 3);
}

#[test]
fn an_arm_can_be_chosen_and_its_checks_go_with_it() {
    let choice = Choice { arms: vec!["daemon".into()], boots: Some(1), seed: 1, ..Choice::default() };
    let (report, _) = run_choice(FILE, World::default(), choice);
    assert!(report.ok() && report.checks.is_empty());
    assert!(values(&report, "off", "lock@two").is_empty());
    assert_eq!(values(&report, "daemon", "lock@two").len(), 1);
}

#[test]
fn checks_of_arms_that_do_not_run_are_left_out() {
    let off = |line: &str| FILE.replace("name = \"off\"\n", &format!("name = \"off\"\n{line}\n"));
    let checks = |line: &str, quick| {
        let (report, _) = run_choice(&off(line), World::default(), Choice { quick, ..Choice::default() });
        assert!(report.ok(), "{report:#?}");
        report.checks.len()
    };
    assert_eq!(checks("full_only = true", false), 1);
    assert_eq!(checks("full_only = true", true), 0);
    assert_eq!(checks("on_demand = true", false), 0);
    assert_eq!(checks("arch = [\"x86_64\"]", false), 0);
}

#[test]
fn an_arm_on_demand_and_its_programs_are_there_when_it_is_named() {
    let text = FILE.replace("name = \"off\"\n", "name = \"off\"\non_demand = true\nprograms = [\"scx_lavd\"]\n");
    let experiment = experiment::parse("fake", &text).unwrap();
    let named =
        |arms: &[&str]| Choice { arms: arms.iter().map(|arm| (*arm).to_owned()).collect(), ..Choice::default() };
    assert!(machine(&experiment, &named(&[])).programs.is_empty());
    assert!(machine(&experiment, &named(&["daemon"])).programs.is_empty());
    assert_eq!(machine(&experiment, &named(&["off"])).programs, ["scx_lavd"]);
    let (report, _) = run_choice(&text, World::default(), named(&[]));
    assert!(values(&report, "off", "lock@two").is_empty());
    let (report, _) = run_choice(&text, World::default(), named(&["off"]));
    assert_eq!(values(&report, "off", "lock@two").len(), 3);
    assert!(report.notes.iter().any(|note| note.starts_with("scx_lavd is version ")), "{:?}", report.notes);
}

#[test]
fn short_boots_split_the_loads_but_never_the_arms() {
    let second = FILE[FILE.find("[[load]]").unwrap()..FILE.find("[[check]]").unwrap()].replace("\"lock\"", "\"other\"");
    let text = FILE.replace("[[check]]", &format!("{second}[[check]]")).replace("boots = 3", "boots = 1\n");
    let text = text.replace("[machine]", "[loads_per_boot]\naarch64 = 1\n[machine]");
    let (report, _) = run_file(&text, World::default());
    assert_eq!(report.boots.ok, 2);
    for load in ["lock@two", "other@two"] {
        let boots: Vec<u32> = report.samples.iter().filter(|s| s.load == load).map(|s| s.boot).collect();
        assert_eq!(boots.len(), 3);
        assert!(boots.iter().all(|boot| *boot == boots[0]));
    }
}

#[test]
fn the_json_has_the_promised_fields_and_comes_back_the_same() {
    let (report, _) = run_file(FILE, World::default());
    let text = serde_json::to_string(&report).unwrap();
    let back: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(back, report);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], 1);
    let has = |value: &serde_json::Value, keys: &[&str]| {
        keys.iter().for_each(|key| assert!(value.get(key).is_some(), "{key} missing in {value}"));
    };
    has(&json, &["experiment", "machine", "boots", "samples", "summary", "checks"]);
    has(&json["boots"], &["ok", "lost"]);
    has(&json["samples"][0], &["boot", "arm", "load", "metric", "unit", "value"]);
    let rows = json["summary"].as_array().unwrap();
    let off = rows.iter().find(|row| row["arm"] == "off").unwrap();
    has(off, &["arm", "load", "metric", "unit", "better", "n", "median", "min", "max", "ratio_to_stock"]);
    assert_eq!(off["better"], "higher");
    has(&off["ratio_to_stock"], &["median", "lo", "hi", "pairs"]);
    has(&json["checks"][0], &["name", "ok", "detail"]);
}

#[test]
fn time_is_slow_while_loads_run_and_the_computers_while_arms_are_set_up() {
    let slow = FILE.replace("[machine]\n", "[machine]\ndilation = \"auto\"\n").replace("boots = 3", "boots = 1");
    let paces = |text: &str| {
        let (report, world) = run_file(text, World::default());
        let mut log: Vec<String> = world.borrow().log.clone();
        // Guests are asked by the dozen; what matters is when the pace changed.
        log.retain(|line| line.starts_with("pace") || line.contains("offline") || line.contains("measure"));
        log.iter_mut()
            .for_each(|line| *line = line.split(": ").last().unwrap().split(' ').take(2).collect::<Vec<_>>().join(" "));
        log.dedup();
        (report.machine.dilation, log)
    };
    let (factor, log) = paces(&slow);
    assert_eq!(factor, 7.0);
    let arm = log.iter().position(|line| line == "offline 1").unwrap();
    assert_eq!(log[arm - 1..arm + 4], ["pace 1", "offline 1", "pace 7", "measure --seconds=2", "pace 1"], "{log:?}");
    let (factor, log) = paces(&slow.replace("dilation = \"auto\"", "dilation = \"auto\"\ndilated_setup = true"));
    assert_eq!((factor, log.iter().filter(|line| line.starts_with("pace")).all(|line| line == "pace 7")), (7.0, true));
    assert_eq!(paces(FILE).0, 1.0);
}

/// A report as it comes back from its file, to be gone on with under `choice`.
fn taken_up(text: &str, report: &Report, choice: &Choice) -> anyhow::Result<Gathered> {
    let experiment = experiment::parse("fake", text).unwrap();
    let back: Report = serde_json::from_str(&crate::report::file::json(report)).unwrap();
    let spec = machine(&experiment, choice);
    history::earlier(back, &experiment, choice, &spec, "7.3.4-fake", &Provenance::default())
}

#[test]
fn a_run_that_was_cut_off_loses_one_boot_and_goes_on_with_the_rest() {
    let choice = Choice { seed: 1, arch: Arch::Aarch64, ..Choice::default() };
    let experiment = experiment::parse("fake", FILE).unwrap();
    let mut parts: Vec<Report> = Vec::new();
    let mut after = |gathered: &Gathered| {
        parts.push(Report::new(&experiment, &choice, &machine(&experiment, &choice), gathered.clone(), 1000));
    };
    let (whole, _) = run_part(FILE, World::default(), &choice, Gathered::default(), &mut after);
    assert_eq!(parts.len(), 3, "written after every boot");
    let first = &parts[0];
    assert!(!first.complete && first.notes.iter().any(|note| note.contains("cut off")), "{:?}", first.notes);

    // The machine of the second part counts from the boot that the first one ended with.
    let world = World { boots: 1, ..World::default() };
    let (both, world) = run_part(FILE, world, &choice, taken_up(FILE, first, &choice).unwrap(), &mut |_| ());
    assert_eq!(world.borrow().boots, 3, "the first boot is not made again");
    assert_eq!(both.samples, whole.samples);
    assert_eq!(both.summary, whole.summary);
    assert_eq!((&both.boots, &both.run, both.complete), (&whole.boots, &whole.run, true));
    let (again, world) =
        run_part(FILE, World::default(), &choice, taken_up(FILE, &both, &choice).unwrap(), &mut |_| ());
    assert_eq!((world.borrow().boots, again.samples), (0, whole.samples.clone()), "nothing is left to do");
    let more = Choice { boots: Some(5), ..choice.clone() };
    let (more, world) = run_part(FILE, World::default(), &more, taken_up(FILE, &whole, &more).unwrap(), &mut |_| ());
    assert_eq!((world.borrow().boots, more.boots.ok), (2, 5), "and more boots may be asked for");
}

#[test]
fn rounds_of_a_lost_boot_are_not_run_again() {
    let text = FILE.replace("boots = 3", "boots = 1\nrounds = 2").replace("lost_boots = 1", "lost_boots = 0");
    let choice = Choice { seed: 1, arch: Arch::Aarch64, ..Choice::default() };
    // Each round has seven loads.
    let world = World { faults: BTreeMap::from([(1, 8)]), ..World::default() };
    let (first, _) = run_part(&text, world, &choice, Gathered::default(), &mut |_| ());
    assert_eq!((first.boots.ok, first.boots.lost, first.complete), (0, 1, false));
    let rounds = |report: &Report| {
        let mut rounds: Vec<_> = report.samples.iter().map(|sample| (sample.boot, sample.round)).collect();
        rounds.dedup();
        rounds
    };
    assert_eq!(rounds(&first), [(1, 0)]);
    let world = World { boots: 1, ..World::default() };
    let (both, _) = run_part(&text, world, &choice, taken_up(&text, &first, &choice).unwrap(), &mut |_| ());
    assert_eq!(rounds(&both), [(1, 0), (2, 1)]);
    assert_eq!((both.boots.ok, both.boots.lost, both.complete), (1, 1, true));
    // Nor are they where the same run repeats the boot.
    let text = text.replace("lost_boots = 0", "lost_boots = 1");
    let world = World { faults: BTreeMap::from([(1, 8)]), ..World::default() };
    let (repeated, _) = run_part(&text, world, &choice, Gathered::default(), &mut |_| ());
    assert_eq!(rounds(&repeated), [(1, 0), (2, 1)]);
}

#[test]
fn another_run_is_not_gone_on_with() {
    let choice = Choice { seed: 1, arch: Arch::Aarch64, ..Choice::default() };
    let (report, _) = run_part(FILE, World::default(), &choice, Gathered::default(), &mut |_| ());
    let told = |text: &str, report: &Report, choice: &Choice| taken_up(text, report, choice).unwrap_err().to_string();
    let other = Choice { seed: 2, arms: vec!["off".into()], ..choice.clone() };
    let message = told(FILE, &report, &other);
    assert!(message.contains("--seed: 1, now 2; arms: stock, off, daemon, now stock, off"), "{message}");
    assert!(told(&FILE.replace("pcpus = 2", "pcpus = 4"), &report, &choice).contains("pcpus: 2, now 4"));
    assert!(
        told(&FILE.replace("seconds = 2", "seconds = 3"), &report, &choice).contains("windows: lock 2 s, now lock 3 s")
    );
    let older = Report { version: "0.0.1".into(), schedulers: "x".into(), ..report.clone() };
    assert!(told(FILE, &older, &choice).contains("version: 0.0.1, now "));
    assert!(told(FILE, &older, &choice).contains("schedulers' sources: x, now unknown"));
    let oldest = Report { run: None, ..report.clone() };
    assert!(told(FILE, &oldest, &choice).contains("could not split runs"));
    let elsewhere = Report { commit: "abc".into(), ..report };
    let gathered = taken_up(FILE, &elsewhere, &choice).unwrap();
    assert_eq!(gathered.notes, ["boots until 3 were made at commit abc, later ones at unknown"]);
}
