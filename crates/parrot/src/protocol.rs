//! The parrot's line protocol: one JSON object per line, in both directions.
//!
//! | output message | meaning |
//! |---|---|
//! | `{"type":"session","id"}` | the session id, once per process, as the first message |
//! | `{"type":"turn"}` | a prompt was accepted |
//! | `{"type":"text","text"}`, `{"type":"output","text"}` | a part of the result; output that is not part of the result |
//! | `{"type":"progress","text"}` | progress |
//! | `{"type":"gate","id","prompt"}`, `{"type":"withdrawn","id"}` | an approval request, optionally with `kind`, `command` and `cwd`; its withdrawal |
//! | `{"type":"result","text"}` | the turn has ended with this result |
//! | `{"type":"failed","message"}`, `{"type":"interrupted"}` | the turn has ended without a result |
//!
//! Its input messages are `{"type":"prompt","text"}`, `{"type":"answer","gate","text","approved"}`,
//! `{"type":"steer","text"}` and `{"type":"interrupt"}`; SIGINT is equal to the last one. Instructions are executed
//! elsewhere.

use std::{
    io::{BufRead, Read, Write, stdin, stdout},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A message to the client.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ParrotOutput<'a> {
    Session {
        id: &'a str,
    },
    Turn,
    Text {
        text: &'a str,
    },
    Progress {
        text: &'a str,
    },
    Gate {
        id: &'a str,
        prompt: &'a str,
        #[serde(flatten)]
        action: Option<ParrotAction<'a>>,
    },
    Withdrawn {
        id: &'a str,
    },
    Result {
        text: &'a str,
    },
    Failed {
        message: &'a str,
    },
    Interrupted,
}

/// The action that an approval request covers.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ParrotAction<'a> {
    pub(crate) kind: &'a str,
    pub(crate) command: &'a str,
    pub(crate) cwd: Option<&'a str>,
}

/// A message from the client.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ParrotInput {
    Prompt {
        text: String,
    },
    Answer {
        gate: String,
        #[serde(default)]
        text: String,
        #[serde(default)]
        approved: bool,
    },
    Steer {
        text: String,
    },
    Interrupt,
    /// End of the input.
    #[serde(skip)]
    End,
}

/// Writes and flushes a message.
pub(crate) fn send(message: &ParrotOutput<'_>) -> std::io::Result<()> {
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Maximum output in one message, in bytes.
const MAX_OUTPUT_BYTES: u64 = 8 << 20;
const DIGITS: &[u8] = b"0123456789";

/// Prints up to `bytes` bytes of output as one message. Returns the number printed. The output is generated in pieces.
pub(crate) fn send_output(bytes: u64) -> std::io::Result<u64> {
    let piece = bytes.min(MAX_OUTPUT_BYTES);
    let mut out = std::io::BufWriter::with_capacity(1 << 16, stdout().lock());
    out.write_all(b"{\"type\":\"output\",\"text\":\"")?;
    let block = DIGITS.repeat(1 << 10);
    let mut remaining_bytes = piece;
    while remaining_bytes > 0 {
        let length = remaining_bytes.min(block.len() as u64);
        out.write_all(block.get(..length as usize).unwrap_or_default())?;
        remaining_bytes -= length;
    }
    out.write_all(b"\"}\n")?;
    out.flush()?;
    Ok(piece)
}

/// Queue of messages from standard input and signals.
#[derive(Debug)]
pub(crate) struct ParrotInbox {
    inputs: Receiver<ParrotInput>,
}

impl ParrotInbox {
    /// Starts to read standard input and SIGINT.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let (sender, input) = channel();
        let (mut signals, write) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal_hook::consts::signal::SIGINT, write)?;
        let interrupts = sender.clone();
        std::thread::spawn(move || {
            let mut byte = [0];
            while signals.read_exact(&mut byte).is_ok() && interrupts.send(ParrotInput::Interrupt).is_ok() {}
        });
        std::thread::spawn(move || read_stdin(&sender));
        Ok(Self { inputs: input })
    }

    /// Waits for the next message.
    pub(crate) fn next(&self) -> ParrotInput {
        self.inputs.recv().unwrap_or(ParrotInput::End)
    }

    /// Waits for the next message, up to `time`.
    pub(crate) fn next_within(&self, time: Duration) -> Option<ParrotInput> {
        match self.inputs.recv_timeout(time) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(ParrotInput::End),
        }
    }

    /// Returns the next message without waiting.
    pub(crate) fn try_next(&self) -> Option<ParrotInput> {
        self.inputs.try_recv().ok()
    }
}

fn read_stdin(sender: &Sender<ParrotInput>) {
    for line in stdin().lock().split(b'\n').map_while(Result::ok) {
        match serde_json::from_slice(&line) {
            Ok(input) => {
                if sender.send(input).is_err() {
                    return;
                }
            }
            Err(_) if line.iter().all(u8::is_ascii_whitespace) => {}
            Err(error) => eprintln!("parrot: cannot parse the input line: {error}"),
        }
    }
    // The receiver is dropped when the process is ending.
    sender.send(ParrotInput::End).ok();
}
