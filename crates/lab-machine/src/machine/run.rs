//! A booted machine, and the commands that run in it.
use std::{
    collections::VecDeque,
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use entrain_lab_agent::{
    frame::PIECE,
    message::{Event, Request},
    qemu::{Monitor, Qemu},
};

use super::{
    Arch, Cgroups, Command, CpuClock, GuestSpec, MachineSpec, MemoryBackend, Outcome, Target, accel, awake, clock,
    frequency,
    link::{Exchange, Link},
    pace::Clock,
    profile, recipe, spread,
};
use crate::{
    Cache, FaultClass, LabError, Progress, Result, cancel,
    image::{self, Images},
};

/// The host machine is up after 4 to 11 s on the machines of the trials.
const HOST_BOOT: Duration = Duration::from_secs(90);
/// Guests boot at the same time as their siblings, twice emulated: 10 s each on a quiet computer.
const GUEST_BOOT: Duration = Duration::from_secs(180);
/// However busy the development machine is, no boot takes longer than its limit by this factor.
const PATIENCE: u32 = 4;
/// Small requests.
const SHORT: Duration = Duration::from_secs(60);
/// A host machine powers itself off within a second, unless the development machine is overloaded.
const POWER_OFF: Duration = Duration::from_secs(60);
/// What the way there and back may add to a command's own deadline.
const SLACK: Duration = Duration::from_secs(30);
/// What a request may wait inside the machine, behind its loads, by the machine's clock.
const DELAY: Duration = Duration::from_secs(5);
/// How often a machine whose time passes slower tells that it lives, by the computer's clock.
const BEAT: Duration = Duration::from_secs(1);

/// One booted host machine with its guests. Dropping it kills its QEMU.
#[derive(Debug)]
pub struct Machine {
    link: Arc<Link>,
    qemu: Arc<Qemu>,
    spec: MachineSpec,
    kvm: bool,
    guests: std::sync::Mutex<Vec<GuestSpec>>,
    monitor: std::sync::Mutex<Monitor>,
    booted: Duration,
    /// What QEMU boots stays in the cache for as long as it may read it.
    _images: crate::cache::Hold,
    /// An emulated machine's CPUs sleep and wake up as the computer's do, only longer.
    _awake: Option<std::fs::File>,
}

impl Machine {
    /// Boots a host machine and all its guests.
    pub fn boot(cache: &Cache, spec: &MachineSpec, progress: &dyn Progress) -> Result<Self> {
        Self::boot_from(cache, &image::prepare(cache, spec, progress)?, spec, progress)
    }

    /// The same from images that were prepared before, for a machine that differs in no more than guests, kernel
    /// parameters and size.
    pub fn boot_from(cache: &Cache, images: &Images, spec: &MachineSpec, progress: &dyn Progress) -> Result<Self> {
        if let Some(fault) = spec.topology.fault(spec.pcpus) {
            return Err(LabError::Invalid(fault));
        }
        let kvm = accel::use_kvm(spec)?;
        let mut program = accel::qemu(cache, spec.arch, progress)?;
        let clock = clock(spec, kvm)?;
        if let Some(dilation) = clock.dilation() {
            program.env.extend(dilation.environment());
            program.inherit.extend(dilation.inherited().map(|fd| fd.as_raw_fd()));
        }
        progress.step(&format!("booting the host machine ({}, Linux {})", spec.arch, images.release));
        let begun = Instant::now();
        let mut args = recipe::host(spec, kvm, &images.kernel, &images.initrd);
        // Its files are read when QEMU starts, and again by nobody; they lie there until the machine is up.
        let hardware = frequency::prepare(spec, kvm, &program)?;
        args.extend(hardware.iter().flat_map(|files| files.args.clone()));
        let (qemu, ports) = Qemu::start(&program, args).map_err(|e| LabError::io(&program.argv[0], e))?;
        let qemu = Arc::new(qemu);
        let link = Link::new(!kvm, clock, ports.console, ports.agent).map_err(|e| LabError::io("QEMU's ports", e))?;
        watch(&qemu, &link);
        let mut machine = Self {
            link,
            qemu,
            spec: spec.clone(),
            kvm,
            guests: Vec::new().into(),
            monitor: ports.qmp.into(),
            booted: Duration::ZERO,
            _images: images.hold.clone(),
            _awake: (!kvm).then(|| awake::stay(std::path::Path::new("/dev/cpu_dma_latency"))).flatten(),
        };
        machine.await_start(Target::Host)?;
        if !kvm {
            spread::spread(std::path::Path::new("/proc"), machine.qemu.pid(), spec.pcpus);
        }
        machine.tell_up(Target::Host, begun);
        progress.step(&format!("booting {} guests", spec.guests.len()));
        // All at once: in turn took as much CPU time and longer (docs/lab.md, boot times).
        let starts: Vec<_> = spec.guests.iter().map(|g| machine.begin_guest(g)).collect::<Result<_>>()?;
        for (guest, start) in starts {
            machine.end_start(guest, start)?;
            machine.tell_up(Target::Guest(guest), begun);
        }
        machine.booted = begun.elapsed();
        Ok(machine)
    }

    /// The CPU time tells what a boot costs even when the development machine is busy.
    fn tell_up(&self, target: Target, begun: Instant) {
        let kernel = self.link.health(target, |h| Duration::from_millis(h.uptime_ms));
        let ran = Duration::from_nanos(self.cpu_clock().ran_ns);
        tracing::info!(
            "{target} up after {:.1?} ({ran:.1?} of CPU time; its kernel ran {kernel:.1?})",
            begun.elapsed()
        );
    }

    /// How long host machine and guests took to come up.
    pub fn boot_time(&self) -> Duration {
        self.booted
    }

    /// What it was made from.
    pub fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// Is it emulated, not virtualized?
    pub fn emulated(&self) -> bool {
        !self.kvm
    }

    /// The release of a machine's kernel.
    pub fn release(&self, target: Target) -> String {
        self.link.health(target, |h| h.release.clone())
    }

    /// The last `n` lines of a machine's console.
    pub fn console(&self, target: Target, n: usize) -> Vec<String> {
        self.link.health(target, |h| h.console.tail(n))
    }

    /// An error if the host machine or any guest has broken down, or if the user wants to stop.
    pub fn check(&self) -> Result<()> {
        let guests = self.guests.lock().expect("no panic under it").len();
        (0..guests).try_for_each(|n| self.link.check(Target::Guest(n)))?;
        self.link.check(Target::Host)
    }

    /// The same for when nobody may ask again: what is only suspected yet is waited for.
    pub fn settle(&self) -> Result<()> {
        self.link.settle(self.guests())
    }

    /// As [`Self::check`], for the host machine alone.
    pub fn check_host(&self) -> Result<()> {
        self.link.check(Target::Host)
    }

    /// Starts a command.
    pub fn start(&self, target: Target, command: Command) -> Result<Running> {
        self.spawn(target, command, None)
    }

    /// Starts a command on a terminal of that size (rows, columns).
    pub fn start_on_terminal(&self, target: Target, command: Command, size: (u16, u16)) -> Result<Running> {
        self.spawn(target, command, Some(size))
    }

    fn spawn(&self, target: Target, command: Command, terminal: Option<(u16, u16)>) -> Result<Running> {
        let Command { argv, env, stdin, deadline } = command;
        let what = argv.join(" ");
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let exchange = self.link.exchange(target, |id| Request::Spawn { id, argv, env, deadline_ms, terminal })?;
        let running = Running {
            exchange,
            what,
            deadline,
            until: Instant::now()
                .checked_add(self.link.clock.limit(SLACK, deadline + DELAY))
                .unwrap_or_else(|| Instant::now() + Duration::from_secs(1 << 30)),
            outcome: Outcome::default(),
            ended: false,
            lines: VecDeque::new(),
            partial: Vec::new(),
        };
        if terminal.is_none() {
            for piece in stdin.chunks(PIECE) {
                running.input(piece)?;
            }
            running.input(&[])?;
        }
        Ok(running)
    }

    /// Runs a command to its end.
    pub fn run(&self, target: Target, command: Command) -> Result<Outcome> {
        self.start(target, command)?.wait()
    }

    /// Writes a file of that mode.
    pub fn put(&self, target: Target, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
        let pieces = if bytes.is_empty() { vec![bytes] } else { bytes.chunks(PIECE).collect() };
        for (number, piece) in pieces.into_iter().enumerate() {
            let (path, bytes) = (path.to_owned(), piece.to_vec());
            self.link
                .exchange(target, |id| Request::Put { id, path, mode, first: number == 0, bytes })?
                .done("writing a file", self.short())?;
        }
        Ok(())
    }

    /// Reads a file.
    pub fn get(&self, target: Target, path: &str) -> Result<Vec<u8>> {
        let path = path.to_owned();
        let exchange = self.link.exchange(target, |id| Request::Get { id, path })?;
        let mut all = Vec::new();
        loop {
            match exchange.next(Instant::now() + self.short())? {
                Some(Event::Data { bytes, .. }) => all.extend(bytes),
                Some(Event::Done { .. }) => return Ok(all),
                Some(Event::Failed { message, .. }) => return Err(exchange.failed(message)),
                Some(_) => {}
                None => {
                    return Err(LabError::Deadline { what: format!("reading a file ({target})"), limit: self.short() });
                }
            }
        }
    }

    /// Starts one more guest; returns its index.
    pub fn start_guest(&self, spec: &GuestSpec) -> Result<usize> {
        let (guest, start) = self.begin_guest(spec)?;
        self.end_start(guest, start).map(|()| guest)
    }

    /// Starts more guests at once; returns their indices when all are up.
    pub fn start_guests(&self, specs: &[GuestSpec]) -> Result<Vec<usize>> {
        let starts: Vec<_> = specs.iter().map(|spec| self.begin_guest(spec)).collect::<Result<_>>()?;
        starts.into_iter().map(|(guest, start)| self.end_start(guest, start).map(|()| guest)).collect()
    }

    fn begin_guest(&self, spec: &GuestSpec) -> Result<(usize, Exchange)> {
        let guest = {
            let mut guests = self.guests.lock().expect("no panic under it");
            guests.push(spec.clone());
            guests.len() - 1
        };
        let argv = recipe::guest(&self.spec, self.kvm, spec);
        let huge_pages = if spec.memory == MemoryBackend::Hugetlb { spec.memory_mib.div_ceil(2) } else { 0 };
        let scope = self.scope(spec);
        let start =
            self.link.exchange(Target::Host, |id| Request::StartGuest { id, guest, argv, huge_pages, scope })?;
        Ok((guest, start))
    }

    /// What a guest's cgroups are called by, where it gets any.
    fn scope(&self, guest: &GuestSpec) -> Option<String> {
        (self.spec.cgroups == Cgroups::Libvirt).then(|| guest.name.clone())
    }

    /// Waits until a guest is up.
    fn end_start(&self, guest: usize, start: Exchange) -> Result<()> {
        let target = Target::Guest(guest);
        if let Err(error) = start.done("starting a guest's QEMU", self.link.clock.limit(GUEST_BOOT * PATIENCE, DELAY)) {
            // Nobody will tell of the end of what never ran.
            self.link.excuse(target, true);
            self.link.health(target, |h| h.gone = Some(error.to_string()));
            return Err(error);
        }
        self.await_start(target)
    }

    /// Waits until a machine's agent has come up.
    ///
    /// Only the share of time counts that the development machine gave to its emulator: a busy computer boots late, and
    /// that is no fault. A machine that hangs asks for nothing, so for it all the time counts.
    fn await_start(&self, target: Target) -> Result<()> {
        let own = if target == Target::Host { HOST_BOOT } else { GUEST_BOOT };
        // A boot is work; what it waits for besides is short.
        let own = self.link.clock.limit(own, 2 * DELAY);
        let (limit, patience) = self.spec.boot_limit.map_or((own, PATIENCE), |limit| (limit, 1));
        let (begun, clock) = (Instant::now(), self.cpu_clock());
        loop {
            if self.link.wait_for(target, Duration::from_secs(1), |h| h.starts > 0)? {
                return if self.pace() == 1.0 { Ok(()) } else { self.tell_beat(target) };
            }
            let counted = begun.elapsed().mul_f64(self.cpu_clock().share_since(&clock));
            if counted >= limit || begun.elapsed() >= limit * patience {
                return Err(self.link.boot_deadline(target, begun.elapsed()));
            }
        }
    }

    fn known(&self, guest: usize) -> Result<()> {
        let guests = self.guests();
        if guest < guests {
            Ok(())
        } else {
            Err(LabError::Invalid(format!("there is no guest {guest}: {guests} were started")))
        }
    }

    /// Number of guests started so far, ended ones included.
    pub fn guests(&self) -> usize {
        self.guests.lock().expect("no panic under it").len()
    }

    /// Ends a guest's QEMU. Its index is not given to another.
    pub fn stop_guest(&self, guest: usize) -> Result<()> {
        self.known(guest)?;
        self.link.excuse(Target::Guest(guest), true);
        self.link
            .exchange(Target::Host, |id| Request::StopGuest { id, guest })?
            .done("stopping a guest", self.short())?;
        if self.link.wait_for(Target::Guest(guest), self.short(), |h| h.gone.is_some())? {
            return Ok(());
        }
        Err(LabError::Deadline { what: format!("the end of guest {guest}"), limit: self.short() })
    }

    /// Runs a shell line in a guest that ends it (a panic: the lab's kernels then end their QEMU), and waits until it is
    /// gone.
    pub fn end_guest_by(&self, guest: usize, line: &str) -> Result<()> {
        self.known(guest)?;
        let target = Target::Guest(guest);
        self.link.excuse(target, true);
        let _ends_with_the_guest = self.start(target, Command::shell(line))?;
        if self.link.wait_for(target, self.short(), |h| h.gone.is_some())? {
            return Ok(());
        }
        Err(LabError::Deadline { what: format!("the end of guest {guest} by '{line}'"), limit: self.short() })
    }

    /// Resets a guest (as a hardware reset does) and waits until it is up again.
    pub fn reset_guest(&self, guest: usize) -> Result<()> {
        let target = Target::Guest(guest);
        self.known(guest)?;
        self.excused(target, || {
            self.link.health(target, |h| h.starts = 0);
            // -no-reboot makes QEMU end at a reset, this one excepted.
            self.qmp(
                guest,
                &[
                    r#"{"execute":"set-action","arguments":{"reboot":"reset"}}"#,
                    r#"{"execute":"system_reset"}"#,
                    r#"{"execute":"set-action","arguments":{"reboot":"shutdown"}}"#,
                ],
            )?;
            self.await_start(target)
        })
    }

    /// Does something in which the target falls silent; whatever comes of it, the target is judged again afterwards.
    fn excused(&self, target: Target, act: impl FnOnce() -> Result<()>) -> Result<()> {
        self.link.excuse(target, true);
        let done = act();
        self.link.excuse(target, false);
        done
    }

    /// Has a guest fall silent from now on; where that fails it is judged as before.
    fn silenced(&self, guest: usize, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let target = Target::Guest(guest);
        self.link.excuse(target, true);
        act().inspect_err(|_| self.link.excuse(target, false))
    }

    /// Runs a shell line in a guest that makes it boot anew without its QEMU (a kexec), and waits until it is up again.
    /// Commands that run in it meanwhile end without a word.
    pub fn restart_guest_by(&self, guest: usize, line: &str) -> Result<()> {
        self.known(guest)?;
        let target = Target::Guest(guest);
        self.excused(target, || {
            self.link.health(target, |h| h.starts = 0);
            let _ends_with_the_kernel = self.start(target, Command::shell(line))?;
            self.await_start(target)
        })
    }

    /// Starts a second QEMU for a guest, with the arguments of the first one, that waits for a migration, and gives it
    /// commands. The migration itself is commanded by [`Self::qmp`]; from the moment at which the guest may run in the
    /// second one until [`Self::end_migration`] nothing may be sent to it.
    pub fn begin_migration(&self, guest: usize, commands: &[&str]) -> Result<()> {
        self.known(guest)?;
        let spec = self.guests.lock().expect("no panic under it")[guest].clone();
        let mut argv = recipe::guest(&self.spec, self.kvm, &spec);
        argv.extend(["-incoming", "defer"].map(str::to_owned));
        let scope = self.scope(&spec);
        let commands = commands.iter().map(|&c| c.to_owned()).collect();
        // For a moment it is heard by nobody.
        self.silenced(guest, || {
            self.link
                .exchange(Target::Host, |id| Request::StartTarget { id, guest, argv, commands, scope })?
                .done("starting a guest's second QEMU", self.link.clock.limit(GUEST_BOOT, DELAY))
                .map(drop)
        })
    }

    /// Ends a migration: the guest is where it was, or has `moved` into its second QEMU. The other one is killed. What
    /// the guest said meanwhile comes now.
    pub fn end_migration(&self, guest: usize, moved: bool) -> Result<()> {
        self.known(guest)?;
        self.link
            .exchange(Target::Host, |id| Request::EndMigration { id, guest, moved })?
            .done("the end of a migration", self.short())?;
        self.link.excuse(Target::Guest(guest), false);
        Ok(())
    }

    /// Pauses a guest's vCPUs (QMP `stop`).
    pub fn pause_guest(&self, guest: usize) -> Result<()> {
        self.known(guest)?;
        self.silenced(guest, || self.qmp(guest, &[r#"{"execute":"stop"}"#]).map(drop))
    }

    /// Lets a paused guest go on (QMP `cont`).
    pub fn resume_guest(&self, guest: usize) -> Result<()> {
        self.qmp(guest, &[r#"{"execute":"cont"}"#])?;
        self.link.excuse(Target::Guest(guest), false);
        Ok(())
    }

    /// Gives commands to a guest's QEMU; returns the last answer (JSON).
    pub fn qmp(&self, guest: usize, commands: &[&str]) -> Result<String> {
        self.known(guest)?;
        let commands = commands.iter().map(|&c| c.to_owned()).collect();
        self.link.exchange(Target::Host, |id| Request::Qmp { id, guest, commands })?.done("a QMP command", self.short())
    }

    /// Samples what its CPUs run, for so long by its own clock, and returns shares of functions as text. For the names of
    /// BPF programs, `net.core.bpf_jit_kallsyms` must be 1 in it.
    ///
    /// # Errors
    /// If it is no AArch64 machine that is emulated: of others the emulator does not tell host from guests.
    pub fn profile(&self, span: Duration) -> Result<String> {
        if self.kvm || self.spec.arch != Arch::Aarch64 {
            return Err(LabError::Invalid("only emulated aarch64 machines can be sampled".into()));
        }
        let samples = profile::sample(&mut self.monitor.lock().expect("no panic under it"), self.wall(span))?;
        let symbols = |target| Ok(self.run(target, Command::shell("cat /proc/kallsyms"))?.text());
        let guest = if self.guests() > 0 { symbols(Target::Guest(0))? } else { String::new() };
        Ok(samples.table(&symbols(Target::Host)?, &guest))
    }

    /// How many times slower than the computer's its time passes now.
    pub fn pace(&self) -> f64 {
        self.link.clock.factor()
    }

    /// From now on its time passes so many times slower; its clocks do not jump. Timers that its devices wait for follow
    /// within 20 ms of the computer's time.
    ///
    /// # Errors
    /// If the machine was not booted with a [`MachineSpec::dilation`], or an agent can't be told.
    pub fn set_pace(&self, factor: f64) -> Result<()> {
        let Some(dilation) = self.link.clock.dilation() else {
            if factor == 1.0 {
                return Ok(());
            }
            return Err(LabError::Invalid("the machine was booted with the computer's own time".into()));
        };
        dilation.set(factor);
        (0..self.guests()).map(Target::Guest).chain([Target::Host]).try_for_each(|target| self.tell_beat(target))
    }

    /// Tells an agent how often to beat, by its own clock, so that the lab hears it as often as ever.
    fn tell_beat(&self, target: Target) -> Result<()> {
        let every = BEAT.div_f64(self.pace().max(1.0));
        self.link.send(target, &Request::Beat { every_ms: every.as_millis().max(1) as u64 })
    }

    /// The computer's time that a span of the machine's takes now.
    pub fn wall(&self, machine: Duration) -> Duration {
        self.link.clock.wall(machine)
    }

    /// Its monotonic clock, as this side sees it.
    pub fn now(&self) -> Duration {
        self.link.clock.now()
    }

    /// The limit for small requests.
    fn short(&self) -> Duration {
        self.link.clock.limit(SHORT, DELAY)
    }

    /// CPU time of the emulator's vCPU threads until now.
    pub fn cpu_clock(&self) -> CpuClock {
        clock::read(std::path::Path::new("/proc"), self.qemu.pid())
    }

    /// Process number of its QEMU on the development machine.
    pub fn qemu_pid(&self) -> i32 {
        self.qemu.pid().as_raw_pid()
    }

    /// Ends guests and host machine. A machine that is not well, or does not end by itself, is killed and is an error.
    pub fn shutdown(self) -> Result<()> {
        // A fault that nobody has asked about yet must not go unseen.
        self.settle()?;
        self.link.excuse(Target::Host, true);
        self.link.send(Target::Host, &Request::PowerOff)?;
        let limit = self.link.clock.limit(POWER_OFF, DELAY);
        let until = Instant::now() + limit;
        while !self.qemu.wait(Duration::from_millis(100)) {
            cancel::check()?;
            if Instant::now() >= until {
                return Err(LabError::Deadline { what: "the host machine's power-off".into(), limit });
            }
        }
        Ok(())
    }
}

/// The clock that a machine is to have.
fn clock(spec: &MachineSpec, kvm: bool) -> Result<Clock> {
    if spec.dilation.is_plain() {
        return Ok(Clock::default());
    }
    if kvm {
        return Err(LabError::Invalid("only an emulated machine's time can be dilated: use --accel tcg".into()));
    }
    Clock::dilated(spec.arch == Arch::X86_64).map_err(|e| LabError::io("memory for the machine's clock", e))
}

/// Tells the link of QEMU's end.
fn watch(qemu: &Arc<Qemu>, link: &Arc<Link>) {
    let (qemu, link) = (Arc::downgrade(qemu), Arc::downgrade(link));
    std::thread::spawn(move || {
        while let (Some(qemu), Some(link)) = (qemu.upgrade(), link.upgrade()) {
            if let Some(status) = qemu.ended() {
                // Overrides "the port closed", which is its consequence.
                link.health(Target::Host, |h| h.gone = Some(format!("QEMU ended with {status}")));
                return;
            }
            drop((qemu, link));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

/// A command that runs in a machine. Dropping it kills the command.
#[derive(Debug)]
pub struct Running {
    exchange: Exchange,
    what: String,
    deadline: Duration,
    until: Instant,
    outcome: Outcome,
    ended: bool,
    lines: VecDeque<String>,
    partial: Vec<u8>,
}

impl Running {
    /// Waits for its end.
    pub fn wait(mut self) -> Result<Outcome> {
        while self.advance()?.is_some() {}
        Ok(std::mem::take(&mut self.outcome))
    }

    /// Sends it (its process group) a signal.
    pub fn kill(&self, signal: i32) -> Result<()> {
        let id = self.exchange.id;
        self.exchange.link.send(self.exchange.target, &Request::Signal { id, signal })
    }

    /// The lines of its stdout as they come; ends with the command.
    pub fn lines(&mut self) -> impl Iterator<Item = Result<String>> + '_ {
        std::iter::from_fn(move || {
            loop {
                if let Some(line) = self.lines.pop_front() {
                    return Some(Ok(line));
                }
                match self.advance() {
                    Ok(Some(())) => {}
                    Ok(None) if self.partial.is_empty() => return None,
                    Ok(None) => {
                        return Some(Ok(String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned()));
                    }
                    Err(e) => return Some(Err(e)),
                }
            }
        })
    }

    /// Hands it input; an empty piece ends its stdin.
    pub fn input(&self, bytes: &[u8]) -> Result<()> {
        let (id, bytes) = (self.exchange.id, bytes.to_vec());
        self.exchange.link.send(self.exchange.target, &Request::Input { id, bytes })
    }

    /// New size of its terminal (rows, columns).
    pub fn resize(&self, size: (u16, u16)) -> Result<()> {
        let id = self.exchange.id;
        self.exchange.link.send(self.exchange.target, &Request::Resize { id, size })
    }

    /// The next piece of its output (true: of stderr), empty if none came within `limit`; `None` after its end.
    pub fn piece(&mut self, limit: Duration) -> Result<Option<(bool, Vec<u8>)>> {
        if self.ended {
            return Ok(None);
        }
        let until = Instant::now() + limit;
        match self.exchange.next(until.min(self.until))? {
            Some(Event::Output { err, bytes, .. }) => Ok(Some((err, bytes))),
            Some(event) => self.take(event).map(|()| (!self.ended).then(|| (false, Vec::new()))),
            None if until >= self.until => Err(self.late()),
            None => Ok(Some((false, Vec::new()))),
        }
    }

    /// Its exit status, once [`Self::piece`] has said `None`.
    pub fn status(&self) -> i32 {
        self.outcome.status
    }

    /// Takes one event; `None` after the end.
    fn advance(&mut self) -> Result<Option<()>> {
        if self.ended {
            return Ok(None);
        }
        let event = self.exchange.next(self.until)?.ok_or_else(|| self.late())?;
        self.take(event).map(Some)
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Output { err: true, bytes, .. } => self.outcome.stderr.extend(bytes),
            Event::Output { bytes, .. } => {
                self.partial.extend(&bytes);
                self.outcome.stdout.extend(bytes);
                while let Some(end) = self.partial.iter().position(|b| *b == b'\n') {
                    let line: Vec<u8> = self.partial.drain(..=end).collect();
                    self.lines.push_back(String::from_utf8_lossy(&line[..end]).into_owned());
                }
            }
            Event::Exited { status, late, .. } => {
                self.ended = true;
                self.outcome.status = status;
                if late {
                    return Err(self.late());
                }
            }
            Event::Failed { message, .. } => {
                self.ended = true;
                return Err(self.exchange.failed(message));
            }
            _ => {}
        }
        Ok(())
    }

    fn late(&self) -> LabError {
        LabError::Deadline { what: format!("'{}' ({})", self.what, self.exchange.target), limit: self.deadline }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // Nobody reads its output any more. A machine that broke down needs no signal.
            let _ = self.kill(9);
        }
    }
}

/// For tests of the lab itself: provokes faults.
impl Machine {
    /// Cuts the connection to the agents, as a broken port would.
    pub fn cut_port(&self) {
        self.link.cut();
    }

    /// Which fault has been found, if any.
    pub fn fault_class(&self) -> Option<FaultClass> {
        self.check().err().and_then(|e| e.fault().map(|f| f.class))
    }
}
