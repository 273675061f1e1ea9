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
const QUEUE: usize = 1024;
/// The maximum number of requests per transaction, which bounds the latency of the first.
const BATCH: usize = 512;

/// The maximum number of consecutive yields without a new request. They take much less time than a sync.
const OFFERS: usize = 40;

/// One unit of work for the writer.
#[derive(Debug)]
pub(super) enum SqliteWriteJob {
    Commit(Vec<CommitRow>),
    Advance {
        reader: String,
        to: JournalSeq,
    },
    Replace(Box<TableRows>),
    /// Rebuilds derived data that belongs to no single run.
    Reindex,
    /// Writes all earlier requests and closes the database.
    Close,
}

impl SqliteWriteJob {
    /// Whether the job can only be refused before its first write. There is then nothing to undo, and the savepoint,
    /// which would copy every page that the job modifies, is omitted. This is the most frequent case.
    fn refuses_before_it_writes(&self) -> bool {
        match self {
            // A commit is refused because of a run's revision or a claimed key, and both are checked first. A key that
            // is claimed twice by the commit itself is refused later.
            Self::Commit(records) => match &records[..] {
                [] => true,
                [record] => names_once(&record.rows.claims),
                [..] => false,
            },
            Self::Advance { .. } | Self::Close => true,
            Self::Replace(_) | Self::Reindex => false,
        }
    }
}

fn names_once(claims: &[KeyClaim]) -> bool {
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
    orders: Option<mpsc::Sender<SqliteWriteRequest>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl SqliteWriter {
    /// A writer without a guard is for inspection. It receives no commits and at most replaces tables.
    pub(super) fn start(connection: Connection, guard: Option<FileGuard>) -> Result<Self, StoreError> {
        let (orders, queue) = mpsc::channel(QUEUE);
        let rounds = guard.as_ref().map(FileGuard::go_rounds).transpose()?;
        let serve = move || serve(connection, guard.as_ref(), rounds, queue);
        let thread =
            thread::Builder::new().name("abide-writer".to_owned()).spawn(serve).map_err(|error| {
                StoreError::Unavailable { reason: format!("no thread for the writer: {error}") }
            })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// A writer that refuses all requests.
    pub(super) fn none() -> Self {
        Self { orders: None, thread: None }
    }

    /// Performs a write. It is performed even if the returned future is dropped.
    pub(super) async fn order(&self, job: SqliteWriteJob) -> Result<CommitReceipt, StoreError> {
        let (reply, answer) = oneshot::channel();
        let orders = self.orders.as_ref().ok_or_else(nobody)?;
        orders.send(SqliteWriteRequest { job, reply }).await.map_err(|_| stopped())?;
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::OutcomeUnknown { reason: "the writer stopped".to_owned() }))
    }
}

impl Drop for SqliteWriter {
    /// Waits until all requests are written and the database is closed.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn nobody() -> StoreError {
    StoreError::Unsupported {
        hint: "a daemon has this database; stop it first: `abide down --keep`".to_owned(),
    }
}

fn stopped() -> StoreError {
    StoreError::Unavailable { reason: "the writer has stopped".to_owned() }
}

fn serve(
    connection: Connection,
    guard: Option<&FileGuard>,
    rounds: Option<FileWatchThread>,
    mut queue: mpsc::Receiver<SqliteWriteRequest>,
) {
    let (mut company, mut leaving) = (1, Vec::new());
    while let Some(first) = queue.blocking_recv() {
        company = batch(&connection, guard, first, &mut queue, company, &mut leaving);
    }
    drop(rounds);
    match guard.map_or(Ok(()), |guard| guard.begin().map(drop)) {
        Ok(()) => connect::close(connection),
        // The files were deleted or replaced, so neither the database nor its log may be written.
        Err(_) => drop(connection),
    }
    if let Some(guard) = guard {
        guard.finish();
    }
    for reply in leaving {
        answer(reply, Ok(CommitReceipt { last: JournalSeq(0) }));
    }
}

