//! Executes the requests of clients and sends the responses.

use rustix::io::{Errno, write};
use rustix::process::{Pid, Signal, kill_process_group};

use super::clients::HELLO_TAG;
use super::{ChildFd, ChildSupervisor};
use crate::child::ChildIo;
use crate::clock::{boottime_micros, unix_micros};
use crate::protocol::{
    JobOutputRange, KeeperOwner, KeeperRefusal, KeeperRequest, KeeperResponse, MAX_PAGE_BYTES,
};

impl ChildSupervisor {
    /// Executes all pending requests of a client. Requests of a client that does not read its responses stay in its
    /// socket.
    pub(super) fn serve_client(&mut self, number: u64) {
        let mut reads = true;
        while self.clients.flush_and_accepts_responses(number)
            && let Some(request) = self.clients.next_request(number, std::mem::take(&mut reads))
        {
            let from = (number, request.tag);
            if let KeeperRequest::Hello(secret) = &request.act {
                if self.keeper_dir.secret().is_ok_and(|stored_secret| stored_secret == *secret) {
                    self.clients.authenticate(number);
                    self.clients.send((number, HELLO_TAG), KeeperResponse::Status(Box::new(self.status())));
                } else {
                    self.clients.send(from, KeeperResponse::Refused(KeeperRefusal::Stranger));
                    self.clients.drop_client(number);
                }
            } else if self.clients.is_authenticated(number) {
                self.execute_request(from, request.act);
            } else {
                self.clients.drop_client(number);
            }
        }
    }

    fn execute_request(&mut self, client: (u64, u64), request: KeeperRequest) {
        let answer = match request {
            KeeperRequest::Hello(_) => return,
            KeeperRequest::Status => Ok(KeeperResponse::Status(Box::new(self.status()))),
            KeeperRequest::Own(owner) => self.change_owner(owner),
            KeeperRequest::Run(run) => match self.queue_or_start_command(run, client) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            KeeperRequest::Input { bytes, eof } => self.write_input(&bytes, eof),
            KeeperRequest::Write { key, bytes, eof } => self.write_once(key, &bytes, eof),
            KeeperRequest::FindWritten { keys } => {
                let keys = keys.into_iter().filter(|key| self.stdin.has_written(*key)).collect();
                Ok(KeeperResponse::Written { keys })
            }
            KeeperRequest::Interrupt => self.cancel_command(),
            KeeperRequest::Signal(number) => self.signal_process_group(number),
            KeeperRequest::Resize { rows, cols } => self.resize(rows, cols),
            KeeperRequest::Read(range) => {
                match self.spool.read(JobOutputRange { limit: range.limit.min(MAX_PAGE_BYTES), ..range }) {
                    Ok(Some(piece)) => Ok(KeeperResponse::Piece(piece)),
                    Ok(None) => Err(KeeperRefusal::Unknown),
                    Err(error) => Err(KeeperRefusal::System(error.to_string())),
                }
            }
            KeeperRequest::Follow { job, from: at } => {
                self.clients.follow(client, job, at, false);
                return;
            }
            KeeperRequest::FollowClosely { job, from: at } => {
                self.clients.follow(client, job, at, true);
                return;
            }
            KeeperRequest::Release { job, before } => self
                .spool
                .release(job, before)
                .map(|()| KeeperResponse::Done)
                .map_err(|e| KeeperRefusal::System(e.to_string())),
            KeeperRequest::Say(say) => match self.write_and_wait(say, client) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            KeeperRequest::End { force } => return self.begin_shutdown(force, Some(client), None),
            KeeperRequest::EndExcept { keepers } => {
                return self.begin_shutdown(false, Some(client), Some(keepers.into()));
            }
        };
        self.clients.send(client, answer.unwrap_or_else(KeeperResponse::Refused));
    }

    fn change_owner(&mut self, owner: KeeperOwner) -> Result<KeeperResponse, KeeperRefusal> {
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

    pub(super) fn write_input(&mut self, bytes: &[u8], eof: bool) -> Result<KeeperResponse, KeeperRefusal> {
        if self.exit.is_some() {
            return Err(KeeperRefusal::Ended);
        }
        self.last_activity_at = unix_micros();
        match &mut self.child_io {
            ChildIo::Shell => self.command_input(bytes, eof).map(|()| KeeperResponse::Done),
            ChildIo::Pty(pty) => {
                let bytes = if eof { [bytes, b"\x04"].concat() } else { bytes.to_vec() };
                write_with_timeout(pty, &bytes).map(|()| KeeperResponse::Done)
            }
            ChildIo::Pipes(_) => self.write_stdin(bytes, eof).map(|()| KeeperResponse::Done),
        }
    }

    fn cancel_command(&mut self) -> Result<KeeperResponse, KeeperRefusal> {
        if self.job.is_none()
            && let Some((command, from)) = self.queued_command.take()
        {
            // The shell is still being prepared for this command, so the command never starts.
            self.cancel_unstarted(&command, from);
            return Ok(KeeperResponse::Done);
        }
        let job = self.job.as_mut().ok_or(KeeperRefusal::NotRunning)?;
        if let Some(step) = job.stop_sequence.cancel(boottime_micros()) {
            self.perform_stop_step(step);
        }
        Ok(KeeperResponse::Done)
    }

    fn signal_process_group(&mut self, number: i32) -> Result<KeeperResponse, KeeperRefusal> {
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
        let ChildIo::Pty(pty) = &self.child_io else {
            return Err(KeeperRefusal::Unsupported("the session has no terminal".to_owned()));
        };
        let size = rustix::termios::Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(pty, size).map_err(|error| KeeperRefusal::System(error.to_string()))?;
        Ok(KeeperResponse::Done)
    }
}

/// Writes with a time limit. A terminal or pipe that stays full is not being read, and the client gets an error.
fn write_with_timeout(end: impl std::os::fd::AsFd, mut bytes: &[u8]) -> Result<(), KeeperRefusal> {
    let deadline = boottime_micros() + WRITE_TIMEOUT_US;
    while !bytes.is_empty() {
        match write(&end, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if boottime_micros() < deadline => {
                let mut fds = [rustix::event::PollFd::new(&end, rustix::event::PollFlags::OUT)];
                let poll_interval = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let _retried = rustix::event::poll(&mut fds, Some(&poll_interval));
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

const WRITE_TIMEOUT_US: u64 = 100_000;
