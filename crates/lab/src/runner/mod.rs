//! Runs an experiment: boots, visits the arms in turn, takes samples, lives with lost boots, and stops when told to.

mod arm;
mod evidence;
mod failure;
mod history;
mod output;
mod plan;
mod probes;
mod record;
mod sample;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use entrain_lab_machine::image::peers;
use entrain_lab_machine::machine::{Arch, Command, GuestSpec, MachineSpec, Target, pace::Pace};
use entrain_lab_machine::{LabError, Progress, Result};
use entrain_results::provenance::Provenance;

pub use history::{Done, History, earlier};
pub use plan::Choice;
pub(crate) use plan::arms;
pub use record::{Failure, Gathered, Loss};
pub use sample::QUIET_SHARE;

use self::arm::{Spot, Spots, Standing};
use self::failure::Stop;
use self::plan::{Session, Sizes, Visit};
use self::sample::Patience;
use crate::bar::{self, Bar};
use crate::experiment::{Experiment, Load};
use crate::placeholder::Values;
use crate::reading::Sample;
use crate::rig::Rig;
use crate::scenario::Context;

/// Boots a machine; in life [`entrain_lab_machine::machine::Machine::boot`].
pub type Boot<'a> = dyn Fn(&MachineSpec, &dyn Progress) -> Result<Box<dyn Rig>> + 'a;

/// Time for a guest's vCPUs and the host's daemons to settle after a guest was paused or resumed.
const SETTLE: Duration = Duration::from_millis(200);
/// Memory that the host machine keeps for itself and its daemons when all of its guests' memory is taken.
const HOST_MEMORY_MIB: u32 = 512;
/// Until a guest has written to its free memory: some seconds, and more where both machines are emulated on a busy computer.
const TOUCHED_WITHIN: Duration = Duration::from_secs(300);
/// What `auto` is thought to become, for the first guess of a run's length only.
const THOUGHT_FACTOR: f64 = 20.0;

/// Runs an experiment. What was gathered until an error or Ctrl-C comes back all the same.
pub fn run(experiment: &Experiment, choice: &Choice, spec: &MachineSpec, boot: &Boot, bar: &Bar) -> Gathered {
    let built = Provenance::of_this_program();
    go_on(experiment, choice, spec, boot, bar, Gathered { built, ..Gathered::default() }, &mut |_| ())
}

/// Does what an [`earlier`] part of the run has not done. `after_boot` is told after every boot what both have gathered.
pub fn go_on(
    experiment: &Experiment,
    choice: &Choice,
    spec: &MachineSpec,
    boot: &Boot,
    bar: &Bar,
    earlier: Gathered,
    after_boot: &mut dyn FnMut(&Gathered),
) -> Gathered {
    let sizes = Sizes::new(experiment, choice);
    let started = Instant::now();
    let spec = MachineSpec { guests: guests(experiment), ..spec.clone() };
    let history = History { done: earlier.history.done.clone(), ..History::new(experiment, choice, &spec) };
    let gathered = Gathered { history, ..earlier };
    let patience = Patience::default();
    let mut run = Run {
        experiment,
        choice,
        sizes,
        boot,
        bar,
        started,
        before: gathered.seconds,
        boots: gathered.last_boot(),
        // All boots of a run have the same pace.
        factor: (gathered.dilation > 0.0).then_some(gathered.dilation),
        gathered,
        after_boot,
        patience,
        session: 0,
        pair: None,
        longest: Longest::default(),
        to_come: 0,
    };
    bar.expect(run.planned());
    for peer in spec.programs.iter().filter_map(|name| peers::find(name)) {
        run.gathered.note(&format!("{} is version {} of the crate registry", peer.name, peer.version));
    }
    run.gathered.expected = run.expected();
    run.gathered.unfinished = true;
    run.all(&spec);
    run.gathered.unfinished = false;
    run.gathered.seconds = run.seconds();
    run.gathered
}

