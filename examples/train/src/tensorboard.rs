//! Logs of runs for TensorBoard.

use std::path::{Component, Path, PathBuf};

use gradnorm::{RunLog, tensorboard};

use crate::Error;

/// Writes the logs of runs for TensorBoard, each to a folder of its own in `out`.
///
/// A run's folder there has as much of its path as tells it from the others: `seed-0`, or
/// `scaled/seed-0` where there is an `unscaled/seed-0` too.
///
/// # Errors
///
/// [`Error::Log`] if a run cannot be read or written; [`Error::GivenTwice`].
pub(crate) fn convert(runs: &[PathBuf], out: &Path) -> Result<Vec<RunLog>, Error> {
    let logs = runs
        .iter()
        .map(RunLog::read)
        .collect::<Result<Vec<_>, _>>()?;
    for (log, name) in logs.iter().zip(names(runs)?) {
        tensorboard::write(log, out.join(name))?;
    }
    Ok(logs)
}

fn names(runs: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut paths = Vec::new();
    for run in runs {
        let path = run.canonicalize().map_err(Error::io(run, "find"))?;
        if paths.contains(&path) {
            return Err(Error::GivenTwice(run.clone()));
        }
        paths.push(path);
    }
    let name = |path: &PathBuf| {
        let mut lengths = 1..=path.components().count();
        let alone = |length: &usize| {
            let mut ends = paths.iter().filter(|other| *other != path);
            ends.all(|other| end(other, *length) != end(path, *length))
        };
        let length = lengths.find(alone);
        end(path, length.expect("a whole path is that of no other"))
    };
    Ok(paths.iter().map(name).collect())
}

/// The last parts of a path.
fn end(path: &Path, parts: usize) -> PathBuf {
    let names: Vec<_> = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    names[names.len().saturating_sub(parts)..].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn runs_are_named_by_as_much_of_their_paths_as_tells_them_apart() {
        let dir = tempfile::tempdir().unwrap();
        let run = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let runs = [
            run("a/seed-0"),
            run("b/seed-0"),
            run("b/seed-1"),
            run("c/b/seed-0"),
        ];
        assert_eq!(
            names(&runs).unwrap(),
            ["a/seed-0", "", "seed-1", "c/b/seed-0"].map(|name| match name {
                // `b/seed-0` is the end of another run's path too.
                "" => end(&runs[1].canonicalize().unwrap(), 3),
                name => name.into(),
            })
        );
        // The whole of one run's path is the end of another's.
        let (short, long) = (PathBuf::from("/tmp"), dir.path().join("tmp"));
        fs::create_dir_all(&long).unwrap();
        let expected = end(&long.canonicalize().unwrap(), 2);
        assert_eq!(
            names(&[short, long]).unwrap(),
            [PathBuf::from("tmp"), expected]
        );
        let twice = [run("a"), run("a/../a")];
        assert_eq!(
            names(&twice).unwrap_err().to_string(),
            format!("{}: given twice", twice[1].display())
        );
    }
}
