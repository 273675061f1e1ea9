//! The single writing thread. Requests that queue up while it is busy share the next transaction and its sync.
//!
//! A single request is written without delay. If the last batch had several requests, their callers are about to send
//! the next ones, so the thread yields before the sync that they can share. A request that may be refused after its
//! first write has its own savepoint, so that it does not affect its batch. A request is acknowledged only after its
//! COMMIT and after the witness has recorded that COMMIT.

use std::thread;

use abide_domain::event::KeyClaim;
use abide_ports::store::{CommitReceipt, JournalSeq, StoreError};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{
    connect,
    error::{commit_failed, failed},
    guard::{FileGuard, FileWatchThread},
    inspect,
    write::{self, SqliteWriteError},
};
use crate::{
    chain::JournalHead,
    record::{CommitRow, TableRows},
};

/// The maximum number of queued requests. Further callers wait asynchronously.
const QUEUE_CAPACITY: usize = 1024;
/// The maximum number of requests per transaction, which bounds the latency of the first.
const MAX_BATCH_REQUESTS: usize = 512;

/// The maximum number of consecutive yields without a new request. They take much less time than a sync.
const MAX_IDLE_YIELDS: usize = 40;

/// One unit of work for the writer.
#[derive(Debug)]
pub(super) enum SqliteWriteJob {
    Commit(Vec<CommitRow>),
    Replace(Box<TableRows>),
    /// Rebuilds derived data that belongs to no single run.
    Reindex,
    /// Writes all earlier requests and closes the database.
    Close,
}

impl SqliteWriteJob {
    /// Whether the job can only be refused before its first write. There is then nothing to undo, and the savepoint,
    /// which would copy every page that the job modifies, is omitted. This is the most frequent case.
    fn fails_before_writing(&self) -> bool {
        match self {
            // A commit is refused because of a run's revision or a claimed key, and both are checked first. A key that
            // is claimed twice by the commit itself is refused later.
            Self::Commit(records) => match &records[..] {
                [] => true,
                [record] => has_unique_keys(&record.rows.claims),
                [..] => false,
            },
            Self::Close => true,
            Self::Replace(_) | Self::Reindex => false,
        }
    }
}

fn has_unique_keys(claims: &[KeyClaim]) -> bool {
    let same = |one: &KeyClaim, other: &KeyClaim| one.scope == other.scope && one.key == other.key;
    claims.iter().enumerate().all(|(place, claim)| !claims[..place].iter().any(|it| same(it, claim)))
}

type SqliteWriteReply = oneshot::Sender<Result<CommitReceipt, StoreError>>;

struct SqliteWriteRequest {
    job: SqliteWriteJob,
    reply: SqliteWriteReply,
}

/// The handle of the writing thread.
#[derive(Debug)]
pub(super) struct SqliteWriter {
    requests: Option<mpsc::Sender<SqliteWriteRequest>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl SqliteWriter {
    /// A writer without a guard is for inspection. It receives no commits and at most replaces tables.
    pub(super) fn start(connection: Connection, guard: Option<FileGuard>) -> Result<Self, StoreError> {
        let (orders, queue) = mpsc::channel(QUEUE_CAPACITY);
        let rounds = guard.as_ref().map(FileGuard::start_watch_thread).transpose()?;
        let serve = move || serve(connection, guard.as_ref(), rounds, queue);
        let thread =
            thread::Builder::new().name("abide-writer".to_owned()).spawn(serve).map_err(|error| {
                StoreError::Unavailable { reason: format!("cannot start the thread of the writer: {error}") }
            })?;
        Ok(Self { requests: Some(orders), thread: Some(thread) })
    }

    /// A writer that refuses all requests.
    pub(super) fn none() -> Self {
        Self { requests: None, thread: None }
    }

    /// Performs a write. It is performed even if the returned future is dropped.
    pub(super) async fn submit(&self, job: SqliteWriteJob) -> Result<CommitReceipt, StoreError> {
        let (reply, answer) = oneshot::channel();
        let orders = self.requests.as_ref().ok_or_else(no_writer_error)?;
        orders.send(SqliteWriteRequest { job, reply }).await.map_err(|_| writer_stopped_error())?;
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::OutcomeUnknown { reason: "the writer stopped".to_owned() }))
    }
}

