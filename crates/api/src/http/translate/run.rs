//! Runs: what a client asks for as the domain's settings, and a run as it is shown.

use abide_domain::{
    engine::ProfileKind,
    run::{Run, RunState, Status},
    settings::{DEFAULT_SESSION_TIMEOUT, ExecutionMode, OnBusy, Settings, Unanswered},
    time::{Seconds, Timestamp},
};
use abide_wire::run as wire;

use super::{failure, time};

/// What a run was asked to be, in this workspace.
pub(in crate::http) fn settings(new: wire::NewRun, workspace: String) -> (Settings, String) {
    let options = new.options;
    let strict = options.interactive_require_user_reply.unwrap_or(true);
    let settings = Settings {
        engine: new.engine,
        workspace,
        execution_mode: match new.execution_mode.unwrap_or(wire::ExecutionMode::Interactive) {
            wire::ExecutionMode::Auto => ExecutionMode::Auto,
            wire::ExecutionMode::Interactive => ExecutionMode::Interactive,
            wire::ExecutionMode::Chat => ExecutionMode::Chat,
        },
        conversation_ref: new.conversation_ref,
        unanswered: if strict { Unanswered::Strict } else { Unanswered::AutoDecide },
        session_timeout_sec: options.session_timeout_sec.map_or(DEFAULT_SESSION_TIMEOUT, Seconds),
        turn_timeout_sec: options.turn_timeout_sec.map(Seconds),
        on_busy: options.on_busy.map_or(OnBusy::Queue, on_busy),
        model: options.model,
        sandbox: options.sandbox.map(|sandbox| {
            let word = match sandbox {
                wire::Sandbox::ReadOnly => "read-only",
                wire::Sandbox::WorkspaceWrite => "workspace-write",
                wire::Sandbox::DangerFullAccess => "danger-full-access",
            };
            word.to_owned()
        }),
        isolation: options.isolation.map(|isolation| {
            let word = match isolation {
                wire::Isolation::Auto => "auto",
                wire::Isolation::Namespace => "namespace",
                wire::Isolation::Landlock => "landlock",
                wire::Isolation::Off => "off",
            };
            word.to_owned()
        }),
        skill: new.skill,
        labels: new.labels,
    };
    (settings, new.prompt)
}

/// What a message does that finds a turn at work.
pub(in crate::http) fn on_busy(on_busy: wire::OnBusy) -> OnBusy {
    match on_busy {
        wire::OnBusy::Queue => OnBusy::Queue,
        wire::OnBusy::Steer => OnBusy::Steer,
        wire::OnBusy::Supersede => OnBusy::Supersede,
    }
}

/// A status that a client asks for.
pub(in crate::http) fn status(status: wire::RunStatus) -> Status {
    match status {
        wire::RunStatus::Queued => Status::Queued,
        wire::RunStatus::Running => Status::Running,
        wire::RunStatus::WaitingUser => Status::WaitingUser,
        wire::RunStatus::Idle => Status::Idle,
        wire::RunStatus::Succeeded => Status::Succeeded,
        wire::RunStatus::Failed => Status::Failed,
        wire::RunStatus::Canceled => Status::Canceled,
    }
}

/// The options that hold for a run.
fn options(settings: &Settings) -> wire::RunOptions {
    wire::RunOptions {
        interactive_require_user_reply: Some(match settings.unanswered {
            Unanswered::Strict => true,
            Unanswered::AutoDecide => false,
        }),
        session_timeout_sec: Some(settings.session_timeout_sec.0),
        turn_timeout_sec: settings.turn_timeout_sec.map(|limit| limit.0),
        on_busy: Some(match settings.on_busy {
            OnBusy::Queue => wire::OnBusy::Queue,
            OnBusy::Steer => wire::OnBusy::Steer,
            OnBusy::Supersede => wire::OnBusy::Supersede,
        }),
        model: settings.model.clone(),
        sandbox: settings.sandbox.as_deref().and_then(|word| match word {
            "read-only" => Some(wire::Sandbox::ReadOnly),
            "workspace-write" => Some(wire::Sandbox::WorkspaceWrite),
            "danger-full-access" => Some(wire::Sandbox::DangerFullAccess),
            _ => None,
        }),
        isolation: settings.isolation.as_deref().and_then(|word| match word {
            "auto" => Some(wire::Isolation::Auto),
            "namespace" => Some(wire::Isolation::Namespace),
            "landlock" => Some(wire::Isolation::Landlock),
            "off" => Some(wire::Isolation::Off),
            _ => None,
        }),
    }
}

/// A run as it stands. What only the daemon knows of it comes beside it.
pub(in crate::http) fn run(
    run: &Run,
    queue_position: Option<usize>,
    stalled_since: Option<Timestamp>,
) -> wire::Run {
    let settings = &run.settings;
    wire::Run {
        run_id: run.run_id.to_string(),
        engine: settings.engine.clone(),
        workspace: settings.workspace.clone(),
        execution_mode: match settings.execution_mode {
            ExecutionMode::Auto => wire::ExecutionMode::Auto,
            ExecutionMode::Interactive => wire::ExecutionMode::Interactive,
            ExecutionMode::Chat => wire::ExecutionMode::Chat,
        },
        status: match run.status() {
            Status::Queued => wire::RunStatus::Queued,
            Status::Running => wire::RunStatus::Running,
            Status::WaitingUser => wire::RunStatus::WaitingUser,
            Status::Idle => wire::RunStatus::Idle,
            Status::Succeeded => wire::RunStatus::Succeeded,
            Status::Failed => wire::RunStatus::Failed,
            Status::Canceled => wire::RunStatus::Canceled,
        },
        error: run.error().map(failure),
        turn_index: run.turn_index,
        pending_interaction_id: run.pending_interaction_id().map(|id| id.to_string()),
        profile: run.profile.as_ref().map(|profile| wire::Profile {
            kind: match profile.kind {
                ProfileKind::Resumable => wire::ProfileKind::Resumable,
                ProfileKind::StickyProcess => wire::ProfileKind::StickyProcess,
            },
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
        result: run.result.clone().map(|text| wire::RunResult { text }),
        labels: settings.labels.clone(),
        skill: settings.skill.clone(),
        options: options(settings),
        queue_position: queue_position.and_then(|position| u64::try_from(position).ok()),
        stalled_since: stalled_since.map(time),
        held_back: None,
        created_at: time(run.created_at),
        updated_at: time(run.updated_at),
    }
}
