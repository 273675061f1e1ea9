//! A connection to one keeper, for one thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;

use super::requests::KeeperRequests;
use super::watchdog::{KeeperDuty, KeeperWatch, KeeperWatchdog};
use crate::error::KeeperError;
use crate::framed_socket::{FramedSocket, ReceiveOutcome};
use crate::keeper_dir::KeeperDir;
use crate::launch::resume_keeper;
use crate::protocol::{
    ChildExit, KeeperRequest, KeeperResponse, KeeperStatus, RequestTag, TaggedRequest, TaggedResponse,
};

/// A connection to a keeper.
///
/// The first response is the status. After it, [`Self::send`] sends a request and returns the tag of its responses,
/// which [`Self::next_response`] receives. The methods of [`KeeperRequests`] also wait for the response; responses to
/// other requests are dropped meanwhile.
#[derive(Debug)]
pub struct KeeperConnection {
    pub keeper_dir: KeeperDir,
    socket: FramedSocket,
    process: Option<Child>,
    last_tag: RequestTag,
    /// The exit of the child, once the keeper has reported it on this connection.
    exit: Option<ChildExit>,
    /// Whether the files of the directory are the keeper's own. In a workspace, agents can write them.
    trusts_files: bool,
}

/// The tag of the first response on every connection: a [`KeeperResponse::Status`] or a [`KeeperResponse::Refused`].
pub const FIRST_RESPONSE_TAG: RequestTag = RequestTag::MAX;

impl KeeperConnection {
    /// An established connection. `process` is the keeper, if this process started it.
    pub(crate) fn new(keeper_dir: KeeperDir, socket: FramedSocket, process: Option<Child>) -> Self {
        Self { keeper_dir, socket, process, last_tag: 0, exit: None, trusts_files: true }
    }

    /// Connects to the keeper in this directory, without blocking. Its status is the first response on the connection.
    pub fn attach(keeper_dir: KeeperDir) -> Result<Self, KeeperError> {
        let path = || keeper_dir.path().to_owned();
        let secret = keeper_dir.secret().map_err(|_| KeeperError::NoKeeper { path: path() })?;
        let socket: OwnedFd = keeper_dir.connect().map_err(|error| {
            let queue_is_full = error.kind() == std::io::ErrorKind::WouldBlock;
            if queue_is_full {
                KeeperError::Unresponsive { path: path() }
            } else {
                KeeperError::NoKeeper { path: path() }
            }
        })?;
        Self::greet(keeper_dir, socket, secret)
    }

    /// Sends the secret on a new connection.
    pub(crate) fn greet(
        keeper_dir: KeeperDir,
        socket: OwnedFd,
        secret: Vec<u8>,
    ) -> Result<Self, KeeperError> {
        let mut socket = FramedSocket::new(socket);
        socket.send(&TaggedRequest { tag: FIRST_RESPONSE_TAG, act: KeeperRequest::Hello(secret) })?;
        Ok(Self::new(keeper_dir, socket, None))
    }

    /// The same connection, to a keeper whose files prove nothing.
    pub(crate) fn distrusting_files(self) -> Self {
        Self { trusts_files: false, ..self }
    }

    /// Continues the keeper if it may be stopped: a program can stop its keeper with SIGSTOP (SECURITY 10).
    pub fn resume(&self) {
        if self.trusts_files {
            resume_keeper(&self.keeper_dir);
        }
    }

    /// Continues a keeper that owes a response if it is stopped. Returns whether it stays stopped and must be killed.
    pub(super) fn is_overdue(&self, watchdog: &mut KeeperWatchdog, duty: KeeperDuty) -> bool {
        self.trusts_files && watchdog.check(&self.keeper_dir, duty) == KeeperWatch::Overdue
    }

    /// Waits for the first response.
    pub fn status(&mut self, timeout_ms: u64) -> Result<KeeperStatus, KeeperError> {
        match self.next_response(timeout_ms)? {
            Some(TaggedResponse { tag: FIRST_RESPONSE_TAG, news: KeeperResponse::Status(status) }) => {
                self.exit.clone_from(&status.exit);
                Ok(*status)
            }
            Some(TaggedResponse { news: KeeperResponse::Refused(refusal), .. }) => {
                Err(KeeperError::Refused(refusal))
            }
            Some(_) => Err(KeeperError::Protocol("the first response is no status")),
            None => Err(self.unresponsive_error()),
        }
    }

