//! A runtime on a thread of its own, for callers who live elsewhere (an async runtime, several threads).

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

/// Hears what becomes of a client's calls, on the runtime's thread, so it must not wait for anything.
pub type EventListener = Arc<dyn Fn(TerminalEvent) -> ClientFlow + Send + Sync>;

/// Whether a client keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFlow {
    /// More may come.
    Go,
    /// Until the client is released, sessions with a command of its own are held back, and its reads wait.
    Hold,
}

/// One of many who share a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeClient(u64);

/// What is asked of the thread.
enum RuntimeMessage {
    Call(TerminalCall, ReplyCallback),
    Attend(RuntimeClient, CallTicket, TerminalCall, EventListener),
    Release(RuntimeClient),
    Leave(RuntimeClient),
}

/// The way to a runtime on another thread. Dropping it ends the runtime in order.
#[derive(Debug)]
pub struct RuntimeHandle {
    orders: Option<Sender<RuntimeMessage>>,
    clients: AtomicU64,
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl RuntimeHandle {
    /// Starts the thread.
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

    /// Makes a call; `then` is called with the answer, on the runtime's thread. Streams need a listener.
    pub fn call(
        &self,
        call: TerminalCall,
        then: impl FnOnce(Result<TerminalReply, TerminalError>) + Send + 'static,
    ) {
        self.order(RuntimeMessage::Call(call, Box::new(then)));
    }

    /// Somebody new.
    pub fn client(&self) -> RuntimeClient {
        RuntimeClient(self.clients.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a call for a client under a ticket of its own; the listener hears the answer, and a stream's chunks.
    pub fn attend(
        &self,
        client: RuntimeClient,
        ticket: CallTicket,
        call: TerminalCall,
        listener: EventListener,
    ) {
        self.order(RuntimeMessage::Attend(client, ticket, call, listener));
    }

    /// The client has caught up: its streams and reads go on.
    pub fn release(&self, client: RuntimeClient) {
        self.order(RuntimeMessage::Release(client));
    }

    /// The client is gone: what it asked for to read is not read, and nothing is held back for it.
    pub fn leave(&self, client: RuntimeClient) {
        self.order(RuntimeMessage::Leave(client));
    }

    fn order(&self, order: RuntimeMessage) {
        if let Some(orders) = &self.orders {
            let _thread_is_there = orders.send(order);
            let _full_means_rung = rustix::io::write(&self.bell, b"!");
        }
    }
}

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        self.orders = None;
        let _full_means_rung = rustix::io::write(&self.bell, b"!");
        if let Some(thread) = self.thread.take() {
            let _panicked_already = thread.join();
        }
    }
}

/// A call of a client that is not over.
struct ClientCall {
    client: RuntimeClient,
    ticket: CallTicket,
    listener: EventListener,
    kind: ClientCallKind,
}

/// How a call's output is held back.
enum ClientCallKind {
    /// By not hearing the session, whose output is this client's.
    Command(SessionId),
    /// By not asking for the next piece.
    Read,
    /// Not at all: it has none.
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

/// The reads of one client: one at a time, so that their answers do not pile up.
#[derive(Default)]
struct ClientReads {
    is_reading: bool,
    waiting: VecDeque<(CallTicket, TerminalCall, EventListener)>,
}

/// Everybody who waits for something.
#[derive(Default)]
struct PendingCalls {
    waiting: BTreeMap<CallTicket, ReplyCallback>,
    attended: BTreeMap<CallTicket, ClientCall>,
    /// Clients that do not keep up, and the sessions that are held back for each.
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
            // A listener that panics hears nothing more of this; the others do.
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

    /// Begins the client's next read, unless one is under way or the client does not keep up.
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

    /// Holds back every session in which a command of the client's is at work.
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
