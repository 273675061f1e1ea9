//! A reader of the daemon's event stream that reconnects after a restart and continues after the last event it
//! received.

use std::{
    io::{self, BufRead},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::Value;

use super::http::TestHttpClient;

/// An event as received by the reader.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenEvent {
    /// The value of the `id:` line.
    pub id: u64,
    /// The value of the `data:` line, parsed.
    pub event: Value,
}

/// Reads events on a thread of its own.
#[derive(Debug)]
pub struct EventReader {
    shared: Arc<EventReaderState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct EventReaderState {
    events: Mutex<Vec<SeenEvent>>,
    arrived: Condvar,
    stop: AtomicBool,
    reconnections: Mutex<u64>,
}

/// The pause before a reconnection.
const RECONNECT_DELAY: Duration = Duration::from_millis(20);
/// The timeouts of [`EventReader::wait_for_more_than`] and [`EventReader::poll_for_more_than`].
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
const SHORT_WAIT_TIMEOUT: Duration = Duration::from_millis(100);

impl EventReader {
    /// Reads from the first event on. `client` is called for each connection, so that it can find the current daemon.
    pub fn open(path: &str, client: impl Fn() -> io::Result<TestHttpClient> + Send + 'static) -> Self {
        let shared = Arc::new(EventReaderState::default());
        let (reader, path) = (shared.clone(), path.to_owned());
        let thread = std::thread::spawn(move || reader.run(&path, client));
        Self { shared, thread: Some(thread) }
    }

    /// Returns the events received so far.
    pub fn events(&self) -> Vec<SeenEvent> {
        self.shared.lock_events().clone()
    }

    /// Returns the number of reconnections.
    pub fn reconnections(&self) -> u64 {
        *self.shared.reconnections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until more than `count` events were received; returns false after a timeout of 120 s.
    pub fn wait_for_more_than(&self, count: usize) -> bool {
        let seen = self.shared.lock_events();
        let waited = self.shared.arrived.wait_timeout_while(seen, WAIT_TIMEOUT, |seen| seen.len() <= count);
        waited.is_ok_and(|(_, timeout)| !timeout.timed_out())
    }

    /// Like [`EventReader::wait_for_more_than`] with a timeout of 100 ms.
    pub fn poll_for_more_than(&self, count: usize) -> bool {
        let seen = self.shared.lock_events();
        let waited =
            self.shared.arrived.wait_timeout_while(seen, SHORT_WAIT_TIMEOUT, |seen| seen.len() <= count);
        waited.is_ok_and(|(_, timeout)| !timeout.timed_out())
    }

    /// Waits until the event with this id was received; returns false after a timeout.
    pub fn wait_for_id(&self, id: u64) -> bool {
        let reached = |seen: &mut Vec<SeenEvent>| seen.last().is_none_or(|last| last.id < id);
        let waited = self.shared.arrived.wait_timeout_while(self.shared.lock_events(), WAIT_TIMEOUT, reached);
        waited.is_ok_and(|(_, timeout)| !timeout.timed_out())
    }
}

impl EventReader {
    /// Stops the reader and joins its thread. The thread notices the request at the next event or when the daemon is
    /// gone.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread returns no value.
            thread.join().ok();
        }
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        // The thread is not joined: without events it blocks until its connection ends.
        self.shared.stop.store(true, Ordering::Release);
    }
}

impl EventReaderState {
    fn lock_events(&self) -> MutexGuard<'_, Vec<SeenEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self, path: &str, client: impl Fn() -> io::Result<TestHttpClient>) {
        while !self.is_stopped() {
            // The daemon may be down. The next connection continues after the last event.
            client().and_then(|client| self.read(path, &client)).ok();
            *self.reconnections.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            sleep(RECONNECT_DELAY);
        }
    }

    fn read(&self, path: &str, client: &TestHttpClient) -> io::Result<()> {
        let last = self.lock_events().last().map_or(0, |seen| seen.id).to_string();
        let headers = [("Accept", "text/event-stream"), ("Last-Event-ID", last.as_str())];
        let (status, mut reader) = client.stream(path, &headers)?;
        if status != 200 {
            return Err(io::Error::other(format!("status {status}")));
        }
        let (mut id, mut data, mut line) = (None, String::new(), String::new());
        while !self.is_stopped() {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if !line.ends_with('\n') {
                // The event is truncated. The daemon sends it again after the reconnection.
                return Ok(());
            }
            let text = line.trim_end();
            if let Some(number) = text.strip_prefix("id:") {
                id = number.trim().parse().ok();
            } else if let Some(part) = text.strip_prefix("data:") {
                data.push_str(part.trim_start());
            } else if text.is_empty() {
                if let Some(id) = id.take() {
                    let event = serde_json::from_str(&data).unwrap_or(Value::Null);
                    self.lock_events().push(SeenEvent { id, event });
                    self.arrived.notify_all();
                }
                data.clear();
            }
        }
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "a daemon that is not there has nothing to wait on")]
pub(super) fn sleep(time: Duration) {
    std::thread::sleep(time);
}
