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

use super::{EpollSet, PollSource};
use crate::client::FIRST_RESPONSE_TAG;
use crate::framed_socket::FramedSocket;
use crate::protocol::{
    JobId, JobOutputRange, KeeperResponse, OutputChunk, OutputStream, TaggedRequest, TaggedResponse,
};
use crate::spool::Spool;

#[derive(Debug, Default)]
pub(super) struct ClientConnections {
    by_number: BTreeMap<u64, ClientConnection>,
    last_number: u64,
}

#[derive(Debug)]
struct ClientConnection {
    socket: FramedSocket,
    is_authenticated: bool,
    follows: Vec<OutputSubscription>,
    /// The events that the poller watches for on its socket.
    watched_events: EventFlags,
    /// True if requests of this client are postponed because it does not read its responses.
    requests_postponed: bool,
}

#[derive(Debug)]
struct OutputSubscription {
    tag: u64,
    job: JobId,
    next_offsets: [u64; 2],
    applies_backpressure: bool,
}

/// Maximum number of connections; further ones are closed at once.
const MAX_CLIENTS: usize = 64;
/// A follower with more unsent bytes than this is slow.
const SLOW_FOLLOWER_BYTES: usize = 1 << 20;
const MAX_CHUNK_BYTES: u64 = 256 << 10;
/// Requests of a client with more unsent bytes than this are postponed, because each may add a response.
const MAX_UNSENT_BYTES: usize = 4 << 20;

impl ClientConnections {
    /// Adds the client that started this keeper. It needs no secret.
    pub(super) fn add_creator(&mut self, link: FramedSocket, poller: &EpollSet) {
        self.add(link, true, poller);
    }

    /// Accepts connections of the keeper's user and of root. A connection of another user is closed unread, even if the
    /// permissions of directory and socket would allow it.
    pub(super) fn accept(&mut self, listener: &OwnedFd, poller: &EpollSet) {
        if let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
            && socket_peercred(&socket).is_ok_and(|peer| is_permitted_peer(peer.uid, geteuid()))
            && self.by_number.len() < MAX_CLIENTS
        {
            self.add(FramedSocket::new(socket), false, poller);
        }
    }

    fn add(&mut self, link: FramedSocket, trusted: bool, poller: &EpollSet) {
        self.last_number += 1;
        if poller.add(&link, PollSource::Client(self.last_number), EventFlags::IN).is_ok() {
            self.by_number.insert(
                self.last_number,
                ClientConnection {
                    socket: link,
                    is_authenticated: trusted,
                    follows: Vec::new(),
                    watched_events: EventFlags::IN,
                    requests_postponed: false,
                },
            );
        }
    }

    /// The number of the creator's connection, which is the first one.
    pub(super) const CREATOR_NUMBER: u64 = 1;

    /// Whether no client is connected.
    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Whether a client still receives output or the end of a job.
    pub(super) fn has_followers(&self) -> bool {
        self.by_number.values().any(|client| !client.follows.is_empty())
    }

    /// The next request of a client. A client that disconnected or violated the protocol is dropped. The socket is read
    /// once per readiness event.
    pub(super) fn next_request(&mut self, number: u64, reads: bool) -> Option<TaggedRequest> {
        let client = self.by_number.get_mut(&number)?;
        let request = if reads {
            client.socket.receive::<TaggedRequest>()
        } else {
            client.socket.buffered::<TaggedRequest>()
        };
        let broken = request.is_err() || client.socket.flush().is_err();
        match request {
            Ok(Some(request)) => Some(request),
            Ok(None) if !client.socket.is_closed() && !broken => None,
            Ok(None) | Err(_) => {
                self.by_number.remove(&number);
                None
            }
        }
    }

    /// Flushes the socket, and returns whether the client reads its responses.
    pub(super) fn flush_and_accepts_responses(&mut self, number: u64) -> bool {
        let Some(client) = self.by_number.get_mut(&number) else { return false };
        if client.socket.flush().is_err() {
            self.by_number.remove(&number);
            return false;
        }
        client.requests_postponed = client.socket.unsent_bytes() > MAX_UNSENT_BYTES;
        !client.requests_postponed
    }

