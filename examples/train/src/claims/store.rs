//! Results of finished jobs, one file each, so that a claim's run can be killed and goes on where
//! it was.
//!
//! A result is found by the whole configuration of its job and by the version of this program: a
//! new version measures everything anew. What the code does besides is not seen, so a change of it
//! that comes without a new version needs a new folder, as in `train claims --out DIR`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Error;

/// The form of the results, and what jobs compute of them: to be raised with any change of either
/// within a version.
const SCHEMA: u32 = 1;

/// A draft is there for a moment only: one of this age was left behind by a command that was killed.
const STALE: Duration = Duration::from_secs(60 * 60);

/// How a draft's name ends.
const DRAFT: &str = ".partial";

/// A folder of results.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
    version: &'static str,
}

/// The content of a result's file.
#[derive(Serialize, Deserialize)]
struct Entry<T> {
    /// The whole configuration, as text: that of a file must be that of the job, to the letter.
    key: String,
    result: T,
}

impl Store {
    /// The store in a folder, which is made if it is not there.
    ///
    /// Drafts that a command which was killed has left behind are removed; those that another one
    /// may be writing are not.
    pub fn open(dir: PathBuf) -> Result<Self, Error> {
        fs::create_dir_all(&dir).map_err(Error::io(&dir, "create"))?;
        for entry in fs::read_dir(&dir).map_err(Error::io(&dir, "read"))? {
            let entry = entry.map_err(Error::io(&dir, "read"))?;
            let written = entry.metadata().and_then(|of| of.modified());
            // Of a clock that was set back, nothing is known.
            let age = written.ok().and_then(|at| at.elapsed().ok());
            let name = entry.file_name();
            if name.to_str().is_some_and(is_draft) && age.is_some_and(|age| age >= STALE) {
                // Another command may have been faster; a draft that stays does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Self {
            dir,
            version: env!("CARGO_PKG_VERSION"),
        })
    }

    /// Whether a file of this name may be a store's: a result or the draft of one.
    pub fn is_own(name: &str) -> bool {
        is_result(name) || is_draft(name)
    }

    /// The result of a job, if it has been stored whole.
    pub fn get<T: DeserializeOwned>(&self, name: &str, job: &impl Serialize) -> Option<T> {
        let key = self.key(job);
        let text = fs::read(self.path(name, &key)).ok()?;
        // What cannot be read, or is of another job whose hash is the same, is not there.
        let entry: Entry<T> = serde_json::from_slice(&text).ok()?;
        (entry.key == key).then_some(entry.result)
    }

    /// Stores a result: the file is there as a whole or not at all.
    pub fn put(
        &self,
        name: &str,
        job: &impl Serialize,
        result: &impl Serialize,
    ) -> Result<(), Error> {
        let key = self.key(job);
        let path = self.path(name, &key);
        let text = serde_json::to_string(&Entry { key, result }).expect("results are plain data");
        write_whole(&path, text.as_bytes())
    }

    fn path(&self, name: &str, key: &str) -> PathBuf {
        self.dir.join(format!("{name}-{:016x}.json", hash(key)))
    }

    fn key(&self, job: &impl Serialize) -> String {
        let job = serde_json::to_string(job).expect("a job is plain data");
        format!("{} {SCHEMA} {job}", self.version)
    }
}

/// `NAME-HASH.json`
fn is_result(name: &str) -> bool {
    let parts = name
        .strip_suffix(".json")
        .and_then(|stem| stem.rsplit_once('-'));
    parts.is_some_and(|(name, hash)| {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        !name.is_empty() && hash.len() == 16 && hash.bytes().all(digit)
    })
}

/// `NAME-HASH.json.PROCESS.partial`; the process may be missing.
fn is_draft(name: &str) -> bool {
    name.strip_suffix(DRAFT).is_some_and(|of| {
        let of_process = of
            .rsplit_once('.')
            .is_some_and(|(result, process)| is_result(result) && process.parse::<u32>().is_ok());
        of_process || is_result(of)
    })
}

/// FNV-1a: the same on every platform and in every version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Writes a file that is there as a whole or not at all, whoever else writes it at the same time.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<(), Error> {
    let draft = draft(path, process::id());
    fs::write(&draft, content).map_err(Error::io(&draft, "write"))?;
    fs::rename(&draft, path).map_err(Error::io(path, "create"))
}

