//! The threads that read, each on a connection of its own, so that no reader ever waits for the writer.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use abide_ports::store::StoreError;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::connect;

/// How many threads read.
const THREADS: usize = 2;
/// How many questions may wait. Who comes later waits for a place, asynchronously.
const QUEUE: usize = 1024;

type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// The threads, as their customers see them.
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

    /// Has a question answered.
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
        // One thread waits for the next question; the others wait for their turn to wait.
        let question = queue.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(question) = question else { return };
        question(connection);
    }
}
