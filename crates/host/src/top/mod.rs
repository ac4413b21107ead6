//! `entrain top`: a live table of VMs and vCPUs.

mod detail;
mod history;
mod rows;
mod view;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::cli::RUN_DIR;
use crate::status::{Status, ask_with};
use rows::{Order, rows};
use view::View;

/// Shows the VMs of this host and their vCPUs.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Print the table once, over one interval, and end
    #[arg(long, group = "printed")]
    pub once: bool,
    /// With --once: print JSON
    #[arg(long, requires = "once")]
    pub json: bool,
    /// Print a line of JSON for each interval, until the reader goes away or the daemon ends
    #[arg(long, group = "printed")]
    pub json_stream: bool,
    /// With --once or --json-stream: also tell, for each vCPU, who ran while it waited
    #[arg(long, requires = "printed")]
    pub why: bool,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// Sort by this column
    #[arg(long, value_enum, default_value = "vm")]
    pub sort: Order,
    /// Show only lines that contain this text
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub filter: String,
    /// One line per VM
    #[arg(long)]
    pub vms: bool,
    /// Folder of the daemon's socket
    #[arg(long, default_value = RUN_DIR, env = "ENTRAIN_RUN_DIR")]
    pub run_dir: PathBuf,
}

/// The table of an interval as text, sorted by each column in turn.
pub(crate) fn plain(before: &Status, now: &Status, vms: bool) -> String {
    let orders = <Order as clap::ValueEnum>::value_variants().iter();
    orders.map(|&order| View::new(order, String::new(), vms).plain(before, now)).collect()
}

/// Runs until `q`, or once.
pub fn run(args: TopArgs) -> anyhow::Result<ExitCode> {
    if !(0.1..=60.0).contains(&args.interval) {
        bail!("--interval {} is out of range: 0.1 to 60 seconds", args.interval);
    }
    let socket = args.run_dir.join("host.sock");
    let look = |waits: bool| {
        ask_with(&socket, waits).with_context(|| {
            format!("no answer from {}: is `entrain host` running, and are you root?", socket.display())
        })
    };
    let interval = Duration::from_secs_f64(args.interval);
    let mut view = View::new(args.sort, args.filter.clone(), args.vms);
    let before = look(args.why)?;
    if args.once {
        std::thread::sleep(interval);
        let now = look(args.why)?;
        return once(&args, &mut view, &before, &now);
    }
    if args.json_stream {
        return stream(&args, &view, before, interval, look);
    }
    if !io::stdout().is_terminal() {
        bail!("stdout is no terminal: use --once, with --json or --json-stream for scripts");
    }
    let mut terminal = ratatui::init();
    let result = live(&mut terminal, &mut view, before, interval, look);
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
}

fn once(args: &TopArgs, view: &mut View, before: &Status, now: &Status) -> anyhow::Result<ExitCode> {
    if args.json {
        println!("{}", json(args, view, before, now));
    } else {
        print!("{}", view.plain(before, now));
        if args.why {
            print!("{}", view.why(before, now));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One interval.
fn json(args: &TopArgs, view: &View, before: &Status, now: &Status) -> serde_json::Value {
    let interval_ns = now.now_ns.saturating_sub(before.now_ns);
    let rows = view.select(rows(before, now, args.vms));
    serde_json::json!({ "schema": 1, "interval_ns": interval_ns, "rows": rows, "status": now })
}

fn stream(
    args: &TopArgs,
    view: &View,
    mut before: Status,
    interval: Duration,
    look: impl Fn(bool) -> anyhow::Result<Status>,
) -> anyhow::Result<ExitCode> {
    let mut next = Instant::now();
    loop {
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let now = look(args.why)?;
        let mut line = json(args, view, &before, &now).to_string();
        line.push('\n');
        let mut out = io::stdout().lock();
        match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            // The reader has what it wanted.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(error).context("stdout"),
        }
        before = now;
    }
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    view: &mut View,
    mut before: Status,
    interval: Duration,
    look: impl Fn(bool) -> anyhow::Result<Status>,
) -> anyhow::Result<()> {
    let mut now = before.clone();
    let mut next = Instant::now() + interval.min(Duration::from_millis(300));
    loop {
        terminal.draw(|frame| view.draw(frame, &before, &now))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
                    if interrupt || view.key(key.code) {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        if Instant::now() >= next {
            next = Instant::now() + interval;
            // Rates are over one interval; a key press in between shows the same figures again.
            before = std::mem::replace(&mut now, look(view.wants_waits())?);
            view.learn(&before, &now);
        }
    }
}
