//! JSON-RPC 2.0 for one client, one object per line, on two file descriptors.
//!
//! One thread does all the work, so a command passes from the client to its keeper and back without a context switch to
//! another thread. Requests are concurrent, because the runtime replies asynchronously. A client that does not read its
//! responses applies backpressure to its streams instead of filling memory.

mod conversation;
mod ends;
mod methods;
mod outgoing;
mod streams;

use std::os::fd::AsFd;

use abide_terminal::{EventFlags, RuntimeWait, TerminalRuntime};
use rustix::io::Errno;

use crate::line::{ClientLine, ClientLineBuffer};
pub(crate) use conversation::RpcConnection;
use ends::{ClientFd, FdInterest, INPUT, OUTPUT};

/// Maximum length of a line, in bytes.
pub const MAX_LINE: usize = 16 << 20;
/// Requested capacity of the output pipe, in bytes.
const WIDE: usize = 1 << 20;
/// Unread bytes above which responses and streams are paused.
const HOLD_AT: usize = 1 << 20;
/// Unread bytes above which no further requests are read.
const STOP_AT: usize = 8 << 20;

/// Serves one client until its input ends, then shuts the runtime down.
pub fn serve(runtime: TerminalRuntime, input: impl AsFd, output: impl AsFd) -> std::io::Result<()> {
    let mut server = RpcServer {
        runtime,
        lines: ClientLineBuffer::new(MAX_LINE),
        talk: RpcConnection::default(),
        written: 0,
        never_waits: true,
    };
    // A larger pipe improves throughput. The call fails if the output is not a pipe or may not grow.
    rustix::pipe::fcntl_setpipe_size(&output, WIDE).ok();
    let served = server.turn(&input, &output);
    // A closed descriptor is always ready and would cause a busy loop while the sessions end.
    server.runtime.ignore(&input);
    server.runtime.ignore(&output);
    server.runtime.shut_down();
    server.take_events();
    // The client may have closed its end.
    server.write_rest(&output).ok();
    served
}

struct RpcServer {
    runtime: TerminalRuntime,
    lines: ClientLineBuffer,
    talk: RpcConnection,
    written: usize,
    /// Whether the output supports a non-blocking write.
    never_waits: bool,
}

impl RpcServer {
    fn turn(&mut self, input: impl AsFd, output: impl AsFd) -> std::io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        let mut input_end = ClientFd::new(INPUT);
        let mut output_end = ClientFd::new(OUTPUT);
        loop {
            let pending = self.talk.out.len() - self.written;
            self.runtime.hold_streams(pending > HOLD_AT);
            input_end.wants(
                &self.runtime,
                &input,
                if pending < STOP_AT { FdInterest::In } else { FdInterest::Nothing },
            );
            output_end.wants(
                &self.runtime,
                &output,
                if pending > 0 { FdInterest::Out } else { FdInterest::End },
            );
            let at_once = input_end.is_always_ready() || output_end.is_always_ready();
            let ready = self.runtime.wait(if at_once { RuntimeWait::No } else { RuntimeWait::ForSomething });
            let flags = |which| {
                let of = ready.iter().filter(|(own, _)| *own == which);
                of.fold(EventFlags::empty(), |all, (_, flags)| all | *flags)
            };
            if input_end.is_always_ready() || !flags(INPUT).is_empty() {
                match rustix::io::read(&input, &mut buffer) {
                    Ok(0) => {
                        if let Some(line) = self.lines.finish() {
                            self.hear(line);
                        }
                        return Ok(());
                    }
                    Ok(count) => {
                        self.lines.push(buffer.get(..count).unwrap_or_default());
                        while let Some(line) = self.lines.next() {
                            self.hear(line);
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

    fn hear(&mut self, line: ClientLine) {
        let runtime = &mut self.runtime;
        match line {
            ClientLine::Whole(line) => self.talk.hear(&line, |ticket, call| runtime.call(ticket, call)),
            ClientLine::TooLong => self.talk.hear_too_much(MAX_LINE),
        }
    }

    fn take_events(&mut self) {
        for event in self.runtime.events() {
            self.talk.take(event);
        }
    }
}