/// The host machine that an experiment's file asks for, without its guests.
pub fn machine(experiment: &Experiment, choice: &Choice) -> MachineSpec {
    let host = &experiment.machine;
    MachineSpec {
        arch: choice.arch,
        dilation: choice.dilation.unwrap_or(host.dilation),
        rt: host.rt,
        pcpus: host.pcpus,
        topology: host.topology,
        memory_mib: host.memory_mib,
        // Checked when the file was read.
        frequency: host.frequency.as_ref().and_then(|text| text.as_ref().parse().ok()),
        nested: host.nested,
        qpw: host.qpw,
        extra_modules: host.modules.clone(),
        guest_modules: host.guest_modules.clone(),
        cgroups: host.cgroups,
        cmdline: host.cmdline.clone(),
        programs: programs(experiment, choice),
        ..MachineSpec::default()
    }
}

/// What the machine and the chosen arms want; what only other arms want is neither fetched nor built.
fn programs(experiment: &Experiment, choice: &Choice) -> Vec<String> {
    let arms = plan::arms(experiment, choice).into_iter().flat_map(|arm| &arm.programs);
    experiment.machine.programs.iter().chain(arms).map(|name| name.as_ref().clone()).collect()
}

fn guests(experiment: &Experiment) -> Vec<GuestSpec> {
    let spec = |guest: &crate::experiment::Guest| GuestSpec {
        name: guest.name.as_ref().clone(),
        vcpus: guest.vcpus,
        memory_mib: guest.memory_mib,
        memory: guest.memory,
        cpu_pm: guest.cpu_pm,
        cmdline: guest.cmdline.clone(),
        initrd: None,
    };
    experiment.guests.iter().map(spec).collect()
}

/// How long the longest boot and the longest round took, to know whether another one fits.
#[derive(Debug, Default)]
struct Longest {
    boot: Duration,
    round: Duration,
}

struct Run<'a> {
    experiment: &'a Experiment,
    choice: &'a Choice,
    sizes: Sizes,
    boot: &'a Boot<'a>,
    bar: &'a Bar,
    started: Instant,
    gathered: Gathered,
    /// Time that earlier parts of the run took, s.
    before: f64,
    after_boot: &'a mut dyn FnMut(&Gathered),
    patience: Patience,
    /// Boots of a machine begun so far, lost ones too; numbers the samples.
    boots: u32,
    /// Where arms need boots of their own: the number by which the samples of those boots are paired.
    pair: Option<u32>,
    /// Number of the session within its boot.
    session: u32,
    longest: Longest,
    /// Sessions of the first boot that are still to be made.
    to_come: u32,
    /// How many times slower the machines' time passes while loads are measured; found in the first boot, kept for all.
    factor: Option<f64>,
}

/// Where a boot stood when it ended.
#[derive(Debug, Default)]
struct At {
    arm: Option<String>,
    load: Option<String>,
    /// Where what the machine said of itself is kept.
    evidence: Option<PathBuf>,
}

impl<'a> Run<'a> {
    fn all(&mut self, spec: &MachineSpec) {
        for boot in 0..self.sizes.boots {
            let sessions = plan::sessions(self.experiment, self.choice, &self.sizes, boot);
            self.pair = plan::differ(self.experiment, self.choice).then_some(boot + 1);
            for (number, session) in sessions.iter().enumerate() {
                // The first boot is made whole: what is cut are repetitions, never loads.
                self.session = number as u32;
                if self.is_done(session, boot) {
                    continue;
                }
                self.to_come = if boot == 0 { (sessions.len() - 1 - number) as u32 } else { 0 };
                if boot > 0 && !self.fits(self.longest.boot + self.longest.round) {
                    self.gathered.note("the time for a quick run was up before all boots were made");
                    return;
                }
                if !self.session(spec, session, boot) {
                    return;
                }
            }
        }
    }

    /// Whether an earlier part of the run, or this one, has made all of a session.
    fn is_done(&self, session: &Session, boot: u32) -> bool {
        self.gathered.history.rounds_of(boot, self.session) as usize >= session.rounds.len()
    }

    /// Time that all parts of the run have taken, s.
    fn seconds(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }

    /// Tells what there is, so that a run that is cut off loses the boot that runs and no other.
    fn tell(&mut self) {
        self.gathered.seconds = self.seconds();
        (self.after_boot)(&self.gathered);
    }