/// Writes a request and those that arrive with it, about as many as in the last batch. Returns their number.
///
/// A close request is acknowledged after the database is closed. No further requests are accepted, and those in the
/// queue are still written.
fn batch(
    connection: &Connection,
    guard: Option<&FileGuard>,
    first: SqliteWriteRequest,
    queue: &mut mpsc::Receiver<SqliteWriteRequest>,
    company: usize,
    leaving: &mut Vec<SqliteWriteReply>,
) -> usize {
    let begun = guard.map(FileGuard::begin).transpose();
    let begun = begun.and_then(|watched| Ok((watched, begin(connection).map_err(|error| failed(&error))?)));
    let (watched, mut head) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            refuse(first, error, queue, leaving);
            return 1;
        }
    };
    let mut count = 0;
    let mut written = Vec::new();
    let mut next = Some(first);
    while let Some(SqliteWriteRequest { job, reply }) = next.take() {
        count += 1;
        match attempt(connection, &job, head) {
            Ok(_) if matches!(job, SqliteWriteJob::Close) => {
                queue.close();
                leaving.push(reply);
            }
            Ok(last) => {
                head = last;
                written.push((reply, last));
            }
            Err(trouble) => {
                // A partly performed job without a savepoint can only be undone with the whole transaction.
                if matches!(trouble, SqliteWriteError::Failed(_)) && job.refuses_before_it_writes() {
                    let _ = connection.execute_batch("ROLLBACK");
                }
                let undone = connection.is_autocommit();
                if let (true, SqliteWriteError::Failed(error)) = (undone, &trouble) {
                    answer_all(written, || failed(error));
                    answer(reply, Err(trouble.into_error()));
                    return count;
                }
                answer(reply, Err(trouble.into_error()));
            }
        }
        if count < BATCH {
            next = if count < company { expect_one(queue) } else { queue.try_recv().ok() };
        }
    }
    match write::file(connection, head.seq).and_then(|()| cached(connection, "COMMIT")) {
        Ok(()) => match watched.map_or(Ok(()), |watched| watched.committed(head)) {
            Ok(()) => {
                for (reply, last) in written {
                    answer(reply, Ok(CommitReceipt { last: JournalSeq(last.seq as u64) }));
                }
            }
            Err(error) => answer_all(written, || StoreError::OutcomeUnknown { reason: error.to_string() }),
        },
        Err(error) => {
            let _ = connection.execute_batch("ROLLBACK");
            answer_all(written, || commit_failed(&error));
        }
    }
    count
}

/// Refuses a request whose transaction could not begin. A close request is accepted anyway.
fn refuse(
    order: SqliteWriteRequest,
    error: StoreError,
    queue: &mut mpsc::Receiver<SqliteWriteRequest>,
    leaving: &mut Vec<SqliteWriteReply>,
) {
    if matches!(order.job, SqliteWriteJob::Close) {
        queue.close();
        leaving.push(order.reply);
    } else {
        answer(order.reply, Err(error));
    }
}

/// The next request, if one arrives within `OFFERS` yields.
fn expect_one(queue: &mut mpsc::Receiver<SqliteWriteRequest>) -> Option<SqliteWriteRequest> {
    for _ in 0..OFFERS {
        if let Ok(order) = queue.try_recv() {
            return Some(order);
        }
        thread::yield_now();
    }
    None
}

fn begin(connection: &Connection) -> rusqlite::Result<JournalHead> {
    cached(connection, "BEGIN IMMEDIATE")?;
    write::head(connection).inspect_err(|_| {
        let _ = connection.execute_batch("ROLLBACK");
    })
}

/// Performs one job completely or not at all. Returns the new head of the journal.
fn attempt(
    connection: &Connection,
    job: &SqliteWriteJob,
    head: JournalHead,
) -> Result<JournalHead, SqliteWriteError> {
    if job.refuses_before_it_writes() {
        return perform(connection, job, head);
    }
    cached(connection, "SAVEPOINT job")?;
    let done = perform(connection, job, head).and_then(|last| {
        cached(connection, "RELEASE job")?;
        Ok(last)
    });
    if done.is_err() && !connection.is_autocommit() {
        // If this fails too, the transaction must not be committed.
        let undone = cached(connection, "ROLLBACK TO job").and_then(|()| cached(connection, "RELEASE job"));
        if undone.is_err() {
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
                last = write::record(connection, record, last)?;
            }
            Ok(last)
        }
        SqliteWriteJob::Advance { reader, to } => write::advance(connection, reader, *to).map(|()| head),
        SqliteWriteJob::Replace(rows) => write::replace(connection, rows).map(|()| head),
        SqliteWriteJob::Reindex => Ok(inspect::reindex(connection).map(|()| head)?),
        SqliteWriteJob::Close => Ok(head),
    }
}

fn cached(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

fn answer_all(written: Vec<(SqliteWriteReply, JournalHead)>, error: impl Fn() -> StoreError) {
    for (reply, _) in written {
        answer(reply, Err(error()));
    }
}

/// Sends a reply. The caller may have stopped waiting, so an error is ignored.
fn answer(reply: SqliteWriteReply, outcome: Result<CommitReceipt, StoreError>) {
    let _ = reply.send(outcome);
}
