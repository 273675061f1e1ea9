//! JSON-RPC 2.0 for one client, one object a line, in and out through two descriptors.
//!
//! One thread turns everything: a command passes from the client to its keeper and back without waking anybody else.
//! Requests are served concurrently because the runtime answers when it can. A client that does not read its answers
//! holds back its streams, not the machine's memory.

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

/// The longest line that is taken.
pub const MAX_LINE: usize = 16 << 20;
/// What the client's pipe holds, if it lets us decide.
const WIDE: usize = 1 << 20;
/// With more than this unread by the client, answers and streams are held back.
const HOLD_AT: usize = 1 << 20;
/// With more than this unread by the client, no more requests are taken.
const STOP_AT: usize = 8 << 20;

/// Serves one client until its input ends; then ends the runtime in order.
pub fn serve(runtime: TerminalRuntime, input: impl AsFd, output: impl AsFd) -> std::io::Result<()> {
    let mut server = RpcServer {
        runtime,
        lines: ClientLineBuffer::new(MAX_LINE),
        talk: RpcConnection::default(),
        written: 0,
        never_waits: true,
    };
    // Output comes faster than a pipe's usual size lets through; what is no pipe, or may not grow, stays as it is.
    let _stays_as_it_is = rustix::pipe::fcntl_setpipe_size(&output, WIDE);
    let served = server.turn(&input, &output);
    // An end that is over is always ready: watched on, it would keep the processor busy while the sessions end.
    server.runtime.ignore(&input);
    server.runtime.ignore(&output);
    server.runtime.shut_down();
    server.take_events();
    let _the_client_may_be_gone = server.write_rest(&output);
    served
}

struct RpcServer {
    runtime: TerminalRuntime,
    lines: ClientLineBuffer,
    talk: RpcConnection,
    written: usize,
    /// Whether the output takes a write that would rather fail than wait.
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
