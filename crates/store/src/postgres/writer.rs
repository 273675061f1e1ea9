//! The single writing task of this daemon. Requests that queue up while it is busy share the next transaction.
//!
//! The connection holds the schema's lock (`schema_lock.rs`), so no other daemon writes at the same time. A request is
//! acknowledged only after its COMMIT and after the witness has recorded it. If contact is lost before the COMMIT was
//! sent, the transaction is retried. If it is lost later, the outcome is unknown.

use std::time::Duration;

use abide_ports::store::{CommitReceipt, JournalSeq, StoreError};
use tokio::sync::{mpsc, oneshot};

use super::{
    batch::MergedRows,
    connect::{PostgresConnection, PostgresTarget},
    error::{commit_failed, failed},
    schema_lock::SchemaLock,
    witness_check::WitnessTracker,
    write,
};
use crate::{
    chain::JournalHead,
    record::{CommitRow, TableRows},
};

/// The maximum number of queued requests. Further callers wait asynchronously.
const QUEUE_CAPACITY: usize = 1024;
/// The maximum number of requests per transaction.
const MAX_BATCH_REQUESTS: usize = 512;
/// The delay before a reconnect while no request is pending.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// One unit of work for the writer.
#[derive(Debug)]
pub(super) enum PostgresWriteJob {
    Commit(Vec<CommitRow>),
    Replace(Box<TableRows>),
    /// Takes the schema's lock and writes nothing.
    AcquireLock,
}

type PostgresWriteResult = Result<CommitReceipt, StoreError>;

struct PostgresWriteRequest {
    job: PostgresWriteJob,
    reply: oneshot::Sender<PostgresWriteResult>,
}

/// The handle of the writing task. The task ends when all handles are dropped and all requests are written.
#[derive(Debug)]
pub(super) struct PostgresWriter {
    requests: mpsc::Sender<PostgresWriteRequest>,
}

impl PostgresWriter {
    pub(super) fn start(connection: WriterConnection) -> Self {
        let (orders, queue) = mpsc::channel(QUEUE_CAPACITY);
        tokio::spawn(serve(connection, queue));
        Self { requests: orders }
    }

    /// Performs a write. It is performed even if the returned future is dropped.
    pub(super) async fn submit(&self, job: PostgresWriteJob) -> PostgresWriteResult {
        let (reply, answer) = oneshot::channel();
        let stopped = |_| StoreError::Unavailable { reason: "the writer has stopped".to_owned() };
        self.requests.send(PostgresWriteRequest { job, reply }).await.map_err(stopped)?;
        let unknown = |_| Err(StoreError::OutcomeUnknown { reason: "the writer stopped".to_owned() });
        answer.await.unwrap_or_else(unknown)
    }
}

async fn serve(mut connection: WriterConnection, mut queue: mpsc::Receiver<PostgresWriteRequest>) {
    let mut orders = Vec::new();
    loop {
        tokio::select! {
            biased;
            taken = queue.recv_many(&mut orders, MAX_BATCH_REQUESTS) => if taken == 0 { return },
            // The connection is also restored without requests, so that a takeover by another daemon is detected
            // immediately.
            () = connection.wait_for_loss() => {
                connection.reconnect().await;
                continue;
            }
        }
        let (jobs, replies): (Vec<_>, Vec<_>) =
            orders.drain(..).map(|order| (order.job, order.reply)).unzip();
        let outcomes = write_all(&mut connection, &jobs).await;
        for (reply, outcome) in replies.into_iter().zip(outcomes) {
            // The caller may have stopped waiting; its request is performed anyway.
            let _ = reply.send(outcome);
        }
    }
}

