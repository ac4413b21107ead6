//! `entrain-lab kernels`: what works on which distribution's kernel, tried on each in a machine that boots it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use entrain_lab_machine::archive::Release;
use entrain_lab_machine::machine::{Arch, GuestSpec, Machine, MachineSpec};
use entrain_lab_machine::progress::{Progress, Spinner};
use entrain_lab_machine::{Cache, cancel};
use entrain_results::output::Output;
use entrain_results::provenance::Provenance;

use self::table::{Column, Row, Table};
use self::tables::Tables;

mod table;
mod tables;
mod tries;

/// Options of `entrain-lab kernels`.
#[derive(Debug, clap::Args)]
pub struct KernelsArgs {
    /// Only these kernels; may be repeated [default: all]
    #[arg(long = "kernel", value_enum, value_name = "KERNEL")]
    kernels: Vec<Kernel>,
    /// Architecture of the machines
    #[arg(long, default_value_t = Arch::default(), value_name = "ARCH")]
    arch: Arch,
    /// Keep the table as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Try nothing: take the table of this file; of each architecture one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kernels", "json", "compare"])]
    from: Vec<PathBuf>,
    /// Renew the block of this file that says what works where
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
    /// Write the table as a page, with the reasons
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Exit status 1 where the table differs from that of this file in what works
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

/// A kernel that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kernel {
    /// Debian 12's, Linux 6.1
    Debian12,
    /// Debian 13's, Linux 6.12
    Debian13,
    /// The newest of Debian's backports
    Backports,
}

impl Kernel {
    const ALL: [Self; 3] = [Self::Debian12, Self::Debian13, Self::Backports];

    /// For the table.
    fn title(self) -> &'static str {
        match self {
            Self::Debian12 => "Debian 12",
            Self::Debian13 => "Debian 13",
            Self::Backports => "Debian backports",
        }
    }

    /// As a machine is told it; `None`: that is what it takes by itself.
    fn image(self) -> Option<PathBuf> {
        let release = match self {
            Self::Debian12 => Release::Debian12,
            Self::Debian13 => Release::Debian13,
            Self::Backports => return None,
        };
        Some(release.to_string().into())
    }
}

