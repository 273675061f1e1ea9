//! The events of a run, read by a thread across broken connections and restarts of the daemon.
//!
//! After each interruption it resumes behind the last event that it passed on, so no event is lost or repeated. It
//! never starts a daemon, because the daemon may have been stopped on purpose.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    time::Duration,
};

use abide_os::sse::SseParser;
use abide_wire::event::EventEnvelope;
use anyhow::Context;

use super::{DaemonClient, DaemonRequest, RequestAction};
use crate::{
    error::{CliError, CliErrorKind},
    up::background::sleep,
};

#[derive(Debug)]
pub(crate) enum FeedUpdate {
    Event(EventEnvelope),
    /// The connection to the daemon is lost.
    Disconnected,
    /// The daemon is reachable again.
    Reconnected,
    /// The feed has ended with this error.
    Failed(CliError),
}

/// Receiver of the updates. Wait for [`Self::wakeup`] to be readable, then call [`Self::try_next`] until it returns `None`.
#[derive(Debug)]
pub(crate) struct EventFeed {
    updates: Receiver<FeedUpdate>,
    /// Readable when updates may be available.
    wakeup: UnixStream,
}

/// Capacity of the queue, in events. Beyond it the thread stops reading, which applies backpressure to the daemon.
const QUEUE_CAPACITY: usize = 1024;
const READ_BYTES: usize = 16 << 10;
/// Interval of the search for a missing daemon.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

impl EventFeed {
    /// Follows a run, starting after the event `after`.
    pub(crate) fn follow(client: &DaemonClient, run: &str, after: u64) -> anyhow::Result<Self> {
        let (bell, ring) = UnixStream::pair().context("cannot create a socket pair")?;
        bell.set_nonblocking(true)
            .and_then(|()| ring.set_nonblocking(true))
            .context("cannot use a socket")?;
        let (sender, news) = sync_channel(QUEUE_CAPACITY);
        let mut reader = FeedReader {
            client: client.clone(),
            run: run.to_owned(),
            after,
            sender,
            wakeup_writer: ring,
            connected: true,
        };
        std::thread::Builder::new()
            .name("feed".to_owned())
            .spawn(move || reader.run())
            .context("cannot start a thread")?;
        Ok(Self { updates: news, wakeup: bell })
    }

    /// Returns the next update, if there is one.
    pub(crate) fn try_next(&self) -> Option<FeedUpdate> {
        match self.updates.try_recv() {
            Ok(news) => Some(news),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(FeedUpdate::Failed(CliError::failure("FAILED", "the event stream ended")))
            }
        }
    }

    pub(crate) fn wakeup(&self) -> &UnixStream {
        &self.wakeup
    }
}

/// State of the reading thread.
struct FeedReader {
    client: DaemonClient,
    run: String,
    after: u64,
    sender: SyncSender<FeedUpdate>,
    wakeup_writer: UnixStream,
    connected: bool,
}

/// The receiver has been dropped.
struct FeedClosed;

impl FeedReader {
    fn run(&mut self) {
        loop {
            let ended = match self.read_connection() {
                Ok(()) => Ok(()),
                Err(ConnectionEnd::Closed(FeedClosed)) => return,
                Err(ConnectionEnd::Error(error)) => Err(error),
            };
            match ended {
                // The daemon closes a stream at shutdown or to free its slot. Reconnecting is right in both cases.
                Ok(()) => sleep(RECONNECT_INTERVAL),
                Err(error) if error.is_transient() => {
                    if self.connected && error.kind == CliErrorKind::Unreachable {
                        self.connected = false;
                        if self.forward(FeedUpdate::Disconnected).is_err() {
                            return;
                        }
                    }
                    sleep(RECONNECT_INTERVAL);
                    while !self.client.refresh_address() {
                        sleep(RECONNECT_INTERVAL);
                    }
                }
                Err(error) => {
                    // The receiver may be dropped; this thread ends either way.
                    self.forward(FeedUpdate::Failed(error)).ok();
                    return;
                }
            }
        }
    }

    /// Reads one connection until it breaks.
    fn read_connection(&mut self) -> Result<(), ConnectionEnd> {
        let path = format!("/v1/runs/{}/events?after={}", self.run, self.after);
        let request = DaemonRequest { path, action: RequestAction::Get, key: None };
        let response = self.client.send(&request, "text/event-stream", None).map_err(ConnectionEnd::Error)?;
        if !self.connected {
            self.connected = true;
            self.forward(FeedUpdate::Reconnected)?;
        }
        let mut body = response.into_body().into_reader();
        let mut parser = SseParser::default();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let bytes = match body.read(&mut buffer) {
                Ok(0) | Err(_) => return Ok(()),
                Ok(count) => buffer.get(..count).unwrap_or_default(),
            };
            for data in parser.feed(bytes) {
                // Events of unknown kinds are parsed and kept. Messages that are no events are ignored.
                if let Ok(event) = serde_json::from_str::<EventEnvelope>(&data)
                    && event.seq > self.after
                {
                    self.after = event.seq;
                    self.forward(FeedUpdate::Event(event))?;
                }
            }
        }
    }

    fn forward(&mut self, update: FeedUpdate) -> Result<(), FeedClosed> {
        self.sender.send(update).map_err(|_| FeedClosed)?;
        // If the socket buffer is full, the receiver is already being woken.
        self.wakeup_writer.write_all(&[0]).ok();
        Ok(())
    }
}

enum ConnectionEnd {
    Error(CliError),
    Closed(FeedClosed),
}

impl From<FeedClosed> for ConnectionEnd {
    fn from(unwanted: FeedClosed) -> Self {
        Self::Closed(unwanted)
    }
}
