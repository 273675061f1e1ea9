//! The connected clients and the output that each one follows.
//!
//! A follower that keeps up gets bytes as they are read. A slow follower gets them from the spool. The client that
//! started a followed command applies backpressure: the pipe of the command is not read while that client lags.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Uid, geteuid};

use super::{PollSource, Poller};
use crate::launch::FIRST;
use crate::link::FramedSocket;
use crate::protocol::{
    JobId, JobOutputRange, KeeperResponse, OutputChunk, OutputStream, TaggedRequest, TaggedResponse,
};
use crate::spool::Spool;

/// All client connections.
#[derive(Debug, Default)]
pub(super) struct ClientConnections {
    all: BTreeMap<u64, ClientConnection>,
    next: u64,
}

#[derive(Debug)]
struct ClientConnection {
    link: FramedSocket,
    trusted: bool,
    follows: Vec<FollowedOutput>,
    /// The events that the poller watches for on its socket.
    armed: EventFlags,
    /// True if requests of this client are postponed because it does not read its responses.
    stalled: bool,
}

#[derive(Debug)]
struct FollowedOutput {
    tag: u64,
    job: JobId,
    at: [u64; 2],
    holds_back: bool,
}

/// Maximum number of connections; further ones are closed at once.
const MAX_CLIENTS: usize = 64;
/// A follower with more unsent bytes than this is slow.
const BEHIND: usize = 1 << 20;
const PIECE: u64 = 256 << 10;
/// Requests of a client with more unsent bytes than this are postponed, because each may add a response.
const MAX_UNSENT: usize = 4 << 20;

impl ClientConnections {
    /// Adds the client that started this keeper. It needs no secret.
    pub(super) fn add_creator(&mut self, link: FramedSocket, poller: &Poller) {
        self.add(link, true, poller);
    }

    /// Accepts connections of the keeper's user and of root. A connection of another user is closed unread, even if the
    /// permissions of directory and socket would allow it.
    pub(super) fn accept(&mut self, door: &OwnedFd, poller: &Poller) {
        if let Ok(socket) = accept_with(door, SocketFlags::CLOEXEC)
            && socket_peercred(&socket).is_ok_and(|peer| may_connect(peer.uid, geteuid()))
            && self.all.len() < MAX_CLIENTS
        {
            self.add(FramedSocket::new(socket), false, poller);
        }
    }

    fn add(&mut self, link: FramedSocket, trusted: bool, poller: &Poller) {
        self.next += 1;
        if poller.add(&link, PollSource::Client(self.next), EventFlags::IN).is_ok() {
            self.all.insert(
                self.next,
                ClientConnection {
                    link,
                    trusted,
                    follows: Vec::new(),
                    armed: EventFlags::IN,
                    stalled: false,
                },
            );
        }
    }

    /// The number of the creator's connection, which is the first one.
    pub(super) const CREATOR: u64 = 1;

    /// Whether no client is connected.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The next request of a client. A client that disconnected or violated the protocol is dropped. The socket is read
    /// once per readiness event.
    pub(super) fn next_order(&mut self, number: u64, reads: bool) -> Option<TaggedRequest> {
        let client = self.all.get_mut(&number)?;
        let order = if reads {
            client.link.receive::<TaggedRequest>()
        } else {
            client.link.buffered::<TaggedRequest>()
        };
        let broken = order.is_err() || client.link.flush().is_err();
        match order {
            Ok(Some(order)) => Some(order),
            Ok(None) if !client.link.is_closed() && !broken => None,
            Ok(None) | Err(_) => {
                self.all.remove(&number);
                None
            }
        }
    }

    /// Flushes the socket, and returns whether the client reads its responses.
    pub(super) fn takes_answers(&mut self, number: u64) -> bool {
        let Some(client) = self.all.get_mut(&number) else { return false };
        if client.link.flush().is_err() {
            self.all.remove(&number);
            return false;
        }
        client.stalled = client.link.pending() > MAX_UNSENT;
        !client.stalled
    }

    pub(super) fn is_trusted(&self, number: u64) -> bool {
        self.all.get(&number).is_some_and(|client| client.trusted)
    }

    pub(super) fn trust(&mut self, number: u64) {
        if let Some(client) = self.all.get_mut(&number) {
            client.trusted = true;
        }
    }

    pub(super) fn drop_client(&mut self, number: u64) {
        self.all.remove(&number);
    }

    pub(super) fn tell(&mut self, (number, tag): (u64, u64), news: KeeperResponse) {
        if let Some(client) = self.all.get_mut(&number)
            && client.link.send(&TaggedResponse { tag, news }).is_err()
        {
            self.all.remove(&number);
        }
    }

    pub(super) fn tell_if(&mut self, wanted: bool, client: (u64, u64), news: KeeperResponse) {
        if wanted {
            self.tell(client, news);
        }
    }

    /// Sends a response to all authenticated clients; `news` creates one for each.
    pub(super) fn tell_all(&mut self, news: impl Fn() -> KeeperResponse) {
        let numbers: Vec<u64> =
            self.all.iter().filter(|(_, client)| client.trusted).map(|(n, _)| *n).collect();
        for number in numbers {
            self.tell((number, 0), news());
        }
    }