/// Tries what works, and says it.
pub fn run(args: &KernelsArgs) -> anyhow::Result<ExitCode> {
    // Before half an hour of boots.
    let json = args.json.as_deref().map(Output::new).transpose()?;
    let known = args.compare.as_deref().map(Table::read).transpose()?;
    let tables = match args.from.as_slice() {
        [] => Tables(vec![try_all(args)?]),
        paths => Tables::read(paths)?,
    };
    print!("{}", tables.text());
    if let Some(json) = json {
        let text = serde_json::to_string_pretty(&tables.0[0])? + "\n";
        json.write(text.as_bytes()).with_context(|| format!("cannot write {}", json.name().display()))?;
    }
    if let Some(path) = &args.readme {
        let file = Output::new(path)?;
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        file.write(tables.renew(&text)?.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.page {
        let file = Output::new(path)?;
        file.write(tables.page().as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let differs = known.map(|known| tables.0[0].differs(&known)).unwrap_or_default();
    differs.iter().for_each(|line| eprintln!("{line}"));
    Ok(ExitCode::from(u8::from(!differs.is_empty())))
}

fn try_all(args: &KernelsArgs) -> anyhow::Result<Table> {
    let (cache, spinner) = (Cache::open()?, Spinner::new());
    let wanted = Kernel::ALL.into_iter().filter(|kernel| args.kernels.is_empty() || args.kernels.contains(kernel));
    let mut rows = Vec::new();
    for kernel in wanted {
        cancel::check()?;
        rows.push(try_kernel(&cache, args.arch, kernel, &spinner)?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Table { commit: Provenance::of_this_program().commit, tried: now, arch: args.arch.to_string(), rows })
}

/// Boots it as a host with a guest of the same kernel, as the guest of a host that can pair, and its flavour with
/// PREEMPT_RT alone.
fn try_kernel(cache: &Cache, arch: Arch, kernel: Kernel, progress: &Spinner) -> anyhow::Result<Row> {
    let spec = MachineSpec { arch, guests: vec![GuestSpec::new("guest0", 2)], ..MachineSpec::default() };
    let mut row = Row { kernel: kernel.title().to_owned(), ..Row::default() };
    progress.step(&format!("{}: booting it as a host", kernel.title()));
    let as_host = MachineSpec { kernel: kernel.image(), ..spec.clone() };
    on(cache, &as_host, progress, |machine| {
        row.release = machine.release(entrain_lab_machine::machine::Target::Host);
        for (column, cell) in tries::as_host(machine, &|what| progress.step(&format!("{}: {what}", kernel.title())))? {
            row.cells.insert(column, cell);
        }
        Ok(())
    })?;
    progress.step(&format!("{}: booting it as a guest", kernel.title()));
    let as_guest = MachineSpec { kernel: None, guest_kernel: kernel.image(), ..spec };
    on(cache, &as_guest, progress, |machine| {
        for (column, cell) in tries::as_guest(machine, &|what| progress.step(&format!("{}: {what}", kernel.title())))? {
            row.cells.insert(column, cell);
        }
        Ok(())
    })?;
    progress.step(&format!("{}: building QPW for it, and booting it", kernel.title()));
    let with_rt = MachineSpec { arch, kernel: kernel.image(), rt: true, qpw: true, ..MachineSpec::default() };
    let mut cell = None;
    let tried = on(cache, &with_rt, progress, |machine| {
        cell = Some(tries::qpw(machine)?);
        Ok(())
    });
    cancel::check()?;
    match (tried, cell) {
        (Ok(()), Some(cell)) => drop(row.cells.insert(Column::Qpw, cell)),
        // Where its module cannot be built here (no headers of that kernel, another flavour), nothing was tried.
        (Err(error), None) => eprintln!("{}: QPW could not be tried: {error:#}", kernel.title()),
        (Err(error), Some(_)) => return Err(error),
        (Ok(()), None) => unreachable!("what was tried has come out somehow"),
    }
    Ok(row)
}

fn on(
    cache: &Cache,
    spec: &MachineSpec,
    progress: &Spinner,
    work: impl FnOnce(&Machine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let machine = Machine::boot(cache, spec, progress)?;
    work(&machine)?;
    machine.shutdown()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::table::Cell;
    use super::*;

    /// The table of README and the page of the results are those of the tries that are kept.
    #[test]
    fn what_is_said_to_work_is_what_was_tried() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tables = Tables::read(&tables::kept(&root.join("docs/results"))).unwrap();
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let renew = "'make results' renews it";
        assert_eq!(tables.renew(&text("README.md")).unwrap(), text("README.md"), "README.md: {renew}");
        assert_eq!(tables.page(), text("docs/results/kernels.md"), "docs/results/kernels.md: {renew}");
        assert!(!tables.0.is_empty(), "some were tried");
        for table in &tables.0 {
            let kernels: Vec<&str> = table.rows.iter().map(|row| row.kernel.as_str()).collect();
            assert_eq!(kernels, Kernel::ALL.map(Kernel::title), "{}: each kernel was tried", table.arch);
            for row in &table.rows {
                let missing: Vec<_> =
                    Column::ALL.into_iter().filter(|column| !row.cells.contains_key(column)).collect();
                assert!(missing.iter().all(|column| *column == Column::Qpw), "{}: not tried: {missing:?}", row.kernel);
            }
        }
    }

    /// A table of one kernel in which one column works, or not for a reason.
    fn table(arch: &str, record: Option<&str>, qpw: bool) -> Table {
        let cell = record.map_or_else(Cell::yes, Cell::no);
        let mut cells: std::collections::BTreeMap<_, _> = [(Column::Record, cell)].into();
        if qpw {
            cells.insert(Column::Qpw, Cell::yes());
        }
        let rows = vec![Row { kernel: "Debian 12".into(), release: format!("6.1.0-50-{arch}"), cells }];
        Table { commit: "0123456789ab".into(), tried: 0, arch: arch.into(), rows }
    }

    #[test]
    fn architectures_are_one_table_where_they_agree() {
        let both = |one, other| Tables(vec![one, other]);
        let same = both(table("arm", Some("old"), true), table("x86", Some("old"), true));
        assert!(same.page().contains("| Debian 12, 6.1 | no |") && same.page().contains("\n- 6.1, record: old\n"));
        assert!(same.page().contains("x86: on 1970-01-01"), "{}", same.page());
        let other = both(table("arm", None, false), table("x86", Some("old"), true)).page();
        assert!(other.contains("| Debian 12, 6.1 | yes (arm), no (x86) |"), "{other}");
        assert!(other.contains("| yes (x86) |") && other.contains("- 6.1, record (x86): old"), "{other}");
    }

    #[test]
    fn tables_of_one_architecture_or_of_other_kernels_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, table: &Table| {
            let path = folder.path().join(name);
            std::fs::write(&path, serde_json::to_string(table).unwrap()).unwrap();
            path
        };
        let one = write("a", &table("arm", None, true));
        let mut fewer = table("x86", None, true);
        fewer.rows.clear();
        let (fewer, other) = (write("b", &fewer), write("c", &table("x86", None, true)));
        assert!(Tables::read(&[one.clone(), one.clone()]).is_err() && Tables::read(&[one.clone(), fewer]).is_err());
        assert_eq!(Tables::read(&[one, other]).unwrap().0.len(), 2);
    }

    #[test]
    fn a_page_is_no_wider_than_pages_are() {
        let why = "a reason ".repeat(40);
        let cells = Column::ALL.into_iter().map(|column| (column, Cell::no(&why))).collect();
        let rows = vec![Row { kernel: "Debian backports".into(), release: "7.3.4+deb13-arm64".into(), cells }];
        let table =
            |arch: &str| Table { commit: "0123456789ab".into(), tried: 0, arch: arch.into(), rows: rows.clone() };
        let page = Tables(vec![table("aarch64"), table("x86_64")]).page();
        assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    }

    #[test]
    fn a_row_that_works_no_more_is_told() {
        let row = |works| Row {
            kernel: "Debian 12".into(),
            release: "6.1".into(),
            cells: [(Column::Record, Cell { works, why: "it broke".into() })].into(),
        };
        let table = |works| Table { commit: "c".into(), tried: 0, arch: "aarch64".into(), rows: vec![row(works)] };
        assert!(table(true).differs(&table(true)).is_empty());
        let told = table(false).differs(&table(true));
        assert_eq!(told, ["Debian 12 (6.1): record: works no more: it broke"]);
        assert_eq!(table(true).differs(&table(false)), ["Debian 12 (6.1): record: works now"]);
    }
}
