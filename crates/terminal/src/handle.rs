//! Runs a runtime on its own thread, for callers on other threads or in an async runtime.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::call::{CallTicket, ExecChunk, TerminalCall, TerminalEvent, TerminalReply};
use crate::error::{TerminalError, TerminalErrorCode};
use crate::runtime::{TerminalConfig, TerminalRuntime};
use crate::session::SessionId;

type ReplyCallback = Box<dyn FnOnce(Result<TerminalReply, TerminalError>) + Send>;

/// Receives the events of a client's calls. It runs on the thread of the runtime, so it must not block.
pub type EventListener = Arc<dyn Fn(TerminalEvent) -> ClientFlow + Send + Sync>;

/// Flow control of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFlow {
    /// The client accepts more events.
    Go,
    /// Sessions with a command of this client are paused, and its reads wait, until the client is released.
    Hold,
}

/// Identifies a client that shares a runtime with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeClient(u64);

/// A message to the thread.
enum RuntimeMessage {
    Call(TerminalCall, ReplyCallback),
    Attend(RuntimeClient, CallTicket, TerminalCall, EventListener),
    Release(RuntimeClient),
    Leave(RuntimeClient),
}

/// A handle to a runtime on another thread. Dropping it shuts the runtime down.
#[derive(Debug)]
pub struct RuntimeHandle {
    orders: Option<Sender<RuntimeMessage>>,
    clients: AtomicU64,
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl RuntimeHandle {
    pub fn start(config: TerminalConfig) -> Result<Self, TerminalError> {
        let runtime = TerminalRuntime::new(config)?;
        let internal = |error: String| TerminalError::new(TerminalErrorCode::Internal, error);
        let (reader, bell) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|e| internal(e.to_string()))?;
        let (orders, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("terminal".to_owned())
            .spawn(move || turn(runtime, &receiver, &reader))
            .map_err(|error| internal(error.to_string()))?;
        Ok(Self { orders: Some(orders), clients: AtomicU64::new(0), bell, thread: Some(thread) })
    }

    /// Makes a call; `then` is called with the reply, on the thread of the runtime. Streams need a listener.
    pub fn call(
        &self,
        call: TerminalCall,
        then: impl FnOnce(Result<TerminalReply, TerminalError>) + Send + 'static,
    ) {
        self.order(RuntimeMessage::Call(call, Box::new(then)));
    }

    /// Registers a new client.
    pub fn client(&self) -> RuntimeClient {
        RuntimeClient(self.clients.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a call for a client; `ticket` is unique per client. The listener gets the reply and the chunks of a
    /// stream.
    pub fn attend(
        &self,
        client: RuntimeClient,
        ticket: CallTicket,
        call: TerminalCall,
        listener: EventListener,
    ) {
        self.order(RuntimeMessage::Attend(client, ticket, call, listener));
    }

    /// Resumes the streams and reads of a client.
    pub fn release(&self, client: RuntimeClient) {
        self.order(RuntimeMessage::Release(client));
    }

    /// Removes a client: its waiting reads are dropped, and its sessions are no longer paused.
    pub fn leave(&self, client: RuntimeClient) {
        self.order(RuntimeMessage::Leave(client));
    }

    fn order(&self, order: RuntimeMessage) {
        if let Some(orders) = &self.orders {
            // The thread of the runtime may have ended.
            orders.send(order).ok();
            // A full pipe already wakes the thread.
            rustix::io::write(&self.bell, b"!").ok();
        }
    }
}

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        self.orders = None;
        // A full pipe already wakes the thread.
        rustix::io::write(&self.bell, b"!").ok();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            thread.join().ok();
        }
    }
}

/// An unfinished call of a client.
struct ClientCall {
    client: RuntimeClient,
    ticket: CallTicket,
    listener: EventListener,
    kind: ClientCallKind,
}

/// How the output of a call is paused.
enum ClientCallKind {
    /// The session is not read; its output belongs to this client.
    Command(SessionId),
    /// The next range is not requested.
    Read,
    /// The call has no output to pause.
    Small,
}

impl ClientCallKind {
    fn of(call: &TerminalCall) -> Self {
        match call {
            TerminalCall::Run(execute) | TerminalCall::Stream(execute) => {
                Self::Command(execute.session.clone())
            }
            TerminalCall::Output(_) | TerminalCall::Screen(_) => Self::Read,
            TerminalCall::Create(_)
            | TerminalCall::Info(_)
            | TerminalCall::List
            | TerminalCall::Destroy { .. }
            | TerminalCall::Input { .. }
            | TerminalCall::Cancel(_)
            | TerminalCall::Resize(..)
            | TerminalCall::Stats => Self::Small,
        }
    }
}

/// The reads of one client. They run one at a time, so that their replies do not accumulate.
#[derive(Default)]
struct ClientReads {
    is_reading: bool,
    waiting: VecDeque<(CallTicket, TerminalCall, EventListener)>,
}

