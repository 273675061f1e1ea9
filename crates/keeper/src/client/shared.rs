//! A connection to one keeper for several threads: one follows the output of the child, others send requests.
//!
//! One thread at a time receives from the socket, for all. It stores messages for the others and wakes them. While it
//! waits for the socket, it holds no lock, so requests are sent at any time.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connection::KeeperConnection;
use super::end::EndMode;
use super::requests::KeeperRequests;
use super::timeouts::{END_TIMEOUT_MS, STOP_POLL_MS};
use super::watchdog::{KeeperDuty, KeeperWatchdog};
use crate::clock::boottime_millis;
use crate::error::KeeperError;
use crate::protocol::{
    ChildExit, ExecOutcome, JobId, KeeperRequest, KeeperResponse, KeeperStatus, OutputChunk, RequestTag,
    TaggedResponse,
};

/// A connection that several threads use at the same time.
#[derive(Debug)]
pub struct SharedConnection {
    status: KeeperStatus,
    /// For waiting without the lock.
    socket: Arc<OwnedFd>,
    state: Mutex<SharedState>,
    changed: Condvar,
}

#[derive(Debug)]
struct SharedState {
    connection: KeeperConnection,
    /// A thread waits for the socket and will receive for all.
    has_receiver: bool,
    /// The responses to requests of waiting threads, by tag; None until the response arrives.
    responses: BTreeMap<RequestTag, Option<KeeperResponse>>,
    follow: Option<RequestTag>,
    /// Messages for the following thread, which was not receiving when they arrived.
    followed: VecDeque<FollowedOutput>,
    followed_bytes: usize,
    /// The connection is closed, has failed or was abandoned.
    is_lost: bool,
}

/// A message to the thread that follows the output.
#[derive(Debug)]
pub enum FollowedOutput {
    Output(OutputChunk),
    /// The child has ended and all its output was returned.
    Ended(ExecOutcome),
    /// See [`KeeperResponse::ChildResumed`].
    ChildResumed(u64),
}

/// With more bytes of undelivered output, no further request is taken. The keeper sends at most about 2 MiB of output
/// before the response to a request.
const MAX_FOLLOWED_BYTES: usize = 4 << 20;
/// With more bytes, threads that do not follow stop receiving.
const MAX_RECEIVED_BYTES: usize = 16 << 20;

/// Maximum number of messages that are received to find out whether a connection is closed.
const MAX_CHECKED_MESSAGES: usize = 64;

/// The messages that a thread wants to receive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReceiverRole {
    Follower,
    Requester,
}

