//! Load tests: many waiting runs, and many concurrent runs with many readers. They measure the cost and check that no
//! run is lost or delayed.

mod many_runs;
mod output;
mod waiting;

use std::{fs, path::PathBuf};

/// The options of the load test.
#[derive(Clone, Debug)]
pub(crate) struct LoadOptions {
    pub(crate) program: PathBuf,
    /// The number of waiting runs.
    pub(crate) waiting: usize,
    /// The number of concurrent runs.
    pub(crate) runs: usize,
    /// The number of concurrent readers, one of which is stalled.
    pub(crate) readers: usize,
    /// The number of bytes that one turn prints.
    pub(crate) output: u64,
}

#[derive(Debug, Default)]
pub(crate) struct LoadResults {
    pub(crate) figures: Vec<(String, String)>,
    pub(crate) problems: Vec<String>,
}

/// The maximum memory of a daemon with all its waiting runs, in MiB.
const MAX_MEMORY_MIB: u64 = 200;

pub(crate) fn run(options: &LoadOptions) -> LoadResults {
    let mut results = LoadResults::default();
    if let Err(error) = waiting::run(options, &mut results) {
        results.problems.push(format!("{error:#}"));
    }
    many_runs::run(options, &mut results);
    if let Err(error) = output::run(options, &mut results) {
        results.problems.push(format!("{error:#}"));
    }
    results
}

/// Returns the peak memory of a process in MiB; 0 if it has exited.
fn peak_memory_mib(pid: u32) -> u64 {
    status_mib(pid, "VmHWM")
}

fn status_mib(pid: u32, name: &str) -> u64 {
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

    /// Records the current and the peak memory of a process, in MiB.
    fn memory(&mut self, label: &str, pid: u32) {
        let (now, most) = (status_mib(pid, "VmRSS"), peak_memory_mib(pid));
        self.figure(format!("{label}: resident memory, MiB"), format!("{now} (peak {most})"));
        if now == 0 || most > MAX_MEMORY_MIB {
            self.problems.push(format!("{label}: {most} MiB, more than {MAX_MEMORY_MIB}"));
        }
    }
}
