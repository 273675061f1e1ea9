//! Executes the requests of clients and sends the responses.

use rustix::io::{Errno, write};
use rustix::process::{Pid, Signal, kill_process_group};

use super::clients::HELLO;
use super::{ChildFd, ChildSupervisor};
use crate::child::ChildIo;
use crate::clock::{ticks, unix_micros};
use crate::protocol::{
    JobOutputRange, KeeperOwner, KeeperRefusal, KeeperRequest, KeeperResponse, MAX_PAGE_BYTES,
};

impl ChildSupervisor {
    /// Executes all pending requests of a client. Requests of a client that does not read its responses stay in its
    /// socket.
    pub(super) fn hear(&mut self, number: u64) {
        let mut reads = true;
        while self.clients.takes_answers(number)
            && let Some(order) = self.clients.next_order(number, std::mem::take(&mut reads))
        {
            let from = (number, order.tag);
            if let KeeperRequest::Hello(secret) = &order.act {
                if self.place.secret().is_ok_and(|known| known == *secret) {
                    self.clients.trust(number);
                    self.clients.tell((number, HELLO), KeeperResponse::Status(Box::new(self.status())));
                } else {
                    self.clients.tell(from, KeeperResponse::Refused(KeeperRefusal::Stranger));
                    self.clients.drop_client(number);
                }
            } else if self.clients.is_trusted(number) {
                self.obey(from, order.act);
            } else {
                self.clients.drop_client(number);
            }
        }
    }

    fn obey(&mut self, from: (u64, u64), act: KeeperRequest) {
        let answer = match act {
            KeeperRequest::Hello(_) => return,
            KeeperRequest::Status => Ok(KeeperResponse::Status(Box::new(self.status()))),
            KeeperRequest::Own(owner) => self.own(owner),
            KeeperRequest::Run(run) => match self.run(run, from) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            KeeperRequest::Input { bytes, eof } => self.input(&bytes, eof),
            KeeperRequest::Write { key, bytes, eof } => self.write_once(key, &bytes, eof),
            KeeperRequest::Interrupt => self.interrupt(),
            KeeperRequest::Signal(number) => self.signal(number),
            KeeperRequest::Resize { rows, cols } => self.resize(rows, cols),
            KeeperRequest::Read(range) => {
                match self.spool.read(JobOutputRange { limit: range.limit.min(MAX_PAGE_BYTES), ..range }) {
                    Ok(Some(piece)) => Ok(KeeperResponse::Piece(piece)),
                    Ok(None) => Err(KeeperRefusal::Unknown),
                    Err(error) => Err(KeeperRefusal::System(error.to_string())),
                }
            }
            KeeperRequest::Follow { job, from: at } => {
                self.clients.follow(from, job, at, false);
                return;
            }
            KeeperRequest::FollowClosely { job, from: at } => {
                self.clients.follow(from, job, at, true);
                return;
            }
            KeeperRequest::Release { job, before } => self
                .spool
                .release(job, before)
                .map(|()| KeeperResponse::Done)
                .map_err(|e| KeeperRefusal::System(e.to_string())),
            KeeperRequest::Say(say) => match self.say(say, from) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            KeeperRequest::End { force } => return self.end(force, Some(from), None),
            KeeperRequest::EndExcept { keepers } => return self.end(false, Some(from), Some(keepers.into())),
        };
        self.clients.tell(from, answer.unwrap_or_else(KeeperResponse::Refused));
    }

    fn own(&mut self, owner: KeeperOwner) -> Result<KeeperResponse, KeeperRefusal> {
        let free = match &self.owner {
            KeeperOwner::Home => false,
            KeeperOwner::Process(process) => !process.is_alive(),
        };
        if self.owner != owner && !free {
            return Err(KeeperRefusal::Owned);
        }
        self.owner = owner;
        Ok(KeeperResponse::Status(Box::new(self.status())))
    }

    pub(super) fn input(&mut self, bytes: &[u8], eof: bool) -> Result<KeeperResponse, KeeperRefusal> {
        if self.exit.is_some() {
            return Err(KeeperRefusal::Ended);
        }
        self.last_activity_at = unix_micros();
        match &mut self.hold {
            ChildIo::Shell => self.command_input(bytes, eof).map(|()| KeeperResponse::Done),
            ChildIo::Pty(pty) => {
                let bytes = if eof { [bytes, b"\x04"].concat() } else { bytes.to_vec() };
                write_what_fits(pty, &bytes).map(|()| KeeperResponse::Done)
            }
            ChildIo::Pipes(_) => self.write_stdin(bytes, eof).map(|()| KeeperResponse::Done),
        }
    }

    fn interrupt(&mut self) -> Result<KeeperResponse, KeeperRefusal> {
        if self.job.is_none()
            && let Some((run, from)) = self.waiting.take()
        {
            // The shell is still being prepared for this command, so the command never starts.
            self.cancel_unstarted(&run, from);
            return Ok(KeeperResponse::Done);
        }
        let job = self.job.as_mut().ok_or(KeeperRefusal::NotRunning)?;
        if let Some(step) = job.ladder.cancel(ticks()) {
            self.stop(step);
        }
        Ok(KeeperResponse::Done)
    }

    fn signal(&mut self, number: i32) -> Result<KeeperResponse, KeeperRefusal> {
        // The process group has the number of the child, which stays reserved until the child is reaped.
        if self.exit.is_some() || matches!(self.child_fd, ChildFd::Reaped) {
            return Err(KeeperRefusal::Ended);
        }
        let signal =
            Signal::from_named_raw(number).ok_or(KeeperRefusal::Unsupported("no such signal".to_owned()))?;
        let group = i32::try_from(self.child.pid).ok().and_then(Pid::from_raw).ok_or(KeeperRefusal::Ended)?;
        kill_process_group(group, signal).map_err(|error| KeeperRefusal::System(error.to_string()))?;
        Ok(KeeperResponse::Done)
    }

    fn resize(&mut self, rows: u16, cols: u16) -> Result<KeeperResponse, KeeperRefusal> {
        let ChildIo::Pty(pty) = &self.hold else {
            return Err(KeeperRefusal::Unsupported("the session has no terminal".to_owned()));
        };
        let size = rustix::termios::Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(pty, size).map_err(|error| KeeperRefusal::System(error.to_string()))?;
        Ok(KeeperResponse::Done)
    }
}

/// Writes with a time limit. A terminal or pipe that stays full is not being read, and the client gets an error.
fn write_what_fits(end: impl std::os::fd::AsFd, mut bytes: &[u8]) -> Result<(), KeeperRefusal> {
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
                return Err(KeeperRefusal::Full(format!(
                    "{} bytes of input are not being read",
                    bytes.len()
                )));
            }
            Err(error) => return Err(KeeperRefusal::System(error.to_string())),
        }
    }
    Ok(())
}

const PATIENCE: u64 = 100_000;