impl SharedConnection {
    /// `connection` has returned `status` as its first response.
    pub fn new(connection: KeeperConnection, status: KeeperStatus) -> Self {
        let socket = connection.descriptor();
        let state = SharedState {
            connection,
            has_receiver: false,
            responses: BTreeMap::new(),
            follow: None,
            followed: VecDeque::new(),
            followed_bytes: 0,
            is_lost: false,
        };
        Self { status, socket, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The status at the time of the connection.
    pub fn first_status(&self) -> &KeeperStatus {
        &self.status
    }

    /// Whether a request can be sent: the keeper is connected, and the follower keeps up.
    pub fn takes_requests(&self) -> bool {
        let mut state = self.lock();
        // A closed connection is noticed by receiving. A receiving thread notices it, too.
        for _ in 0..MAX_CHECKED_MESSAGES {
            if state.has_receiver || state.followed_bytes > MAX_FOLLOWED_BYTES || !state.receive() {
                break;
            }
            self.changed.notify_all();
        }
        !state.is_lost && state.followed_bytes <= MAX_FOLLOWED_BYTES
    }

    /// Whether the connection is known to be closed, or has failed.
    pub fn is_closed(&self) -> bool {
        self.lock().is_lost
    }

    /// Follows the output of a job from these offsets on. Returns false if the connection already follows one.
    pub fn follow(&self, job: JobId, from: [u64; 2]) -> Result<bool, KeeperError> {
        let mut state = self.lock();
        if state.is_lost {
            return Err(state.connection.closed_error());
        }
        if state.follow.is_some() {
            return Ok(false);
        }
        let tag = state.connection.send(KeeperRequest::Follow { job, from })?;
        state.follow = Some(tag);
        Ok(true)
    }

    /// Waits for the next output; None after the timeout.
    pub fn next_output(&self, timeout_ms: u64) -> Result<Option<FollowedOutput>, KeeperError> {
        self.wait_for(ReceiverRole::Follower, timeout_ms, |state| {
            let next = state.followed.pop_front()?;
            match &next {
                FollowedOutput::Output(chunk) => state.followed_bytes -= chunk.bytes.len(),
                FollowedOutput::Ended(_) => state.follow = None,
                FollowedOutput::ChildResumed(_) => {}
            }
            Some(next)
        })
    }

    /// Stops following. A connection whose output has ended stays usable; otherwise it is closed, because the protocol
    /// has no request to stop following.
    pub fn stop_following(&self) {
        let mut state = self.lock();
        if state.follow.is_some() {
            state.abandon();
            self.changed.notify_all();
        }
    }

    /// Sends a request whose response is not awaited.
    pub fn send(&self, request: KeeperRequest) -> Result<(), KeeperError> {
        self.lock().connection.send(request).map(|_| ())
    }

    /// Ends the child and the keeper. Returns the exit of the child, if it is known.
    pub fn end(&self, mode: EndMode) -> Result<Option<ChildExit>, KeeperError> {
        self.lock().connection.resume();
        match self.exchange_within(mode.request(), END_TIMEOUT_MS, KeeperDuty::Stop) {
            // A keeper that disconnects before it responds has ended its child.
            Ok(_) | Err(KeeperError::NoKeeper { .. }) => Ok(self.lock().connection.exit().cloned()),
            Err(error) => Err(error),
        }
    }

    fn exchange_within(
        &self,
        request: KeeperRequest,
        timeout_ms: u64,
        duty: KeeperDuty,
    ) -> Result<KeeperResponse, KeeperError> {
        let give_up_at = boottime_millis().saturating_add(timeout_ms);
        let tag = {
            let mut state = self.lock();
            if state.is_lost {
                return Err(state.connection.closed_error());
            }
            let tag = state.connection.send(request)?;
            state.responses.insert(tag, None);
            tag
        };
        let response = match duty {
            KeeperDuty::Respond => self.await_response(tag, give_up_at),
            KeeperDuty::Stop => self.await_response_to_end(tag, give_up_at),
        };
        let mut state = self.lock();
        state.responses.remove(&tag);
        response?.ok_or_else(|| state.connection.unresponsive_error())
    }

    /// Sends the rest of the request, and waits for its response until a time; None after that.
    fn await_response(
        &self,
        tag: RequestTag,
        give_up_at: u64,
    ) -> Result<Option<KeeperResponse>, KeeperError> {
        self.send_rest(give_up_at)?;
        let left_ms = give_up_at.saturating_sub(boottime_millis());
        self.wait_for(ReceiverRole::Requester, left_ms, |state| state.responses.get_mut(&tag)?.take())
    }

    /// The same for a keeper that has to end. It is continued if it is stopped. None also if it stays stopped.
    fn await_response_to_end(
        &self,
        tag: RequestTag,
        give_up_at: u64,
    ) -> Result<Option<KeeperResponse>, KeeperError> {
        let mut watchdog = KeeperWatchdog::new();
        loop {
            let now = boottime_millis();
            let check_at = give_up_at.min(now + watchdog.next_check_in_ms());
            if let Some(response) = self.await_response(tag, check_at)? {
                return Ok(Some(response));
            }
            let is_overdue = self.lock().connection.is_overdue(&mut watchdog, KeeperDuty::Stop);
            if is_overdue || boottime_millis() >= give_up_at {
                return Ok(None);
            }
        }
    }

    /// Sends what the socket has not accepted at once. A thread that receives does not wait for it.
    fn send_rest(&self, give_up_at: u64) -> Result<(), KeeperError> {
        loop {
            let mut state = self.lock();
            if state.is_lost {
                return Ok(());
            }
            // A closed connection is noticed by receiving.
            state.connection.flush().ok();
            let left_ms = give_up_at.saturating_sub(boottime_millis());
            let is_sent = state.connection.unsent_bytes() == 0 || state.connection.is_closed();
            if is_sent || left_ms == 0 {
                return Ok(());
            }
            drop(state);
            self.poll_socket(PollFlags::OUT, left_ms.min(STOP_POLL_MS))?;
        }
    }

    /// Waits until `take` returns a value; receives meanwhile if no other thread does.
    fn wait_for<T>(
        &self,
        role: ReceiverRole,
        timeout_ms: u64,
        mut take: impl FnMut(&mut SharedState) -> Option<T>,
    ) -> Result<Option<T>, KeeperError> {
        let give_up_at = boottime_millis().saturating_add(timeout_ms);
        let mut state = self.lock();
        loop {
            if let Some(value) = take(&mut state) {
                return Ok(Some(value));
            }
            if state.is_lost {
                return Err(state.connection.closed_error());
            }
            let left_ms = give_up_at.saturating_sub(boottime_millis());
            if left_ms == 0 {
                return Ok(None);
            }
            if state.has_receiver {
                let left = Duration::from_millis(left_ms.min(MAX_CONDVAR_WAIT_MS));
                let waited = self.changed.wait_timeout(state, left);
                state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
                continue;
            }
            let may_receive = role == ReceiverRole::Follower || state.followed_bytes <= MAX_RECEIVED_BYTES;
            if may_receive && state.receive() {
                self.changed.notify_all();
                continue;
            }
            state.has_receiver = true;
            let (events, wait_ms) = match (may_receive, state.connection.unsent_bytes()) {
                // Only the end of the keeper, or the follower, ends this wait.
                (false, _) => (PollFlags::empty(), left_ms.min(STOP_POLL_MS)),
                (true, 0) => (PollFlags::IN, left_ms),
                (true, _) => (PollFlags::IN | PollFlags::OUT, left_ms),
            };
            drop(state);
            let polled = self.poll_socket(events, wait_ms);
            state = self.lock();
            state.has_receiver = false;
            match polled {
                Ok(flags) if !may_receive && flags.contains(PollFlags::HUP) => state.is_lost = true,
                // A failed write closes the connection, which is noticed by receiving.
                Ok(_) => drop(state.connection.flush()),
                Err(_) => state.is_lost = true,
            }
            // Another thread receives if this one has its message or gives up.
            self.changed.notify_all();
        }
    }

    fn poll_socket(&self, events: PollFlags, timeout_ms: u64) -> Result<PollFlags, KeeperError> {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout_ms / 1_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(timeout_ms % 1_000).unwrap_or(0) * 1_000_000,
        };
        let mut fds = [PollFd::new(&self.socket, events)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(fds[0].revents()),
            Err(error) => Err(KeeperError::system("cannot wait for the keeper", error)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait on the condition variable is bounded, because the standard library adds it to the present time.
const MAX_CONDVAR_WAIT_MS: u64 = 3_600_000;

impl SharedState {
    /// Receives one available message and stores it. Returns false if there is none.
    fn receive(&mut self) -> bool {
        if self.is_lost {
            return false;
        }
        match self.connection.available_response() {
            Ok(Some(response)) => self.store(response),
            Ok(None) => return false,
            Err(_) => self.is_lost = true,
        }
        true
    }

    fn store(&mut self, TaggedResponse { tag, news }: TaggedResponse) {
        if let Some(awaited) = self.responses.get_mut(&tag) {
            awaited.get_or_insert(news);
            return;
        }
        if let (KeeperResponse::ChildResumed(count), Some(_)) = (&news, self.follow) {
            return self.followed.push_back(FollowedOutput::ChildResumed(*count));
        }
        // The exit of the child is stored by the connection. Other responses are to requests without a waiting thread.
        if self.follow != Some(tag) {
            return;
        }
        if let KeeperResponse::Output(chunk) = news {
            self.followed_bytes += chunk.bytes.len();
            self.followed.push_back(FollowedOutput::Output(chunk));
        } else if let KeeperResponse::Ended(outcome) = news {
            self.followed.push_back(FollowedOutput::Ended(outcome));
        }
    }

    fn abandon(&mut self) {
        self.is_lost = true;
        self.follow = None;
        self.followed = VecDeque::new();
        self.followed_bytes = 0;
        self.connection.shut_down();
    }
}

impl KeeperRequests for &SharedConnection {
    fn exchange(&mut self, request: KeeperRequest, timeout_ms: u64) -> Result<KeeperResponse, KeeperError> {
        self.exchange_within(request, timeout_ms, KeeperDuty::Respond)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::framed_socket::{FramedSocket, socket_pair};
    use crate::identity::ProcessIdentity;
    use crate::keeper_dir::KeeperDir;
    use crate::protocol::{KeeperOwner, OutputStream, PROTOCOL_VERSION, TaggedRequest};

    const TIMEOUT_MS: u64 = 60_000;

    /// A connection, and the keeper's end of it.
    fn connection() -> (SharedConnection, FramedSocket) {
        let (ours, theirs) = socket_pair().unwrap();
        let keeper_dir = KeeperDir::at("/nonexistent".into());
        let connection = KeeperConnection::new(keeper_dir, FramedSocket::new(ours), None);
        let own = ProcessIdentity::own();
        let status = KeeperStatus {
            keeper: own.clone(),
            child: own,
            owner: KeeperOwner::Home,
            running: None,
            last: None,
            exit: None,
            jobs: 0,
            created_at: 0,
            last_activity_at: 0,
            meta: vec![],
            protocol: PROTOCOL_VERSION,
        };
        (SharedConnection::new(connection, status), FramedSocket::new(theirs))
    }

    fn request(keeper: &mut FramedSocket) -> TaggedRequest {
        keeper.wait(TIMEOUT_MS).unwrap().expect("a request")
    }

    fn respond(keeper: &mut FramedSocket, tag: RequestTag, news: KeeperResponse) {
        keeper.send(&TaggedResponse { tag, news }).unwrap();
        while keeper.unsent_bytes() > 0 {
            keeper.flush().unwrap();
        }
    }

    fn chunk(offset: u64, bytes: Vec<u8>) -> KeeperResponse {
        KeeperResponse::Output(OutputChunk { job: 0, stream: OutputStream::Stdout, offset, bytes })
    }

    /// The offset and the length of the next output.
    fn next(shared: &SharedConnection) -> (u64, usize) {
        match shared.next_output(TIMEOUT_MS).unwrap() {
            Some(FollowedOutput::Output(chunk)) => (chunk.offset, chunk.bytes.len()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_gets_its_response_while_another_thread_waits_for_output() {
        let (shared, mut keeper) = connection();
        assert!(shared.follow(0, [0; 2]).unwrap());
        assert!(!shared.follow(0, [0; 2]).unwrap(), "there is one follower");
        let follow = request(&mut keeper).tag;
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| (next(&shared), next(&shared)));
            for _ in 0..100 {
                let writer = scope.spawn(|| (&shared).write_once(1, b"x", false));
                let write = request(&mut keeper).tag;
                respond(&mut keeper, write, KeeperResponse::Done);
                writer.join().unwrap().unwrap();
            }
            respond(&mut keeper, follow, chunk(0, vec![1; 3]));
            respond(&mut keeper, follow, chunk(3, vec![2; 4]));
            assert_eq!(follower.join().unwrap(), ((0, 3), (3, 4)));
        });
    }

    #[test]
    fn output_that_precedes_a_response_is_kept_for_the_follower_in_order() {
        let (shared, mut keeper) = connection();
        shared.follow(0, [0; 2]).unwrap();
        let follow = request(&mut keeper).tag;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (&shared).write_once(1, b"x", false));
            let write = request(&mut keeper).tag;
            for offset in 0..20 {
                respond(&mut keeper, follow, chunk(offset << 17, vec![7; 1 << 17]));
            }
            respond(&mut keeper, write, KeeperResponse::Done);
            writer.join().unwrap().unwrap();
        });
        assert!(shared.takes_requests());
        for offset in 0..20 {
            assert_eq!(next(&shared), (offset << 17, 1 << 17));
        }
    }

    #[test]
    fn a_follower_that_lags_far_behind_stops_further_requests_and_the_memory_stays_bounded() {
        let (shared, mut keeper) = connection();
        shared.follow(0, [0; 2]).unwrap();
        let follow = request(&mut keeper).tag;
        let (sent, all_sent) = channel();
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| shared.end(EndMode::Forced));
            request(&mut keeper);
            scope.spawn(move || {
                // The keeper exits while more than the bound is on its way.
                for offset in 0_u64..40 {
                    let message = TaggedResponse { tag: follow, news: chunk(offset << 20, vec![7; 1 << 20]) };
                    keeper.send(&message).unwrap();
                    let give_up_at = boottime_millis() + 200;
                    while keeper.unsent_bytes() > 0 && boottime_millis() < give_up_at {
                        keeper.flush().unwrap();
                    }
                    if keeper.unsent_bytes() > 0 {
                        break;
                    }
                }
                sent.send(keeper.unsent_bytes()).unwrap();
            });
            assert!(all_sent.recv().unwrap() > 0, "the receiver stops before it has taken everything");
            assert_eq!(ending.join().unwrap().unwrap(), None);
        });
        assert!(!shared.takes_requests());
        assert!(shared.lock().followed_bytes <= MAX_RECEIVED_BYTES + (1 << 20));
        assert_eq!(next(&shared), (0, 1 << 20));
    }