/// All unfinished calls.
#[derive(Default)]
struct PendingCalls {
    waiting: BTreeMap<CallTicket, ReplyCallback>,
    attended: BTreeMap<CallTicket, ClientCall>,
    /// Clients that do not keep up, and the sessions paused for each.
    held: BTreeMap<RuntimeClient, BTreeSet<SessionId>>,
    reads: BTreeMap<RuntimeClient, ClientReads>,
    last: CallTicket,
}

fn turn(mut runtime: TerminalRuntime, orders: &Receiver<RuntimeMessage>, bell: &OwnedFd) {
    let mut audience = PendingCalls::default();
    loop {
        let mut fds = [PollFd::new(bell, PollFlags::IN), PollFd::new(&runtime, PollFlags::IN)];
        let _retried = poll(&mut fds, None);
        let mut rung = [0; 64];
        while matches!(rustix::io::read(bell, &mut rung), Ok(1..)) {}
        loop {
            match orders.try_recv() {
                Ok(order) => audience.obey(&mut runtime, order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return runtime.shut_down(),
            }
        }
        runtime.work();
        for event in runtime.events() {
            // A listener that panics loses this event; the others are served.
            catch_unwind(AssertUnwindSafe(|| audience.tell(&mut runtime, event))).ok();
        }
    }
}

impl PendingCalls {
    fn obey(&mut self, runtime: &mut TerminalRuntime, order: RuntimeMessage) {
        match order {
            RuntimeMessage::Call(call, then) => {
                self.last += 1;
                self.waiting.insert(self.last, then);
                runtime.call(self.last, call);
            }
            RuntimeMessage::Attend(client, ticket, call, listener) => match ClientCallKind::of(&call) {
                ClientCallKind::Read => {
                    self.reads.entry(client).or_default().waiting.push_back((ticket, call, listener));
                    self.read_on(runtime, client);
                }
                kind @ (ClientCallKind::Command(_) | ClientCallKind::Small) => {
                    self.last += 1;
                    self.attended.insert(self.last, ClientCall { client, ticket, listener, kind });
                    runtime.call(self.last, call);
                    if self.held.contains_key(&client) {
                        self.hold(runtime, client);
                    }
                }
            },
            RuntimeMessage::Release(client) => self.release(runtime, client),
            RuntimeMessage::Leave(client) => {
                if let Some(reads) = self.reads.get_mut(&client) {
                    reads.waiting.clear();
                }
                self.release(runtime, client);
            }
        }
    }

    fn release(&mut self, runtime: &mut TerminalRuntime, client: RuntimeClient) {
        for session in self.held.remove(&client).unwrap_or_default() {
            if !self.held.values().any(|held| held.contains(&session)) {
                runtime.hold(&session, false);
            }
        }
        self.read_on(runtime, client);
    }

    /// Starts the client's next read, unless one is running or the client is paused.
    fn read_on(&mut self, runtime: &mut TerminalRuntime, client: RuntimeClient) {
        let Some(reads) = self.reads.get_mut(&client) else { return };
        if reads.is_reading || self.held.contains_key(&client) {
            return;
        }
        let Some((ticket, call, listener)) = reads.waiting.pop_front() else {
            self.reads.remove(&client);
            return;
        };
        reads.is_reading = true;
        self.last += 1;
        self.attended.insert(self.last, ClientCall { client, ticket, listener, kind: ClientCallKind::Read });
        runtime.call(self.last, call);
    }

    fn tell(&mut self, runtime: &mut TerminalRuntime, event: TerminalEvent) {
        match event {
            TerminalEvent::Reply(ticket, answer) => {
                if let Some(then) = self.waiting.remove(&ticket) {
                    return then(*answer);
                }
                let Some(attended) = self.attended.remove(&ticket) else { return };
                let streams = matches!(&*answer, Ok(TerminalReply::Streaming(..)));
                let flow = (attended.listener)(TerminalEvent::Reply(attended.ticket, answer));
                let client = attended.client;
                if flow == ClientFlow::Hold {
                    self.hold(runtime, client);
                }
                match attended.kind {
                    ClientCallKind::Read => {
                        if let Some(reads) = self.reads.get_mut(&client) {
                            reads.is_reading = false;
                        }
                        self.read_on(runtime, client);
                    }
                    ClientCallKind::Command(_) if streams => drop(self.attended.insert(ticket, attended)),
                    ClientCallKind::Command(_) | ClientCallKind::Small => {}
                }
            }
            TerminalEvent::Chunk(ticket, chunk) => {
                let Some(attended) = self.attended.get(&ticket) else { return };
                let is_last = matches!(chunk, ExecChunk::Exit(_));
                let flow = (attended.listener)(TerminalEvent::Chunk(attended.ticket, chunk));
                let client = attended.client;
                if is_last {
                    self.attended.remove(&ticket);
                }
                if flow == ClientFlow::Hold {
                    self.hold(runtime, client);
                }
            }
        }
    }

    /// Pauses every session with a running command of the client.
    fn hold(&mut self, runtime: &mut TerminalRuntime, client: RuntimeClient) {
        let held = self.held.entry(client).or_default();
        for attended in self.attended.values().filter(|attended| attended.client == client) {
            if let ClientCallKind::Command(session) = &attended.kind
                && held.insert(session.clone())
            {
                runtime.hold(session, true);
            }
        }
    }
}
