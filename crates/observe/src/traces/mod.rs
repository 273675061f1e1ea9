//! Exports spans to an OpenTelemetry collector, as OTLP in JSON over HTTP.
//!
//! Tracing must never block the daemon. Completed items enter a bounded queue, and a thread sends them. Spans that do
//! not fit or cannot be sent are dropped and counted. The exporter is written by hand, because the OpenTelemetry crates
//! add a second metrics and logging stack; every collector accepts JSON.

mod span;

use std::{
    fmt, io,
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    time::Duration,
};

use abide_ports::observer::{CommitObserver, CommitReport, CompletedItem};
use ureq::Agent;

use crate::metrics::DaemonMetrics;

/// Queues spans for the sending thread.
#[derive(Clone)]
pub struct TraceExporter {
    queue: SyncSender<TraceItem>,
    metrics: DaemonMetrics,
}

/// The exporter cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error(
        "otel.endpoint must be an address such as http://127.0.0.1:4318: spans are sent over plain HTTP; for TLS, run a \
         collector on this machine that passes them on"
    )]
    UnsupportedEndpoint,
    #[error("cannot start the thread that sends spans")]
    NoThread(#[source] io::Error),
}

enum TraceItem {
    Completed(CompletedItem),
    /// Sends all queued spans, then signals the sender.
    Flush(SyncSender<()>),
}

/// Capacity of the queue, in items.
const QUEUE_CAPACITY: usize = 4_096;
/// Maximum number of items per batch, and the maximum time that the first one waits for others.
const MAX_BATCH_ITEMS: usize = 256;
const MAX_BATCH_DELAY: Duration = Duration::from_millis(500);
/// Response timeout of the collector.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of attempts per batch, and the delay between them.
const MAX_ATTEMPTS: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum time that shutdown waits for the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Label of dropped spans in the metrics.
const SPAN_KIND: &str = "span";

impl TraceExporter {
    /// Starts the exporter; `None` if the endpoint is empty.
    pub fn start(endpoint: &str, metrics: &DaemonMetrics) -> Result<Option<Self>, TraceError> {
        if endpoint.is_empty() {
            return Ok(None);
        }
        if !endpoint.starts_with("http://") {
            return Err(TraceError::UnsupportedEndpoint);
        }
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let (queue, waiting) = sync_channel(QUEUE_CAPACITY);
        let counted = metrics.clone();
        let send =
            move || TraceSender { url, agent: http_agent(), metrics: counted, receiver: waiting }.run();
        let thread = std::thread::Builder::new().name("abide-traces".to_owned());
        thread.spawn(send).map_err(TraceError::NoThread)?;
        Ok(Some(Self { queue, metrics: metrics.clone() }))
    }

    /// Waits up to `FLUSH_TIMEOUT` until all queued spans are sent.
    pub fn flush(&self) {
        let (done, flushed) = sync_channel(1);
        if self.queue.try_send(TraceItem::Flush(done)).is_ok() {
            // After the timeout the remaining spans are lost; shutdown does not wait longer.
            flushed.recv_timeout(FLUSH_TIMEOUT).ok();
        }
    }
}

impl CommitObserver for TraceExporter {
    fn on_commit(&self, report: &CommitReport<'_>) {
        for item in report.completed_items {
            match self.queue.try_send(TraceItem::Completed(item.clone())) {
                Ok(()) => {}
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                    self.metrics.count_dropped(SPAN_KIND, 1)
                }
            }
        }
    }
}

struct TraceSender {
    url: String,
    agent: Agent,
    metrics: DaemonMetrics,
    receiver: Receiver<TraceItem>,
}

impl TraceSender {
    fn run(self) {
        while let Ok(first) = self.receiver.recv() {
            let (mut ended, mut flush, mut next) = (vec![], None, Some(first));
            while let Some(item) = next.take() {
                match item {
                    TraceItem::Completed(item) => ended.push(item),
                    TraceItem::Flush(done) => flush = Some(done),
                }
                if flush.is_none() && ended.len() < MAX_BATCH_ITEMS {
                    next = self.receiver.recv_timeout(MAX_BATCH_DELAY).ok();
                }
            }
            let spans: Vec<_> = ended.iter().flat_map(span::spans_of).collect();
            if !spans.is_empty() {
                self.send_batch(spans.len() as u64, &span::request(spans).to_string());
            }
            if let Some(done) = flush {
                // The flush has timed out, and its receiver is dropped.
                done.send(()).ok();
            }
        }
    }

    fn send_batch(&self, spans: u64, body: &str) {
        for attempt in 1..=MAX_ATTEMPTS {
            let answer = self.agent.post(&self.url).header("Content-Type", "application/json").send(body);
            match answer {
                Ok(_) => return,
                // The collector rejected the batch; a retry cannot succeed.
                Err(ureq::Error::StatusCode(400..=428)) => break,
                Err(_) if attempt < MAX_ATTEMPTS => wait_before_retry(),
                Err(_) => {}
            }
        }
        tracing::warn!(spans, "spans dropped: the collector did not accept them");
        self.metrics.count_dropped(SPAN_KIND, spans);
    }
}

/// Waits before the next attempt.
#[expect(clippy::disallowed_methods, reason = "there is no event that announces the recovery of a collector")]
fn wait_before_retry() {
    std::thread::sleep(RETRY_DELAY);
}

fn http_agent() -> Agent {
    Agent::config_builder().timeout_global(Some(RESPONSE_TIMEOUT)).build().into()
}

impl fmt::Debug for TraceExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceExporter").finish_non_exhaustive()
    }
}
