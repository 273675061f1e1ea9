//! JSON-RPC 2.0 for one client, one object per line, on two file descriptors.
//!
//! One thread does all the work, so a command passes from the client to its keeper and back without a context switch to
//! another thread. Requests are concurrent, because the runtime replies asynchronously. A client that does not read its
//! responses applies backpressure to its streams instead of filling memory.

mod client_fds;
mod connection;
mod methods;
mod outgoing;
mod schema;
mod streams;

use std::os::fd::AsFd;

use abide_terminal::{EventFlags, RuntimeWait, TerminalRuntime};
use rustix::io::Errno;

use crate::client_lines::{ClientLine, ClientLineBuffer};
use client_fds::{ClientFd, FdInterest, INPUT, OUTPUT};
pub(crate) use connection::RpcConnection;
pub(crate) use schema::describe_methods;

/// Maximum length of a line, in bytes.
pub const MAX_LINE_BYTES: usize = 16 << 20;
/// Requested capacity of the output pipe, in bytes.
const OUTPUT_PIPE_BYTES: usize = 1 << 20;
/// Unread bytes above which responses and streams are paused.
const PAUSE_STREAMS_BYTES: usize = 1 << 20;
/// Unread bytes above which no further requests are read.
const STOP_READING_BYTES: usize = 8 << 20;

/// Serves one client until its input ends, then shuts the runtime down.
pub fn serve(runtime: TerminalRuntime, input: impl AsFd, output: impl AsFd) -> std::io::Result<()> {
    let mut server = RpcServer {
        runtime,
        lines: ClientLineBuffer::new(MAX_LINE_BYTES),
        connection: RpcConnection::default(),
        written_bytes: 0,
        supports_nonblocking_write: true,
    };
    // A larger pipe improves throughput. The call fails if the output is not a pipe or may not grow.
    rustix::pipe::fcntl_setpipe_size(&output, OUTPUT_PIPE_BYTES).ok();
    let served = server.run(&input, &output);
    // A closed descriptor is always ready and would cause a busy loop while the sessions end.
    server.runtime.unwatch_fd(&input);
    server.runtime.unwatch_fd(&output);
    server.runtime.shut_down();
    server.take_events();
    // The client may have closed its end.
    server.write_rest(&output).ok();
    served
}

struct RpcServer {
    runtime: TerminalRuntime,
    lines: ClientLineBuffer,
    connection: RpcConnection,
    written_bytes: usize,
    /// Whether the output supports a non-blocking write.
    supports_nonblocking_write: bool,
}

impl RpcServer {
    fn run(&mut self, input: impl AsFd, output: impl AsFd) -> std::io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        let mut input_end = ClientFd::new(INPUT);
        let mut output_end = ClientFd::new(OUTPUT);
        loop {
            let pending = self.connection.output.len() - self.written_bytes;
            self.runtime.set_all_paused(pending > PAUSE_STREAMS_BYTES);
            input_end.set_interest(
                &self.runtime,
                &input,
                if pending < STOP_READING_BYTES { FdInterest::Readable } else { FdInterest::None },
            );
            output_end.set_interest(
                &self.runtime,
                &output,
                if pending > 0 { FdInterest::Writable } else { FdInterest::HangUp },
            );
            let at_once = input_end.is_always_ready() || output_end.is_always_ready();
            let ready = self.runtime.wait(if at_once { RuntimeWait::Poll } else { RuntimeWait::Block });
            let flags = |which| {
                let of = ready.iter().filter(|(own, _)| *own == which);
                of.fold(EventFlags::empty(), |all, (_, flags)| all | *flags)
            };
            if input_end.is_always_ready() || !flags(INPUT).is_empty() {
                match rustix::io::read(&input, &mut buffer) {
                    Ok(0) => {
                        if let Some(line) = self.lines.finish() {
                            self.on_line(line);
                        }
                        return Ok(());
                    }
                    Ok(count) => {
                        self.lines.push(buffer.get(..count).unwrap_or_default());
                        while let Some(line) = self.lines.next() {
                            self.on_line(line);
                        }
                    }
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.take_events();
            if flags(OUTPUT).intersects(EventFlags::ERR | EventFlags::HUP) {
                return Ok(());
            }
            self.write(&output)?;
        }
    }

    fn on_line(&mut self, line: ClientLine) {
        let runtime = &mut self.runtime;
        match line {
            ClientLine::Complete(line) => self.connection.on_line(&line, |call| runtime.call(call)),
            ClientLine::TooLong => self.connection.on_line_too_long(MAX_LINE_BYTES),
        }
    }

    fn take_events(&mut self) {
        for event in self.runtime.events() {
            self.connection.on_event(event);
        }
    }
}
