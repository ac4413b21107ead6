//! Sweeps of a fleet: the same however many threads run them, and however their shards are put together.

use std::num::NonZero;
use std::path::{Path, PathBuf};

use entrain_sim::fleet::{Shard, Sweep, table};
use entrain_sim::jobs;

fn sweep() -> Sweep {
    Sweep {
        hosts: 5,
        vms: 4,
        ratios: vec![1.0, 3.0],
        arms: vec!["stock".into(), "both".into()],
        length_ms: 12,
        seed: 7,
    }
}

/// What files may end in.
const ENDS: &[&str] = if cfg!(feature = "parquet") { &["jsonl", "parquet"] } else { &["jsonl"] };

/// Runs a shard and writes its file.
fn shard(folder: &Path, index: u32, of: u32, threads: usize, end: &str) -> PathBuf {
    let sweep = sweep();
    let jobs = sweep.jobs(Shard { index, of });
    let threads = NonZero::new(threads).unwrap();
    let rows = jobs::run(&jobs, threads, |job| sweep.run(job), |_, _| true).unwrap();
    let path = folder.join(format!("{index}-of-{of}-on-{threads}.{end}"));
    table::write(&path, &rows).unwrap();
    path
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn a_sweep_on_one_thread_and_on_two_gives_the_same_files_to_the_last_byte() {
    let dir = tempfile::tempdir().unwrap();
    for end in ENDS {
        for index in 0..2 {
            let [one, two] = [1, 2].map(|threads| shard(dir.path(), index, 2, threads, end));
            assert_eq!(bytes(&one), bytes(&two));
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4 * ENDS.len(), "nothing but the files is left");
}

#[test]
fn shards_are_the_whole_and_one_that_comes_twice_counts_once() {
    for end in ENDS {
        shards_are_the_whole(end);
    }
}

fn shards_are_the_whole(end: &str) {
    let dir = tempfile::tempdir().unwrap();
    let whole = shard(dir.path(), 0, 1, 2, end);
    let parts: Vec<PathBuf> = (0..3).map(|index| shard(dir.path(), index, 3, 2, end)).collect();
    let merged = |files: &[PathBuf], name: &str| {
        let (rows, twice) = table::merge(files).unwrap();
        let path = dir.path().join(name);
        table::write(&path, &rows).unwrap();
        (path, rows.len(), twice)
    };
    let (once, runs, twice) = merged(&parts, &format!("once.{end}"));
    assert_eq!((runs, twice), (5 * 2 * 2, 0));
    // Again, in another order, with one that comes twice, and with the result itself.
    let again = [parts[2].clone(), parts[0].clone(), parts[2].clone(), once.clone(), parts[1].clone()];
    let (more, runs_again, twice) = merged(&again, &format!("again.{end}"));
    assert_eq!((runs_again, twice), (runs, table::read(&parts[2]).unwrap().len() + runs));
    assert_eq!(bytes(&once), bytes(&more));
    let (from_whole, ..) = merged(&[whole], &format!("whole.{end}"));
    assert_eq!(bytes(&once), bytes(&from_whole));
}

#[test]
fn rows_of_one_run_that_differ_are_told_and_so_are_foreign_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = shard(dir.path(), 0, 5, 1, "jsonl");
    let mut rows = table::read(&path).unwrap();
    rows[0].events += 1;
    let other = dir.path().join("other.jsonl");
    table::write(&other, &rows).unwrap();
    let error = table::merge(&[path.clone(), other]).unwrap_err().to_string();
    assert!(error.contains("different versions of entrain-sim"), "{error}");
    for end in ENDS {
        let path = dir.path().join(format!("foreign.{end}"));
        std::fs::write(&path, b"no table").unwrap();
        assert!(table::merge(&[path]).unwrap_err().to_string().contains("no table of a fleet"));
    }
    if !cfg!(feature = "parquet") {
        let error = table::write(&dir.path().join("fleet.parquet"), &rows).unwrap_err().to_string();
        assert!(error.contains("--features parquet"), "{error}");
    }
}

#[test]
fn more_vcpus_for_each_pcpu_make_requests_wait() {
    let sweep = Sweep { hosts: 1, vms: 20, ratios: vec![1.0, 8.0], length_ms: 60, arms: vec!["stock".into()], seed: 1 };
    let rows: Vec<_> = sweep.jobs(Shard { index: 0, of: 1 }).iter().map(|job| sweep.run(job)).collect();
    assert_eq!(rows[0].vcpus, rows[1].vcpus);
    assert!(rows[0].pcpus >= 7 * rows[1].pcpus, "{rows:?}");
    assert!(rows[1].stolen > rows[0].stolen && rows[1].busy > rows[0].busy, "{rows:?}");
    assert!(rows[1].wait_us[1] > 2.0 * rows[0].wait_us[1], "{rows:?}");
}

#[test]
fn a_shard_is_one_of_some() {
    assert_eq!("3/16".parse(), Ok(Shard { index: 3, of: 16 }));
    for wrong in ["16/16", "3", "a/b", "1/0", ""] {
        assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
    }
}
