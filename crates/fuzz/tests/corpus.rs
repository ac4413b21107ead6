//! Every input of the kept corpus, and cuts of it, through its target: with an ordinary build and without a fuzzer.

use std::fs;
use std::path::Path;

use entrain_fuzz::{TARGETS, memory_seed, page_seed, recording_seed};

#[test]
fn the_corpus_passes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let folders = fs::read_dir(&root).expect("the corpus is in the repository").flatten();
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "a folder for each target");
    for (name, target) in TARGETS {
        let files: Vec<_> = fs::read_dir(root.join(name)).expect("a folder").flatten().collect();
        assert!(!files.is_empty(), "{name} has no corpus");
        for file in files {
            let bytes = fs::read(file.path()).expect("readable");
            assert!(bytes.len() <= 16 << 10, "{}: the corpus is kept small", file.path().display());
            target(&bytes);
            target(&bytes[..bytes.len() / 2]);
        }
        target(&[]);
    }
}

#[test]
fn an_honest_guest_is_accepted() {
    assert!(page_seed());
    assert_eq!(memory_seed(), 4);
}

#[test]
fn a_good_recording_is_read() {
    assert_eq!(recording_seed(), 4);
}
