//! The keepers of a home and their child processes, as seen from outside, so that a test can kill them.

use std::{fs, path::Path};

use super::{
    home::{HomeProcess, TestHome},
    process::signal,
};

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
    /// Returns each live keeper of a run's process.
    pub fn live_keepers(&self) -> Vec<LiveKeeper> {
        let processes = self.processes();
        let keepers = processes.iter().filter(|left| left.command.contains("__keeper"));
        keepers
            .filter_map(|keeper| {
                let place = fs::read_link(format!("/proc/{}/cwd", keeper.pid)).ok()?;
                let run_id = run_of(&place)?;
                let is_child = |left: &&HomeProcess| parent(left.pid) == Some(keeper.pid);
                let children = processes.iter().filter(is_child).map(|left| left.pid).collect();
                Some(LiveKeeper { run_id, keeper: keeper.clone(), children })
            })
            .collect()
    }
}

/// Returns the run of a keeper directory. The directory is named after the run and the attempt.
pub fn run_of(keeper_dir: &Path) -> Option<String> {
    let name = keeper_dir.file_name()?.to_str()?;
    let (run, attempt) = name.rsplit_once('-')?;
    let numbered = !attempt.is_empty() && attempt.bytes().all(|byte| byte.is_ascii_digit());
    (run.starts_with("run_") && numbered).then(|| run.to_owned())
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
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
