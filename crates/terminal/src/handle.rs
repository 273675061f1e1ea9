//! Runs a runtime on its own thread, for callers on other threads or in an async runtime.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    Continue,
    /// Sessions with a command of this client are paused, and its reads wait, until the client is released.
    Pause,
}

/// Identifies a client that shares a runtime with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeClient(u64);

/// A message to the thread.
enum RuntimeMessage {
    Call(TerminalCall, ReplyCallback),
    CallForClient(RuntimeClient, CallTicket, TerminalCall, EventListener),
    ResumeClient(RuntimeClient),
    RemoveClient(RuntimeClient),
}

/// A handle to a runtime on another thread. Dropping it shuts the runtime down.
#[derive(Debug)]
pub struct RuntimeHandle {
    messages: Option<Sender<RuntimeMessage>>,
    next_client: AtomicU64,
    wakeup: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl RuntimeHandle {
    pub fn start(config: TerminalConfig) -> Result<Self, TerminalError> {
        let runtime = TerminalRuntime::new(config)?;
        let internal = |error: String| TerminalError::new(TerminalErrorCode::Internal, error);
        let (reader, wakeup) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|e| internal(e.to_string()))?;
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("terminal".to_owned())
            .spawn(move || run_loop(runtime, &receiver, &reader))
            .map_err(|error| internal(error.to_string()))?;
        Ok(Self { messages: Some(sender), next_client: AtomicU64::new(0), wakeup, thread: Some(thread) })
    }

    /// Makes a call; `then` is called with the reply, on the thread of the runtime. Streams need a listener.
    pub fn call(
        &self,
        call: TerminalCall,
        then: impl FnOnce(Result<TerminalReply, TerminalError>) + Send + 'static,
    ) {
        self.send(RuntimeMessage::Call(call, Box::new(then)));
    }

