//! The events of a run as they happen: read by a thread, across broken connections and restarts of the daemon.
//!
//! After every break it goes on behind the last event that it passed on, so that none is lost and none comes twice. It
//! never starts a daemon: whoever stopped it may have wanted that.

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

/// What the feed brings.
#[derive(Debug)]
pub(crate) enum FeedUpdate {
    /// Something happened to the run.
    Event(EventEnvelope),
    /// The daemon is gone.
    Lost,
    /// It is there again.
    Back,
    /// There will be no more, because of this.
    Over(CliError),
}

/// What has come and was not taken yet.
#[derive(Debug)]
pub(crate) struct EventFeed {
    news: Receiver<FeedUpdate>,
    /// Readable whenever something may have come.
    bell: UnixStream,
}

/// How many events wait for whoever reads them before the daemon has to.
const BACKLOG: usize = 1024;
/// How often the daemon is looked for while it is gone.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl EventFeed {
    /// Follows a run from behind this event on.
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

    /// The next piece of news, if there is one.
    pub(crate) fn take(&self) -> Option<FeedUpdate> {
        match self.news.try_recv() {
            Ok(news) => Some(news),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(FeedUpdate::Over(CliError::failure("FAILED", "following the run came to an end")))
            }
        }
    }

    /// What to wait for.
    pub(crate) fn bell(&self) -> &UnixStream {
        &self.bell
    }
}

/// The thread's side.
struct FeedReader {
    client: DaemonClient,
    run: String,
    after: u64,
    sender: SyncSender<FeedUpdate>,
    ring: UnixStream,
    connected: bool,
}

/// Nobody takes news any more.
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
                // The daemon closes a stream when it goes, or to make room: asking again is always right.
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
                    let _told_or_nobody_is_there = self.pass(FeedUpdate::Over(trouble));
                    return;
                }
            }
        }
    }

    /// One connection, until it breaks.
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
                // What is no event of ours is a kind of line that a later daemon sends.
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
        // A full bell rings already.
        let _rings = self.ring.write(&[0]);
        Ok(())
    }
}

/// How a connection ended before its time.
enum ConnectionEnd {
    Trouble(CliError),
    Unwanted(FeedClosed),
}

impl From<FeedClosed> for ConnectionEnd {
    fn from(unwanted: FeedClosed) -> Self {
        Self::Unwanted(unwanted)
    }
}
