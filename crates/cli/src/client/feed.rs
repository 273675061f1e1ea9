//! The events of a run, read by a thread across broken connections and restarts of the daemon.
//!
//! After each interruption it resumes behind the last event that it passed on, so no event is lost or repeated. It
//! never starts a daemon, because the daemon may have been stopped on purpose.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    time::Duration,
};

use abide_wire::event::EventEnvelope;
use anyhow::Context;

use super::{DaemonClient, DaemonRequest, RequestAction};
use crate::{
    trouble::{CliError, CliErrorKind},
    up::background::pause,
};

#[derive(Debug)]
pub(crate) enum FeedUpdate {
    Event(EventEnvelope),
    /// The connection to the daemon is lost.
    Lost,
    /// The daemon is reachable again.
    Back,
    /// The feed has ended with this error.
    Over(CliError),
}

/// Receiver of the updates. Wait for [`Self::bell`] to be readable, then call [`Self::take`] until it returns `None`.
#[derive(Debug)]
pub(crate) struct EventFeed {
    news: Receiver<FeedUpdate>,
    /// Readable when updates may be available.
    bell: UnixStream,
}

/// Capacity of the queue, in events. Beyond it the thread stops reading, which applies backpressure to the daemon.
const BACKLOG: usize = 1024;
/// Interval at which a missing daemon is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl EventFeed {
    /// Follows a run, starting after the event `after`.
    pub(crate) fn follow(client: &DaemonClient, run: &str, after: u64) -> anyhow::Result<Self> {
        let (bell, ring) = UnixStream::pair().context("cannot make a socket pair")?;
        bell.set_nonblocking(true)
            .and_then(|()| ring.set_nonblocking(true))
            .context("cannot use a socket")?;
        let (sender, news) = sync_channel(BACKLOG);
        let mut reader =
            FeedReader { client: client.clone(), run: run.to_owned(), after, sender, ring, connected: true };
        std::thread::Builder::new()
            .name("feed".to_owned())
            .spawn(move || reader.read())
            .context("cannot start a thread")?;
        Ok(Self { news, bell })
    }

    /// Returns the next update, if there is one.
    pub(crate) fn take(&self) -> Option<FeedUpdate> {
        match self.news.try_recv() {
            Ok(news) => Some(news),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(FeedUpdate::Over(CliError::failure("FAILED", "following the run came to an end")))
            }
        }
    }

    pub(crate) fn bell(&self) -> &UnixStream {
        &self.bell
    }
}

/// State of the reading thread.
struct FeedReader {
    client: DaemonClient,
    run: String,
    after: u64,
    sender: SyncSender<FeedUpdate>,
    ring: UnixStream,
    connected: bool,
}

/// The receiver has been dropped.
struct FeedClosed;

impl FeedReader {
    fn read(&mut self) {
        loop {
            let ended = match self.connection() {
                Ok(()) => Ok(()),
                Err(ConnectionEnd::Unwanted(FeedClosed)) => return,
                Err(ConnectionEnd::Trouble(trouble)) => Err(trouble),
            };
            match ended {
                // The daemon closes a stream at shutdown or to free its slot. Reconnecting is right in both cases.
                Ok(()) => pause(LOOK_EVERY),
                Err(trouble) if trouble.is_passing() => {
                    if self.connected && trouble.kind == CliErrorKind::Unreachable {
                        self.connected = false;
                        if self.pass(FeedUpdate::Lost).is_err() {
                            return;
                        }
                    }
                    pause(LOOK_EVERY);
                    while !self.client.look_again() {
                        pause(LOOK_EVERY);
                    }
                }
                Err(trouble) => {
                    // The receiver may be dropped; this thread ends either way.
                    self.pass(FeedUpdate::Over(trouble)).ok();
                    return;
                }
            }
        }
    }

    /// Reads one connection until it breaks.
    fn connection(&mut self) -> Result<(), ConnectionEnd> {
        let path = format!("/v1/runs/{}/events?after={}", self.run, self.after);
        let request = DaemonRequest { path, action: RequestAction::Get, key: None };
        let response =
            self.client.send(&request, "text/event-stream", None).map_err(ConnectionEnd::Trouble)?;
        if !self.connected {
            self.connected = true;
            self.pass(FeedUpdate::Back)?;
        }
        let mut data = String::new();
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let Ok(line) = line else { return Ok(()) };
            if let Some(part) = line.strip_prefix("data:") {
                data.push_str(part.strip_prefix(' ').unwrap_or(part));
            } else if line.is_empty() && !data.is_empty() {
                // Lines that do not parse are ignored: a later daemon may send new kinds.
                if let Ok(event) = serde_json::from_str::<EventEnvelope>(&data)
                    && event.seq > self.after
                {
                    self.after = event.seq;
                    self.pass(FeedUpdate::Event(event))?;
                }
                data.clear();
            }
        }
        Ok(())
    }

    fn pass(&mut self, news: FeedUpdate) -> Result<(), FeedClosed> {
        self.sender.send(news).map_err(|_| FeedClosed)?;
        // If the socket buffer is full, the receiver is already being woken.
        self.ring.write_all(&[0]).ok();
        Ok(())
    }
}

enum ConnectionEnd {
    Trouble(CliError),
    Unwanted(FeedClosed),
}

impl From<FeedClosed> for ConnectionEnd {
    fn from(unwanted: FeedClosed) -> Self {
        Self::Unwanted(unwanted)
    }
}
