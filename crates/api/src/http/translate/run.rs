//! Converts run requests to domain settings, and runs to wire types.

use abide_domain::{
    engine::ProfileKind,
    run::{Run, RunState, RunStatus},
    settings::{DEFAULT_SESSION_TIMEOUT, ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::{Seconds, Timestamp},
};
use abide_ports::engine::IsolationMode;
use abide_wire::run as wire;

use super::{failure, time};

/// Converts a request to settings and the first prompt.
pub(in crate::http) fn settings(new: wire::CreateRunRequest, workspace: String) -> (RunSettings, String) {
    let options = new.options;
    let strict = options.interactive_require_user_reply.unwrap_or(true);
    let settings = RunSettings {
        engine: new.engine,
        workspace,
        execution_mode: match new.execution_mode.unwrap_or(wire::ExecutionModeValue::Interactive) {
            wire::ExecutionModeValue::Auto => ExecutionMode::Auto,
            wire::ExecutionModeValue::Interactive => ExecutionMode::Interactive,
            wire::ExecutionModeValue::Chat => ExecutionMode::Chat,
        },
        conversation_ref: new.conversation_ref,
        unanswered: if strict { UnansweredPolicy::Strict } else { UnansweredPolicy::AutoDecide },
        session_timeout_sec: options.session_timeout_sec.map_or(DEFAULT_SESSION_TIMEOUT, Seconds),
        turn_timeout_sec: options.turn_timeout_sec.map(Seconds),
        on_busy: options.on_busy.map_or(OnBusy::Queue, on_busy),
        model: options.model,
        sandbox: options.sandbox.map(|sandbox| {
            let word = match sandbox {
                wire::SandboxValue::ReadOnly => "read-only",
                wire::SandboxValue::WorkspaceWrite => "workspace-write",
                wire::SandboxValue::DangerFullAccess => "danger-full-access",
            };
            word.to_owned()
        }),
        isolation: options.isolation.map(|value| isolation(value).name().to_owned()),
        skill: new.skill,
        labels: new.labels,
    };
    (settings, new.prompt)
}

pub(in crate::http) fn isolation(isolation: wire::IsolationValue) -> IsolationMode {
    match isolation {
        wire::IsolationValue::Auto => IsolationMode::Auto,
        wire::IsolationValue::Namespace => IsolationMode::Namespace,
        wire::IsolationValue::Landlock => IsolationMode::Landlock,
        wire::IsolationValue::Off => IsolationMode::Off,
    }
}

pub(in crate::http) fn on_busy(on_busy: wire::OnBusyValue) -> OnBusy {
    match on_busy {
        wire::OnBusyValue::Queue => OnBusy::Queue,
        wire::OnBusyValue::Steer => OnBusy::Steer,
        wire::OnBusyValue::Supersede => OnBusy::Supersede,
    }
}

pub(in crate::http) fn status(status: wire::RunStatusValue) -> RunStatus {
    match status {
        wire::RunStatusValue::Queued => RunStatus::Queued,
        wire::RunStatusValue::Running => RunStatus::Running,
        wire::RunStatusValue::WaitingUser => RunStatus::WaitingUser,
        wire::RunStatusValue::Idle => RunStatus::Idle,
        wire::RunStatusValue::Succeeded => RunStatus::Succeeded,
        wire::RunStatusValue::Failed => RunStatus::Failed,
        wire::RunStatusValue::Canceled => RunStatus::Canceled,
    }
}

fn options(settings: &RunSettings) -> wire::RunOptions {
    wire::RunOptions {
        interactive_require_user_reply: Some(match settings.unanswered {
            UnansweredPolicy::Strict => true,
            UnansweredPolicy::AutoDecide => false,
        }),
        session_timeout_sec: Some(settings.session_timeout_sec.0),
        turn_timeout_sec: settings.turn_timeout_sec.map(|limit| limit.0),
        on_busy: Some(on_busy_value(settings.on_busy)),
        model: settings.model.clone(),
        sandbox: settings.sandbox.as_deref().and_then(|word| match word {
            "read-only" => Some(wire::SandboxValue::ReadOnly),
            "workspace-write" => Some(wire::SandboxValue::WorkspaceWrite),
            "danger-full-access" => Some(wire::SandboxValue::DangerFullAccess),
            _ => None,
        }),
        isolation: settings.isolation.as_deref().and_then(IsolationMode::from_name).map(|mode| match mode {
            IsolationMode::Auto => wire::IsolationValue::Auto,
            IsolationMode::Namespace => wire::IsolationValue::Namespace,
            IsolationMode::Landlock => wire::IsolationValue::Landlock,
            IsolationMode::Off => wire::IsolationValue::Off,
        }),
    }
}

/// Converts a run. Values that only the daemon has are passed as further arguments.
pub(in crate::http) fn run(
    run: &Run,
    queue_position: Option<usize>,
    stalled_since: Option<Timestamp>,
) -> wire::RunView {
    let settings = &run.settings;
    wire::RunView {
        run_id: run.run_id.to_string(),
        engine: settings.engine.clone(),
        workspace: settings.workspace.clone(),
        execution_mode: execution_mode(settings.execution_mode),
        status: match run.status() {
            RunStatus::Queued => wire::RunStatusValue::Queued,
            RunStatus::Running => wire::RunStatusValue::Running,
            RunStatus::WaitingUser => wire::RunStatusValue::WaitingUser,
            RunStatus::Idle => wire::RunStatusValue::Idle,
            RunStatus::Succeeded => wire::RunStatusValue::Succeeded,
            RunStatus::Failed => wire::RunStatusValue::Failed,
            RunStatus::Canceled => wire::RunStatusValue::Canceled,
        },
        error: run.error().map(failure),
        turn_index: run.turn_index,
        pending_interaction_id: run.pending_interaction_id().map(|id| id.to_string()),
        profile: run.profile.as_ref().map(|profile| wire::ProfileView {
            kind: profile_kind(profile.kind),
            reason: profile.reason.clone(),
            session_timeout_sec: profile.session_timeout_sec.0,
        }),
        engine_session: run.handle.as_ref().map(|handle| handle.handle_value.clone()),
        wait_deadline_at: match &run.state {
            RunState::WaitingUser(waiting) => waiting.deadline.map(time),
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => None,
        },
        auto_decision_count: run.auto_decision_count,
        last_auto_decision_at: run.last_auto_decision_at.map(time),
        conversation_ref: settings.conversation_ref.clone(),
        result: run.result.clone().map(|text| wire::RunResultView { text }),
        labels: settings.labels.clone(),
        skill: settings.skill.clone(),
        options: options(settings),
        queue_position: queue_position.and_then(|position| u64::try_from(position).ok()),
        stalled_since: stalled_since.map(time),
        blocked_reason: None,
        created_at: time(run.created_at),
        updated_at: time(run.updated_at),
    }
}

/// Reduces a run to the facts that were known at its creation, for a client that may not read runs.
pub(in crate::http) fn run_at_creation(run: wire::RunView) -> wire::RunView {
    wire::RunView {
        status: wire::RunStatusValue::Queued,
        error: None,
        turn_index: 0,
        pending_interaction_id: None,
        profile: None,
        engine_session: None,
        wait_deadline_at: None,
        auto_decision_count: 0,
        last_auto_decision_at: None,
        result: None,
        queue_position: None,
        stalled_since: None,
        blocked_reason: None,
        updated_at: run.created_at.clone(),
        // Listed, so that a new field is placed here too.
        run_id: run.run_id,
        engine: run.engine,
        workspace: run.workspace,
        execution_mode: run.execution_mode,
        conversation_ref: run.conversation_ref,
        labels: run.labels,
        skill: run.skill,
        options: run.options,
        created_at: run.created_at,
    }
}

pub(super) fn on_busy_value(on_busy: OnBusy) -> wire::OnBusyValue {
    match on_busy {
        OnBusy::Queue => wire::OnBusyValue::Queue,
        OnBusy::Steer => wire::OnBusyValue::Steer,
        OnBusy::Supersede => wire::OnBusyValue::Supersede,
    }
}

pub(super) fn execution_mode(mode: ExecutionMode) -> wire::ExecutionModeValue {
    match mode {
        ExecutionMode::Auto => wire::ExecutionModeValue::Auto,
        ExecutionMode::Interactive => wire::ExecutionModeValue::Interactive,
        ExecutionMode::Chat => wire::ExecutionModeValue::Chat,
    }
}

pub(in crate::http) fn profile_kind(kind: ProfileKind) -> wire::ProfileKindValue {
    match kind {
        ProfileKind::Resumable => wire::ProfileKindValue::Resumable,
        ProfileKind::StickyProcess => wire::ProfileKindValue::StickyProcess,
    }
}