impl Drop for SqliteWriter {
    /// Waits until all requests are written and the database is closed.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn no_writer_error() -> StoreError {
    StoreError::Unsupported {
        hint: "a daemon uses this database; stop it first: `abide down --keep`".to_owned(),
    }
}

fn writer_stopped_error() -> StoreError {
    StoreError::Unavailable { reason: "the writer has stopped".to_owned() }
}

fn serve(
    connection: Connection,
    guard: Option<&FileGuard>,
    watch_thread: Option<FileWatchThread>,
    mut queue: mpsc::Receiver<SqliteWriteRequest>,
) {
    let (mut expected_requests, mut close_replies) = (1, Vec::new());
    while let Some(first) = queue.blocking_recv() {
        expected_requests =
            write_batch(&connection, guard, first, &mut queue, expected_requests, &mut close_replies);
    }
    drop(watch_thread);
    match guard.map_or(Ok(()), |guard| guard.begin().map(drop)) {
        Ok(()) => connect::close(connection),
        // The files were deleted or replaced, so neither the database nor its log may be written.
        Err(_) => drop(connection),
    }
    if let Some(guard) = guard {
        guard.sync_witness();
    }
    for reply in close_replies {
        send_reply(reply, Ok(CommitReceipt { last: JournalSeq(0) }));
    }
}

/// Writes a request and those that arrive with it, about as many as in the last batch. Returns their number.
///
/// A close request is acknowledged after the database is closed. No further requests are accepted, and those in the
/// queue are still written.
fn write_batch(
    connection: &Connection,
    guard: Option<&FileGuard>,
    first: SqliteWriteRequest,
    queue: &mut mpsc::Receiver<SqliteWriteRequest>,
    expected_requests: usize,
    close_replies: &mut Vec<SqliteWriteReply>,
) -> usize {
    let transaction = guard.map(FileGuard::begin).transpose();
    let transaction =
        transaction.and_then(|watched| Ok((watched, begin(connection).map_err(|error| failed(&error))?)));
    let (watched, mut head) = match transaction {
        Ok(transaction) => transaction,
        Err(error) => {
            refuse(first, error, queue, close_replies);
            return 1;
        }
    };
    let mut count = 0;
    let mut outcomes: Vec<(SqliteWriteReply, Result<CommitReceipt, StoreError>)> = Vec::new();
    let mut next = Some(first);
    while let Some(SqliteWriteRequest { job, reply }) = next.take() {
        count += 1;
        match perform_atomically(connection, &job, head) {
            Ok(_) if matches!(job, SqliteWriteJob::Close) => {
                queue.close();
                close_replies.push(reply);
            }
            Ok(last) => {
                head = last;
                outcomes.push((reply, Ok(CommitReceipt { last: JournalSeq(last.seq as u64) })));
            }
            Err(write_error) => {
                // A partly performed job without a savepoint can only be undone with the whole transaction.
                if matches!(write_error, SqliteWriteError::Failed(_)) && job.fails_before_writing() {
                    let _ = connection.execute_batch("ROLLBACK");
                }
                let rolled_back = connection.is_autocommit();
                if let (true, SqliteWriteError::Failed(error)) = (rolled_back, &write_error) {
                    send_error_to_all(outcomes, || failed(error));
                    send_reply(reply, Err(write_error.into_error()));
                    return count;
                }
                // The reason may be an earlier job of this transaction, so it is reported after the commit.
                outcomes.push((reply, Err(write_error.into_error())));
            }
        }
        if count < MAX_BATCH_REQUESTS {
            next = if count < expected_requests { poll_next(queue) } else { queue.try_recv().ok() };
        }
    }
    match write::index_entries(connection, head.seq).and_then(|()| execute_cached(connection, "COMMIT")) {
        Ok(()) => match watched.map_or(Ok(()), |watched| watched.after_commit(head)) {
            Ok(()) => {
                for (reply, outcome) in outcomes {
                    send_reply(reply, outcome);
                }
            }
            Err(error) => {
                send_error_to_all(outcomes, || StoreError::OutcomeUnknown { reason: error.to_string() })
            }
        },
        Err(error) => {
            let _ = connection.execute_batch("ROLLBACK");
            send_error_to_all(outcomes, || commit_failed(&error));
        }
    }
    count
}

