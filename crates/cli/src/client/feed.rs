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

use super::{Action, Client, Request};
use crate::{
    trouble::{Kind, Trouble},
    up::background::pause,
};

/// What the feed brings.
#[derive(Debug)]
pub(crate) enum News {
    /// Something happened to the run.
    Event(EventEnvelope),
    /// The daemon is gone.
    Lost,
    /// It is there again.
    Back,
    /// There will be no more, because of this.
    Over(Trouble),
}

/// What has come and was not taken yet.
#[derive(Debug)]
pub(crate) struct Feed {
    news: Receiver<News>,
    /// Readable whenever something may have come.
    bell: UnixStream,
}

/// How many events wait for whoever reads them before the daemon has to.
const BACKLOG: usize = 1024;
/// How often the daemon is looked for while it is gone.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Feed {
    /// Follows a run from behind this event on.
    pub(crate) fn follow(client: &Client, run: &str, after: u64) -> anyhow::Result<Self> {
        let (bell, ring) = UnixStream::pair().context("cannot make a socket pair")?;
        bell.set_nonblocking(true)
            .and_then(|()| ring.set_nonblocking(true))
            .context("cannot use a socket")?;
        let (sender, news) = sync_channel(BACKLOG);
        let mut reader =
            Reader { client: client.clone(), run: run.to_owned(), after, sender, ring, connected: true };
        std::thread::Builder::new()
            .name("feed".to_owned())
            .spawn(move || reader.read())
            .context("cannot start a thread")?;
        Ok(Self { news, bell })
    }

    /// The next piece of news, if there is one.
    pub(crate) fn take(&self) -> Option<News> {
        match self.news.try_recv() {
            Ok(news) => Some(news),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(News::Over(Trouble::failure("FAILED", "following the run came to an end")))
            }
        }
    }

    /// What to wait for.
    pub(crate) fn bell(&self) -> &UnixStream {
        &self.bell
    }
}

/// The thread's side.
struct Reader {
    client: Client,
    run: String,
    after: u64,
    sender: SyncSender<News>,
    ring: UnixStream,
    connected: bool,
}

/// Nobody takes news any more.
struct Unwanted;

impl Reader {
    fn read(&mut self) {
        loop {
            let ended = match self.connection() {
                Ok(()) => Ok(()),
                Err(Broken::Unwanted(Unwanted)) => return,
                Err(Broken::Trouble(trouble)) => Err(trouble),
            };
            match ended {
                // The daemon closes a stream when it goes, or to make room: asking again is always right.
                Ok(()) => pause(LOOK_EVERY),
                Err(trouble) if trouble.is_passing() => {
                    if self.connected && trouble.kind == Kind::Unreachable {
                        self.connected = false;
                        if self.pass(News::Lost).is_err() {
                            return;
                        }
                    }
                    pause(LOOK_EVERY);
                    while !self.client.look_again() {
                        pause(LOOK_EVERY);
                    }
                }
                Err(trouble) => {
                    let _told_or_nobody_is_there = self.pass(News::Over(trouble));
                    return;
                }
            }
        }
    }

    /// One connection, until it breaks.
    fn connection(&mut self) -> Result<(), Broken> {
        let path = format!("/v1/runs/{}/events?after={}", self.run, self.after);
        let request = Request { path, action: Action::Get, key: None };
        let response = self.client.send(&request, "text/event-stream", None).map_err(Broken::Trouble)?;
        if !self.connected {
            self.connected = true;
            self.pass(News::Back)?;
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
                    self.pass(News::Event(event))?;
                }
                data.clear();
            }
        }
        Ok(())
    }

    fn pass(&mut self, news: News) -> Result<(), Unwanted> {
        self.sender.send(news).map_err(|_| Unwanted)?;
        // A full bell rings already.
        let _rings = self.ring.write(&[0]);
        Ok(())
    }
}

/// How a connection ended before its time.
enum Broken {
    Trouble(Trouble),
    Unwanted(Unwanted),
}

impl From<Unwanted> for Broken {
    fn from(unwanted: Unwanted) -> Self {
        Self::Unwanted(unwanted)
    }
}