    pub(super) fn is_authenticated(&self, number: u64) -> bool {
        self.by_number.get(&number).is_some_and(|client| client.is_authenticated)
    }

    pub(super) fn authenticate(&mut self, number: u64) {
        if let Some(client) = self.by_number.get_mut(&number) {
            client.is_authenticated = true;
        }
    }

    pub(super) fn drop_client(&mut self, number: u64) {
        self.by_number.remove(&number);
    }

    pub(super) fn send(&mut self, (number, tag): (u64, u64), response: KeeperResponse) {
        if let Some(client) = self.by_number.get_mut(&number)
            && client.socket.send(&TaggedResponse { tag, news: response }).is_err()
        {
            self.by_number.remove(&number);
        }
    }

    pub(super) fn send_if(&mut self, wanted: bool, client: (u64, u64), response: KeeperResponse) {
        if wanted {
            self.send(client, response);
        }
    }

    /// Sends a response to all authenticated clients; `news` creates one for each.
    pub(super) fn broadcast(&mut self, response: impl Fn() -> KeeperResponse) {
        let numbers: Vec<u64> =
            self.by_number.iter().filter(|(_, client)| client.is_authenticated).map(|(n, _)| *n).collect();
        for number in numbers {
            self.send((number, 0), response());
        }
    }

    pub(super) fn follow(&mut self, (number, tag): (u64, u64), job: JobId, at: [u64; 2], holds_back: bool) {
        if let Some(client) = self.by_number.get_mut(&number) {
            // A tag identifies one follower. A second request with the same tag moves it instead of duplicating the
            // output.
            client.follows.retain(|follow| follow.tag != tag);
            client.follows.push(OutputSubscription {
                tag,
                job,
                next_offsets: at,
                applies_backpressure: holds_back,
            });
        }
    }

    /// Sends new bytes to the followers that have received all earlier ones.
    pub(super) fn forward_output(&mut self, chunk: &OutputChunk, bytes: &[u8]) {
        for client in self.by_number.values_mut() {
            if client.socket.unsent_bytes() > SLOW_FOLLOWER_BYTES {
                continue;
            }
            for follow in client.follows.iter_mut().filter(|follow| follow.job == chunk.job) {
                let at = &mut follow.next_offsets[chunk.stream.index()];
                if *at != chunk.offset {
                    continue;
                }
                *at += bytes.len() as u64;
                let head = TaggedResponse {
                    tag: follow.tag,
                    news: KeeperResponse::Output(OutputChunk { bytes: Vec::new(), ..*chunk }),
                };
                // A broken connection is detected at the next read.
                client.socket.send_with_bytes(&head, bytes).ok();
            }
        }
    }

    /// Whether a client that applies backpressure to this job is slow, or began to follow late and still receives earlier
    /// output. `printed` is the length of the job's streams.
    pub(super) fn has_slow_follower(&self, job: JobId, printed: [u64; 2]) -> bool {
        self.by_number.values().any(|client| {
            let is_full = client.socket.unsent_bytes() > SLOW_FOLLOWER_BYTES;
            let is_behind = |next_offsets: [u64; 2]| {
                (0..2).any(|stream| {
                    printed[stream].saturating_sub(next_offsets[stream]) > SLOW_FOLLOWER_BYTES as u64
                })
            };
            client.follows.iter().any(|follow| {
                follow.applies_backpressure
                    && follow.job == job
                    && (is_full || is_behind(follow.next_offsets))
            })
        })
    }

    /// Sends missing output to followers, and reports the end of a job to those that have received all of it.
    pub(super) fn send_pending_output(&mut self, spool: &Spool, running: Option<JobId>) {
        for client in self.by_number.values_mut().filter(|client| !client.follows.is_empty()) {
            let ClientConnection { socket: link, follows, .. } = client;
            follows.retain_mut(|follow| !send_missing_output(link, follow, spool, running));
        }
    }

