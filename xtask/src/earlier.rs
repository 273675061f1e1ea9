//! An earlier commit, checked out and built next to the present tree, for commands that compare or replace binaries.
//!
//! The work tree and its builds are below `target/crash-tests` and are kept: a second command with the same commit
//! builds nothing.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

pub(crate) struct EarlierCommit {
    folder: PathBuf,
    target: PathBuf,
    /// The full hash of the commit, 40 hexadecimal digits.
    pub(crate) commit: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildProfile {
    Debug,
    Release,
}

impl EarlierCommit {
    pub(crate) fn check_out(workspace: &CargoWorkspace, name: &str) -> Result<Self> {
        let git = |args: &[&str]| EchoedCommand::new("git").args(args).dir(&workspace.root);
        let revision = format!("{name}^{{commit}}");
        let commit = git(&["rev-parse", "--verify", "--quiet", &revision]).read().with_context(|| {
            format!(
                "the commit {name} is not in this clone; a shallow clone gets it with `git fetch --unshallow`"
            )
        })?;
        let commit = commit.trim().to_owned();
        let folder = workspace.target.join("crash-tests/from");
        let tree = folder.to_string_lossy().into_owned();
        let present = EchoedCommand::new("git").args(["rev-parse", "HEAD"]).dir(&folder).read();
        let is_worktree = folder.join(".git").is_file();
        if !is_worktree || present.is_ok_and(|present| present.trim() != commit) {
            if folder.exists() {
                git(&["worktree", "remove", "--force", &tree]).run()?;
            }
            git(&["worktree", "prune"]).run()?;
            git(&["worktree", "add", "--detach", &tree, &commit]).run()?;
        }
        Ok(Self { folder, target: workspace.target.join("crash-tests/from-target"), commit })
    }

    /// Builds `abide` and returns its path.
    pub(crate) fn binary(&self, profile: BuildProfile) -> Result<PathBuf> {
        self.cargo(&["build", "--quiet", "--package", "abide"]).args(profile.flags()).run()?;
        Ok(self.target.join(profile.folder()).join("abide"))
    }

    /// Builds one of the commit's own benchmarks and returns its path.
    pub(crate) fn bench(&self, package: &str, name: &str) -> Result<PathBuf> {
        let json = self
            .cargo(&["bench", "--quiet", "--no-run", "--message-format", "json", "--package", package])
            .args(["--bench", name])
            .read()?;
        executable(&json).with_context(|| format!("commit {} has no benchmark {name}", self.commit))
    }

    fn cargo(&self, args: &[&str]) -> EchoedCommand {
        EchoedCommand::new("cargo").args(args).env("CARGO_TARGET_DIR", &self.target).dir(&self.folder)
    }
}

impl BuildProfile {
    pub(crate) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Debug => &[],
            Self::Release => &["--release"],
        }
    }

    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// Returns the last executable that cargo reports.
pub(crate) fn executable(messages: &str) -> Option<PathBuf> {
    let built = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    built.filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?))).next_back()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::executable;

    #[test]
    fn the_built_program_is_found_among_cargos_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\nnot json\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/deps/store-1\"}\n{\"reason\":\"build-finished\"}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/release/deps/store-1")));
        assert_eq!(executable(""), None);
    }
}
