//! Sends what has ended to an OpenTelemetry collector, as OTLP in JSON over HTTP.
//!
//! A trace must never hold up what it tells of: what ended is put into a bounded queue, a thread of its own sends it, and
//! what does not fit or cannot be sent is dropped and counted. By hand, because the crates for it bring a second metrics
//! and logging world along; JSON is one of the forms that every collector takes.

mod span;

use std::{
    fmt,
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    time::Duration,
};

use abide_api::metrics::DaemonMetrics;
use abide_ports::watch::{CommitObserver, CommitReport, CompletedItem};
use ureq::Agent;

/// Who sends traces.
#[derive(Clone)]
pub(crate) struct TraceExporter {
    queue: SyncSender<TraceItem>,
    metrics: DaemonMetrics,
}

/// What the thread is given.
enum TraceItem {
    /// Something ended.
    Ended(CompletedItem),
    /// Send what is there, and say so.
    Flush(SyncSender<()>),
}

/// How many things may wait to be sent.
const QUEUE: usize = 4_096;
/// How many are sent together at the most, and how long the first of them waits for others.
const BATCH: usize = 256;
const GATHERING: Duration = Duration::from_millis(500);
/// How long a collector may take for one answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a batch is offered, and how long is waited in between.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);
/// How long the end of the daemon waits for the last spans to be sent.
const FLUSH: Duration = Duration::from_secs(3);

/// The kind of what is dropped, in the figures.
const SPANS: &str = "span";

impl TraceExporter {
    /// Begins to send to a collector; none if its address is empty.
    pub(crate) fn start(endpoint: &str, metrics: &DaemonMetrics) -> anyhow::Result<Option<Self>> {
        if endpoint.is_empty() {
            return Ok(None);
        }
        anyhow::ensure!(
            endpoint.starts_with("http://"),
            "otel.endpoint must be an address such as http://127.0.0.1:4318: spans are sent over plain HTTP; for TLS, \
             run a collector on this machine that passes them on"
        );
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let (queue, waiting) = sync_channel(QUEUE);
        let counted = metrics.clone();
        let send = move || TraceSender { url, agent: agent(), metrics: counted, waiting }.for_ever();
        std::thread::Builder::new().name("abide-traces".to_owned()).spawn(send)?;
        Ok(Some(Self { queue, metrics: metrics.clone() }))
    }

    /// Waits, though not for long, until what has ended so far is sent.
    pub(crate) fn flush(&self) {
        let (done, flushed) = sync_channel(1);
        if self.queue.try_send(TraceItem::Flush(done)).is_ok() {
            let _or_it_is_lost = flushed.recv_timeout(FLUSH);
        }
    }
}

impl CommitObserver for TraceExporter {
    fn committed(&self, sight: &CommitReport<'_>) {
        for milestone in sight.milestones {
            match self.queue.try_send(TraceItem::Ended(milestone.clone())) {
                Ok(()) => {}
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.metrics.dropped(SPANS, 1),
            }
        }
    }
}

struct TraceSender {
    url: String,
    agent: Agent,
    metrics: DaemonMetrics,
    waiting: Receiver<TraceItem>,
}

impl TraceSender {
    fn for_ever(self) {
        while let Ok(first) = self.waiting.recv() {
            let (mut ended, mut flush, mut next) = (vec![], None, Some(first));
            while let Some(item) = next.take() {
                match item {
                    TraceItem::Ended(milestone) => ended.push(milestone),
                    TraceItem::Flush(done) => flush = Some(done),
                }
                if flush.is_none() && ended.len() < BATCH {
                    next = self.waiting.recv_timeout(GATHERING).ok();
                }
            }
            let spans: Vec<_> = ended.iter().flat_map(span::of).collect();
            if !spans.is_empty() {
                self.offer(spans.len() as u64, &span::request(spans).to_string());
            }
            if let Some(done) = flush {
                let _waited_long_enough = done.send(());
            }
        }
    }

    fn offer(&self, spans: u64, body: &str) {
        for tried in 1..=TRIES {
            let answer = self.agent.post(&self.url).header("Content-Type", "application/json").send(body);
            match answer {
                Ok(_) => return,
                // What it does not like now it will not like later.
                Err(ureq::Error::StatusCode(400..=428)) => break,
                Err(_) if tried < TRIES => pause(),
                Err(_) => {}
            }
        }
        tracing::warn!(spans, "spans dropped: the collector did not take them");
        self.metrics.dropped(SPANS, spans);
    }
}

/// Lets a collector come back.
fn pause() {
    crate::up::background::pause(PAUSE);
}

fn agent() -> Agent {
    Agent::config_builder().timeout_global(Some(ANSWER)).build().into()
}

impl fmt::Debug for TraceExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceExporter").finish_non_exhaustive()
    }
}
