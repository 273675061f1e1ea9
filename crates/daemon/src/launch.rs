//! Prepares and starts the process of a turn.

use std::{sync::Arc, time::Duration};

use abide_domain::{
    effect::LaunchSession,
    event::{LaunchRetry, RunEvent},
    failure::{FailureCode, RunFailure},
    id::{RunId, TurnId},
    process::{Attempt, ExitStatus, ProcessBinding},
    run::Run,
    settings::ExecutionMode,
    turn::{Turn, TurnTrigger},
};
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{
        Engine, EngineFact, EngineInstallation, IsolationMode, IsolationScope, LaunchContext, ProcessSpec,
        PromptSource, SandboxMode,
    },
    processes::{ProcessLookup, Processes, StartError, StartRequest},
    workspace::{RunSkill, WorkspaceError, WorkspacePreparation, Workspaces},
};

use crate::{
    executor::EffectResult,
    process::{ProcessSession, contained},
    run_actor::{ActorContext, NotPerformed},
};

/// Pause before a launch is retried whose keeper does not answer.
const SILENT_PAUSE: Duration = Duration::from_secs(2);

/// The folders of a run that a launch uses besides the workspace.
#[derive(Clone, Debug)]
struct RunFolders {
    /// None if the run has no skill, or if its name cannot be used.
    skill: Option<RunSkill>,
    private_dir: String,
}

impl RunFolders {
    /// `skills_folder` is the directory in which the engine searches for skills.
    fn of(run: &Run, skills_folder: &str, private_dir: String) -> Self {
        let skill = run.settings.skill.as_deref().and_then(|source| RunSkill::new(source, skills_folder));
        Self { skill, private_dir }
    }
}

/// The context of an attempt's launch, from the ledger. `turn` is the first turn of its process. None if the ledger has
/// no session for the attempt.
fn launch_context<'a>(
    run: &'a Run,
    turn: &'a Turn,
    attempt: Attempt,
    installation: &'a EngineInstallation,
    folders: &'a RunFolders,
) -> Option<LaunchContext<'a>> {
    let record = turn.attempts.iter().find(|record| record.attempt == attempt)?;
    let profile = run.profile.as_ref()?;
    let settings = &run.settings;
    Some(LaunchContext {
        installation,
        kind: profile.kind,
        session: record.session.as_ref()?,
        prompt: &turn.prompt,
        workspace: &settings.workspace,
        private_dir: &folders.private_dir,
        mode: settings.execution_mode,
        model: settings.model.as_deref(),
        sandbox: SandboxMode::of(settings),
        isolation: IsolationMode::of(settings, installation.isolation),
        skill: folders.skill.as_ref().map(|skill| skill.copy_path.as_str()),
        // A session is no older than the first process of its run.
        session_started_at: (turn.turn_index > 1).then_some(run.created_at),
        resume_detail: &profile.reason,
        prompt_source: match turn.trigger {
            TurnTrigger::Message(_) => PromptSource::Message,
            TurnTrigger::Reply(_) => PromptSource::Reply,
        },
    })
}

/// A process that is ready to be started.
pub struct PreparedLaunch {
    engine: Arc<dyn Engine>,
    attempt: Attempt,
    spec: ProcessSpec,
    workspace: String,
    mode: ExecutionMode,
    folders: RunFolders,
    pass_env: Vec<String>,
    isolation: IsolationMode,
    run: String,
    name: String,
}

impl PreparedLaunch {
    /// Starts the process and catches panics. A launch that panics would do so again at every start, so it counts as a
    /// failed launch.
    pub(crate) fn start_contained(
        &self,
        processes: &dyn Processes,
        workspaces: &dyn Workspaces,
    ) -> EffectResult {
        let attempt = self.attempt;
        let started = contained(|| self.start(processes, workspaces)).unwrap_or_else(|| {
            match processes.find(&self.name) {
                ProcessLookup::Found(process) => Ok(process),
                ProcessLookup::Unresponsive => Err(LaunchFailure::Process(StartError::Unresponsive)),
                ProcessLookup::Lost => Err(LaunchFailure::Process(StartError::Lost)),
                ProcessLookup::NotStarted => {
                    Err(LaunchFailure::Process(StartError::SystemError(BROKE.to_owned())))
                }
            }
        });
        match started {
            Ok(process) => {
                let started = RunEvent::AttemptStarted { attempt, process };
                EffectResult::Settled(std::iter::once(started).chain(self.warning(processes)).collect())
            }
            Err(failure) => failure.into_result(attempt),
        }
    }

    /// Starts the process, or finds the one that was started before a crash.
    fn start(
        &self,
        processes: &dyn Processes,
        workspaces: &dyn Workspaces,
    ) -> Result<ProcessBinding, LaunchFailure> {
        // A process from before a crash has its workspace. It must not be lost if a skill was deleted since.
        if processes.find(&self.name) == ProcessLookup::NotStarted {
            let preparation = WorkspacePreparation {
                run: &self.run,
                workspace: &self.workspace,
                mode: self.mode,
                skill: self.folders.skill.as_ref(),
            };
            workspaces.prepare(&preparation).map_err(LaunchFailure::Workspace)?;
        }
        processes.start(&self.name, &self.process_start()).map_err(LaunchFailure::Process)
    }

