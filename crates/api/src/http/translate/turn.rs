//! Converts turns and their attempts to wire types.

use abide_domain::{
    process::ExitStatus,
    turn::{AttemptRecord, Turn, TurnTrigger},
};
use abide_wire::run as wire;

use super::{failure, serde_name, time};

pub(in crate::http) fn turn(turn: &Turn) -> wire::TurnView {
    let (message_id, interaction_id) = match &turn.trigger {
        TurnTrigger::Message(key) => (Some(key.message_id.clone()), None),
        TurnTrigger::Reply(interaction) => (None, Some(interaction.to_string())),
    };
    let superseded = turn.superseded.as_ref();
    wire::TurnView {
        turn_id: turn.turn_id.to_string(),
        run_id: turn.run_id.to_string(),
        turn_index: turn.turn_index,
        message_id,
        interaction_id,
        prompt_preview: turn.prompt_preview(),
        execution_status: serde_name(&turn.execution_status),
        runtime_status: serde_name(&turn.runtime_status),
        reply: turn.reply.clone(),
        reply_preview: turn.reply_preview(),
        error: turn.error.as_ref().map(failure),
        started_at: time(turn.started_at),
        result_persisted_at: turn.result_persisted_at.map(time),
        delivery_status: serde_name(&turn.delivery_status),
        delivered_at: turn.delivered_at.map(time),
        superseded_by_message_id: superseded.map(|it| it.by_message.message_id.clone()),
        superseded_by_turn_id: superseded.and_then(|it| it.by_turn).map(|turn| turn.to_string()),
        superseded_reason: superseded.map(|it| it.reason.clone()),
        attempts: turn.attempts.iter().map(attempt).collect(),
    }
}

fn attempt(record: &AttemptRecord) -> wire::AttemptView {
    wire::AttemptView {
        attempt: record.attempt.0,
        pid: record.process.as_ref().map(|process| process.pid),
        started_at: record.started_at.map(time),
        ended_at: record.ended_at.map(time),
        exit_code: record.exit.and_then(exit_code),
    }
}

/// Returns the exit code, if it is known.
pub(super) fn exit_code(exit: ExitStatus) -> Option<i32> {
    match exit {
        ExitStatus::Code(code) => Some(code),
        ExitStatus::Unknown => None,
    }
}
