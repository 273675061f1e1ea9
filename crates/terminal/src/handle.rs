//! A runtime on a thread of its own, for callers who live elsewhere (an async runtime, several threads).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::call::{Call, Chunk, Event, Reply, Ticket};
use crate::error::{Code, TerminalError};
use crate::runtime::{Config, Runtime};
use crate::session::SessionId;

type Then = Box<dyn FnOnce(Result<Reply, TerminalError>) + Send>;

/// Hears what becomes of a client's calls, on the runtime's thread, so it must not wait for anything.
pub type Listener = Arc<dyn Fn(Event) -> Flow + Send + Sync>;

/// Whether a client keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// More may come.
    Go,
    /// The stream that this was about is held back until the client is released. Nobody else is.
    Hold,
}

/// One of many who share a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client(u64);

/// What is asked of the thread.
enum Order {
    Call(Call, Then),
    Attend(Client, Ticket, Call, Listener),
    Release(Client),
}

/// The way to a runtime on another thread. Dropping it ends the runtime in order.
#[derive(Debug)]
pub struct Handle {
    orders: Option<Sender<Order>>,
    clients: AtomicU64,
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Starts the thread.
    pub fn start(config: Config) -> Result<Self, TerminalError> {
        let runtime = Runtime::new(config)?;
        let internal = |error: String| TerminalError::new(Code::Internal, error);
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
    pub fn call(&self, call: Call, then: impl FnOnce(Result<Reply, TerminalError>) + Send + 'static) {
        self.order(Order::Call(call, Box::new(then)));
    }

    /// Somebody new.
    pub fn client(&self) -> Client {
        Client(self.clients.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a call for a client under a ticket of its own; the listener hears the answer, and a stream's chunks.
    pub fn attend(&self, client: Client, ticket: Ticket, call: Call, listener: Listener) {
        self.order(Order::Attend(client, ticket, call, listener));
    }

    /// The client has caught up, or is gone: its streams go on.
    pub fn release(&self, client: Client) {
        self.order(Order::Release(client));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _thread_is_there = orders.send(order);
            let _full_means_rung = rustix::io::write(&self.bell, b"!");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.orders = None;
        let _full_means_rung = rustix::io::write(&self.bell, b"!");
        if let Some(thread) = self.thread.take() {
            let _panicked_already = thread.join();
        }
    }
}

/// A call of a client that is not over.
struct Attended {
    client: Client,
    ticket: Ticket,
    listener: Listener,
    /// Where it streams from.
    session: Option<SessionId>,
}

/// Everybody who waits for something.
#[derive(Default)]
struct Audience {
    waiting: BTreeMap<Ticket, Then>,
    attended: BTreeMap<Ticket, Attended>,
    held: BTreeSet<(Client, SessionId)>,
    last: Ticket,
}

fn turn(mut runtime: Runtime, orders: &Receiver<Order>, bell: &OwnedFd) {
    let mut audience = Audience::default();
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

impl Audience {
    fn obey(&mut self, runtime: &mut Runtime, order: Order) {
        match order {
            Order::Call(call, then) => {
                self.last += 1;
                self.waiting.insert(self.last, then);
                runtime.call(self.last, call);
            }
            Order::Attend(client, ticket, call, listener) => {
                self.last += 1;
                self.attended.insert(self.last, Attended { client, ticket, listener, session: None });
                runtime.call(self.last, call);
            }
            Order::Release(client) => {
                for (_, session) in self.held.extract_if(.., |(holder, _)| *holder == client) {
                    runtime.hold(&session, false);
                }
            }
        }
    }

    fn tell(&mut self, runtime: &mut Runtime, event: Event) {
        match event {
            Event::Reply(ticket, answer) => {
                if let Some(then) = self.waiting.remove(&ticket) {
                    return then(*answer);
                }
                let Some(mut attended) = self.attended.remove(&ticket) else { return };
                if let Ok(Reply::Streaming(session, _)) = &*answer {
                    attended.session = Some(session.clone());
                }
                let _an_answer_holds_nothing_back =
                    (attended.listener)(Event::Reply(attended.ticket, answer));
                if attended.session.is_some() {
                    self.attended.insert(ticket, attended);
                }
            }
            Event::Chunk(ticket, chunk) => {
                let Some(attended) = self.attended.get(&ticket) else { return };
                let is_last = matches!(chunk, Chunk::Exit(_));
                let flow = (attended.listener)(Event::Chunk(attended.ticket, chunk));
                if flow == Flow::Hold
                    && !is_last
                    && let Some(session) = &attended.session
                {
                    runtime.hold(session, true);
                    self.held.insert((attended.client, session.clone()));
                }
                if is_last {
                    self.attended.remove(&ticket);
                }
            }
        }
    }
}
