//! The reading threads, each with its own connection, so that readers never wait for the writer.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use abide_ports::store::StoreError;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::connect;

/// The number of reading threads.
const READER_THREADS: usize = 2;
/// The maximum number of queued queries. Further callers wait asynchronously.
const QUEUE_CAPACITY: usize = 1024;

type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// The handle of the reading threads.
#[derive(Debug)]
pub(super) struct ReaderPool {
    jobs: Option<mpsc::Sender<ReadJob>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl ReaderPool {
    pub(super) fn start(path: &Path) -> Result<Self, StoreError> {
        let (questions, queue) = mpsc::channel(QUEUE_CAPACITY);
        let queue = Arc::new(Mutex::new(queue));
        let mut readers = Self { jobs: Some(questions), threads: Vec::new() };
        for _ in 0..READER_THREADS {
            let (connection, queue) = (connect::reader(path)?, Arc::clone(&queue));
            let serve = move || serve(&connection, &queue);
            let thread = thread::Builder::new().name("abide-reader".to_owned()).spawn(serve);
            readers.threads.push(thread.map_err(|error| StoreError::Unavailable {
                reason: format!("cannot start a thread for queries: {error}"),
            })?);
        }
        Ok(readers)
    }

    /// Runs a query on one of the threads.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Unavailable { reason: "the readers have stopped".to_owned() };
        let job: ReadJob = Box::new(move |connection| {
            let _ = reply.send(job(connection));
        });
        self.jobs.as_ref().ok_or_else(stopped)?.send(job).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for ReaderPool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(connection: &Connection, queue: &Mutex<mpsc::Receiver<ReadJob>>) {
    loop {
        // Only one thread blocks on the channel; the others block on the mutex.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(job) = job else { return };
        job(connection);
    }
}
