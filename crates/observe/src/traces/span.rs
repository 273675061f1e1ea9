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
use abide_ports::observer::{AttemptSummary, CompletedItem, CompletedRun, CompletedTurn};
use serde_json::{Value, json};

/// Returns the spans of a completed item.
pub(super) fn spans_of(item: &CompletedItem) -> Vec<Value> {
    match item {
        CompletedItem::Run(run) => vec![run_span(run)],
        CompletedItem::Turn(turn) => {
            let attempts = turn.attempts.iter().map(|attempt| attempt_span(turn, attempt));
            std::iter::once(turn_span(turn)).chain(attempts).collect()
        }
        CompletedItem::Delivery(_) => vec![],
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

fn run_span(run: &CompletedRun) -> Value {
    let attributes = vec![
        text("abide.run", &run.run_id.to_string()),
        text("abide.engine", &run.engine),
        text("abide.status", run.status.name()),
        number("abide.turns", run.turns.into()),
    ];
    encode_span(OtlpSpan {
        run: run.run_id,
        id: span_id(run.run_id.0),
        parent: None,
        name: "run",
        from: run.created_at,
        to: run.ended_at,
        attributes,
        failed: run.status == RunStatus::Failed,
    })
}

fn turn_span(turn: &CompletedTurn) -> Value {
    let attributes = vec![
        text("abide.run", &turn.run_id.to_string()),
        text("abide.engine", &turn.engine),
        text("abide.turn", &turn.turn_id.to_string()),
        number("abide.turn_index", turn.turn_index.into()),
        text("abide.outcome", turn.status.name()),
    ];
    encode_span(OtlpSpan {
        run: turn.run_id,
        id: span_id(turn.turn_id.0),
        parent: Some(span_id(turn.run_id.0)),
        name: "turn",
        from: turn.started_at,
        to: turn.ended_at,
        attributes,
        failed: turn.status == ExecutionStatus::Failed,
    })
}

fn attempt_span(turn: &CompletedTurn, attempt: &AttemptSummary) -> Value {
    let mut attributes = vec![
        text("abide.run", &turn.run_id.to_string()),
        text("abide.engine", &turn.engine),
        number("abide.attempt", attempt.attempt.0.into()),
    ];
    let failed = match attempt.exit {
        Some(ExitStatus::Code(code)) => {
            attributes.push(number("process.exit.code", code.into()));
            code != 0
        }
        Some(ExitStatus::Unknown) => true,
        None => false,
    };
    encode_span(OtlpSpan {
        run: turn.run_id,
        id: attempt_span_id(turn.turn_id, attempt.attempt),
        parent: Some(span_id(turn.turn_id.0)),
        name: "attempt",
        from: attempt.started_at,
        to: attempt.ended_at,
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

fn encode_span(span: OtlpSpan) -> Value {
    let nanos = |at: Timestamp| (i128::from(at.0) * 1_000).max(0).to_string();
    let hex = |id: u64| format!("{id:016x}");
    let mut encoded = json!({
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
        encoded["parentSpanId"] = hex(parent).into();
    }
    encoded
}

/// OTLP enum values.
const INTERNAL: u8 = 1;
const OK: u8 = 1;
const ERROR: u8 = 2;

/// Derives a span id; 0 is invalid in OTLP.
fn span_id(fresh: IdSeed) -> u64 {
    (fresh.0 as u64).max(1)
}

/// Derives the span id of an attempt, distinct from those of its turn and of other attempts.
fn attempt_span_id(turn: TurnId, attempt: Attempt) -> u64 {
    span_id(turn.0).wrapping_add(u64::from(attempt.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: i64) -> Value {
    // OTLP JSON encodes 64-bit integers as strings.
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}
