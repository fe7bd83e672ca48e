//! Results of finished jobs, one file each, so that a claim's run can be killed and goes on where
//! it was.

use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Error;

/// What a result depends on besides its job: to be raised with any change of what jobs compute.
const SCHEMA: u32 = 1;

/// A folder of results.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
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
    pub fn open(dir: PathBuf) -> Result<Self, Error> {
        fs::create_dir_all(&dir).map_err(Error::io(&dir, "create"))?;
        Ok(Self { dir })
    }

    /// The result of a job, if it has been stored whole.
    pub fn get<T: DeserializeOwned>(&self, name: &str, job: &impl Serialize) -> Option<T> {
        let key = key(job);
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
        let key = key(job);
        let path = self.path(name, &key);
        let text = serde_json::to_string(&Entry { key, result }).expect("results are plain data");
        write_whole(&path, text.as_bytes())
    }

    fn path(&self, name: &str, key: &str) -> PathBuf {
        self.dir.join(format!("{name}-{:016x}.json", hash(key)))
    }
}

fn key(job: &impl Serialize) -> String {
    let job = serde_json::to_string(job).expect("a job is plain data");
    format!("{SCHEMA} {job}")
}

/// FNV-1a: the same on every platform and in every version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Writes a file that is there as a whole or not at all.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> Result<(), Error> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".partial");
    let draft = PathBuf::from(draft);
    fs::write(&draft, content).map_err(Error::io(&draft, "write"))?;
    fs::rename(&draft, path).map_err(Error::io(path, "create"))
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
        let path = store.path("a", &key(&1));
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        assert!(store.get::<Number>("a", &1).is_none());
        fs::copy(&path, store.path("a", &key(&2))).unwrap();
        fs::write(store.path("a", &key(&2)), whole).unwrap();
        assert!(store.get::<Number>("a", &2).is_none());
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
}