    pub(super) fn follow(&mut self, (number, tag): (u64, u64), job: JobId, at: [u64; 2], holds_back: bool) {
        if let Some(client) = self.all.get_mut(&number) {
            // A tag identifies one follower. A second request with the same tag moves it instead of duplicating the
            // output.
            client.follows.retain(|follow| follow.tag != tag);
            client.follows.push(FollowedOutput { tag, job, at, holds_back });
        }
    }

    /// Sends new bytes to the followers that have received all earlier ones.
    pub(super) fn pass_on(&mut self, place: &OutputChunk, bytes: &[u8]) {
        for client in self.all.values_mut() {
            if client.link.pending() > BEHIND {
                continue;
            }
            for follow in client.follows.iter_mut().filter(|follow| follow.job == place.job) {
                let at = &mut follow.at[place.stream.index()];
                if *at != place.offset {
                    continue;
                }
                *at += bytes.len() as u64;
                let head = TaggedResponse {
                    tag: follow.tag,
                    news: KeeperResponse::Output(OutputChunk { bytes: Vec::new(), ..*place }),
                };
                // A broken connection is detected at the next read.
                client.link.send_with_bytes(&head, bytes).ok();
            }
        }
    }

    /// Whether a client that applies backpressure to this job is slow.
    pub(super) fn is_behind(&self, job: JobId) -> bool {
        self.all.values().any(|client| {
            client.link.pending() > BEHIND
                && client.follows.iter().any(|follow| follow.holds_back && follow.job == job)
        })
    }

    /// Sends missing output to followers, and reports the end of a job to those that have received all of it.
    pub(super) fn pump(&mut self, spool: &Spool, running: Option<JobId>) {
        for client in self.all.values_mut().filter(|client| !client.follows.is_empty()) {
            let ClientConnection { link, follows, .. } = client;
            follows.retain_mut(|follow| !catch_up(link, follow, spool, running));
        }
    }

    /// Watches for writability where a socket was full, and stops watching for requests that are postponed.
    pub(super) fn rearm(&mut self, poller: &Poller) {
        for (number, client) in &mut self.all {
            let flags = match client.link.pending() {
                0 if !client.stalled => EventFlags::IN,
                0..=MAX_UNSENT => EventFlags::IN | EventFlags::OUT,
                _ => EventFlags::OUT,
            };
            if flags != client.armed {
                client.armed = flags;
                poller.change(&client.link, PollSource::Client(*number), flags);
            }
        }
    }

    /// Whether a client that applies backpressure has not received all output yet.
    pub(super) fn is_owed(&self, spool: &Spool) -> bool {
        self.all.values().flat_map(|client| client.follows.iter().map(move |follow| (client, follow))).any(
            |(client, follow)| {
                let printed = spool.printed(follow.job);
                let behind = follow.at[0] < printed[0] || follow.at[1] < printed[1];
                follow.holds_back && (behind || client.link.pending() > 0)
            },
        ) || self.all.values().any(|client| client.link.pending() > BEHIND / 16)
    }

    pub(super) fn flush_all(&mut self) {
        for client in self.all.values_mut() {
            for _ in 0..100 {
                if client.link.flush().is_err() || client.link.pending() == 0 {
                    break;
                }
            }
        }
    }
}

fn may_connect(peer: Uid, own: Uid) -> bool {
    peer == own || peer.is_root()
}

/// Sends missing output. Returns true when the follower is complete.
fn catch_up(
    link: &mut FramedSocket,
    follow: &mut FollowedOutput,
    spool: &Spool,
    running: Option<JobId>,
) -> bool {
    let printed = spool.printed(follow.job);
    for stream in OutputStream::ALL {
        let index = stream.index();
        while follow.at[index] < printed[index] && link.pending() <= BEHIND {
            let range = JobOutputRange { job: follow.job, stream, offset: follow.at[index], limit: PIECE };
            let piece = spool.read(range).ok().flatten().filter(|piece| !piece.bytes.is_empty());
            // Output that cannot be read is lost, for example because the files were deleted. The end is still
            // reported.
            let Some(piece) = piece else {
                follow.at[index] = printed[index];
                // A client that requires every byte learns from the offset that some are missing.
                if spool.is_lossless() {
                    let output =
                        OutputChunk { job: follow.job, stream, offset: printed[index], bytes: Vec::new() };
                    // A broken connection is detected at the next read.
                    link.send(&TaggedResponse { tag: follow.tag, news: KeeperResponse::Output(output) }).ok();
                }
                break;
            };
            let (offset, bytes) = (piece.offset, piece.bytes);
            follow.at[index] = offset + bytes.len() as u64;
            let output = OutputChunk { job: follow.job, stream, offset, bytes };
            if link.send(&TaggedResponse { tag: follow.tag, news: KeeperResponse::Output(output) }).is_err() {
                return true;
            }
        }
    }
    if follow.at[0] < printed[0] || follow.at[1] < printed[1] || running == Some(follow.job) {
        return false;
    }
    let Some(outcome) = spool.outcome(follow.job) else { return false };
    // A broken connection is detected at the next read.
    link.send(&TaggedResponse { tag: follow.tag, news: KeeperResponse::Ended(outcome.clone()) }).ok();
    true
}

/// The tag of the request that opens a connection.
pub(super) const HELLO: u64 = FIRST;