/// Refuses a request whose transaction could not begin. A close request is accepted anyway.
fn refuse(
    request: SqliteWriteRequest,
    error: StoreError,
    queue: &mut mpsc::Receiver<SqliteWriteRequest>,
    close_replies: &mut Vec<SqliteWriteReply>,
) {
    if matches!(request.job, SqliteWriteJob::Close) {
        queue.close();
        close_replies.push(request.reply);
    } else {
        send_reply(request.reply, Err(error));
    }
}

/// The next request, if one arrives within `MAX_IDLE_YIELDS` yields.
fn poll_next(queue: &mut mpsc::Receiver<SqliteWriteRequest>) -> Option<SqliteWriteRequest> {
    for _ in 0..MAX_IDLE_YIELDS {
        if let Ok(request) = queue.try_recv() {
            return Some(request);
        }
        thread::yield_now();
    }
    None
}

fn begin(connection: &Connection) -> rusqlite::Result<JournalHead> {
    execute_cached(connection, "BEGIN IMMEDIATE")?;
    write::head(connection).inspect_err(|_| {
        let _ = connection.execute_batch("ROLLBACK");
    })
}

/// Performs one job completely or not at all. Returns the new head of the journal.
fn perform_atomically(
    connection: &Connection,
    job: &SqliteWriteJob,
    head: JournalHead,
) -> Result<JournalHead, SqliteWriteError> {
    if job.fails_before_writing() {
        return perform(connection, job, head);
    }
    execute_cached(connection, "SAVEPOINT job")?;
    let done = perform(connection, job, head).and_then(|last| {
        execute_cached(connection, "RELEASE job")?;
        Ok(last)
    });
    if done.is_err() && !connection.is_autocommit() {
        // If this fails too, the transaction must not be committed.
        let rollback = execute_cached(connection, "ROLLBACK TO job")
            .and_then(|()| execute_cached(connection, "RELEASE job"));
        if rollback.is_err() {
            let _ = connection.execute_batch("ROLLBACK");
        }
    }
    done
}

fn perform(
    connection: &Connection,
    job: &SqliteWriteJob,
    head: JournalHead,
) -> Result<JournalHead, SqliteWriteError> {
    match job {
        SqliteWriteJob::Commit(records) => {
            let mut last = head;
            for record in records {
                last = write::append_record(connection, record, last)?;
            }
            Ok(last)
        }
        SqliteWriteJob::Replace(rows) => write::replace(connection, rows).map(|()| head),
        SqliteWriteJob::Reindex => Ok(inspect::reindex(connection).map(|()| head)?),
        SqliteWriteJob::Close => Ok(head),
    }
}

fn execute_cached(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

fn send_error_to_all(
    outcomes: Vec<(SqliteWriteReply, Result<CommitReceipt, StoreError>)>,
    error: impl Fn() -> StoreError,
) {
    for (reply, _) in outcomes {
        send_reply(reply, Err(error()));
    }
}

/// Sends a reply. The caller may have stopped waiting, so an error is ignored.
fn send_reply(reply: SqliteWriteReply, outcome: Result<CommitReceipt, StoreError>) {
    let _ = reply.send(outcome);
}