    /// Boots until a session has gone through; false where the run must end.
    fn session(&mut self, spec: &MachineSpec, session: &Session<'a>, boot: u32) -> bool {
        let mut lost = 0;
        loop {
            // Of a boot that was lost, too.
            let from = self.gathered.history.rounds_of(boot, self.session);
            if lost > 0 && from as usize >= session.rounds.len() {
                return true;
            }
            self.boots += 1;
            let mut at = At::default();
            let before = self.bar.position();
            let stop = match self.one_boot(spec, session, boot, from as usize, &mut at) {
                Ok(()) => {
                    self.gathered.boots_ok += 1;
                    self.tell();
                    return true;
                }
                Err(stop) => stop,
            };
            let error = match stop {
                Stop::Cancelled => {
                    self.gathered.cancelled = true;
                    return false;
                }
                Stop::Fatal(error) => {
                    self.boots -= 1;
                    self.gathered.fatal = Some(error.to_string());
                    return false;
                }
                Stop::Failed(what) => LabError::Invalid(what),
                Stop::Lost(error) => error,
            };
            // Emulated SVM is known to fall into endless VM entries now and then (docs/lab.md); emulated EL2 is not.
            let livelocks = self.choice.arch == Arch::X86_64 && self.gathered.emulated == Some(true);
            let loss = Loss { evidence: at.evidence, ..Loss::new(self.boots, at.arm, at.load, &error, livelocks) };
            self.bar.say(&format!("boot {} lost: {}", self.boots, loss.headline()));
            self.gathered.losses.push(loss);
            self.drop_part_of_a_round(session, boot);
            self.tell();
            lost += 1;
            if lost > self.experiment.lost_boots {
                self.gathered.fatal = Some(format!("the same boot was lost {lost} times; the last time: {error}"));
                return false;
            }
            self.bar.back_to(before);
        }
    }

    /// What a lost boot has measured of the round that it was in, where a pair of boots counts as one: the next boot measures
    /// that round again under the same number, and each sample would have two partners.
    fn drop_part_of_a_round(&mut self, session: &Session<'a>, boot: u32) {
        let Some(pair) = self.pair else { return };
        let done = self.gathered.history.rounds_of(boot, self.session);
        let arms: Vec<&str> = session.rounds.iter().flatten().map(|visit| visit.arm.name.as_ref().as_str()).collect();
        let again =
            |sample: &Sample| sample.boot == pair && sample.round >= done && arms.contains(&sample.arm.as_str());
        self.gathered.samples.retain(|sample| !again(sample));
    }

    fn one_boot(
        &mut self,
        spec: &MachineSpec,
        session: &Session<'a>,
        boot: u32,
        from: usize,
        at: &mut At,
    ) -> std::result::Result<(), Stop> {
        entrain_lab_machine::cancel::check()?;
        let begun = Instant::now();
        self.bar.set(&format!("boot {}: starting the host machine", self.boots));
        // A boot that fails without a fault (a missing program, a broken image) would fail again.
        let cmdline = [&spec.cmdline, session.cmdline].concat();
        let host = MachineSpec { guests: Vec::new(), cmdline, ..spec.clone() };
        let rig = (self.boot)(&host, self.bar).map_err(|error| match error {
            LabError::Remote { .. } => Stop::Lost(error),
            LabError::Invalid(_) => Stop::Fatal(error),
            other => Stop::from(other),
        })?;
        self.guests(rig.as_ref(), &spec.guests)?;
        self.longest.boot = self.longest.boot.max(begun.elapsed());
        self.bar.advance(bar::BOOT);
        self.describe(rig.as_ref())?;
        self.find_pace(rig.as_ref(), spec)?;
        let mut awake = vec![false; spec.guests.len()];
        for (number, round) in session.rounds.iter().enumerate().skip(from) {
            if number > from && !self.fits(self.longest.round) {
                self.gathered.note("the time for a quick run was up before all rounds were made");
                break;
            }
            let begun = Instant::now();
            for visit in round {
                at.arm = Some(visit.arm.name.as_ref().clone());
                at.load = None;
                *self.gathered.visits.entry(visit.arm.name.as_ref().clone()).or_default() += 1;
                self.bar.announce(&format!(
                    "boot {}: {}, {}",
                    self.boots,
                    visit.arm.name.as_ref(),
                    visit.configuration.name.as_ref()
                ));
                self.awake(rig.as_ref(), visit, &mut awake)?;
                self.visit(rig.as_ref(), visit, boot, number as u32, at)?;
                // The next arm must not be blamed.
                rig.settle()?;
            }
            self.longest.round = self.longest.round.max(begun.elapsed());
            self.gathered.history.did(boot, self.session, number as u32 + 1);
        }
        at.arm = None;
        at.load = None;
        // The figures are in; a machine that does not go down in order costs none of them, but is told.
        if let Err(error) = rig.shutdown() {
            self.gathered.note(&format!("boot {}: shutting the machine down: {error}", self.boots));
        }
        Ok(())
    }

