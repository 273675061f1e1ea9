//! Starts the process of a turn.

use abide_domain::{
    effect::Session,
    engine::ProfileKind,
    event::{Event, Retry},
    failure::{Failure, FailureCode},
    process::{Attempt, Exit},
    run::Run,
    settings::ExecutionMode,
    time::Timestamp,
    turn::Turn,
};
use abide_ports::{
    engine::{Installation, Order, Sandbox},
    processes::{Start, StartError},
};

use super::{Carried, Performer, name};

/// What an attempt was launched with: all of it stands in the ledger.
#[derive(Clone, Debug)]
pub(super) struct Launched {
    kind: ProfileKind,
    session: Session,
    prompt: String,
    workspace: String,
    mode: ExecutionMode,
    model: Option<String>,
    sandbox: Option<Sandbox>,
    session_since: Option<Timestamp>,
}

impl Launched {
    /// The launch of this attempt at this turn, which is the first that its process was given.
    pub(super) fn of(run: &Run, turn: &Turn, attempt: Attempt) -> Option<Self> {
        let record = turn.attempts.iter().find(|record| record.attempt == attempt)?;
        let settings = &run.settings;
        Some(Self {
            kind: run.profile.as_ref()?.kind,
            session: record.session.clone()?,
            prompt: turn.prompt.clone(),
            workspace: settings.workspace.clone(),
            mode: settings.execution_mode,
            model: settings.model.clone(),
            sandbox: Sandbox::of(settings),
            // A session is no older than its run's first process.
            session_since: (turn.turn_index > 1).then_some(run.created_at),
        })
    }

    /// The same in the engine's words.
    pub(super) fn order<'a>(&'a self, installation: &'a Installation, private: &'a str) -> Order<'a> {
        Order {
            installation,
            kind: self.kind,
            session: &self.session,
            prompt: &self.prompt,
            workspace: &self.workspace,
            private,
            mode: self.mode,
            model: self.model.as_deref(),
            sandbox: self.sandbox,
            session_since: self.session_since,
        }
    }
}

impl Performer {
    pub(super) async fn launch(&self, run: &Run, attempt: Attempt) -> Carried {
        let never = |code: FailureCode, message: String| {
            let failure = Failure::new(code, message);
            Carried::Told(Event::LaunchFailed { attempt, failure, retry: Retry::Never })
        };
        let Some(launched) = run.turns.last().and_then(|turn| Launched::of(run, turn, attempt)) else {
            return never(FailureCode::EngineFailed, "the ledger does not tell what to launch".to_owned());
        };
        let Some(entry) = self.world.catalogue.engine(&run.settings.engine) else {
            let message = format!("there is no engine {} any more; see `abide doctor`", run.settings.engine);
            return never(FailureCode::EngineNotFound, message);
        };
        let private = self.private(run.run_id);
        let launch = match entry.engine.launch(&launched.order(&entry.installation, &private)) {
            Ok(launch) => launch,
            Err(unsupported) => {
                let code = match launched.session {
                    Session::Resumed(_) => FailureCode::SessionResumeFailed,
                    Session::New | Session::Named(_) => FailureCode::EngineFailed,
                };
                return never(code, unsupported.to_string());
            }
        };
        if let Some(at) = launch.not_before.filter(|at| *at > self.world.clock.stamp().at) {
            return Carried::NotBefore(at);
        }
        let (processes, name, workspace) =
            (self.world.processes.clone(), name(run.run_id, attempt), launched.workspace);
        let started = self.blocking(move || {
            processes.start(&name, &Start { launch: &launch, workspace: &workspace, private: &private })
        });
        match started.await {
            Ok(process) => Carried::Told(Event::AttemptStarted { attempt, process }),
            Err(StartError::Program(program)) => {
                let message = format!("cannot start {program}; see `abide doctor`");
                never(FailureCode::EngineNotFound, message)
            }
            Err(StartError::Directory(directory)) => {
                let message = format!("the workspace {directory} is not there or cannot be entered");
                never(FailureCode::WorkspaceUnusable, message)
            }
            Err(StartError::Gone) => Carried::Told(Event::ProcessExited { attempt, exit: Exit::Unseen }),
            Err(StartError::System(reason)) => {
                let failure = Failure::new(FailureCode::EngineFailed, reason);
                Carried::Told(Event::LaunchFailed { attempt, failure, retry: Retry::Later })
            }
        }
    }
}
