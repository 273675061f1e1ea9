//! What a person does while a run is followed: types, ends their input, or presses ctrl-c.
//!
//! The terminal stays as it is, with its own editing of lines. Nothing is read before it is asked for, and what was typed
//! before a question was there is never its answer.

use std::{
    io::{IsTerminal, Read},
    os::unix::net::UnixStream,
    time::Duration,
};

use anyhow::Context;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{QueueSelector, tcflush},
};
use signal_hook::{consts::SIGINT, low_level::pipe};

/// What happened first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConsoleEvent {
    /// The bell rang.
    Bell,
    /// The person typed this: a line, or several that were pasted at once.
    Typed(String),
    /// There will be no more input.
    Closed,
    /// The person pressed ctrl-c.
    Interrupted,
    /// Nothing, for that long.
    Nothing,
}

/// Whether what is typed is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputInterest {
    Yes,
    No,
}

/// Standard input and ctrl-c.
#[derive(Debug)]
pub(crate) struct InputConsole {
    interrupts: UnixStream,
    partial: Vec<u8>,
    /// The end of the input was read behind a line that had to be told first.
    closed: bool,
}

/// Lines of one paste come closer together than anybody types them.
const WITHIN_A_PASTE: Duration = Duration::from_millis(30);
/// As much is taken at once as an answer may have.
const MOST_TYPED: usize = 4 << 20;

impl InputConsole {
    /// From now on ctrl-c is something that happens, and no longer the end.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let (interrupts, told) = UnixStream::pair().context("cannot make a socket pair")?;
        interrupts.set_nonblocking(true).context("cannot use a socket")?;
        pipe::register(SIGINT, told).context("cannot listen for ctrl-c")?;
        Ok(Self { interrupts, partial: Vec::new(), closed: false })
    }

    /// Whether there is a person to ask: they can read our questions and type.
    pub(crate) fn has_person() -> bool {
        std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    /// Forgets what was typed and not read.
    pub(crate) fn forget_typed(&mut self) {
        self.partial.clear();
        let _no_terminal = tcflush(std::io::stdin(), QueueSelector::IFlush);
    }

    /// Waits for the first of all that can happen.
    pub(crate) fn wait(
        &mut self,
        bell: &UnixStream,
        listen: InputInterest,
        longest: Option<Duration>,
    ) -> anyhow::Result<ConsoleEvent> {
        let input = std::io::stdin();
        if listen == InputInterest::Yes && std::mem::take(&mut self.closed) {
            return Ok(ConsoleEvent::Closed);
        }
        loop {
            let mut fds =
                vec![PollFd::new(&self.interrupts, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
            if listen == InputInterest::Yes {
                fds.push(PollFd::new(&input, PollFlags::IN));
            }
            let woken = match poll(&mut fds, longest.map(timespec).as_ref()) {
                Ok(count) => count,
                // The signal's own socket says which it was.
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("cannot wait for the terminal"),
            };
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            match ready.as_slice() {
                _ if woken == 0 => return Ok(ConsoleEvent::Nothing),
                [true, ..] => {
                    empty(&self.interrupts);
                    return Ok(ConsoleEvent::Interrupted);
                }
                [false, true, ..] => {
                    empty(bell);
                    return Ok(ConsoleEvent::Bell);
                }
                _ => {
                    if let Some(typed) = self.read()? {
                        return Ok(typed);
                    }
                }
            }
        }
    }

    /// Reads what was typed; nothing if no line is whole yet.
    fn read(&mut self) -> anyhow::Result<Option<ConsoleEvent>> {
        let mut buffer = [0_u8; 4096];
        loop {
            let count = match rustix::io::read(std::io::stdin(), &mut buffer) {
                Ok(count) => count,
                Err(Errno::INTR) => return Ok(None),
                // A terminal that is gone says this instead of an end.
                Err(Errno::IO) => 0,
                Err(error) => return Err(error).context("cannot read the terminal"),
            };
            if count == 0 && self.partial.is_empty() {
                return Ok(Some(ConsoleEvent::Closed));
            }
            if count == 0 {
                self.closed = self.partial.last() == Some(&b'\n');
                break;
            }
            self.partial.extend_from_slice(buffer.get(..count).unwrap_or_default());
            let input = std::io::stdin();
            let mut fds = [PollFd::new(&input, PollFlags::IN)];
            let more = poll(&mut fds, Some(&timespec(WITHIN_A_PASTE))).is_ok_and(|count| count > 0);
            if !more || self.partial.len() > MOST_TYPED {
                break;
            }
        }
        // Without a line end, ctrl-d only passed on what is typed so far.
        if self.partial.last() != Some(&b'\n') {
            return Ok(None);
        }
        let typed = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        Ok(Some(ConsoleEvent::Typed(typed.trim_end_matches('\n').to_owned())))
    }
}

fn empty(mut socket: &UnixStream) {
    let mut buffer = [0_u8; 1024];
    while socket.read(&mut buffer).is_ok_and(|count| count > 0) {}
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
