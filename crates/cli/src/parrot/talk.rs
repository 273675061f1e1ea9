//! The parrot's line protocol: one JSON object a line, both ways.
//!
//! | it says | meaning |
//! |---|---|
//! | `{"type":"session","id"}` | the session's name, once in each process, before anything else |
//! | `{"type":"turn"}` | a prompt was taken |
//! | `{"type":"text","text"}`, `{"type":"output","text"}` | a piece of the answer; something that is printed and no part of it |
//! | `{"type":"progress","text"}` | what it is doing |
//! | `{"type":"gate","id","prompt"}`, `{"type":"withdrawn","id"}` | it waits for approval, perhaps of a `kind`, `command` and `cwd`; it no longer does |
//! | `{"type":"result","text"}` | the turn is over, with this answer |
//! | `{"type":"failed","message"}`, `{"type":"interrupted"}` | the turn is over, without one |
//!
//! It hears `{"type":"prompt","text"}`, `{"type":"answer","gate","text","approved"}`, `{"type":"steer","text"}` and
//! `{"type":"interrupt"}`; SIGINT is the same as the last. What an order does is not known here.

use std::{
    io::{BufRead, Read, Write, stdin, stdout},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// What it says.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ParrotOutput<'a> {
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
        deed: Option<ParrotAction<'a>>,
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

/// What it would do behind a gate.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ParrotAction<'a> {
    pub(super) kind: &'a str,
    pub(super) command: &'a str,
    pub(super) cwd: Option<&'a str>,
}

/// What it hears.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ParrotInput {
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
    /// Nothing more will be said.
    #[serde(skip)]
    End,
}

/// Says something, at once.
pub(super) fn say(says: &ParrotOutput<'_>) -> std::io::Result<()> {
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, says)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// The longest piece of output on one line.
const LONGEST_PIECE: u64 = 8 << 20;
const DIGITS: &[u8] = b"0123456789";

/// Prints up to `bytes` bytes of output as one line, and tells how many. They are never in memory all at once.
pub(super) fn print(bytes: u64) -> std::io::Result<u64> {
    let piece = bytes.min(LONGEST_PIECE);
    let mut out = std::io::BufWriter::with_capacity(1 << 16, stdout().lock());
    out.write_all(b"{\"type\":\"output\",\"text\":\"")?;
    let block = DIGITS.repeat(1 << 10);
    let mut left = piece;
    while left > 0 {
        let length = left.min(block.len() as u64);
        out.write_all(block.get(..length as usize).unwrap_or_default())?;
        left -= length;
    }
    out.write_all(b"\"}\n")?;
    out.flush()?;
    Ok(piece)
}

/// Where everything that is said to the parrot comes together.
#[derive(Debug)]
pub(super) struct ParrotInbox {
    said: Receiver<ParrotInput>,
}

impl ParrotInbox {
    /// Begins to listen, to standard input and to SIGINT.
    pub(super) fn open() -> anyhow::Result<Self> {
        let (sender, said) = channel();
        let (mut signals, write) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal_hook::consts::signal::SIGINT, write)?;
        let interrupts = sender.clone();
        std::thread::spawn(move || {
            let mut byte = [0];
            while signals.read_exact(&mut byte).is_ok() && interrupts.send(ParrotInput::Interrupt).is_ok() {}
        });
        std::thread::spawn(move || listen(&sender));
        Ok(Self { said })
    }

    /// What is said next, however long that takes.
    pub(super) fn wait(&self) -> ParrotInput {
        self.said.recv().unwrap_or(ParrotInput::End)
    }

    /// What is said next, if that is within this time.
    pub(super) fn wait_for(&self, time: Duration) -> Option<ParrotInput> {
        match self.said.recv_timeout(time) {
            Ok(said) => Some(said),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(ParrotInput::End),
        }
    }

    /// What has been said already.
    pub(super) fn look(&self) -> Option<ParrotInput> {
        self.said.try_recv().ok()
    }
}

fn listen(sender: &Sender<ParrotInput>) {
    for line in stdin().lock().split(b'\n').map_while(Result::ok) {
        match serde_json::from_slice(&line) {
            Ok(said) => {
                if sender.send(said).is_err() {
                    return;
                }
            }
            Err(_) if line.iter().all(u8::is_ascii_whitespace) => {}
            Err(error) => eprintln!("parrot: not understood: {error}"),
        }
    }
    let _nobody_listens = sender.send(ParrotInput::End);
}
