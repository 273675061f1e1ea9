//! The native agent on the command line: this is where its parts, the environment and the terminal come together.
//!
//! Reading order: `run`, the `voice` by which it tells what happens, `story` (events in words), `person` (who is asked on
//! a terminal), `show`, `init`.

mod account;
#[cfg(feature = "failpoints")]
mod failpoints;
mod init;
mod person;
mod run;
mod show;
mod story;
mod voice;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;

pub(crate) use account::Account;

use crate::args::{AgentCommand, AgentPlace};

pub(crate) fn main(command: AgentCommand) -> anyhow::Result<ExitCode> {
    match command {
        AgentCommand::Init(arguments) => init::run(&arguments),
        AgentCommand::Run(arguments) => run::run(arguments),
        AgentCommand::Show(arguments) => show::run(&arguments),
    }
}

/// Where agents remember that were given a name, in their working directory.
const SESSIONS: &str = ".abide/native";

/// Where an agent works and where it remembers.
struct Place {
    workdir: PathBuf,
    state: PathBuf,
}

impl Place {
    fn of(arguments: &AgentPlace) -> anyhow::Result<Self> {
        let workdir = std::path::absolute(&arguments.workdir);
        let workdir = workdir.context("cannot use the working directory")?;
        let state = match (&arguments.state, &arguments.session) {
            (Some(state), _) => std::path::absolute(state).context("cannot use the state folder")?,
            (None, Some(session)) => workdir.join(SESSIONS).join(session),
            (None, None) => workdir.join(".abide"),
        };
        Ok(Self { workdir, state })
    }

    /// The state folder as tools reach it from where they work.
    fn shown_state(&self) -> String {
        self.state.strip_prefix(&self.workdir).unwrap_or(&self.state).display().to_string()
    }
}
