//! The single writing task of this daemon. Requests that queue up while it is busy share the next transaction.
//!
//! The connection holds the schema's lock (`holder.rs`), so no other daemon writes at the same time. A request is
//! acknowledged only after its COMMIT and after the witness has recorded it. If contact is lost before the COMMIT was
//! sent, the transaction is retried. If it is lost later, the outcome is unknown.

use std::time::Duration;

use abide_ports::store::{CommitReceipt, JournalSeq, StoreError};
use tokio::sync::{mpsc, oneshot};

use super::{
    batch::CommitBatch,
    connect::{PostgresConnection, PostgresTarget},
    error::{commit_failed, failed},
    holder::SchemaLock,
    testimony::WitnessTracker,
    write,
};
use crate::{
    chain::JournalHead,
    record::{CommitRow, TableRows, number},
};

/// The maximum number of queued requests. Further callers wait asynchronously.
const QUEUE: usize = 1024;
/// The maximum number of requests per transaction.
const BATCH: usize = 512;
/// The delay before a reconnect while no request is pending.
const RESTORE_PAUSE: Duration = Duration::from_secs(1);

/// One unit of work for the writer.
#[derive(Debug)]
pub(super) enum PostgresWriteJob {
    Commit(Vec<CommitRow>),
    Advance {
        reader: String,
        to: JournalSeq,
    },
    Replace(Box<TableRows>),
    /// Takes the schema's lock and writes nothing.
    Hold,
}

type PostgresWriteResult = Result<CommitReceipt, StoreError>;

struct PostgresWriteRequest {
    job: PostgresWriteJob,
    reply: oneshot::Sender<PostgresWriteResult>,
}

/// The handle of the writing task. The task ends when all handles are dropped and all requests are written.
#[derive(Debug)]
pub(super) struct PostgresWriter {
    orders: mpsc::Sender<PostgresWriteRequest>,
}

impl PostgresWriter {
    pub(super) fn start(contact: WriterConnection) -> Self {
        let (orders, queue) = mpsc::channel(QUEUE);
        tokio::spawn(serve(contact, queue));
        Self { orders }
    }

    /// Performs a write. It is performed even if the returned future is dropped.
    pub(super) async fn order(&self, job: PostgresWriteJob) -> PostgresWriteResult {
        let (reply, answer) = oneshot::channel();
        let stopped = |_| StoreError::Unavailable { reason: "the writer has stopped".to_owned() };
        self.orders.send(PostgresWriteRequest { job, reply }).await.map_err(stopped)?;
        let unknown = |_| Err(StoreError::OutcomeUnknown { reason: "the writer stopped".to_owned() });
        answer.await.unwrap_or_else(unknown)
    }
}

async fn serve(mut contact: WriterConnection, mut queue: mpsc::Receiver<PostgresWriteRequest>) {
    let mut orders = Vec::new();
    loop {
        tokio::select! {
            biased;
            taken = queue.recv_many(&mut orders, BATCH) => if taken == 0 { return },
            // The connection is also restored without requests, so that a takeover by another daemon is detected
            // immediately.
            () = contact.lost() => {
                contact.restore().await;
                continue;
            }
        }
        let (jobs, replies): (Vec<_>, Vec<_>) =
            orders.drain(..).map(|order| (order.job, order.reply)).unzip();
        let outcomes = write_all(&mut contact, &jobs).await;
        for (reply, outcome) in replies.into_iter().zip(outcomes) {
            // The caller may have stopped waiting; its request is performed anyway.
            let _ = reply.send(outcome);
        }
    }
}

/// Performs all jobs in one transaction if possible. If the server reports an error, each job is performed separately,
/// so that only the faulty one fails.
async fn write_all(contact: &mut WriterConnection, jobs: &[PostgresWriteJob]) -> Vec<PostgresWriteResult> {
    if jobs.len() > 1 && !jobs.iter().any(|job| matches!(job, PostgresWriteJob::Replace(_))) {
        match contact.transaction(jobs).await {
            Ok(outcomes) => return outcomes,
            Err(TransactionFailure::Unknown(reason)) => {
                let unknown = |_| Err(StoreError::OutcomeUnknown { reason: reason.clone() });
                return jobs.iter().map(unknown).collect();
            }
            Err(TransactionFailure::NotWritten(_)) => {}
        }
    }
    let mut outcomes = Vec::new();
    for job in jobs {
        let outcome = match contact.transaction(std::slice::from_ref(job)).await {
            Ok(mut outcomes) => outcomes.pop().expect("each job has its outcome"),
            Err(TransactionFailure::Unknown(reason)) => Err(StoreError::OutcomeUnknown { reason }),
            Err(TransactionFailure::NotWritten(error)) => Err(error),
        };
        outcomes.push(outcome);
    }
    outcomes
}

/// The failure of a whole transaction.
enum TransactionFailure {
    NotWritten(StoreError),
    Unknown(String),
}