    /// Starts the guests one after the other, each paused once it is up: booting together, a dozen vCPUs on two pCPUs
    /// are the very pathology that is to be measured, and stock kernels report soft lockups before they are up.
    ///
    /// Each writes to its free memory once: the first access to a page exits to the host, for which in a machine that has
    /// been up for an hour no load pays. (Without it the first windows of a boot had two thirds of the later ones' dbench.)
    fn guests(&mut self, rig: &dyn Rig, guests: &[GuestSpec]) -> std::result::Result<(), Stop> {
        let wanted = guests.iter().map(|guest| guest.memory_mib).sum::<u32>();
        let has_room = wanted + HOST_MEMORY_MIB <= self.experiment.machine.memory_mib;
        for (number, spec) in guests.iter().enumerate() {
            self.bar.set(&format!("boot {}: starting guest {} of {}", self.boots, number + 1, guests.len()));
            let guest = rig.start_guest(spec).map_err(|error| match Stop::from(error) {
                // A guest that does not come up says nothing of an arm.
                Stop::Failed(what) => Stop::Lost(LabError::Invalid(what)),
                other => other,
            })?;
            debug_assert_eq!(guest, number, "guests are numbered in the order of their start");
            if has_room {
                let touch = Command::new(["entrain-load", "touch"]).within(TOUCHED_WITHIN);
                if !rig.run(Target::Guest(guest), touch)?.ok() {
                    self.gathered.note("a guest did not write to its free memory: its first loads pay for new pages");
                }
            }
            rig.pause_guest(guest)?;
        }
        Ok(())
    }

    /// Pauses the guests that the configuration leaves out, and lets the others go on.
    fn awake(&self, rig: &dyn Rig, visit: &Visit, awake: &mut [bool]) -> std::result::Result<(), Stop> {
        let members = self.experiment.members(visit.configuration);
        let mut changed = false;
        for (guest, awake) in awake.iter_mut().enumerate() {
            let wanted = members.contains(&guest);
            match (wanted, *awake) {
                (true, false) => rig.resume_guest(guest)?,
                (false, true) => rig.pause_guest(guest)?,
                _ => continue,
            }
            *awake = wanted;
            changed = true;
        }
        if changed {
            std::thread::sleep(rig.wall(SETTLE));
        }
        Ok(())
    }

    fn visit(
        &mut self,
        rig: &dyn Rig,
        visit: &Visit,
        boot: u32,
        round: u32,
        at: &mut At,
    ) -> std::result::Result<(), Stop> {
        let (arm, configuration) = (visit.arm.name.as_ref(), visit.configuration.name.as_ref());
        self.bar.set(&format!("boot {}: {arm}, {configuration}: setting up", self.boots));
        let first = self.spots(visit, 0.0, 0.0, boot);
        let mut standing = Standing::new(rig);
        let result = match standing.up(&visit.arm.steps, &first) {
            Ok(()) => self.slowly(rig).and_then(|()| self.loads(rig, visit, &standing, boot, round, at)),
            Err(stop) => self.noted(stop, at, visit),
        };
        if !matches!(result, Err(Stop::Lost(_) | Stop::Fatal(_) | Stop::Cancelled)) {
            rig.set_pace(self.setup_factor())?;
        }
        match result {
            // A lost machine can't be put in order; its successor starts afresh. What was set up still runs and can be asked.
            Err(stop @ (Stop::Lost(_) | Stop::Fatal(_))) => {
                at.evidence = self.evidence(rig, visit, &stop, at);
                Err(stop)
            }
            other => standing.down().and(other),
        }
    }

