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
    processes::{Found, Start, StartError},
    workspace::{Preparation, Skill, Unusable},
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
    skill: Option<Skill>,
    session_since: Option<Timestamp>,
}

impl Launched {
    /// The launch of this attempt at this turn, which is the first that its process was given, by an engine that looks
    /// for skills there.
    pub(super) fn of(run: &Run, turn: &Turn, attempt: Attempt, skills_folder: &str) -> Option<Self> {
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
            skill: settings.skill.as_deref().and_then(|source| Skill::new(source, skills_folder)),
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
            skill: self.skill.as_ref().map(|skill| skill.copy.as_str()),
            session_since: self.session_since,
        }
    }

    /// What has to be in the workspace before.
    fn preparation<'a>(&'a self, run: &'a str) -> Preparation<'a> {
        Preparation { run, workspace: &self.workspace, mode: self.mode, skill: self.skill.as_ref() }
    }
}

/// Why there is no process.
enum Trouble {
    Workspace(Unusable),
    Process(StartError),
}

impl Performer {
    pub(super) async fn launch(&self, run: &Run, attempt: Attempt) -> Carried {
        let never = |code: FailureCode, message: String| {
            let failure = Failure::new(code, message);
            Carried::Told(Event::LaunchFailed { attempt, failure, retry: Retry::Never })
        };
        let Some(entry) = self.world.catalogue.engine(&run.settings.engine) else {
            let message = format!("there is no engine {} any more; see `abide doctor`", run.settings.engine);
            return never(FailureCode::EngineNotFound, message);
        };
        let skills_folder = entry.engine.skills_folder();
        let turn = run.turns.last();
        let Some(launched) = turn.and_then(|turn| Launched::of(run, turn, attempt, skills_folder)) else {
            return never(FailureCode::EngineFailed, "the ledger does not tell what to launch".to_owned());
        };
        if let (None, Some(skill)) = (&launched.skill, &run.settings.skill) {
            let message =
                format!("the skill {skill:?} must be a folder with a name of its own that is not hidden");
            return never(FailureCode::WorkspaceUnusable, message);
        }
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
        let (processes, workspaces) = (self.world.processes.clone(), self.world.workspaces.clone());
        let (run_id, name) = (run.run_id.to_string(), name(run.run_id, attempt));
        let started = self.blocking(move || {
            // What was started before a crash has its workspace, and is not to be lost over a skill that went since.
            if processes.find(&name) == Found::Never {
                workspaces.prepare(&launched.preparation(&run_id)).map_err(Trouble::Workspace)?;
            }
            let start = Start { launch: &launch, workspace: &launched.workspace, private: &private };
            processes.start(&name, &start).map_err(Trouble::Process)
        });
        match started.await {
            Ok(process) => Carried::Told(Event::AttemptStarted { attempt, process }),
            Err(Trouble::Workspace(Unusable(reason))) => never(FailureCode::WorkspaceUnusable, reason),
            Err(Trouble::Process(StartError::Program(program))) => {
                let message = format!("cannot start {program}; see `abide doctor`");
                never(FailureCode::EngineNotFound, message)
            }
            Err(Trouble::Process(StartError::Directory(directory))) => {
                let message = format!("the workspace {directory} is not there or cannot be entered");
                never(FailureCode::WorkspaceUnusable, message)
            }
            Err(Trouble::Process(StartError::Gone)) => {
                Carried::Told(Event::ProcessExited { attempt, exit: Exit::Unseen })
            }
            Err(Trouble::Process(StartError::System(reason))) => {
                let failure = Failure::new(FailureCode::EngineFailed, reason);
                Carried::Told(Event::LaunchFailed { attempt, failure, retry: Retry::Later })
            }
        }
    }
}
