//! The metric families: names, descriptions, labels and histogram buckets.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// All metric families and the registry that encodes them.
pub(super) struct MetricFamilies {
    registry: Registry,
    pub(super) queued: Gauge,
    pub(super) slots_held: Gauge,
    pub(super) slots_max: Gauge,
    pub(super) interactions_open: Gauge,
    pub(super) oldest_interaction_age: Gauge<f64, AtomicU64>,
    pub(super) runs: Family<StatusLabel, Gauge>,
    pub(super) runs_finished: Family<OutcomeLabel, Counter>,
    pub(super) turns: Family<OutcomeLabel, Counter>,
    pub(super) turn_seconds: Histogram,
    pub(super) turns_stalled: Gauge,
    pub(super) delivery_lag_seconds: Histogram,
    pub(super) commit_seconds: Histogram,
    pub(super) commits_failed: Counter,
    pub(super) journal_head: Gauge,
    pub(super) stream_readers: Gauge,
    pub(super) requests: Family<RequestLabels, Counter>,
    pub(super) removed: Family<KindLabel, Counter>,
    pub(super) dropped: Family<KindLabel, Counter>,
    pub(super) resident_bytes: Gauge,
    pub(super) ready: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StatusLabel {
    pub(super) status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabel {
    pub(super) outcome: &'static str,
}

/// Kind of a removed or dropped item.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabel {
    pub(super) kind: &'static str,
}

/// Labels of a request. The route is the template, never the path: paths would make the number of series unbounded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) method: &'static str,
    pub(super) route: String,
    pub(super) status: u16,
}

/// All outcomes of a turn. Each series is created at start, so that an outcome without turns is exported as 0.
pub(super) const OUTCOMES: [&str; 6] =
    ["completed", "failed", "interrupted", "recovery_required", "superseded", "waiting_user_input"];

/// Seconds; from 0.25 ms to 2 s.
const COMMIT_BUCKETS_SEC: [f64; 14] =
    [0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048];
/// Seconds; from 0.1 s to one day.
const DURATION_BUCKETS_SEC: [f64; 12] =
    [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0];

impl MetricFamilies {
    pub(super) fn new() -> Self {
        let families = Self {
            registry: Registry::with_prefix("abide"),
            queued: Gauge::default(),
            slots_held: Gauge::default(),
            slots_max: Gauge::default(),
            interactions_open: Gauge::default(),
            oldest_interaction_age: Gauge::default(),
            runs: Family::default(),
            runs_finished: Family::default(),
            turns: Family::default(),
            turn_seconds: Histogram::new(DURATION_BUCKETS_SEC),
            turns_stalled: Gauge::default(),
            delivery_lag_seconds: Histogram::new(DURATION_BUCKETS_SEC),
            commit_seconds: Histogram::new(COMMIT_BUCKETS_SEC),
            commits_failed: Counter::default(),
            journal_head: Gauge::default(),
            stream_readers: Gauge::default(),
            requests: Family::default(),
            removed: Family::default(),
            dropped: Family::default(),
            resident_bytes: Gauge::default(),
            ready: Gauge::default(),
        };
        for outcome in OUTCOMES {
            // Creates the series, so that an outcome without turns is exported as 0.
            families.turns(outcome);
        }
        families.register_all()
    }

    fn register_all(mut self) -> Self {
        let r = &mut self.registry;
        r.register("queue_depth", "Runs that wait for a slot", self.queued.clone());
        r.register("slots_held", "Slots in use", self.slots_held.clone());
        r.register("slots_max", "Number of slots", self.slots_max.clone());
        r.register("interactions_open", "Questions that wait for a person", self.interactions_open.clone());
        r.register_with_unit(
            "interactions_oldest_age",
            "How long the oldest open question has waited",
            Unit::Seconds,
            self.oldest_interaction_age.clone(),
        );
        r.register("runs", "Runs by status, finished ones included", self.runs.clone());
        r.register("runs_finished", "Runs that ended since this process started", self.runs_finished.clone());
        r.register("turns", "Turns that ended since this process started", self.turns.clone());
        r.register_with_unit(
            "turn_duration",
            "From a turn's beginning to its durable ending",
            Unit::Seconds,
            self.turn_seconds.clone(),
        );
        r.register(
            "turns_stalled",
            "Running turns without output for longer than stall_after_sec",
            self.turns_stalled.clone(),
        );
        r.register_with_unit(
            "delivery_lag",
            "From a result or question to its arrival in the conversation",
            Unit::Seconds,
            self.delivery_lag_seconds.clone(),
        );
        r.register_with_unit(
            "commit_duration",
            "Time to commit a transaction",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        r.register("commits_failed", "Commits that failed", self.commits_failed.clone());
        r.register("journal_head", "The journal's latest position", self.journal_head.clone());
        r.register("stream_readers", "Clients that read a stream of events", self.stream_readers.clone());
        r.register("http_requests", "Requests by route and status", self.requests.clone());
        r.register("retention_removed", "Files and directories removed by retention", self.removed.clone());
        r.register("dropped", "Log lines and trace spans that were dropped", self.dropped.clone());
        r.register_with_unit(
            "process_resident_memory",
            "Resident memory of this process",
            Unit::Bytes,
            self.resident_bytes.clone(),
        );
        r.register("ready", "Whether recovery at start-up is complete (1) or not (0)", self.ready.clone());
        self
    }

    pub(super) fn encode(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }

    pub(super) fn runs(&self, status: &'static str) -> Gauge {
        self.runs.get_or_create_owned(&StatusLabel { status })
    }

    pub(super) fn turns(&self, outcome: &'static str) -> Counter {
        self.turns.get_or_create_owned(&OutcomeLabel { outcome })
    }
}
