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
const THREADS: usize = 2;
/// The maximum number of queued queries. Further callers wait asynchronously.
const QUEUE: usize = 1024;

type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// The handle of the reading threads.
#[derive(Debug)]
pub(super) struct ReaderPool {
    questions: Option<mpsc::Sender<ReadJob>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl ReaderPool {
    pub(super) fn start(path: &Path) -> Result<Self, StoreError> {
        let (questions, queue) = mpsc::channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let mut readers = Self { questions: Some(questions), threads: Vec::new() };
        for _ in 0..THREADS {
            let (connection, queue) = (connect::reader(path)?, Arc::clone(&queue));
            let serve = move || serve(&connection, &queue);
            let thread = thread::Builder::new().name("abide-reader".to_owned()).spawn(serve);
            readers.threads.push(thread.map_err(|error| StoreError::Unavailable {
                reason: format!("no thread for a reader: {error}"),
            })?);
        }
        Ok(readers)
    }

    /// Runs a query on one of the threads.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Unavailable { reason: "the readers have stopped".to_owned() };
        let question: ReadJob = Box::new(move |connection| {
            let _ = reply.send(question(connection));
        });
        self.questions.as_ref().ok_or_else(stopped)?.send(question).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for ReaderPool {
    fn drop(&mut self) {
        self.questions = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(connection: &Connection, queue: &Mutex<mpsc::Receiver<ReadJob>>) {
    loop {
        // Only one thread blocks on the channel; the others block on the mutex.
        let question = queue.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(question) = question else { return };
        question(connection);
    }
}
