//! Many waiting runs, and many at work with many readers: what that costs, and that nobody is lost or held up.

mod crowd;
mod output;
mod waiting;

use std::{fs, path::PathBuf};

/// What is wanted.
#[derive(Clone, Debug)]
pub(crate) struct LoadOptions {
    /// The daemon.
    pub(crate) program: PathBuf,
    /// How many runs wait.
    pub(crate) waiting: usize,
    /// How many runs work at once.
    pub(crate) runs: usize,
    /// How many readers there are meanwhile, one of them stalled.
    pub(crate) readers: usize,
    /// How many bytes one turn prints.
    pub(crate) output: u64,
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct LoadResults {
    pub(crate) figures: Vec<(String, String)>,
    pub(crate) problems: Vec<String>,
}

/// The most memory that a daemon with all its waiting runs may hold, in MiB.
const MOST_MEMORY: u64 = 200;

pub(crate) fn run(wish: &LoadOptions) -> LoadResults {
    let mut seen = LoadResults::default();
    if let Err(error) = waiting::besiege(wish, &mut seen) {
        seen.problems.push(format!("{error:#}"));
    }
    crowd::besiege(wish, &mut seen);
    if let Err(error) = output::besiege(wish, &mut seen) {
        seen.problems.push(format!("{error:#}"));
    }
    seen
}

/// The most memory that a process has held, in MiB; 0 if it is gone.
fn peak_memory(pid: u32) -> u64 {
    mebibytes(pid, "VmHWM")
}

fn mebibytes(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>().unwrap_or(0).div_ceil(1024)
}

impl LoadResults {
    fn figure(&mut self, name: impl Into<String>, figure: impl ToString) {
        let (name, figure) = (name.into(), figure.to_string());
        eprintln!("{name}: {figure}");
        self.figures.push((name, figure));
    }

    /// The memory that a process holds and has held, in MiB.
    fn memory(&mut self, what: &str, pid: u32) {
        let (now, most) = (mebibytes(pid, "VmRSS"), peak_memory(pid));
        self.figure(format!("{what}: resident memory, MiB"), format!("{now} (peak {most})"));
        if now == 0 || most > MOST_MEMORY {
            self.problems.push(format!("{what}: {most} MiB, more than {MOST_MEMORY}"));
        }
    }
}