    /// Watches for writability where a socket was full, and stops watching for requests that are postponed.
    pub(super) fn update_watched_events(&mut self, poller: &EpollSet) {
        for (number, client) in &mut self.by_number {
            let flags = match client.socket.unsent_bytes() {
                0 if !client.requests_postponed => EventFlags::IN,
                0..=MAX_UNSENT_BYTES => EventFlags::IN | EventFlags::OUT,
                _ => EventFlags::OUT,
            };
            if flags != client.watched_events {
                client.watched_events = flags;
                poller.change(&client.socket, PollSource::Client(*number), flags);
            }
        }
    }

    /// Whether a client that applies backpressure has not received all output yet.
    pub(super) fn has_unsent_output(&self, spool: &Spool) -> bool {
        self.by_number
            .values()
            .flat_map(|client| client.follows.iter().map(move |follow| (client, follow)))
            .any(|(client, follow)| {
                let stream_bytes = spool.stream_bytes(follow.job);
                let behind =
                    follow.next_offsets[0] < stream_bytes[0] || follow.next_offsets[1] < stream_bytes[1];
                follow.applies_backpressure && (behind || client.socket.unsent_bytes() > 0)
            })
            || self.by_number.values().any(|client| client.socket.unsent_bytes() > SLOW_FOLLOWER_BYTES / 16)
    }

    pub(super) fn flush_all(&mut self) {
        for client in self.by_number.values_mut() {
            for _ in 0..100 {
                if client.socket.flush().is_err() || client.socket.unsent_bytes() == 0 {
                    break;
                }
            }
        }
    }
}

fn is_permitted_peer(peer: Uid, own: Uid) -> bool {
    peer == own || peer.is_root()
}

/// Sends missing output. Returns true when the follower is complete.
fn send_missing_output(
    socket: &mut FramedSocket,
    follow: &mut OutputSubscription,
    spool: &Spool,
    running: Option<JobId>,
) -> bool {
    let stream_bytes = spool.stream_bytes(follow.job);
    for stream in OutputStream::ALL {
        let index = stream.index();
        while follow.next_offsets[index] < stream_bytes[index] && socket.unsent_bytes() <= SLOW_FOLLOWER_BYTES
        {
            let range = JobOutputRange {
                job: follow.job,
                stream,
                offset: follow.next_offsets[index],
                limit: MAX_CHUNK_BYTES,
            };
            let piece = spool.read(range).ok().flatten().filter(|piece| !piece.bytes.is_empty());
            // Output that cannot be read is lost, for example because the files were deleted. The end is still
            // reported.
            let Some(piece) = piece else {
                follow.next_offsets[index] = stream_bytes[index];
                // A client that requires every byte learns from the offset that some are missing.
                if spool.is_lossless() {
                    let output = OutputChunk {
                        job: follow.job,
                        stream,
                        offset: stream_bytes[index],
                        bytes: Vec::new(),
                    };
                    // A broken connection is detected at the next read.
                    socket
                        .send(&TaggedResponse { tag: follow.tag, news: KeeperResponse::Output(output) })
                        .ok();
                }
                break;
            };
            let (offset, bytes) = (piece.offset, piece.bytes);
            follow.next_offsets[index] = offset + bytes.len() as u64;
            let output = OutputChunk { job: follow.job, stream, offset, bytes };
            if socket.send(&TaggedResponse { tag: follow.tag, news: KeeperResponse::Output(output) }).is_err()
            {
                return true;
            }
        }
    }
    if follow.next_offsets[0] < stream_bytes[0]
        || follow.next_offsets[1] < stream_bytes[1]
        || running == Some(follow.job)
    {
        return false;
    }
    let Some(outcome) = spool.outcome(follow.job) else { return false };
    // A broken connection is detected at the next read.
    socket.send(&TaggedResponse { tag: follow.tag, news: KeeperResponse::Ended(outcome.clone()) }).ok();
    true
}

/// The tag of the request that opens a connection.
pub(super) const HELLO_TAG: u64 = FIRST_RESPONSE_TAG;
