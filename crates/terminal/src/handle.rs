//! A runtime on a thread of its own, for callers who live elsewhere (an async runtime, several threads).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::call::{Call, Event, Reply, Ticket};
use crate::error::{Code, TerminalError};
use crate::runtime::{Config, Runtime};

type Then = Box<dyn FnOnce(Result<Reply, TerminalError>) + Send>;

/// The way to a runtime on another thread. Dropping it ends the runtime in order.
#[derive(Debug)]
pub struct Handle {
    calls: Option<Sender<(Call, Then)>>,
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
        let (calls, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("terminal".to_owned())
            .spawn(move || turn(runtime, &receiver, &reader))
            .map_err(|error| internal(error.to_string()))?;
        Ok(Self { calls: Some(calls), bell, thread: Some(thread) })
    }

    /// Makes a call; `then` is called with the answer, on the runtime's thread. Streams are not offered here.
    pub fn call(&self, call: Call, then: impl FnOnce(Result<Reply, TerminalError>) + Send + 'static) {
        if let Some(calls) = &self.calls {
            let _thread_is_there = calls.send((call, Box::new(then)));
            let _full_means_rung = rustix::io::write(&self.bell, b"!");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.calls = None;
        let _full_means_rung = rustix::io::write(&self.bell, b"!");
        if let Some(thread) = self.thread.take() {
            let _panicked_already = thread.join();
        }
    }
}

fn turn(mut runtime: Runtime, calls: &Receiver<(Call, Then)>, bell: &OwnedFd) {
    let mut waiting: BTreeMap<Ticket, Then> = BTreeMap::new();
    let mut next: Ticket = 1;
    loop {
        let mut fds = [PollFd::new(bell, PollFlags::IN), PollFd::new(&runtime, PollFlags::IN)];
        let _retried = poll(&mut fds, None);
        let mut rung = [0; 64];
        while matches!(rustix::io::read(bell, &mut rung), Ok(1..)) {}
        loop {
            match calls.try_recv() {
                Ok((call, then)) => {
                    waiting.insert(next, then);
                    runtime.call(next, call);
                    next += 1;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return runtime.shut_down(),
            }
        }
        runtime.work();
        for event in runtime.events() {
            if let Event::Reply(ticket, answer) = event
                && let Some(then) = waiting.remove(&ticket)
            {
                then(*answer);
            }
        }
    }
}
