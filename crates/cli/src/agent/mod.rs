//! The native agent on the command line. This module connects it to the environment and the terminal.
//!
//! Reading order: `run`, `progress` (prints progress), `event_text` (events as text), `prompt` (asks on the terminal),
//! `show`, `init`.

mod event_text;
#[cfg(feature = "failpoints")]
mod failpoints;
mod init;
mod journal_summary;
mod progress;
mod prompt;
mod run;
mod show;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use abide_agent::{
    provenance::{StateFolder, StateOrigin},
    state_directory::StateDirectory,
};
use abide_host::{home_folders::HomeFolder, processes::is_noted_state};
use abide_os::OsError;
use anyhow::Context;

pub(crate) use journal_summary::AgentAccount;

use crate::{
    args::{AgentCommand, AgentPathArguments},
    home,
};

pub(crate) fn main(command: AgentCommand) -> anyhow::Result<ExitCode> {
    match command {
        AgentCommand::Init(arguments) => init::run(&arguments),
        AgentCommand::Run(arguments) => run::run(arguments),
        AgentCommand::Show(arguments) => show::run(&arguments),
    }
}

/// Folder of named agent sessions, relative to the working directory.
const SESSIONS_FOLDER: &str = ".abide/native";

/// Paths of an agent's working directory and state folder. Links that the person named are resolved once; links that
/// are put into these paths later are not followed.
struct AgentPaths {
    workdir: PathBuf,
    state: PathBuf,
    /// An ancestor of the state folder. Links below it are not followed.
    root: PathBuf,
}

impl AgentPaths {
    fn of(arguments: &AgentPathArguments) -> anyhow::Result<Self> {
        let workdir = std::path::absolute(&arguments.workdir);
        let workdir = resolved(workdir.context("cannot use the working directory")?);
        let (root, state) = match (&arguments.state, &arguments.session) {
            (Some(state), _) => {
                let state = std::path::absolute(state).context("cannot use the state folder")?;
                let above = state.ancestors().skip(1).find(|folder| folder.is_dir());
                let above = above.unwrap_or(Path::new("/"));
                let root = resolved(above.to_owned());
                let below = state.strip_prefix(above).unwrap_or(&state);
                (root.clone(), root.join(below))
            }
            (None, Some(session)) => (workdir.clone(), workdir.join(SESSIONS_FOLDER).join(session)),
            (None, None) => (workdir.clone(), workdir.join(".abide")),
        };
        Ok(Self { workdir, state, root })
    }

    fn relative_state(&self) -> PathBuf {
        self.state.strip_prefix(&self.root).unwrap_or(&self.state).to_owned()
    }

    /// Returns the state folder with its record in the home. The record of a session that the daemon named has the
    /// session's name.
    fn state_folder(&self, session: Option<&str>) -> anyhow::Result<StateFolder> {
        let home = home::home()?;
        home::prepare(&home)?;
        let records = HomeFolder::Agents.path(&home);
        let record_id = session.filter(|session| is_uuid(session)).map(str::to_owned);
        let is_recorded = record_id.as_ref().is_some_and(|id| records.join(id).exists());
        let is_noted = || record_id.is_some() && !is_recorded && is_noted_state(&home, &self.state);
        let origin = if is_noted() { StateOrigin::EarlierVersion } else { StateOrigin::Unknown };
        Ok(StateFolder {
            root: self.root.clone(),
            relative: self.relative_state(),
            records,
            record_id,
            origin,
            keeper_arguments: home::launcher()?.arguments,
        })
    }

    /// Opens the state folder, if it exists.
    fn existing_state(&self) -> Result<Option<StateDirectory>, OsError> {
        match StateDirectory::open(&self.root, &self.relative_state()) {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the path of the state folder as tools see it from the working directory.
    fn state_for_tools(&self) -> String {
        self.state.strip_prefix(&self.workdir).unwrap_or(&self.state).display().to_string()
    }
}

fn resolved(path: PathBuf) -> PathBuf {
    fs::canonicalize(&path).unwrap_or(path)
}

/// Returns whether the name is a UUID, as the daemon generates them for sessions.
fn is_uuid(name: &str) -> bool {
    let fits = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    name.len() == 36 && name.bytes().enumerate().all(fits)
}
