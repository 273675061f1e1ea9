//! The processes of a home, its keepers and their children, as seen from outside, so that a test can kill them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{home::TestHome, process::signal};
use crate::proc::parent;

/// A process that belongs to a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeProcess {
    pub pid: u32,
    pub command: String,
}

/// A live keeper of a run's attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveKeeper {
    pub run_id: String,
    pub keeper: HomeProcess,
    /// The process ids of its children.
    pub children: Vec<u32>,
}

/// A process that a crash test kills in addition to, or instead of, the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CrashVictim {
    /// A keeper, with or without its child. The child's exit status is then not recorded.
    Keeper,
    /// A child alone. Its keeper records the exit status.
    Child,
}

impl LiveKeeper {
    /// Kills the keeper and then its children, as a power failure would.
    pub fn kill_with_children(&self) {
        signal(self.keeper.pid, "KILL");
        self.kill_children();
    }

    /// Kills the keeper and leaves its children running.
    pub fn kill_keeper(&self) {
        signal(self.keeper.pid, "KILL");
    }

    pub fn kill_children(&self) {
        for child in &self.children {
            signal(*child, "KILL");
        }
    }
}

impl TestHome {
    /// Returns the names of the keepers in this home.
    pub fn keepers(&self) -> Vec<String> {
        let keepers = self.path().join("keepers");
        let mut names = subfolder_names(&keepers);
        names.retain(|name| name != "runs");
        names.extend(subfolder_names(&keepers.join("runs")));
        names.sort();
        names
    }

    /// Returns the keeper directory of a run's attempt.
    pub fn keeper_dir(&self, run: &str, attempt: u32) -> PathBuf {
        self.path().join("keepers/runs").join(format!("{run}-{attempt}"))
    }

    /// Returns the keeper of a run's attempt if it is alive. It is found by its working directory.
    pub fn keeper_of(&self, run: &str, attempt: u32) -> Option<HomeProcess> {
        let keeper_dir = self.keeper_dir(run, attempt);
        let works = |process: &HomeProcess| {
            fs::read_link(format!("/proc/{}/cwd", process.pid)).is_ok_and(|at| at == keeper_dir)
        };
        self.processes().into_iter().find(|process| process.command.contains("__keeper") && works(process))
    }

    /// Sends a signal to a process of this home. `name` is a signal name of `kill(1)`.
    pub fn signal(&self, process: &HomeProcess, name: &str) {
        signal(process.pid, name);
    }

    pub fn kill(&self, process: &HomeProcess) {
        signal(process.pid, "KILL");
    }

    /// Returns all processes of this home: those with its path in their environment, or with their working directory
    /// in it.
    pub fn processes(&self) -> Vec<HomeProcess> {
        let mark = self.path().as_os_str().as_encoded_bytes();
        let Ok(entries) = fs::read_dir("/proc") else { return vec![] };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter_map(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let named = environment.windows(mark.len()).any(|window| window == mark);
            // Keepers have an almost empty environment. Their working directory is their own directory.
            let works = fs::read_link(format!("/proc/{pid}/cwd"));
            let ours = named || works.is_ok_and(|works| works.starts_with(self.path()));
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|_| ours)?;
            // A zombie process has no command line.
            let command = String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned();
            (!command.is_empty()).then_some(HomeProcess { pid, command })
        })
        .collect()
    }

    /// Returns each live keeper of a run's process.
    pub fn live_keepers(&self) -> Vec<LiveKeeper> {
        let processes = self.processes();
        let keepers = processes.iter().filter(|process| process.command.contains("__keeper"));
        keepers
            .filter_map(|keeper| {
                let keeper_dir = fs::read_link(format!("/proc/{}/cwd", keeper.pid)).ok()?;
                let run_id = run_of(&keeper_dir)?;
                let is_child = |process: &&HomeProcess| parent(process.pid) == Some(keeper.pid);
                let children = processes.iter().filter(is_child).map(|process| process.pid).collect();
                Some(LiveKeeper { run_id, keeper: keeper.clone(), children })
            })
            .collect()
    }
}

/// Returns the names of a folder's subfolders.
fn subfolder_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the run of a keeper directory. The directory is named after the run and the attempt.
pub fn run_of(keeper_dir: &Path) -> Option<String> {
    let name = keeper_dir.file_name()?.to_str()?;
    let (run, attempt) = name.rsplit_once('-')?;
    let numbered = !attempt.is_empty() && attempt.bytes().all(|byte| byte.is_ascii_digit());
    (run.starts_with("run_") && numbered).then(|| run.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keepers_folder_names_its_run_and_others_do_not() {
        let run = |name: &str| run_of(&Path::new("keepers/runs").join(name));
        assert_eq!(run("run_01abc-2").as_deref(), Some("run_01abc"));
        for other in ["s-12ab34", "run_01abc", "check-1", "run_01abc-x"] {
            assert_eq!(run(other), None, "{other}");
        }
    }
}
