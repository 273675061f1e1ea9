//! A temporary home for one measurement. Dropping it ends all processes that were started in it.
//!
//! It is on a tmpfs if the system has one: some peers write to their home on each command, and the disk is not part of
//! the comparison.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::shell::{EchoedCommand, which};
use crate::workspace::CargoWorkspace;

pub(super) struct PeerHome {
    folder: TempDir,
}

impl PeerHome {
    pub(super) fn create(workspace: &CargoWorkspace) -> Result<Self> {
        let make = |parent: &Path| tempfile::Builder::new().prefix("peers-").tempdir_in(parent);
        let folder = make(Path::new("/dev/shm"))
            .or_else(|_| make(&workspace.target))
            .context("could not make a home for the peers")?;
        fs::create_dir(folder.path().join("tmp")).context("could not make a folder for temporary files")?;
        Ok(Self { folder })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Creates a file for the standard error of a process.
    pub(super) fn log(&self, name: &str) -> Result<File> {
        File::create(self.path().join(name)).context("could not create a log")
    }

    /// Sets up a command to run in this home, with an environment that is the same on every machine.
    ///
    /// `PATH` contains only system directories: version managers put slow wrappers first, and some peers start programs
    /// on each command. Proxies and tokens are not passed on.
    pub(super) fn apply_environment(&self, command: EchoedCommand) -> EchoedCommand {
        let node = which("node").and_then(|path| Some(path.parent()?.to_string_lossy().into_owned()));
        let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(str::to_owned);
        let path: Vec<String> = path.into_iter().chain(node).collect();
        let tmp = self.path().join("tmp");
        command
            .empty_env()
            .env("PATH", path.join(":"))
            .env("HOME", self.path())
            .env("ABIDE_HOME", self.path().join("abide"))
            .env("TMPDIR", &tmp)
            .env("TMUX_TMPDIR", &tmp)
            .env("LANG", "C.UTF-8")
            .env("TERM", "dumb")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Each peer has its own variable that disables telemetry and downloads.
            .env("DO_NOT_TRACK", "1")
            .env("DESKTOP_COMMANDER_DISABLE_TELEMETRY", "1")
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("OPENHANDS_SUPPRESS_BANNER", "1")
            .env("ANONYMIZED_TELEMETRY", "false")
            .env("OTEL_SDK_DISABLED", "true")
            .dir(self.path())
    }

    /// Kills the remaining processes. A process that has left its parents still has the home in its environment.
    fn kill_processes(&self) {
        let mark = [b"HOME=", self.path().as_os_str().as_bytes()].concat();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if let Some(pid) = pid
                && environment.split(|byte| *byte == 0).any(|variable| variable == mark)
            {
                // It may have exited in the meantime.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for PeerHome {
    fn drop(&mut self) {
        self.kill_processes();
    }
}
