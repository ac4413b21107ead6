//! Every input of the kept corpus, and cuts of it, through its target: with an ordinary build and without a fuzzer.

use std::fs;
use std::path::Path;

use entrain_fuzz::cost::Cost;
use entrain_fuzz::{TARGETS, fleet_seed, memory_seed, page_seed, recording_seed};

#[test]
fn the_corpus_passes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let folders = fs::read_dir(&root).expect("the corpus is in the repository").flatten();
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), "a folder for each target");
    for target in TARGETS {
        let name = target.name;
        let mut most = Cost { allocations: 0, peak: 0 };
        let files: Vec<_> = fs::read_dir(root.join(name)).expect("a folder").flatten().collect();
        assert!(!files.is_empty(), "{name} has no corpus");
        for file in &files {
            let bytes = fs::read(file.path()).expect("readable");
            assert!(bytes.len() <= 16 << 10, "{}: the corpus is kept small", file.path().display());
            for cost in [target.run(&bytes), target.run(&bytes[..bytes.len() / 2])] {
                most.allocations = most.allocations.max(cost.allocations);
                most.peak = most.peak.max(cost.peak);
            }
        }
        target.run(&[]);
        // For whoever sets the bounds.
        println!("{name}: {} inputs, at most {most:?}", files.len());
    }
}

#[test]
fn an_honest_guest_is_accepted() {
    assert!(page_seed());
    assert_eq!(memory_seed(), 4);
    match fleet_seed() {
        Some(paired) => assert_eq!(paired, 3),
        None => eprintln!("skipped: pairing needs root"),
    }
}

#[test]
fn a_good_recording_is_read() {
    assert_eq!(recording_seed(), 4);
}