    /// Lets the machine say why something did not end, before it is thrown away.
    fn evidence(&self, rig: &dyn Rig, visit: &Visit, stop: &Stop, at: &At) -> Option<PathBuf> {
        if !evidence::is_wanted(stop) {
            return None;
        }
        self.bar.set(&format!("boot {}: asking the machines why", self.boots));
        let guests = self.experiment.members(visit.configuration).into_iter().map(Target::Guest).collect::<Vec<_>>();
        let what = format!(
            "{} under {}, boot {}: {stop:?}",
            at.load.as_deref().unwrap_or("set-up"),
            visit.arm.name.as_ref(),
            self.boots
        );
        evidence::keep(rig, self.experiment.name.as_ref(), &what, &guests)
    }

    /// What the pace stands for is measured once, so that all boots are alike.
    fn find_pace(&mut self, rig: &dyn Rig, spec: &MachineSpec) -> std::result::Result<(), Stop> {
        if self.factor.is_none() {
            self.bar.set(&format!("boot {}: how fast the machine's CPUs are", self.boots));
            let factor = rig.factor_of(spec.dilation)?;
            self.bar.say(&format!("the machines' time passes {factor} times slower than this computer's"));
            self.factor = Some(factor);
            self.gathered.dilation = factor;
        }
        rig.set_pace(self.setup_factor())?;
        Ok(())
    }

    /// The pace of loads; a machine whose pace has changed is let come to rest.
    fn slowly(&self, rig: &dyn Rig) -> std::result::Result<(), Stop> {
        let factor = self.factor.unwrap_or(1.0);
        if factor != self.setup_factor() {
            rig.set_pace(factor)?;
            entrain_lab_machine::cancel::sleep(rig.wall(SETTLE))?;
        }
        Ok(())
    }

    /// The pace while arms are set up and taken down.
    fn setup_factor(&self) -> f64 {
        if self.experiment.machine.dilated_setup { self.factor.unwrap_or(1.0) } else { 1.0 }
    }

    /// The factor that a run's length is thought from before it is known.
    fn thought_factor(&self) -> f64 {
        self.factor.unwrap_or(match self.choice.dilation.unwrap_or(self.experiment.machine.dilation) {
            Pace::Auto => THOUGHT_FACTOR,
            Pace::Times(factor) => factor,
        })
    }

    fn loads(
        &mut self,
        rig: &dyn Rig,
        visit: &Visit,
        standing: &Standing,
        boot: u32,
        round: u32,
        at: &mut At,
    ) -> std::result::Result<(), Stop> {
        let (arm, configuration) = (visit.arm.name.as_ref(), visit.configuration.name.as_ref());
        let probes: Vec<String> = self.experiment.probes.iter().map(|probe| probe.as_ref().clone()).collect();
        for load in &visit.loads {
            let label = self.experiment.label(load.name.as_ref(), configuration);
            at.load = Some(label.clone());
            self.bar.set(&format!("boot {}: {arm}, {configuration}: {}", self.boots, load.name.as_ref()));
            let seconds = self.sizes.seconds(load);
            let spots = self.spots(visit, seconds, load.warmup, boot);
            let context = Context {
                params: load.params.clone(),
                arch: self.choice.arch,
                arm: arm.clone(),
                configuration: configuration.clone(),
                guests: self.experiment.members(visit.configuration),
                seconds,
                seed: self.seed(boot),
                bar: self.bar.clone(),
            };
            for number in 0..load.samples {
                entrain_lab_machine::cancel::check()?;
                let taken = sample::take(rig, load, &spots, &probes, &context, &mut self.patience)
                    .and_then(|taken| standing.check().map(|()| taken));
                // What was measured on a machine that broke down is no figure, and what failed on it no failure of the arm.
                rig.settle()?;
                match taken {
                    Ok(taken) => {
                        // Samples are paired by it: each of several with its counterpart.
                        let round = round * load.samples + number;
                        self.gathered.keep(self.pair.unwrap_or(self.boots), round, arm, &label, taken);
                    }
                    Err(stop) => {
                        self.noted(stop, at, visit)?;
                        rig.tidy(self.experiment.guests.len())?;
                    }
                }
                self.bar.advance(self.thought(load));
            }
        }
        Ok(())
    }

