//! The lab's folder in the user's cache: entries are built aside, checked, and renamed into place.
//!
//! An entry is a folder with a small record beside its content: number of files and bytes. An entry whose content
//! differs from its record (a crash, a full disk, somebody's hand) is built anew. One lock per entry lets several labs
//! share the cache: the second waits for the first. Whoever uses an entry that others may remove holds it ([`Hold`]).
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{LabError, Result, cancel};

/// Name of the record inside an entry.
const RECORD: &str = ".entry.json";

/// The folder of reports that could not be written where the user wanted them. No entries.
pub const KEPT: &str = "kept";

/// What an entry held when it was complete.
#[derive(Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct Record {
    files: u64,
    bytes: u64,
}

/// Says that an entry is in use: while this lives, in any process, the entry is not removed.
///
/// It is a shared lock on a file beside the entry, so it ends with the process at the latest.
#[derive(Clone, Debug)]
pub struct Hold {
    _file: Arc<File>,
}

/// The lab's part of the user's cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$XDG_CACHE_HOME/entrain/lab`, or `~/.cache/entrain/lab`.
    pub fn open() -> Result<Self> {
        let base = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
            .or_else(|| std::env::home_dir().filter(|p| p.is_absolute()).map(|h| h.join(".cache")))
            .ok_or_else(|| LabError::Missing {
                what: "no cache folder".into(),
                advice: "set HOME or XDG_CACHE_HOME".into(),
            })?;
        Self::at(base.join("entrain/lab"))
    }

    /// A cache in that folder, which is made if it is missing.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(|e| LabError::io(&root, e))?;
        Ok(Self { root })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The entry `kind/key`, built by `build` in an empty folder if it is missing or broken.
    ///
    /// `build` may fail at any point: nothing of it stays.
    pub fn entry(&self, kind: &str, key: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let _lock = self.lock(kind, key)?;
        self.entry_locked(kind, key, build)
    }

    /// The same, held from the moment on that it is known to be there.
    pub fn held(&self, kind: &str, key: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<(PathBuf, Hold)> {
        let _lock = self.lock(kind, key)?;
        let path = self.entry_locked(kind, key, build)?;
        let place = self.use_file(kind, key);
        let file = File::create(&place).map_err(|e| LabError::io(&place, e))?;
        // Waits for no longer than somebody looks whether it is free.
        flock(&file, FlockOperation::LockShared).map_err(|e| LabError::io(&place, e.into()))?;
        // Its time tells when the entry was last wanted. One that cannot be set makes it look older, no more.
        let _ = file.set_modified(SystemTime::now());
        Ok((path, Hold { _file: Arc::new(file) }))
    }

    fn use_file(&self, kind: &str, key: &str) -> PathBuf {
        self.root.join(kind).join(format!(".{key}.use"))
    }

    fn entry_locked(&self, kind: &str, key: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let folder = self.root.join(kind);
        let path = folder.join(key);
        let part = folder.join(format!(".{key}.part"));
        if intact(&path) {
            return Ok(path);
        }
        // Under the lock nobody else builds this entry: what lies here is what a killed build left.
        for old in [&path, &part] {
            remove(old)?;
        }
        let made = self.fill(&part, &path, build);
        if made.is_err() {
            // The first failure is the one to tell.
            let _ = remove(&part);
        }
        made.map_err(|e| match e {
            LabError::DiskFull { .. } => LabError::DiskFull { path: self.root.clone() },
            other => other,
        })?;
        Ok(path)
    }

    fn fill(&self, part: &Path, path: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        fs::create_dir_all(part).map_err(|e| LabError::io(part, e))?;
        build(part)?;
        cancel::check()?;
        let record = serde_json::to_vec(&measure(part).map_err(|e| LabError::io(part, e))?).expect("plain data");
        fs::write(part.join(RECORD), record).map_err(|e| LabError::io(part, e))?;
        fs::rename(part, path).map_err(|e| LabError::io(path, e))
    }

    /// Is this entry there and whole?
    pub fn has(&self, kind: &str, key: &str) -> bool {
        intact(&self.root.join(kind).join(key))
    }

    /// When an entry was last wanted: held, or made.
    pub fn used(&self, kind: &str, key: &str) -> Option<SystemTime> {
        let time = |path: PathBuf| fs::metadata(path).and_then(|meta| meta.modified()).ok();
        time(self.use_file(kind, key)).max(time(self.root.join(kind).join(key)))
    }

    /// Removes one entry, unless some lab holds it or is about to; tells whether it is gone.
    pub fn forget(&self, kind: &str, key: &str) -> Result<bool> {
        let folder = self.root.join(kind);
        let path = folder.join(format!(".{key}.lock"));
        let lock = File::create(&path).map_err(|e| LabError::io(&path, e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
            Err(e) => return Err(LabError::io(path, e.into())),
        }
        let place = self.use_file(kind, key);
        if place.exists() && !is_free(&place)? {
            return Ok(false);
        }
        remove(&folder.join(key))?;
        Ok(true)
    }

    /// Takes the lock of `kind/key`, waiting for its present holder until the user has had enough.
    pub fn lock(&self, kind: &str, key: &str) -> Result<File> {
        let folder = self.root.join(kind);
        fs::create_dir_all(&folder).map_err(|e| LabError::io(&folder, e))?;
        let path = folder.join(format!(".{key}.lock"));
        let file = File::create(&path).map_err(|e| LabError::io(&path, e))?;
        let mut told = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    if !told {
                        tracing::info!("another lab prepares {kind}/{key}: waiting for it");
                        told = true;
                    }
                    cancel::check()?;
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(LabError::io(&path, e.into())),
            }
        }
    }

    /// Removes everything in the cache; returns the bytes that became free.
    ///
    /// # Errors
    /// Another lab runs out of it.
    pub fn clean(&self) -> Result<u64> {
        for kind in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            for item in fs::read_dir(kind.path()).into_iter().flatten().flatten() {
                let path = item.path();
                if path.extension().is_some_and(|ending| ending == "use") && !is_free(&path)? {
                    return Err(LabError::Invalid(format!(
                        "a lab runs out of {}: end it first, then clean",
                        self.root.display()
                    )));
                }
            }
        }
        let mut freed = self.size()?;
        for item in fs::read_dir(&self.root).map_err(|e| LabError::io(&self.root, e))?.flatten() {
            // Reports that could not be written where they should go are the user's.
            if item.file_name() == KEPT {
                freed -= measure(&item.path()).map_err(|e| LabError::io(item.path(), e))?.bytes;
            } else {
                remove(&item.path())?;
            }
        }
        // Stays if it holds such reports.
        let _ = fs::remove_dir(&self.root);
        Ok(freed)
    }

    /// Bytes in the cache.
    pub fn size(&self) -> Result<u64> {
        Ok(measure(&self.root).map_err(|e| LabError::io(&self.root, e))?.bytes)
    }
}

