//! Starts the process of a turn. The time and the thread are chosen elsewhere.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use abide_domain::{
    effect::LaunchSession,
    engine::ProfileKind,
    event::{LaunchRetry, RunEvent},
    failure::{FailureCode, RunFailure},
    process::{Attempt, ExitStatus, ProcessBinding},
    run::Run,
    settings::ExecutionMode,
    time::Timestamp,
    turn::{Turn, TurnTrigger},
};
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{
        Engine, EngineFact, EngineInstallation, IsolationMode, IsolationScope, LaunchContext,
        ProcessInterpreter, ProcessSpec, PromptSource, SandboxMode,
    },
    processes::{ProcessLookup, ProcessStart, Processes, StartError},
    workspace::{RunSkill, WorkspaceError, WorkspacePreparation, Workspaces},
};

use super::{EffectExecutor, EffectResult, listen::contained, name};

/// The launch parameters of an attempt. All of them are in the ledger.
#[derive(Clone, Debug)]
pub(super) struct AttemptLaunch {
    kind: ProfileKind,
    session: LaunchSession,
    prompt: String,
    workspace: String,
    mode: ExecutionMode,
    model: Option<String>,
    sandbox: Option<SandboxMode>,
    /// The run's own setting; None for the configured one.
    isolation: Option<IsolationMode>,
    skill: Option<RunSkill>,
    session_since: Option<Timestamp>,
    resume_detail: String,
    prompted: PromptSource,
}

impl AttemptLaunch {
    /// The launch of this attempt. `turn` is the first turn of its process, and `skills_folder` the directory in which
    /// the engine searches for skills.
    pub(super) fn of(run: &Run, turn: &Turn, attempt: Attempt, skills_folder: &str) -> Option<Self> {
        let record = turn.attempts.iter().find(|record| record.attempt == attempt)?;
        let settings = &run.settings;
        let profile = run.profile.as_ref()?;
        Some(Self {
            kind: profile.kind,
            resume_detail: profile.reason.clone(),
            session: record.session.clone()?,
            prompt: turn.prompt.clone(),
            workspace: settings.workspace.clone(),
            mode: settings.execution_mode,
            model: settings.model.clone(),
            sandbox: SandboxMode::of(settings),
            isolation: settings
                .isolation
                .as_ref()
                .map(|_| IsolationMode::of(settings, IsolationMode::Namespace)),
            skill: settings.skill.as_deref().and_then(|source| RunSkill::new(source, skills_folder)),
            // A session is no older than the first process of its run.
            session_since: (turn.turn_index > 1).then_some(run.created_at),
            prompted: match turn.trigger {
                TurnTrigger::Message(_) => PromptSource::Message,
                TurnTrigger::Reply(_) => PromptSource::Reply,
            },
        })
    }

    /// The launch as a request to the engine.
    pub(super) fn order<'a>(
        &'a self,
        installation: &'a EngineInstallation,
        private: &'a str,
    ) -> LaunchContext<'a> {
        LaunchContext {
            installation,
            kind: self.kind,
            session: &self.session,
            prompt: &self.prompt,
            workspace: &self.workspace,
            private_dir: private,
            mode: self.mode,
            model: self.model.as_deref(),
            sandbox: self.sandbox,
            isolation: self.isolation(installation),
            skill: self.skill.as_ref().map(|skill| skill.copy_path.as_str()),
            session_started_at: self.session_since,
            resume_detail: &self.resume_detail,
            prompt_source: self.prompted,
        }
    }

    fn isolation(&self, installation: &EngineInstallation) -> IsolationMode {
        self.isolation.unwrap_or(installation.isolation)
    }

    /// The required contents of the workspace.
    fn preparation<'a>(&'a self, run: &'a str) -> WorkspacePreparation<'a> {
        WorkspacePreparation { run, workspace: &self.workspace, mode: self.mode, skill: self.skill.as_ref() }
    }
}

/// A process that is ready to be started.
pub(super) struct PreparedLaunch {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) attempt: Attempt,
    installation: EngineInstallation,
    launched: AttemptLaunch,
    launch: ProcessSpec,
    private: String,
    run: String,
    name: String,
}

impl PreparedLaunch {
    /// The interpreter for its output.
    pub(super) fn interpreter(&self) -> Box<dyn ProcessInterpreter> {
        self.engine.interpreter(&self.launched.order(&self.installation, &self.private))
    }

    /// Starts the process and catches panics. A launch that panics would do so again at every start, so it counts as a
    /// failed launch.
    pub(super) fn start_or_say(
        &self,
        processes: &dyn Processes,
        workspaces: &dyn Workspaces,
    ) -> Result<ProcessBinding, LaunchFailure> {
        catch_unwind(AssertUnwindSafe(|| self.start(processes, workspaces))).unwrap_or_else(|_| {
            match processes.find(&self.name) {
                ProcessLookup::Found(process) => Ok(process),
                ProcessLookup::Unresponsive => Err(LaunchFailure::Process(StartError::Unresponsive)),
                ProcessLookup::Lost => Err(LaunchFailure::Process(StartError::Lost)),
                ProcessLookup::NotStarted => {
                    Err(LaunchFailure::Process(StartError::SystemError(BROKE.to_owned())))
                }
            }
        })
    }

    /// Starts the process, or finds the one that was started before a crash.
    fn start(
        &self,
        processes: &dyn Processes,
        workspaces: &dyn Workspaces,
    ) -> Result<ProcessBinding, LaunchFailure> {
        // A process from before a crash has its workspace. It must not be lost if a skill was deleted since.
        if processes.find(&self.name) == ProcessLookup::NotStarted {
            workspaces.prepare(&self.launched.preparation(&self.run)).map_err(LaunchFailure::Workspace)?;
        }
        processes.start(&self.name, &self.order_to_start()).map_err(LaunchFailure::Process)
    }

