//! The daemon's event stream: one connection ([`EventStream`]), and a reader that reconnects after a restart and
//! continues after the last event it received ([`EventReader`]).

use std::{
    collections::VecDeque,
    io::{self, Read},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use abide_os::sse::SseParser;
use serde_json::Value;

use super::http::TestHttpClient;
use crate::wait;

/// An event as received by a reader.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenEvent {
    /// The number of the event in the journal.
    pub id: u64,
    pub event: Value,
}

/// One connection to the event stream. As an iterator it yields each event and ends with the connection.
pub struct EventStream {
    body: ureq::BodyReader<'static>,
    parser: SseParser,
    /// Events that were read together with an earlier one.
    ready: VecDeque<SeenEvent>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl EventStream {
    pub(super) fn new(body: ureq::BodyReader<'static>) -> Self {
        Self { body, parser: SseParser::default(), ready: VecDeque::new() }
    }

    /// Reads the next bytes and returns the events that they complete: possibly none; `None` at the end.
    fn read(&mut self) -> io::Result<Option<Vec<SeenEvent>>> {
        let mut buffer = [0; 16 << 10];
        let count = self.body.read(&mut buffer)?;
        let complete = self.parser.feed(&buffer[..count]);
        let events = complete.into_iter().map(|data| {
            let event: Value = serde_json::from_str(&data).unwrap_or_default();
            SeenEvent { id: event["seq"].as_u64().unwrap_or_default(), event }
        });
        Ok((count > 0).then(|| events.collect()))
    }
}

impl Iterator for EventStream {
    type Item = Value;

    /// # Panics
    ///
    /// If there is no event within the stream's limit.
    fn next(&mut self) -> Option<Value> {
        while self.ready.is_empty() {
            match self.read() {
                Ok(Some(events)) => self.ready.extend(events),
                Ok(None) => return None,
                Err(error) if is_timeout(&error) => panic!("no event: {error}"),
                // The daemon was killed.
                Err(_) => return None,
            }
        }
        self.ready.pop_front().map(|seen| seen.event)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    let source = error.get_ref().and_then(|source| source.downcast_ref::<ureq::Error>());
    matches!(source, Some(ureq::Error::Timeout(_)))
}

/// Reads events on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct EventReader {
    shared: Arc<EventReaderState>,
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
/// The timeout of [`EventReader::poll_for_more_than`].
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// The age at which a connection is replaced, so that one that hangs is noticed.
const CONNECTION_LIMIT: Duration = Duration::from_secs(600);

impl EventReader {
    /// Reads from the first event on. `client` is called for each connection, so that it can find the current daemon.
    pub fn open(path: &str, client: impl Fn() -> io::Result<TestHttpClient> + Send + 'static) -> Self {
        let shared = Arc::new(EventReaderState::default());
        let (reader, path) = (shared.clone(), path.to_owned());
        std::thread::spawn(move || reader.run(&path, client));
        Self { shared }
    }

    /// Returns the events received so far.
    pub fn events(&self) -> Vec<SeenEvent> {
        self.shared.lock_events().clone()
    }

    /// Returns the number of events received so far.
    pub fn count(&self) -> usize {
        self.shared.lock_events().len()
    }

    /// Returns the number of reconnections.
    pub fn reconnections(&self) -> u64 {
        *self.shared.reconnections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until more than `count` events were received; returns false after [`wait::LIMIT`].
    pub fn wait_for_more_than(&self, count: usize) -> bool {
        self.wait_with_timeout(count, wait::LIMIT)
    }

    /// Like [`EventReader::wait_for_more_than`] with a timeout of 100 ms.
    pub fn poll_for_more_than(&self, count: usize) -> bool {
        self.wait_with_timeout(count, POLL_TIMEOUT)
    }

    fn wait_with_timeout(&self, count: usize, timeout: Duration) -> bool {
        let seen = self.shared.lock_events();
        let waited = self.shared.arrived.wait_timeout_while(seen, timeout, |seen| seen.len() <= count);
        waited.is_ok_and(|(_, waited)| !waited.timed_out())
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
            wait::sleep(RECONNECT_DELAY);
        }
    }

    fn read(&self, path: &str, client: &TestHttpClient) -> io::Result<()> {
        let last = self.lock_events().last().map_or(0, |seen| seen.id);
        let mut stream = client.events_for(path, last, CONNECTION_LIMIT)?;
        while !self.is_stopped()
            && let Some(events) = stream.read()?
        {
            if !events.is_empty() {
                self.lock_events().extend(events);
                self.arrived.notify_all();
            }
        }
        Ok(())
    }
}