/// Does nobody hold the entry of that file?
fn is_free(place: &Path) -> Result<bool> {
    let file = File::open(place).map_err(|e| LabError::io(place, e))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(LabError::io(place, e.into())),
    }
}

fn intact(path: &Path) -> bool {
    let Some(want) = fs::read(path.join(RECORD)).ok().and_then(|text| serde_json::from_slice::<Record>(&text).ok())
    else {
        return false;
    };
    measure(path).is_ok_and(|found| found == want)
}

/// Counts files and bytes below a folder, without the record.
fn measure(path: &Path) -> io::Result<Record> {
    let mut sum = Record::default();
    for item in fs::read_dir(path)? {
        let item = item?;
        let meta = item.metadata()?;
        if meta.is_dir() {
            let inner = measure(&item.path())?;
            sum.files += inner.files;
            sum.bytes += inner.bytes;
        } else if item.file_name() != RECORD {
            sum.files += 1;
            sum.bytes += meta.len();
        }
    }
    Ok(sum)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(LabError::io(path, e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("lab")).unwrap();
        (dir, cache)
    }

    fn write(dir: &Path) -> Result<()> {
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(dir.join("sub/file"), b"content").unwrap();
        Ok(())
    }

    #[test]
    fn an_entry_is_built_once() {
        let (_dir, cache) = cache();
        let path = cache.entry("kind", "key", write).unwrap();
        let again = cache.entry("kind", "key", |_| panic!("it is there")).unwrap();
        assert_eq!(path, again);
        assert_eq!(fs::read(path.join("sub/file")).unwrap(), b"content");
    }

    #[test]
    fn a_broken_entry_is_built_anew() {
        let (_dir, cache) = cache();
        let path = cache.entry("kind", "key", write).unwrap();
        fs::write(path.join("sub/file"), b"cut").unwrap();
        assert!(!cache.has("kind", "key"));
        cache.entry("kind", "key", write).unwrap();
        assert_eq!(fs::read(path.join("sub/file")).unwrap(), b"content");
        fs::remove_file(path.join(RECORD)).unwrap();
        cache.entry("kind", "key", write).unwrap();
        assert!(cache.has("kind", "key"));
    }

    #[test]
    fn a_failed_build_leaves_nothing() {
        let (_dir, cache) = cache();
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let err = cache
            .entry("kind", "key", |dir| {
                write(dir)?;
                Err(LabError::io(dir.join("sub/file"), full))
            })
            .unwrap_err();
        assert!(matches!(&err, LabError::DiskFull { path } if path == cache.root()), "{err}");
        assert!(err.to_string().contains(cache.root().to_str().unwrap()));
        let left: Vec<_> = fs::read_dir(cache.root().join("kind")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [".key.lock"]);
    }

    #[test]
    fn what_a_killed_build_left_is_swept_away() {
        let (_dir, cache) = cache();
        let part = cache.root().join("kind/.key.part");
        fs::create_dir_all(&part).unwrap();
        fs::write(part.join("half"), b"x").unwrap();
        let path = cache.entry("kind", "key", write).unwrap();
        assert!(!path.join("half").exists());
        assert!(!part.exists());
    }

    #[test]
    fn what_a_lab_holds_is_not_removed() {
        let (_dir, cache) = cache();
        let (path, hold) = cache.held("kind", "key", write).unwrap();
        let second = cache.held("kind", "key", |_| panic!("it is there")).unwrap().1;
        drop(hold);
        assert!(!cache.forget("kind", "key").unwrap());
        assert!(cache.clean().unwrap_err().to_string().contains("end it first"));
        assert!(path.join("sub/file").exists());
        drop(second);
        assert!(cache.forget("kind", "key").unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn what_is_being_built_is_not_removed() {
        let (_dir, cache) = cache();
        let lock = cache.lock("kind", "key").unwrap();
        assert!(!cache.forget("kind", "key").unwrap());
        drop(lock);
        assert!(cache.forget("kind", "key").unwrap());
    }

    #[test]
    fn two_builders_make_one_entry() {
        let (_dir, cache) = cache();
        let built = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    cache
                        .entry("kind", "key", |dir| {
                            built.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            std::thread::sleep(Duration::from_millis(50));
                            write(dir)
                        })
                        .unwrap();
                });
            }
        });
        assert_eq!(built.into_inner(), 1);
    }
}