/// Where a process writes a file before it is whole: each has its own.
fn draft(path: &Path, process: u32) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{process}{DRAFT}"));
    draft.into()
}

/// Reads what is written for a number that is not finite, `null`, as not a number.
pub(super) fn finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// A share; of nothing, 0.
pub(super) fn ratio(part: usize, of: usize) -> f64 {
    part as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Number {
        #[serde(deserialize_with = "finite")]
        value: f64,
    }

    fn store(dir: &Path) -> Store {
        Store::open(dir.join("jobs")).unwrap()
    }

    #[test]
    fn a_result_is_found_by_its_whole_job_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        assert!(store.get::<Number>("a", &(1, "x")).is_none());
        store.put("a", &(1, "x"), &Number { value: 0.1 }).unwrap();
        let found: Number = store.get("a", &(1, "x")).unwrap();
        assert_eq!(found.value, 0.1);
        assert!(store.get::<Number>("a", &(2, "x")).is_none());
    }

    #[test]
    fn a_file_that_is_cut_short_or_of_another_job_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        store.put("a", &1, &Number { value: 2.0 }).unwrap();
        let path = store.path("a", &store.key(&1));
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        assert!(store.get::<Number>("a", &1).is_none());
        fs::write(store.path("a", &store.key(&2)), whole).unwrap();
        assert!(store.get::<Number>("a", &2).is_none());
    }

    #[test]
    fn a_result_of_another_version_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let new = store(dir.path());
        let old = Store {
            version: "0.0.1",
            ..store(dir.path())
        };
        old.put("a", &1, &Number { value: 2.0 }).unwrap();
        assert!(new.get::<Number>("a", &1).is_none());
        // Not even where the hashes are the same.
        let file = |store: &Store| store.path("a", &store.key(&1));
        fs::copy(file(&old), file(&new)).unwrap();
        assert!(new.get::<Number>("a", &1).is_none());
        assert_eq!(old.get::<Number>("a", &1).unwrap().value, 2.0);
    }

    #[test]
    fn a_number_that_is_none_comes_back_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        store
            .put(
                "a",
                &1,
                &Number {
                    value: f64::INFINITY,
                },
            )
            .unwrap();
        assert!(store.get::<Number>("a", &1).unwrap().value.is_nan());
    }

    #[test]
    fn no_draft_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        store.put("a", &1, &1).unwrap();
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1);
    }

    #[test]
    fn a_draft_of_another_process_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let other = draft(&path, process::id() + 1);
        fs::write(&other, "half").unwrap();
        write_whole(&path, b"whole").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read(&other).unwrap(), b"half");
    }

    #[test]
    fn a_draft_is_removed_once_it_is_old_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = store(dir.path()).dir;
        let write = |name: &str, age: Duration| {
            let file = fs::File::create(jobs.join(name)).unwrap();
            let written = std::time::SystemTime::now() - age;
            file.set_modified(written).unwrap();
        };
        write("a-0123456789abcdef.json", 2 * STALE);
        write("a-0123456789abcdef.json.7.partial", 2 * STALE);
        write("a-0123456789abcdef.json.8.partial", STALE / 2);
        write("b-0123456789abcdef.json.partial", 2 * STALE);
        write("mine.partial", 2 * STALE);
        store(dir.path());
        let entries = fs::read_dir(&jobs).unwrap();
        let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        let expected = [
            "a-0123456789abcdef.json",
            "a-0123456789abcdef.json.8.partial",
            "mine.partial",
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn a_stores_own_files_are_told_by_their_names() {
        let store = Store::open(tempfile::tempdir().unwrap().path().join("jobs")).unwrap();
        let path = store.path("d_k-4_unscaled_seed-0", "key");
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
        assert!(Store::is_own(&name(&path)));
        assert!(Store::is_own(&name(&draft(&path, 7))));
        for other in [
            "note",
            "note.json",
            "a-0123.json",
            "-0123456789abcdef.json",
            "a-0123456789ABCDEF.json",
            "a-0123456789abcdef.json.txt",
            "note.7.partial",
            "a-0123456789abcdef.json.x.partial",
        ] {
            assert!(!Store::is_own(other), "{other}");
        }
    }
}
