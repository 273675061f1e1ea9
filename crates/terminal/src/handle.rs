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

use crate::call::{TerminalCall, TerminalEvent};
use crate::error::{TerminalError, TerminalErrorCode};
use crate::runtime::{TerminalConfig, TerminalRuntime};
use crate::session::SessionId;
use crate::ticket::{CallId, CallTicket, TerminalCallResult};

type ReplyCallback = Box<dyn FnOnce(TerminalEvent) + Send>;

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

/// Identifies a client that shares a runtime with others. The default is the only client of a runtime without a handle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeClient(u64);

/// A message to the thread.
enum RuntimeMessage {
    Call(TerminalCall, ReplyCallback),
    CallForClient(TerminalCall, EventListener),
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
        Ok(Self { messages: Some(sender), next_client: AtomicU64::new(1), wakeup, thread: Some(thread) })
    }

    /// Makes a call with the ticket that it gets; `then` is called with the result, on the thread of the runtime. Chunks
    /// of streams need a listener.
    pub fn call<R: TerminalCallResult>(
        &self,
        call: impl FnOnce(CallTicket<R>) -> TerminalCall,
        then: impl FnOnce(Result<R, TerminalError>) + Send + 'static,
    ) {
        let call = call(CallTicket::new(CallId { client: self.register_client(), number: 0 }));
        let take = |event| {
            if let Some(result) = R::from_event(event) {
                then(result);
            }
        };
        self.send(RuntimeMessage::Call(call, Box::new(take)));
    }

    /// Registers a new client.
    pub fn register_client(&self) -> RuntimeClient {
        RuntimeClient(self.next_client.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a call for the client of its ticket. The listener gets the reply and the chunks of a stream.
    pub fn call_for(&self, call: TerminalCall, listener: EventListener) {
        self.send(RuntimeMessage::CallForClient(call, listener));
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
            TerminalCall::Run(request, _) | TerminalCall::Stream(request, _) => {
                Self::Command(request.session.clone())
            }
            TerminalCall::Output(..) | TerminalCall::Screen(..) | TerminalCall::List(_) => Self::Read,
            TerminalCall::Create(..)
            | TerminalCall::Info(..)
            | TerminalCall::Destroy { .. }
            | TerminalCall::Input { .. }
            | TerminalCall::Cancel(..)
            | TerminalCall::Resize(..)
            | TerminalCall::Stats(_) => Self::NoOutput,
        }
    }
}

/// The reads of one client. They run one at a time, so that their replies do not accumulate.
#[derive(Default)]
struct ClientReads {
    is_reading: bool,
    queue: VecDeque<(TerminalCall, EventListener)>,
}

#[derive(Default)]
struct PendingCalls {
    callbacks: BTreeMap<CallId, ReplyCallback>,
    client_calls: BTreeMap<CallId, ClientCall>,
    /// Clients that do not keep up, and the sessions paused for each.
    paused_clients: BTreeMap<RuntimeClient, BTreeSet<SessionId>>,
    reads: BTreeMap<RuntimeClient, ClientReads>,
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
                self.callbacks.insert(call.id(), then);
                runtime.call(call);
            }
            RuntimeMessage::CallForClient(call, listener) => {
                let client = call.id().client;
                match ClientCallKind::of(&call) {
                    ClientCallKind::Read => {
                        self.reads.entry(client).or_default().queue.push_back((call, listener));
                        self.start_next_read(runtime, client);
                    }
                    kind @ (ClientCallKind::Command(_) | ClientCallKind::NoOutput) => {
                        self.client_calls.insert(call.id(), ClientCall { listener, kind });
                        runtime.call(call);
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
        let Some((call, listener)) = reads.queue.pop_front() else {
            self.reads.remove(&client);
            return;
        };
        reads.is_reading = true;
        self.client_calls.insert(call.id(), ClientCall { listener, kind: ClientCallKind::Read });
        runtime.call(call);
    }

    fn deliver(&mut self, runtime: &mut TerminalRuntime, event: TerminalEvent) {
        let id = event.call_id();
        if let Some(then) = self.callbacks.remove(&id) {
            return then(event);
        }
        let Some(call) = self.client_calls.get(&id) else { return };
        let continues = event.is_continued();
        let is_read = matches!(call.kind, ClientCallKind::Read);
        let flow = (call.listener)(event);
        if !continues {
            self.client_calls.remove(&id);
        }
        if flow == ClientFlow::Pause {
            self.pause_client(runtime, id.client);
        }
        if is_read {
            if let Some(reads) = self.reads.get_mut(&id.client) {
                reads.is_reading = false;
            }
            self.start_next_read(runtime, id.client);
        }
    }

    /// Pauses every session with a running command of the client.
    fn pause_client(&mut self, runtime: &mut TerminalRuntime, client: RuntimeClient) {
        let paused_sessions = self.paused_clients.entry(client).or_default();
        for (_, call) in self.client_calls.iter().filter(|(id, _)| id.client == client) {
            if let ClientCallKind::Command(session) = &call.kind
                && paused_sessions.insert(session.clone())
            {
                runtime.set_session_paused(session, true);
            }
        }
    }
}
