//! Converts completed items to OTLP spans: attempts within turns within runs.
//!
//! Ids are derived from our own, so the next daemon can continue a trace. The trace id is the number of the run, and a
//! span id is the low half of the item's own random number.

use abide_domain::{
    id::{IdSeed, RunId, TurnId},
    process::{Attempt, ExitStatus},
    run::RunStatus,
    time::Timestamp,
    turn::ExecutionStatus,
};
use abide_ports::watch::{AttemptSummary, CompletedItem, CompletedRun, CompletedTurn};
use serde_json::{Value, json};

/// Returns the spans of a completed item.
pub(super) fn of(milestone: &CompletedItem) -> Vec<Value> {
    match milestone {
        CompletedItem::Run(run) => vec![of_run(run)],
        CompletedItem::Turn(turn) => {
            let attempts = turn.attempts.iter().map(|attempt| of_attempt(turn, attempt));
            std::iter::once(of_turn(turn)).chain(attempts).collect()
        }
        CompletedItem::Delivered(_) => vec![],
    }
}

/// Returns the export request for these spans.
pub(super) fn request(spans: Vec<Value>) -> Value {
    let resource = [text("service.name", "abide"), text("service.version", env!("CARGO_PKG_VERSION"))];
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "abide" }, "spans": spans }],
    }] })
}

fn of_run(run: &CompletedRun) -> Value {
    let attributes = vec![
        text("abide.run", &run.run_id.to_string()),
        text("abide.engine", &run.engine),
        text("abide.status", run.status.name()),
        number("abide.turns", run.turns.into()),
    ];
    span(OtlpSpan {
        run: run.run_id,
        id: of_fresh(run.run_id.0),
        parent: None,
        name: "run",
        from: run.created_at,
        to: run.ended_at,
        attributes,
        failed: run.status == RunStatus::Failed,
    })
}

fn of_turn(turn: &CompletedTurn) -> Value {
    let attributes = vec![
        text("abide.run", &turn.run_id.to_string()),
        text("abide.engine", &turn.engine),
        text("abide.turn", &turn.turn_id.to_string()),
        number("abide.turn_index", turn.turn_index.into()),
        text("abide.outcome", turn.status.name()),
    ];
    span(OtlpSpan {
        run: turn.run_id,
        id: of_fresh(turn.turn_id.0),
        parent: Some(of_fresh(turn.run_id.0)),
        name: "turn",
        from: turn.started_at,
        to: turn.ended_at,
        attributes,
        failed: turn.status == ExecutionStatus::Failed,
    })
}

fn of_attempt(turn: &CompletedTurn, seen: &AttemptSummary) -> Value {
    let mut attributes = vec![
        text("abide.run", &turn.run_id.to_string()),
        text("abide.engine", &turn.engine),
        number("abide.attempt", seen.attempt.0.into()),
    ];
    let failed = match seen.exit {
        Some(ExitStatus::Code(code)) => {
            attributes.push(number("process.exit.code", code.into()));
            code != 0
        }
        Some(ExitStatus::Unseen) => true,
        None => false,
    };
    span(OtlpSpan {
        run: turn.run_id,
        id: of_launch(turn.turn_id, seen.attempt),
        parent: Some(of_fresh(turn.turn_id.0)),
        name: "attempt",
        from: seen.started_at,
        to: seen.ended_at,
        attributes,
        failed,
    })
}

struct OtlpSpan {
    run: RunId,
    id: u64,
    parent: Option<u64>,
    name: &'static str,
    from: Timestamp,
    to: Timestamp,
    attributes: Vec<Value>,
    failed: bool,
}

fn span(span: OtlpSpan) -> Value {
    let nanos = |at: Timestamp| (i128::from(at.0) * 1_000).max(0).to_string();
    let hex = |id: u64| format!("{id:016x}");
    let mut told = json!({
        "traceId": format!("{:032x}", span.run.0.0),
        "spanId": hex(span.id),
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": nanos(span.from),
        "endTimeUnixNano": nanos(span.to),
        "attributes": span.attributes,
        "status": { "code": if span.failed { ERROR } else { OK } },
    });
    if let Some(parent) = span.parent {
        told["parentSpanId"] = hex(parent).into();
    }
    told
}

/// OTLP enum values.
const INTERNAL: u8 = 1;
const OK: u8 = 1;
const ERROR: u8 = 2;

/// Derives a span id; 0 is invalid in OTLP.
fn of_fresh(fresh: IdSeed) -> u64 {
    (fresh.0 as u64).max(1)
}

/// Derives the span id of an attempt, distinct from those of its turn and of other attempts.
fn of_launch(turn: TurnId, attempt: Attempt) -> u64 {
    of_fresh(turn.0).wrapping_add(u64::from(attempt.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: i64) -> Value {
    // OTLP JSON encodes 64-bit integers as strings.
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}
