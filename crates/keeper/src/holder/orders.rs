//! What a client orders, and what it is told.

use rustix::io::{Errno, write};
use rustix::process::{Pid, Signal, kill_process_group};

use super::clients::HELLO;
use super::{ChildFd, Holder};
use crate::child::Hold;
use crate::clock::{ticks, unix_micros};
use crate::protocol::{Act, MAX_PAGE_BYTES, News, Owner, Range, Refusal};

impl Holder {
    /// Takes every order that a client has sent. A client that does not take its answers is not asked for more orders:
    /// they wait where they are until it does.
    pub(super) fn hear(&mut self, number: u64) {
        let mut reads = true;
        while self.clients.takes_answers(number)
            && let Some(order) = self.clients.next_order(number, std::mem::take(&mut reads))
        {
            let from = (number, order.tag);
            if let Act::Hello(secret) = &order.act {
                if self.place.secret().is_ok_and(|known| known == *secret) {
                    self.clients.trust(number);
                    self.clients.tell((number, HELLO), News::Status(Box::new(self.status())));
                } else {
                    self.clients.tell(from, News::Refused(Refusal::Stranger));
                    self.clients.drop_client(number);
                }
            } else if self.clients.is_trusted(number) {
                self.obey(from, order.act);
            } else {
                self.clients.drop_client(number);
            }
        }
    }

    fn obey(&mut self, from: (u64, u64), act: Act) {
        let answer = match act {
            Act::Hello(_) => return,
            Act::Status => Ok(News::Status(Box::new(self.status()))),
            Act::Own(owner) => self.own(owner),
            Act::Run(run) => match self.run(run, from) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            Act::Input { bytes, eof } => self.input(&bytes, eof),
            Act::Write { key, bytes, eof } => self.write_once(key, &bytes, eof),
            Act::Interrupt => self.interrupt(),
            Act::Signal(number) => self.signal(number),
            Act::Resize { rows, cols } => self.resize(rows, cols),
            Act::Read(range) => {
                match self.spool.read(Range { limit: range.limit.min(MAX_PAGE_BYTES), ..range }) {
                    Ok(Some(piece)) => Ok(News::Piece(piece)),
                    Ok(None) => Err(Refusal::Unknown),
                    Err(error) => Err(Refusal::System(error.to_string())),
                }
            }
            Act::Follow { job, from: at } => {
                self.clients.follow(from, job, at, false);
                return;
            }
            Act::FollowClosely { job, from: at } => {
                self.clients.follow(from, job, at, true);
                return;
            }
            Act::Release { job, before } => self
                .spool
                .release(job, before)
                .map(|()| News::Done)
                .map_err(|e| Refusal::System(e.to_string())),
            Act::Say(say) => match self.say(say, from) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            Act::End { force } => return self.end(force, Some(from), None),
            Act::EndExcept { keepers } => return self.end(false, Some(from), Some(keepers.into())),
        };
        self.clients.tell(from, answer.unwrap_or_else(News::Refused));
    }

    fn own(&mut self, owner: Owner) -> Result<News, Refusal> {
        let free = match &self.owner {
            Owner::Home => false,
            Owner::Process(process) => !process.is_alive(),
        };
        if self.owner != owner && !free {
            return Err(Refusal::Owned);
        }
        self.owner = owner;
        Ok(News::Status(Box::new(self.status())))
    }

    pub(super) fn input(&mut self, bytes: &[u8], eof: bool) -> Result<News, Refusal> {
        if self.exit.is_some() {
            return Err(Refusal::Ended);
        }
        self.last_activity_at = unix_micros();
        match &mut self.hold {
            Hold::Shell => self.command_input(bytes, eof).map(|()| News::Done),
            Hold::Pty(pty) => {
                let bytes = if eof { [bytes, b"\x04"].concat() } else { bytes.to_vec() };
                write_what_fits(pty, &bytes).map(|()| News::Done)
            }
            Hold::Pipes(_) => self.write_stdin(bytes, eof).map(|()| News::Done),
        }
    }

    fn interrupt(&mut self) -> Result<News, Refusal> {
        if self.job.is_none()
            && let Some((run, from)) = self.waiting.take()
        {
            // The shell is still being made ready for this command, which therefore never begins.
            self.cancel_unstarted(&run, from);
            return Ok(News::Done);
        }
        let job = self.job.as_mut().ok_or(Refusal::NotRunning)?;
        if let Some(step) = job.ladder.cancel(ticks()) {
            self.stop(step);
        }
        Ok(News::Done)
    }

    fn signal(&mut self, number: i32) -> Result<News, Refusal> {
        // The group has the child's number. Nothing else can have it before the child is reaped.
        if self.exit.is_some() || matches!(self.child_fd, ChildFd::Reaped) {
            return Err(Refusal::Ended);
        }
        let signal =
            Signal::from_named_raw(number).ok_or(Refusal::Unsupported("no such signal".to_owned()))?;
        let group = i32::try_from(self.child.pid).ok().and_then(Pid::from_raw).ok_or(Refusal::Ended)?;
        kill_process_group(group, signal).map_err(|error| Refusal::System(error.to_string()))?;
        Ok(News::Done)
    }

    fn resize(&mut self, rows: u16, cols: u16) -> Result<News, Refusal> {
        let Hold::Pty(pty) = &self.hold else {
            return Err(Refusal::Unsupported("the session has no terminal".to_owned()));
        };
        let size = rustix::termios::Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(pty, size).map_err(|error| Refusal::System(error.to_string()))?;
        Ok(News::Done)
    }
}

/// A terminal or pipe that is full for long is not being read; the client is told instead of being kept waiting.
fn write_what_fits(end: impl std::os::fd::AsFd, mut bytes: &[u8]) -> Result<(), Refusal> {
    let deadline = ticks() + PATIENCE;
    while !bytes.is_empty() {
        match write(&end, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if ticks() < deadline => {
                let mut fds = [rustix::event::PollFd::new(&end, rustix::event::PollFlags::OUT)];
                let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let _retried = rustix::event::poll(&mut fds, Some(&moment));
            }
            Err(Errno::AGAIN) => {
                return Err(Refusal::Full(format!("{} bytes of input are not being read", bytes.len())));
            }
            Err(error) => return Err(Refusal::System(error.to_string())),
        }
    }
    Ok(())
}

const PATIENCE: u64 = 100_000;