/// Performs all jobs in one transaction if possible. If the server reports an error, each job is performed separately,
/// so that only the faulty one fails.
async fn write_all(connection: &mut WriterConnection, jobs: &[PostgresWriteJob]) -> Vec<PostgresWriteResult> {
    if jobs.len() > 1 && !jobs.iter().any(|job| matches!(job, PostgresWriteJob::Replace(_))) {
        match connection.transaction(jobs).await {
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
        let outcome = match connection.transaction(std::slice::from_ref(job)).await {
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
            | StoreError::KeyTaken { .. }
            | StoreError::Unavailable { .. }
            | StoreError::Full { .. }
            | StoreError::Damaged { .. }
            | StoreError::InputLost { .. }
            | StoreError::FilesGone { .. }
            | StoreError::InUse { .. }
            | StoreError::IncompatibleVersion { .. }
            | StoreError::Unsupported { .. }
            | StoreError::Invalid(_) => Self::NotWritten(error),
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
    async fn wait_for_loss(&self) {
        match &self.session {
            _ if !self.lock.must_be_held() => std::future::pending().await,
            Some(session) => session.wait_for_end().await,
            None => tokio::time::sleep(RECONNECT_DELAY).await,
        }
    }

    /// Reconnects and takes the lock. If the server is unavailable, this is retried later.
    async fn reconnect(&mut self) {
        self.session = None;
        if let Ok(session) = self.target.connect_once().await {
            self.session = self.acquire_lock(session).await.ok();
        }
    }

    /// Takes the schema's lock on a new connection.
    async fn acquire_lock(&mut self, session: PostgresConnection) -> Result<PostgresConnection, StoreError> {
        self.lock.acquire(&session).await?;
        self.lock.write_holder(&session).await?;
        Ok(session)
    }

    async fn transaction(
        &mut self,
        jobs: &[PostgresWriteJob],
    ) -> Result<Vec<PostgresWriteResult>, TransactionFailure> {
        let was_closed = self.session.as_ref().is_none_or(|session| session.client.is_closed());
        let first = self.try_transaction(jobs).await;
        let lost = self.session.as_ref().is_none_or(|session| session.client.is_closed());
        match first {
            // The connection was lost before the COMMIT, for example by a restart of the server, so a retry is safe.
            Err(TransactionFailure::NotWritten(_)) if lost && !was_closed => self.try_transaction(jobs).await,
            other => other,
        }
    }

    async fn try_transaction(
        &mut self,
        jobs: &[PostgresWriteJob],
    ) -> Result<Vec<PostgresWriteResult>, TransactionFailure> {
        let session = match self.session.take().filter(|session| !session.client.is_closed()) {
            Some(session) => session,
            None => {
                let session = self.target.connect().await?;
                self.acquire_lock(session).await?
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
    let mut baseline = write::begin(session, &records).await?;
    let before: JournalHead = baseline.head;
    watch.check(before)?;
    let mut batch = MergedRows::default();
    let mut outcomes = Vec::new();
    for job in jobs {
        outcomes.push(match job {
            PostgresWriteJob::Commit(records) => batch.add_commit(&mut baseline, records),
            PostgresWriteJob::AcquireLock => Ok(CommitReceipt { last: JournalSeq(baseline.head.seq as u64) }),
            PostgresWriteJob::Replace(rows) => {
                write::delete_run_rows(session, rows).await.map_err(|error| failed(&error))?;
                batch.add_rows(rows);
                Ok(CommitReceipt { last: JournalSeq(baseline.head.seq as u64) })
            }
        });
    }
    let writes = baseline.head != before || batch.has_rows();
    if writes {
        write::write_rows(session, baseline.head, &batch).await.map_err(|error| failed(&error))?;
    }
    match session.client.batch_execute("COMMIT").await {
        Ok(()) => {
            watch.record_commit(baseline.head);
            Ok(outcomes)
        }
        Err(error) => Err(commit_failed(&error).into()),
    }
}

fn records(job: &PostgresWriteJob) -> &[CommitRow] {
    match job {
        PostgresWriteJob::Commit(records) => records,
        PostgresWriteJob::Replace(_) | PostgresWriteJob::AcquireLock => &[],
    }
}
