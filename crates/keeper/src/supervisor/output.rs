//! Reads output from pipes and terminal, and passes it to the spool, the result and the followers.

use rustix::event::epoll;
use rustix::io::Errno;

use super::{ChildSupervisor, PollSource};
use crate::child::ChildIo;
use crate::output_pipes::{OutputPipes, PipeRead};
use crate::protocol::{JobId, OutputChunk, OutputStream};

/// Number of buffers read from one pipe before other sources are served.
const MAX_READS_PER_TURN: usize = 8;
/// Number of buffers for the final read of a pipe. It is bounded because other processes may keep writing.
const MAX_FINAL_READS: usize = 64;

impl ChildSupervisor {
    /// Adds new output pipes. Fails if the shell cannot open them.
    pub(super) fn add_output_pipes(&mut self, pipes: OutputPipes) -> Result<(), Errno> {
        if let Some(driver) = &mut self.shell_driver {
            driver.share_output(&pipes)?;
        }
        for stream in OutputStream::ALL {
            if let Some(end) = pipes.reader(stream) {
                let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                self.poller.add(end, PollSource::OutputPipe(pipes.number, stream), flags)?;
            }
        }
        self.current_pipes = pipes.number;
        self.output_pipes.insert(pipes.number, pipes);
        Ok(())
    }

    pub(super) fn drain_ready_pipes(&mut self) {
        let ready: Vec<u64> = self
            .output_pipes
            .values()
            .filter(|pipes| pipes.ready.contains(&true))
            .map(|pipes| pipes.number)
            .collect();
        for number in ready {
            for stream in OutputStream::ALL {
                self.drain_pipe(number, stream, MAX_READS_PER_TURN, false);
            }
        }
    }

    pub(super) fn drain_all_pipes(&mut self) {
        let numbers: Vec<u64> = self.output_pipes.keys().copied().collect();
        for number in numbers {
            for stream in OutputStream::ALL {
                if let Some(pipes) = self.output_pipes.get_mut(&number) {
                    pipes.ready[stream.index()] = true;
                }
                self.drain_pipe(number, stream, MAX_FINAL_READS, true);
            }
        }
    }

    /// Reads the available bytes of a pipe, for the job that owns the pipes.
    pub(super) fn drain_pipe(
        &mut self,
        number: u64,
        stream: OutputStream,
        max_reads: usize,
        ignores_backpressure: bool,
    ) {
        for _ in 0..max_reads {
            let Some(pipes) = self.output_pipes.get_mut(&number) else { return };
            let job = pipes.job;
            if !pipes.ready[stream.index()] || !ignores_backpressure && self.is_backpressured(job) {
                return;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            let read = self.output_pipes.get_mut(&number).map(|pipes| pipes.read(stream, &mut buffer));
            match read {
                Some(PipeRead::Bytes(count)) => {
                    let bytes = buffer.get(..count).unwrap_or_default();
                    let discards = self.job.as_ref().is_some_and(|job| job.discards_output);
                    if number == self.current_pipes && discards {
                        self.buffer = buffer;
                        continue;
                    }
                    if number == self.current_pipes && stream == OutputStream::Stderr {
                        let bytes = self.remove_trace_lines(stream, bytes);
                        self.record_output(job, stream, &bytes);
                    } else {
                        self.record_output(job, stream, bytes);
                    }
                    self.buffer = buffer;
                }
                Some(PipeRead::Closed) => {
                    self.buffer = buffer;
                    return self.handle_pipe_closed(number, stream);
                }
                Some(PipeRead::Empty) | None => {
                    self.buffer = buffer;
                    return;
                }
            }
        }
    }

    /// Handles the end of a pipe. The current pipes are only closed between two commands, older ones permanently.
    pub(super) fn handle_pipe_closed(&mut self, number: u64, stream: OutputStream) {
        if number == self.current_pipes && self.exit.is_none() && self.shell_driver.is_some() {
            return;
        }
        if let Some(pipes) = self.output_pipes.get_mut(&number) {
            pipes.close(stream);
            if pipes.is_closed() {
                self.output_pipes.remove(&number);
            }
        }
    }

    pub(super) fn drain_terminal(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let ChildIo::Pty(pty) = &self.child_io {
            match rustix::io::read(pty, &mut buffer) {
                Ok(count @ 1..) => {
                    self.record_output(0, OutputStream::Stdout, buffer.get(..count).unwrap_or_default())
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
    pub(super) fn record_output(&mut self, job: JobId, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let offset = self.spool.append(job, stream, bytes);
        if let Some(running) = self.job.as_mut().filter(|running| running.id == job) {
            let result = &mut running.result_output[stream.index()];
            let room = running.max_result_bytes.saturating_sub(result.len());
            result.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        }
        if let Some(wait) = self.input_wait.as_mut().filter(|_| job == 0) {
            wait.record_output(stream, bytes);
        }
        self.clients.forward_output(&OutputChunk { job, stream, offset, bytes: Vec::new() }, bytes);
    }

    pub(super) fn is_backpressured(&self, job: JobId) -> bool {
        self.clients.has_slow_follower(job, self.spool.stream_bytes(job)) || self.spool.is_full()
    }
}