    /// A warning for users about the start of the process.
    pub(super) fn warning(&self, processes: &dyn Processes) -> Option<RunEvent> {
        let isolation = match self.engine.isolation_scope() {
            IsolationScope::Process | IsolationScope::Tools => self.launched.isolation(&self.installation),
            IsolationScope::None => IsolationMode::Off,
        };
        let text = processes.warning(&ProcessStart { isolation, ..self.order_to_start() })?;
        // The position before all output of the process.
        Some(RunEvent::Progressed { attempt: self.attempt, position: EngineFact::position(0, 1), text })
    }

    fn order_to_start(&self) -> ProcessStart<'_> {
        ProcessStart {
            spec: &self.launch,
            workspace: &self.launched.workspace,
            private_dir: &self.private,
            pass_env: &self.installation.pass_env,
            isolation: match self.engine.isolation_scope() {
                IsolationScope::Process => self.launched.isolation(&self.installation),
                IsolationScope::Tools | IsolationScope::None => IsolationMode::Off,
            },
        }
    }
}

const BROKE: &str = "the start failed because of a bug of Abide; see the log";

/// Why the process was not started.
pub(super) enum LaunchFailure {
    Workspace(WorkspaceError),
    Process(StartError),
}

impl LaunchFailure {
    /// The event for the failure. None if it is unknown whether the process was started, which is determined later.
    pub(super) fn told(self, attempt: Attempt) -> Option<RunEvent> {
        Some(match self {
            Self::Process(StartError::Unresponsive) => return None,
            Self::Workspace(WorkspaceError(reason)) => never(attempt, FailureCode::WorkspaceUnusable, reason),
            Self::Process(StartError::ProgramUnusable(program)) => {
                let message = format!(
                    "cannot start {program}, with which this run was begun; install it again, or start a new run with \
                     the present engines.NAME.command (see `abide doctor`)"
                );
                never(attempt, FailureCode::EngineNotFound, message)
            }
            Self::Process(StartError::DirectoryUnusable(directory)) => {
                let message = format!("the workspace {directory} is not there or cannot be entered");
                never(attempt, FailureCode::WorkspaceUnusable, message)
            }
            Self::Process(StartError::IsolationUnavailable(reason)) => {
                never(attempt, FailureCode::EngineFailed, reason)
            }
            Self::Process(StartError::Lost) => RunEvent::ProcessExited { attempt, exit: ExitStatus::Unknown },
            Self::Process(StartError::SystemError(reason)) => {
                let failure = RunFailure::new(FailureCode::EngineFailed, reason);
                RunEvent::LaunchFailed { attempt, failure, retry: LaunchRetry::Later }
            }
        })
    }
}

fn never(attempt: Attempt, code: FailureCode, message: String) -> RunEvent {
    RunEvent::LaunchFailed { attempt, failure: RunFailure::new(code, message), retry: LaunchRetry::Never }
}

impl EffectExecutor {
    /// Prepares the launch of an attempt.
    pub(super) fn launch(&self, run: &Run, attempt: Attempt) -> EffectResult {
        match self.starting(run, attempt) {
            Ok(starting) => EffectResult::Starts(Box::new(starting)),
            Err(carried) => *carried,
        }
    }

    fn starting(&self, run: &Run, attempt: Attempt) -> Result<PreparedLaunch, Box<EffectResult>> {
        let never = |code, message| Box::new(EffectResult::Told(never(attempt, code, message)));
        let entry = self.world.catalogue.engine(&run.settings.engine);
        let entry = entry.map(|entry| entry.with_stored_command(run.command.as_ref()));
        let Some(InstalledEngine { engine, installation, .. }) = entry else {
            let message = format!("there is no engine {} any more; see `abide doctor`", run.settings.engine);
            return Err(never(FailureCode::EngineNotFound, message));
        };
        let turn = run.turns.last();
        let Some(launched) =
            turn.and_then(|turn| AttemptLaunch::of(run, turn, attempt, engine.skills_folder()))
        else {
            let message = "the run has no record of the turn to launch".to_owned();
            return Err(never(FailureCode::EngineFailed, message));
        };
        if let (None, Some(skill)) = (&launched.skill, &run.settings.skill) {
            let message =
                format!("the skill {skill:?} must be a folder with a name of its own that is not hidden");
            return Err(never(FailureCode::WorkspaceUnusable, message));
        }
        let private = self.private(run.run_id);
        let prepared = contained(|| engine.launch(&launched.order(&installation, &private)));
        let Some(prepared) = prepared else { return Err(never(FailureCode::EngineFailed, BROKE.to_owned())) };
        let launch = prepared.map_err(|unsupported| {
            let code = match launched.session {
                LaunchSession::Resumed(_) => FailureCode::SessionResumeFailed,
                LaunchSession::New | LaunchSession::Named(_) => FailureCode::EngineFailed,
            };
            never(code, unsupported.to_string())
        })?;
        if let Some(at) = launch.not_before.filter(|at| *at > self.world.clock.stamp().at) {
            return Err(Box::new(EffectResult::NotBefore(at)));
        }
        let (run, name) = (run.run_id.to_string(), name(run.run_id, attempt));
        Ok(PreparedLaunch { engine, attempt, installation, launched, launch, private, run, name })
    }
}
