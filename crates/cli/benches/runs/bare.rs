//! The reference loop: one thread that inserts rows of the same sizes into one table and syncs, and callers that wait
//! for it.
//!
//! It has no rules, no journal, no index and no encoding. Requests that queue up during a sync share the next
//! transaction, as in our own writer.

use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use crate::now;

/// The maximum number of callers that share a transaction, as in our writer.
const MAX_BATCH_CALLERS: usize = 512;

/// A caller's transaction: its index in the cycle, and the channel for the response.
type BareTransaction = (usize, oneshot::Sender<()>);

pub(crate) struct BareStoreLoop {
    requests: mpsc::Sender<BareTransaction>,
    transactions: usize,
}

impl BareStoreLoop {
    /// Creates a loop that writes transactions with these row lengths.
    pub(crate) fn new(folder: &Path, shape: &[Vec<usize>]) -> Self {
        let connection = rusqlite::Connection::open(folder.join("bare.db")).expect("it opens");
        let set_up = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;
                      CREATE TABLE bare (body TEXT NOT NULL)";
        connection.execute_batch(set_up).expect("it is set up");
        let bodies: Vec<Vec<String>> =
            shape.iter().map(|rows| rows.iter().map(|length| "x".repeat(*length)).collect()).collect();
        let transactions = bodies.len();
        let (orders, queue) = mpsc::channel();
        thread::spawn(move || serve(&connection, &queue, &bodies));
        Self { requests: orders, transactions }
    }

    /// Returns the number of cycles per second with this number of callers.
    pub(crate) async fn cycles(&self, callers: usize, round: Duration) -> f64 {
        let start = now();
        let mut tasks = Vec::new();
        for _ in 0..callers {
            let (orders, transactions) = (self.requests.clone(), self.transactions);
            tasks.push(tokio::spawn(async move {
                let mut count = 0u64;
                while start.elapsed() < round {
                    for transaction in 0..transactions {
                        let (reply, done) = oneshot::channel();
                        orders.send((transaction, reply)).expect("the writer lives");
                        done.await.expect("it is written");
                    }
                    count += 1;
                }
                count
            }));
        }
        let mut count = 0;
        for task in tasks {
            count += task.await.expect("the caller is done");
        }
        count as f64 / start.elapsed().as_secs_f64()
    }
}

fn serve(connection: &rusqlite::Connection, queue: &mpsc::Receiver<BareTransaction>, bodies: &[Vec<String>]) {
    let bodies = Arc::new(bodies);
    while let Ok(first) = queue.recv() {
        connection.execute_batch("BEGIN IMMEDIATE").expect("it begins");
        let mut insert = connection.prepare_cached("INSERT INTO bare (body) VALUES (?1)").expect("valid");
        let mut written = Vec::new();
        let mut next = Some(first);
        while let Some((transaction, reply)) = next.take() {
            for body in &bodies[transaction] {
                insert.execute([body]).expect("it is written");
            }
            written.push(reply);
            if written.len() < MAX_BATCH_CALLERS {
                next = queue.try_recv().ok();
            }
        }
        connection.execute_batch("COMMIT").expect("it is synced");
        for reply in written {
            // The receiver is dropped at the end of a round.
            reply.send(()).ok();
        }
    }
}