    #[test]
    fn the_end_of_the_keeper_reaches_every_thread_after_its_last_messages() {
        let (shared, mut keeper) = connection();
        shared.follow(0, [0; 2]).unwrap();
        let follow = request(&mut keeper).tag;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (&shared).write_once(1, b"x", false));
            request(&mut keeper);
            respond(&mut keeper, follow, chunk(0, vec![1; 5]));
            drop(keeper);
            let failure = writer.join().unwrap();
            assert!(matches!(failure, Err(KeeperError::NoKeeper { .. })), "{failure:?}");
        });
        assert_eq!(next(&shared), (0, 5));
        let end = shared.next_output(TIMEOUT_MS);
        assert!(matches!(end, Err(KeeperError::NoKeeper { .. })), "{end:?}");
        assert!(!shared.takes_requests() && shared.is_closed());
    }

    #[test]
    fn a_follower_that_leaves_before_the_end_closes_the_connection_and_a_later_one_does_not() {
        let ended = ExecOutcome {
            job: 0,
            code: 0,
            duration_us: 1,
            timed_out: false,
            cancelled: false,
            exit: None,
            lost: None,
        };
        for sees_end in [false, true] {
            let (shared, mut keeper) = connection();
            shared.follow(0, [0; 2]).unwrap();
            let follow = request(&mut keeper).tag;
            if sees_end {
                respond(&mut keeper, follow, KeeperResponse::Ended(ended.clone()));
                let end = shared.next_output(TIMEOUT_MS).unwrap();
                assert!(matches!(end, Some(FollowedOutput::Ended(_))), "{end:?}");
            }
            shared.stop_following();
            assert_eq!(shared.is_closed(), !sees_end);
            assert!(keeper.wait::<TaggedRequest>(0).unwrap().is_none());
            assert_eq!(keeper.is_closed(), !sees_end);
        }
    }
}
