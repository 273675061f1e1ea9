//! Reads output from pipes and terminal, and passes it to the spool, the result and the followers.

use rustix::event::epoll;
use rustix::io::Errno;

use super::{ChildSupervisor, PollSource};
use crate::child::ChildIo;
use crate::lane::{OutputPipes, PipeRead};
use crate::protocol::{JobId, OutputChunk, OutputStream};

/// Number of buffers read from one pipe before other sources are served.
const TURN: usize = 8;
/// Number of buffers for the final read of a pipe. It is bounded because other processes may keep writing.
const LAST_TURN: usize = 64;

impl ChildSupervisor {
    pub(super) fn add_lane(&mut self, lane: OutputPipes) -> Result<(), Errno> {
        for stream in OutputStream::ALL {
            if let Some(end) = lane.end(stream) {
                let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                self.poller.add(end, PollSource::Lane(lane.number, stream), flags)?;
            }
        }
        self.lane = lane.number;
        self.lanes.insert(lane.number, lane);
        Ok(())
    }

    pub(super) fn drain_lanes(&mut self) {
        let ready: Vec<u64> =
            self.lanes.values().filter(|lane| lane.ready.contains(&true)).map(|lane| lane.number).collect();
        for number in ready {
            for stream in OutputStream::ALL {
                self.drain(number, stream, TURN, false);
            }
        }
    }

    pub(super) fn drain_all(&mut self) {
        let numbers: Vec<u64> = self.lanes.keys().copied().collect();
        for number in numbers {
            for stream in OutputStream::ALL {
                if let Some(lane) = self.lanes.get_mut(&number) {
                    lane.ready[stream.index()] = true;
                }
                self.drain(number, stream, LAST_TURN, true);
            }
        }
    }

    /// Reads the available bytes of a pipe, for the job that owns the pipes.
    pub(super) fn drain(&mut self, number: u64, stream: OutputStream, turns: usize, at_once: bool) {
        for _ in 0..turns {
            let Some(lane) = self.lanes.get_mut(&number) else { return };
            let job = lane.job;
            if !lane.ready[stream.index()] || !at_once && self.is_held_back(job) {
                return;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            let found = self.lanes.get_mut(&number).map(|lane| lane.take(stream, &mut buffer));
            match found {
                Some(PipeRead::Bytes(count)) => {
                    let bytes = buffer.get(..count).unwrap_or_default();
                    if number == self.lane && stream == OutputStream::Stderr {
                        let bytes = self.without_trace(stream, bytes);
                        self.keep(job, stream, &bytes);
                    } else {
                        self.keep(job, stream, bytes);
                    }
                    self.buffer = buffer;
                }
                Some(PipeRead::Closed) => {
                    self.buffer = buffer;
                    return self.lane_closed(number, stream);
                }
                Some(PipeRead::Empty) | None => {
                    self.buffer = buffer;
                    return;
                }
            }
        }
    }

    /// Handles the end of a pipe. The current pipes are only closed between two commands, older ones permanently.
    pub(super) fn lane_closed(&mut self, number: u64, stream: OutputStream) {
        if number == self.lane && self.exit.is_none() && self.prompter.is_some() {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.close(stream);
            if lane.is_closed() {
                self.lanes.remove(&number);
            }
        }
    }

    pub(super) fn drain_terminal(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let ChildIo::Pty(pty) = &self.hold {
            match rustix::io::read(pty, &mut buffer) {
                Ok(count @ 1..) => {
                    self.keep(0, OutputStream::Stdout, buffer.get(..count).unwrap_or_default())
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => {
                    // The terminal is closed. It is removed from the poller, which would otherwise report it
                    // continuously. It may already be removed.
                    epoll::delete(&self.poller.0, pty).ok();
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    /// Stores bytes in the spool, keeps the first ones for the result, and sends them to up-to-date followers.
    pub(super) fn keep(&mut self, job: JobId, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let offset = self.spool.append(job, stream, bytes);
        if let Some(running) = self.job.as_mut().filter(|running| running.id == job) {
            let kept = &mut running.kept[stream.index()];
            let room = running.keep.saturating_sub(kept.len());
            kept.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        }
        if let Some(settling) = self.settling.as_mut().filter(|_| job == 0) {
            settling.heard(stream, bytes);
        }
        self.clients.pass_on(&OutputChunk { job, stream, offset, bytes: Vec::new() }, bytes);
    }

    pub(super) fn is_held_back(&self, job: JobId) -> bool {
        self.clients.is_behind(job) || self.spool.is_full()
    }
}