impl From<StoreError> for TransactionFailure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::OutcomeUnknown { reason } => Self::Unknown(reason),
            StoreError::Conflict { .. }
            | StoreError::Taken { .. }
            | StoreError::Unavailable { .. }
            | StoreError::Full { .. }
            | StoreError::Damaged { .. }
            | StoreError::Lost { .. }
            | StoreError::Gone { .. }
            | StoreError::InUse { .. }
            | StoreError::Mismatched { .. }
            | StoreError::Unsupported { .. }
            | StoreError::Invalid { .. } => Self::NotWritten(error),
        }
    }
}

/// The writing connection, reestablished after a loss.
#[derive(Debug)]
pub(super) struct WriterConnection {
    pub(super) target: PostgresTarget,
    pub(super) session: Option<PostgresConnection>,
    pub(super) watch: WitnessTracker,
    pub(super) lock: SchemaLock,
}

impl WriterConnection {
    /// Waits until the connection must be restored while no request is pending.
    async fn lost(&self) {
        match &self.session {
            _ if !self.lock.is_kept() => std::future::pending().await,
            Some(session) => session.ended().await,
            None => tokio::time::sleep(RESTORE_PAUSE).await,
        }
    }

    /// Reconnects and takes the lock. If the server is unavailable, this is retried later.
    async fn restore(&mut self) {
        self.session = None;
        if let Ok(session) = self.target.connect_once().await {
            self.session = self.locked(session).await.ok();
        }
    }

    /// Takes the schema's lock on a new connection.
    async fn locked(&mut self, session: PostgresConnection) -> Result<PostgresConnection, StoreError> {
        self.lock.take(&session).await?;
        self.lock.sign(&session).await?;
        Ok(session)
    }

    async fn transaction(
        &mut self,
        jobs: &[PostgresWriteJob],
    ) -> Result<Vec<PostgresWriteResult>, TransactionFailure> {
        let fresh = self.session.as_ref().is_none_or(|session| session.client.is_closed());
        let first = self.attempt(jobs).await;
        let lost = self.session.as_ref().is_none_or(|session| session.client.is_closed());
        match first {
            // The connection was lost before the COMMIT, for example by a restart of the server, so a retry is safe.
            Err(TransactionFailure::NotWritten(_)) if lost && !fresh => self.attempt(jobs).await,
            other => other,
        }
    }

    async fn attempt(
        &mut self,
        jobs: &[PostgresWriteJob],
    ) -> Result<Vec<PostgresWriteResult>, TransactionFailure> {
        let session = match self.session.take().filter(|session| !session.client.is_closed()) {
            Some(session) => session,
            None => {
                let session = self.target.connect().await?;
                self.locked(session).await?
            }
        };
        let session = self.session.insert(session);
        let written = transaction(session, jobs, &mut self.watch).await;
        if written.is_err() && session.client.batch_execute("ROLLBACK").await.is_err() {
            self.session = None;
        }
        written
    }
}

async fn transaction(
    session: &PostgresConnection,
    jobs: &[PostgresWriteJob],
    watch: &mut WitnessTracker,
) -> Result<Vec<PostgresWriteResult>, TransactionFailure> {
    let records: Vec<&CommitRow> = jobs.iter().flat_map(records).collect();
    let mut known = write::begin(session, &records).await?;
    let before: JournalHead = known.head;
    watch.check(before)?;
    let mut batch = CommitBatch::default();
    let mut outcomes = Vec::new();
    for job in jobs {
        outcomes.push(match job {
            PostgresWriteJob::Commit(records) => batch.take(&mut known, records),
            PostgresWriteJob::Advance { reader, to } => {
                let to = number(to.0);
                batch.cursors.entry(reader).and_modify(|at| *at = to.max(*at)).or_insert(to);
                Ok(CommitReceipt { last: JournalSeq(known.head.seq as u64) })
            }
            PostgresWriteJob::Hold => Ok(CommitReceipt { last: JournalSeq(known.head.seq as u64) }),
            PostgresWriteJob::Replace(rows) => {
                write::clear(session, rows).await.map_err(|error| failed(&error))?;
                batch.replace(rows);
                Ok(CommitReceipt { last: JournalSeq(known.head.seq as u64) })
            }
        });
    }
    let writes = known.head != before || batch.has_rows();
    if writes {
        write::rows(session, known.head, &batch).await.map_err(|error| failed(&error))?;
    }
    match session.client.batch_execute("COMMIT").await {
        Ok(()) => {
            watch.committed(known.head);
            Ok(outcomes)
        }
        Err(error) => Err(commit_failed(&error).into()),
    }
}

fn records(job: &PostgresWriteJob) -> &[CommitRow] {
    match job {
        PostgresWriteJob::Commit(records) => records,
        PostgresWriteJob::Advance { .. } | PostgresWriteJob::Replace(_) | PostgresWriteJob::Hold => &[],
    }
}