    /// Registers a new client.
    pub fn register_client(&self) -> RuntimeClient {
        RuntimeClient(self.next_client.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a call for a client; `ticket` is unique per client. The listener gets the reply and the chunks of a
    /// stream.
    pub fn call_for(
        &self,
        client: RuntimeClient,
        ticket: CallTicket,
        call: TerminalCall,
        listener: EventListener,
    ) {
        self.send(RuntimeMessage::CallForClient(client, ticket, call, listener));
    }

    /// Resumes the streams and reads of a client.
    pub fn resume_client(&self, client: RuntimeClient) {
        self.send(RuntimeMessage::ResumeClient(client));
    }

    /// Removes a client: its waiting reads are dropped, and its sessions are no longer paused.
    pub fn remove_client(&self, client: RuntimeClient) {
        self.send(RuntimeMessage::RemoveClient(client));
    }

    fn send(&self, order: RuntimeMessage) {
        if let Some(orders) = &self.messages {
            // The thread of the runtime may have ended.
            orders.send(order).ok();
            // A full pipe already wakes the thread.
            rustix::io::write(&self.wakeup, b"!").ok();
        }
    }
}

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        self.messages = None;
        // A full pipe already wakes the thread.
        rustix::io::write(&self.wakeup, b"!").ok();
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
    NoOutput,
}

impl ClientCallKind {
    fn of(call: &TerminalCall) -> Self {
        match call {
            TerminalCall::Run(execute) | TerminalCall::Stream(execute) => {
                Self::Command(execute.session.clone())
            }
            TerminalCall::Output(_) | TerminalCall::Screen(_) | TerminalCall::List => Self::Read,
            TerminalCall::Create(_)
            | TerminalCall::Info(_)
            | TerminalCall::Destroy { .. }
            | TerminalCall::Input { .. }
            | TerminalCall::Cancel(_)
            | TerminalCall::Resize(..)
            | TerminalCall::Stats => Self::NoOutput,
        }
    }
}

/// The reads of one client. They run one at a time, so that their replies do not accumulate.
#[derive(Default)]
struct ClientReads {
    is_reading: bool,
    queue: VecDeque<(CallTicket, TerminalCall, EventListener)>,
}

/// All unfinished calls.
#[derive(Default)]
struct PendingCalls {
    callbacks: BTreeMap<CallTicket, ReplyCallback>,
    client_calls: BTreeMap<CallTicket, ClientCall>,
    /// Clients that do not keep up, and the sessions paused for each.
    paused_clients: BTreeMap<RuntimeClient, BTreeSet<SessionId>>,
    reads: BTreeMap<RuntimeClient, ClientReads>,
    last_ticket: CallTicket,
}

fn run_loop(mut runtime: TerminalRuntime, messages: &Receiver<RuntimeMessage>, wakeup: &OwnedFd) {
    let mut pending_calls = PendingCalls::default();
    loop {
        let mut fds = [PollFd::new(wakeup, PollFlags::IN), PollFd::new(&runtime, PollFlags::IN)];
        // A read that follows another may be answered at once, without a descriptor that becomes ready.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _retried = poll(&mut fds, runtime.has_events().then_some(&now));
        let mut wakeup_bytes = [0; 64];
        while matches!(rustix::io::read(wakeup, &mut wakeup_bytes), Ok(1..)) {}
        loop {
            match messages.try_recv() {
                Ok(order) => pending_calls.dispatch(&mut runtime, order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return runtime.shut_down(),
            }
        }
        runtime.work();
        for event in runtime.events() {
            // A listener that panics loses this event; the others are served.
            catch_unwind(AssertUnwindSafe(|| pending_calls.deliver(&mut runtime, event))).ok();
        }
    }
}

impl PendingCalls {
    fn dispatch(&mut self, runtime: &mut TerminalRuntime, message: RuntimeMessage) {
        match message {
            RuntimeMessage::Call(call, then) => {
                self.last_ticket += 1;
                self.callbacks.insert(self.last_ticket, then);
                runtime.call(self.last_ticket, call);
            }
            RuntimeMessage::CallForClient(client, ticket, call, listener) => {
                match ClientCallKind::of(&call) {
                    ClientCallKind::Read => {
                        self.reads.entry(client).or_default().queue.push_back((ticket, call, listener));
                        self.start_next_read(runtime, client);
                    }
                    kind @ (ClientCallKind::Command(_) | ClientCallKind::NoOutput) => {
                        self.last_ticket += 1;
                        self.client_calls
                            .insert(self.last_ticket, ClientCall { client, ticket, listener, kind });
                        runtime.call(self.last_ticket, call);
                        if self.paused_clients.contains_key(&client) {
                            self.pause_client(runtime, client);
                        }
                    }
                }
            }
            RuntimeMessage::ResumeClient(client) => self.resume_client(runtime, client),
            RuntimeMessage::RemoveClient(client) => {
                if let Some(reads) = self.reads.get_mut(&client) {
                    reads.queue.clear();
                }
                self.resume_client(runtime, client);
            }
        }
    }

    fn resume_client(&mut self, runtime: &mut TerminalRuntime, client: RuntimeClient) {
        for session in self.paused_clients.remove(&client).unwrap_or_default() {
            if !self.paused_clients.values().any(|held| held.contains(&session)) {
                runtime.set_session_paused(&session, false);
            }
        }
        self.start_next_read(runtime, client);
    }

    /// Starts the client's next read, unless one is running or the client is paused.
    fn start_next_read(&mut self, runtime: &mut TerminalRuntime, client: RuntimeClient) {
        let Some(reads) = self.reads.get_mut(&client) else { return };
        if reads.is_reading || self.paused_clients.contains_key(&client) {
            return;
        }
        let Some((ticket, call, listener)) = reads.queue.pop_front() else {
            self.reads.remove(&client);
            return;
        };
        reads.is_reading = true;
        self.last_ticket += 1;
        self.client_calls
            .insert(self.last_ticket, ClientCall { client, ticket, listener, kind: ClientCallKind::Read });
        runtime.call(self.last_ticket, call);
    }

    fn deliver(&mut self, runtime: &mut TerminalRuntime, event: TerminalEvent) {
        match event {
            TerminalEvent::Reply(ticket, answer) => {
                if let Some(then) = self.callbacks.remove(&ticket) {
                    return then(*answer);
                }
                let Some(call) = self.client_calls.remove(&ticket) else { return };
                let streams = matches!(&*answer, Ok(TerminalReply::StreamStarted(..)));
                let flow = (call.listener)(TerminalEvent::Reply(call.ticket, answer));
                let client = call.client;
                if flow == ClientFlow::Pause {
                    self.pause_client(runtime, client);
                }
                match call.kind {
                    ClientCallKind::Read => {
                        if let Some(reads) = self.reads.get_mut(&client) {
                            reads.is_reading = false;
                        }
                        self.start_next_read(runtime, client);
                    }
                    ClientCallKind::Command(_) if streams => drop(self.client_calls.insert(ticket, call)),
                    ClientCallKind::Command(_) | ClientCallKind::NoOutput => {}
                }
            }
            TerminalEvent::Chunk(ticket, chunk) => {
                let Some(call) = self.client_calls.get(&ticket) else { return };
                let is_last = matches!(chunk, ExecChunk::Exit(_));
                let flow = (call.listener)(TerminalEvent::Chunk(call.ticket, chunk));
                let client = call.client;
                if is_last {
                    self.client_calls.remove(&ticket);
                }
                if flow == ClientFlow::Pause {
                    self.pause_client(runtime, client);
                }
            }
        }
    }

    /// Pauses every session with a running command of the client.
    fn pause_client(&mut self, runtime: &mut TerminalRuntime, client: RuntimeClient) {
        let paused_sessions = self.paused_clients.entry(client).or_default();
        for call in self.client_calls.values().filter(|call| call.client == client) {
            if let ClientCallKind::Command(session) = &call.kind
                && paused_sessions.insert(session.clone())
            {
                runtime.set_session_paused(session, true);
            }
        }
    }
}
