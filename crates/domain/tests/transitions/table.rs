//! The results of all pairs of state and event.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use abide_domain::{
    delivery::DeliveryStatus,
    inbound::InboundStatus,
    interaction::InteractionState,
    ledger::ChangedRows,
    refused::RequestRefused,
    run::{ApplyOutcome, Run, RunStep},
    turn::ExecutionStatus,
};

/// Observations, in an order that does not depend on the time at which they were made.
#[derive(Default)]
pub(crate) struct TransitionTable {
    runs: BTreeMap<(String, &'static str), BTreeSet<String>>,
    /// For each smaller state machine, the observed transitions between statuses.
    pub(crate) parts: BTreeMap<&'static str, BTreeSet<(String, String)>>,
}

/// The states of a run with their phases, in the order of its life cycle.
pub(crate) const STATES: [&str; 14] = [
    "queued",
    "running.probing",
    "running.launching",
    "running.active",
    "running.stopping",
    "running.recovering",
    "waiting_user.free",
    "waiting_user.session",
    "waiting_user.turn",
    "idle.free",
    "idle.session",
    "succeeded",
    "failed",
    "canceled",
];

impl TransitionTable {
    pub(crate) fn record(
        &mut self,
        before: &Run,
        label: &'static str,
        result: Result<RunStep, RequestRefused>,
    ) {
        let outcome = match &result {
            Ok(RunStep { outcome: ApplyOutcome::Ignored, .. }) => "absorbed".to_owned(),
            Ok(step) => step.run.state.detail(),
            Err(refused) => format!("refused: {}", reason(refused)),
        };
        self.runs.entry((before.state.detail(), label)).or_default().insert(outcome);
        if let Ok(step) = &result {
            self.record_parts(before, &step.run);
        }
    }

    fn record_parts(&mut self, before: &Run, after: &Run) {
        let rows = ChangedRows::between(Some(before), after);
        for turn in rows.turns(after) {
            let earlier = before.turns.iter().find(|it| it.turn_id == turn.turn_id);
            let name = |status: ExecutionStatus| serde_name(&status);
            self.record_transition(
                "turn",
                earlier.map(|it| name(it.execution_status)),
                name(turn.execution_status),
            );
        }
        for question in rows.interactions(after) {
            let earlier = before.interactions.iter().find(|it| it.interaction_id == question.interaction_id);
            let name = |state: &InteractionState| state.name().to_owned();
            self.record_transition("interaction", earlier.map(|it| name(&it.state)), name(&question.state));
        }
        for delivery in rows.deliveries(after) {
            let earlier = before.deliveries.iter().find(|it| it.delivery_id == delivery.delivery_id);
            let name = |status: DeliveryStatus| serde_name(&status);
            self.record_transition("delivery", earlier.map(|it| name(it.status)), name(delivery.status));
        }
        for inbound in rows.inbound(after) {
            let earlier = before.inbox.iter().find(|it| it.message.key == inbound.message.key);
            let name = |status: InboundStatus| serde_name(&status);
            self.record_transition(
                "inbound",
                earlier.map(|it| name(it.execution_status)),
                name(inbound.execution_status),
            );
        }
    }

    fn record_transition(&mut self, part: &'static str, from: Option<String>, to: String) {
        let from = from.unwrap_or_else(|| "[*]".to_owned());
        if from != to {
            self.parts.entry(part).or_default().insert((from, to));
        }
    }

    /// Transitions of the run itself, with the events that cause them.
    pub(crate) fn transitions(&self) -> BTreeMap<(&str, &str), BTreeSet<&'static str>> {
        let mut moves: BTreeMap<(&str, &str), BTreeSet<&'static str>> = BTreeMap::new();
        for ((from, label), outcomes) in &self.runs {
            for to in outcomes.iter().filter(|to| STATES.contains(&to.as_str()) && *to != from) {
                moves.entry((from, to)).or_default().insert(label);
            }
        }
        moves
    }

    /// Pairs that were not observed.
    pub(crate) fn missing(&self) -> Vec<String> {
        let labels: BTreeSet<_> = self.runs.keys().map(|(_, label)| *label).collect();
        let mut missing = vec![];
        for state in STATES {
            for label in &labels {
                // Only a waiting run has a question, and only some states have a deadline.
                let needs_more = matches!(
                    *label,
                    "ReplyArrived" | "ReplyArrived (no)" | "ReplyArrived (stop)" | "DeadlinePassed"
                );
                if !needs_more && !self.runs.contains_key(&(state.to_owned(), label)) {
                    missing.push(format!("{state} x {label}"));
                }
            }
        }
        missing
    }
}

impl fmt::Display for TransitionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# The effect of every event on a run in every state. Written by a test; see tests/transitions."
        )?;
        for state in STATES {
            writeln!(f, "\n{state}")?;
            for ((_, label), outcomes) in self.runs.iter().filter(|((from, _), _)| from == state) {
                let outcomes: Vec<_> = outcomes.iter().map(String::as_str).collect();
                writeln!(f, "  {label:<34} {}", outcomes.join(" | "))?;
            }
        }
        Ok(())
    }
}

fn reason(refused: &RequestRefused) -> &'static str {
    match refused {
        RequestRefused::NoSuchRun => "the run does not exist",
        RequestRefused::RunExists => "the run already exists",
        RequestRefused::RunFinished { .. } => "the run has ended",
        RequestRefused::StaleInteraction { .. } => "the question is not open",
        RequestRefused::IdempotencyConflict { .. } => "another text under the same key",
        RequestRefused::NotQueued { .. } => "the run does not wait for a slot",
        RequestRefused::NothingToInterrupt { .. } => "no turn is running",
        RequestRefused::ApprovalUnclear { .. } => "the answer is neither a yes nor a no",
        RequestRefused::ApprovalNotShown { .. } => "the approval covers more than is shown",
        RequestRefused::InboxFull { .. } => "too many messages are waiting",
    }
}

/// The ledger's name of a status.
fn serde_name(status: &impl serde::Serialize) -> String {
    serde_json::to_value(status).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