    /// Thought length of a load's sample, ms.
    fn thought(&self, load: &Load) -> u64 {
        bar::sample((self.sizes.seconds(load) + load.warmup) * self.thought_factor())
    }

    /// Notes a failure that leaves the machine well; passes on everything else.
    fn noted(&mut self, stop: Stop, at: &At, visit: &Visit) -> std::result::Result<(), Stop> {
        let Stop::Failed(message) = stop else { return Err(stop) };
        let load = at.load.clone().unwrap_or_else(|| format!("setting up in {}", visit.configuration.name.as_ref()));
        let failure = Failure { boot: self.boots, arm: visit.arm.name.as_ref().clone(), load, message };
        self.bar.say(&format!("{} under {}: {}", failure.load, failure.arm, failure.message));
        self.gathered.failures.push(failure);
        Ok(())
    }

    fn spots(&self, visit: &Visit, seconds: f64, warmup: f64, boot: u32) -> Spots {
        let pcpus = self.experiment.machine.pcpus;
        let arm = visit.arm.name.as_ref();
        let spot = |target, vcpus, guest: &str| Spot {
            target,
            values: Values {
                seconds,
                warmup,
                vcpus,
                pcpus,
                guest: guest.to_owned(),
                arm: arm.clone(),
                seed: self.seed(boot),
            },
        };
        let members = self.experiment.members(visit.configuration);
        let guest = |i: usize| {
            let guest = &self.experiment.guests[i];
            spot(Target::Guest(i), guest.vcpus, guest.name.as_ref())
        };
        Spots { host: spot(Target::Host, pcpus, "host"), guests: members.into_iter().map(guest).collect() }
    }

    fn seed(&self, boot: u32) -> u64 {
        self.choice.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(boot))
    }

    fn describe(&mut self, rig: &dyn Rig) -> std::result::Result<(), Stop> {
        if self.gathered.kernel.is_empty() {
            self.gathered.emulated = Some(rig.emulated());
            self.gathered.kernel = rig.run(Target::Host, Command::new(["uname", "-r"]))?.text().trim().to_owned();
        }
        Ok(())
    }

    /// Whether something that takes this long still fits into a quick run's time, beside what must come after it.
    fn fits(&self, more: Duration) -> bool {
        let after = (self.longest.boot + self.longest.round) * self.to_come;
        let end = self.sizes.within.map(Duration::from_secs_f64);
        end.is_none_or(|end| self.started.elapsed() + more + after <= end)
    }

    /// Milliseconds that the whole run is thought to take.
    fn planned(&self) -> u64 {
        let mut all = 0;
        for boot in 0..self.sizes.boots {
            let sessions = plan::sessions(self.experiment, self.choice, &self.sizes, boot);
            for (number, session) in sessions.iter().enumerate() {
                let done = self.gathered.history.rounds_of(boot, number as u32) as usize;
                let rounds = session.rounds.get(done..).unwrap_or_default();
                all += if rounds.is_empty() { 0 } else { bar::BOOT };
                for visit in rounds.iter().flatten() {
                    let loads = visit.loads.iter();
                    all += loads.map(|load| u64::from(load.samples) * self.thought(load)).sum::<u64>();
                }
            }
        }
        all
    }

    /// Arms and loads of which there should be samples.
    fn expected(&self) -> Vec<(String, String)> {
        let sizes = Sizes { rounds: 1, ..self.sizes.clone() };
        let sessions = plan::sessions(self.experiment, self.choice, &sizes, 0);
        let visits = sessions.iter().flat_map(|session| session.rounds.iter().flatten());
        let mut all = Vec::new();
        for visit in visits {
            for load in &visit.loads {
                let label = self.experiment.label(load.name.as_ref(), visit.configuration.name.as_ref());
                all.push((visit.arm.name.as_ref().clone(), label));
            }
        }
        all.sort();
        all
    }
}
