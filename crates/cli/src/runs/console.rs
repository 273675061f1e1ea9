//! Keyboard input while a run is followed: lines, end of input, and ctrl-c.
//!
//! The terminal stays in line mode. Input is read only when requested, and input typed before a question was printed is
//! never taken as its answer.

use std::{
    io::{ErrorKind, IsTerminal, Read},
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use abide_os::{
    poll::wait_readable,
    tty::{discard_input, is_closed_terminal, read_input},
};
use anyhow::Context;
use signal_hook::{consts::SIGINT, low_level::pipe};

/// The first event to occur.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConsoleEvent {
    /// The wake-up socket is readable.
    Wakeup,
    /// A line, or several lines pasted together.
    Input(String),
    /// End of the input.
    Closed,
    /// Ctrl-c.
    Interrupted,
    /// The timeout has passed.
    TimedOut,
}

/// Whether input is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputInterest {
    Read,
    Ignore,
}

/// Standard input and ctrl-c.
#[derive(Debug)]
pub(crate) struct InputConsole {
    interrupts: UnixStream,
    partial: Vec<u8>,
    /// The end of the input was read after a line that is returned first.
    closed: bool,
}

/// Maximum pause between lines of one paste; shorter than between typed lines.
const PASTE_GAP: Duration = Duration::from_millis(30);
/// Maximum bytes read at once; the maximum length of an answer.
const MAX_INPUT_BYTES: usize = 4 << 20;

impl InputConsole {
    /// Installs a handler: from now on ctrl-c is reported as an event and does not end the process.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let (interrupts, signal_writer) = UnixStream::pair().context("cannot create a socket pair")?;
        interrupts.set_nonblocking(true).context("cannot use a socket")?;
        pipe::register(SIGINT, signal_writer).context("cannot listen for ctrl-c")?;
        Ok(Self { interrupts, partial: Vec::new(), closed: false })
    }

    /// Returns whether questions can be asked: standard input and standard error are terminals.
    pub(crate) fn is_interactive() -> bool {
        std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    pub(crate) fn discard_pending_input(&mut self) {
        self.partial.clear();
        discard_input();
    }

    /// Waits for the first event.
    pub(crate) fn wait(
        &mut self,
        wakeup: &UnixStream,
        interest: InputInterest,
        timeout: Option<Duration>,
    ) -> anyhow::Result<ConsoleEvent> {
        let input = std::io::stdin();
        if interest == InputInterest::Read && std::mem::take(&mut self.closed) {
            return Ok(ConsoleEvent::Closed);
        }
        loop {
            let mut fds = vec![self.interrupts.as_fd(), wakeup.as_fd()];
            if interest == InputInterest::Read {
                fds.push(input.as_fd());
            }
            let ready = match wait_readable(&fds, timeout) {
                Ok(ready) => ready,
                // The signal is reported by its socket.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot wait for the terminal"),
            };
            match ready.as_slice() {
                ready if !ready.contains(&true) => return Ok(ConsoleEvent::TimedOut),
                [true, ..] => {
                    drain(&self.interrupts);
                    return Ok(ConsoleEvent::Interrupted);
                }
                [false, true, ..] => {
                    drain(wakeup);
                    return Ok(ConsoleEvent::Wakeup);
                }
                _ => {
                    if let Some(typed) = self.read()? {
                        return Ok(typed);
                    }
                }
            }
        }
    }

    /// Reads input; `None` if no line is complete.
    fn read(&mut self) -> anyhow::Result<Option<ConsoleEvent>> {
        let mut buffer = [0_u8; 4096];
        loop {
            let count = match read_input(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
                Err(error) if is_closed_terminal(&error) => 0,
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
            let more =
                wait_readable(&[input.as_fd()], Some(PASTE_GAP)).is_ok_and(|ready| ready.contains(&true));
            if !more || self.partial.len() > MAX_INPUT_BYTES {
                break;
            }
        }
        // Without a line end, ctrl-d only submitted the partial line.
        if self.partial.last() != Some(&b'\n') {
            return Ok(None);
        }
        let typed = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        Ok(Some(ConsoleEvent::Input(typed.trim_end_matches('\n').to_owned())))
    }
}

fn drain(mut socket: &UnixStream) {
    let mut buffer = [0_u8; 1024];
    while socket.read(&mut buffer).is_ok_and(|count| count > 0) {}
}