    /// A warning for users about the start of the process.
    fn warning(&self, processes: &dyn Processes) -> Option<RunEvent> {
        let isolation = match self.engine.isolation_scope() {
            IsolationScope::Process | IsolationScope::Tools => self.isolation,
            IsolationScope::None => IsolationMode::Off,
        };
        let text = processes.warning(&StartRequest { isolation, ..self.process_start() })?;
        // The position before all output of the process.
        Some(RunEvent::Progressed { attempt: self.attempt, position: EngineFact::position(0, 1), text })
    }

    fn process_start(&self) -> StartRequest<'_> {
        StartRequest {
            spec: &self.spec,
            workspace: &self.workspace,
            private_dir: &self.folders.private_dir,
            pass_env: &self.pass_env,
            isolation: match self.engine.isolation_scope() {
                IsolationScope::Process => self.isolation,
                IsolationScope::Tools | IsolationScope::None => IsolationMode::Off,
            },
        }
    }
}

const BROKE: &str = "the start failed because of a bug of Abide; see the log";

/// Why the process was not started.
#[derive(Debug)]
enum LaunchFailure {
    Workspace(WorkspaceError),
    Process(StartError),
}

impl LaunchFailure {
    fn into_result(self, attempt: Attempt) -> EffectResult {
        EffectResult::Settled(vec![match self {
            // The launch is still pending. It can be cancelled meanwhile.
            Self::Process(StartError::Unresponsive) => return EffectResult::Later(SILENT_PAUSE),
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
        }])
    }
}

fn never(attempt: Attempt, code: FailureCode, message: String) -> RunEvent {
    RunEvent::LaunchFailed { attempt, failure: RunFailure::new(code, message), retry: LaunchRetry::Never }
}

/// Prepares the launch of an attempt.
pub(crate) fn prepare(
    run: &Run,
    attempt: Attempt,
    daemon: &ActorContext<'_>,
) -> Result<(Box<PreparedLaunch>, ProcessSession), NotPerformed> {
    let impossible = |code, message| Err(NotPerformed::Fact(Box::new(never(attempt, code, message))));
    let entry = daemon.catalogue.engine(&run.settings.engine);
    let entry = entry.map(|entry| entry.with_stored_command(run.command.as_ref()));
    let Some(InstalledEngine { engine, installation, .. }) = entry else {
        let message = format!("there is no engine {} any more; see `abide doctor`", run.settings.engine);
        return impossible(FailureCode::EngineNotFound, message);
    };
    let folders = RunFolders::of(run, engine.skills_folder(), private_dir(daemon.private, run.run_id));
    if let (None, Some(skill)) = (&folders.skill, &run.settings.skill) {
        let message =
            format!("the skill {skill:?} must be a folder with a name of its own that is not hidden");
        return impossible(FailureCode::WorkspaceUnusable, message);
    }
    let turn = run.turns.last();
    let context = turn.and_then(|turn| launch_context(run, turn, attempt, &installation, &folders));
    let (Some(context), Some(turn)) = (context, turn) else {
        let message = "the ledger does not contain the launch of this attempt".to_owned();
        return impossible(FailureCode::EngineFailed, message);
    };
    let prepared = contained(|| engine.launch(&context).map(|spec| (spec, engine.interpreter(&context))));
    let (spec, interpreter) = match prepared {
        None => return impossible(FailureCode::EngineFailed, BROKE.to_owned()),
        Some(Err(unsupported)) => {
            let code = match context.session {
                LaunchSession::Resumed(_) => FailureCode::SessionResumeFailed,
                LaunchSession::New | LaunchSession::Named(_) => FailureCode::EngineFailed,
            };
            return impossible(code, unsupported.to_string());
        }
        Some(Ok(prepared)) => prepared,
    };
    if let Some(at) = spec.not_before.filter(|at| *at > daemon.clock.stamp().at) {
        return Err(NotPerformed::NotBefore(at));
    }
    let session = ProcessSession::new(engine.name(), attempt, vec![turn.turn_id], interpreter);
    let launch = PreparedLaunch {
        attempt,
        spec,
        workspace: run.settings.workspace.clone(),
        mode: run.settings.execution_mode,
        pass_env: installation.pass_env.clone(),
        run: run.run_id.to_string(),
        name: process_name(run.run_id, attempt),
        isolation: context.isolation,
        engine,
        folders,
    };
    Ok((Box::new(launch), session))
}

/// The session of a process that an earlier daemon started. `first` is the first turn of the process. None if the
/// engine or the launch is not known any more.
pub(crate) fn session_of(
    run: &Run,
    attempt: Attempt,
    (first, turns): (&Turn, Vec<TurnId>),
    daemon: &ActorContext<'_>,
) -> Option<ProcessSession> {
    let entry = daemon.catalogue.engine(&run.settings.engine)?.with_stored_command(run.command.as_ref());
    let private_dir = private_dir(daemon.private, run.run_id);
    let folders = RunFolders::of(run, entry.engine.skills_folder(), private_dir);
    let context = launch_context(run, first, attempt, &entry.installation, &folders)?;
    let interpreter = contained(|| entry.engine.interpreter(&context))?;
    Some(ProcessSession::new(entry.engine.name(), attempt, turns, interpreter))
}

/// The private directory of a run.
fn private_dir(parent: &str, run: RunId) -> String {
    format!("{parent}/{run}")
}

/// The name of an attempt's process.
pub fn process_name(run: RunId, attempt: Attempt) -> String {
    format!("{run}-{}", attempt.0)
}

/// Parses the name of an attempt's process.
pub fn parse_process_name(name: &str) -> Option<(RunId, Attempt)> {
    let (run, attempt) = name.rsplit_once('-')?;
    Some((run.parse().ok()?, Attempt(attempt.parse().ok()?)))
}
