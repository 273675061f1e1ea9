//! Output: from the pipes and the terminal into the spool, the result and the followers.

use rustix::event::epoll;
use rustix::io::Errno;

use super::{ChildSupervisor, PollSource};
use crate::child::ChildIo;
use crate::lane::{OutputPipes, PipeRead};
use crate::protocol::{JobId, OutputChunk, OutputStream};

/// How many buffers are taken from one pipe before others get their turn.
const TURN: usize = 8;
/// How many are taken when it is the last chance; others may go on writing for ever.
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

    /// Takes what a pipe has, for the job that the lane belongs to.
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

    /// The present lane is closed only for a moment, between two commands; an old one for good.
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
                    // The last holder has closed the terminal; left in the poller it would report that for ever.
                    let _gone_is_fine = epoll::delete(&self.poller.0, pty);
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    /// Spools bytes, keeps the first for the result, and passes them on to those who are up to date.
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