    /// Sends a request as far as the socket accepts it now, and returns the tag of its responses. A keeper that has
    /// exited is noticed by receiving, after its last responses.
    pub fn send(&mut self, request: KeeperRequest) -> Result<RequestTag, KeeperError> {
        self.last_tag += 1;
        match self.socket.send(&TaggedRequest { tag: self.last_tag, act: request }) {
            Err(error) if !self.socket.is_closed() => Err(error),
            Ok(()) | Err(_) => Ok(self.last_tag),
        }
    }

    /// Waits for the next response; None after the timeout. A closed connection is [`KeeperError::NoKeeper`].
    pub fn next_response(&mut self, timeout_ms: u64) -> Result<Option<TaggedResponse>, KeeperError> {
        let response = self.socket.wait::<TaggedResponse>(timeout_ms)?;
        self.observe(response)
    }

    /// The next response that is available now. A closed connection is [`KeeperError::NoKeeper`].
    pub fn available_response(&mut self) -> Result<Option<TaggedResponse>, KeeperError> {
        let response = self.socket.receive::<TaggedResponse>()?;
        self.observe(response)
    }

    fn observe(&mut self, response: Option<TaggedResponse>) -> Result<Option<TaggedResponse>, KeeperError> {
        match &response {
            Some(TaggedResponse { news: KeeperResponse::Exited(exit), .. }) => self.exit = Some(exit.clone()),
            Some(_) => {}
            None if self.socket.is_closed() => return Err(self.closed_error()),
            None => {}
        }
        Ok(response)
    }

    /// The next response, if it has at most `max_bytes`. Used to reserve memory for large ones.
    pub fn receive_up_to(&mut self, max_bytes: usize) -> Result<ReceiveOutcome<TaggedResponse>, KeeperError> {
        self.socket.receive_up_to(max_bytes)
    }

    /// The next response that has already been read from the socket.
    pub fn buffered_response(&mut self) -> Result<Option<TaggedResponse>, KeeperError> {
        self.socket.buffered()
    }

    /// Sends as much of the requests as the socket accepts now.
    pub fn flush(&mut self) -> Result<(), KeeperError> {
        self.socket.flush()
    }

    /// Number of bytes of requests that the socket has not accepted.
    pub fn unsent_bytes(&self) -> usize {
        self.socket.unsent_bytes()
    }

    /// Whether the keeper has exited and all its responses were received. A keeper closes its connections only by
    /// exiting.
    pub fn is_closed(&self) -> bool {
        self.socket.is_closed()
    }

    /// The descriptor, for waiting without the connection.
    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        self.socket.descriptor()
    }

    /// Closes the connection, also for other threads that wait for it.
    pub(super) fn shut_down(&mut self) {
        // The keeper may have closed it before.
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).ok();
    }

    /// The exit of the child, if the keeper has reported it on this connection.
    pub fn exit(&self) -> Option<&ChildExit> {
        self.exit.as_ref()
    }

    pub(crate) fn closed_error(&self) -> KeeperError {
        KeeperError::NoKeeper { path: self.keeper_dir.path().to_owned() }
    }

    pub(crate) fn unresponsive_error(&self) -> KeeperError {
        KeeperError::Unresponsive { path: self.keeper_dir.path().to_owned() }
    }

    /// The keeper's process, if this process started it. The caller has to reap it.
    pub fn take_process(&mut self) -> Option<Child> {
        self.process.take()
    }

    /// Reaps the keeper if this process started it and it has ended. Returns whether there is nothing left to reap.
    pub fn reap(&mut self) -> bool {
        match &mut self.process {
            Some(process) => process.try_wait().is_ok_and(|status| status.is_some()),
            None => true,
        }
    }
}

impl KeeperRequests for KeeperConnection {
    fn exchange(&mut self, request: KeeperRequest, timeout_ms: u64) -> Result<KeeperResponse, KeeperError> {
        let sent = self.send(request)?;
        loop {
            match self.next_response(timeout_ms)? {
                Some(TaggedResponse { tag, news }) if tag == sent => return Ok(news),
                Some(_) => {}
                None => return Err(self.unresponsive_error()),
            }
        }
    }
}

impl AsFd for KeeperConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
