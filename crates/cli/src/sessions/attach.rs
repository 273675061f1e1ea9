//! `abide sessions attach`: connects this terminal to a session until ctrl-] is typed or the session ends.

use std::io::Write;
use std::process::ExitCode;

use abide_keeper::launch::KeeperConnection;
use abide_keeper::protocol::{KeeperRequest, KeeperResponse, TaggedRequest, TaggedResponse};
use abide_terminal::TerminalSize;
use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::DEFAULT_SIZE;
use crate::exit::SUCCEEDED;

/// Ctrl-], which detaches.
const DETACH_KEY: u8 = 0x1d;

pub(super) fn terminal_size() -> TerminalSize {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TerminalSize {
            rows: size.ws_row.min(TerminalSize::MAX_ROWS_OR_COLS),
            cols: size.ws_col.min(TerminalSize::MAX_ROWS_OR_COLS),
        },
        Ok(_) | Err(_) => DEFAULT_SIZE,
    }
}

pub(super) fn run(mut keeper: KeeperConnection) -> anyhow::Result<ExitCode> {
    let size = terminal_size();
    match keeper.request(1, KeeperRequest::Resize { rows: size.rows, cols: size.cols }, 5_000)? {
        KeeperResponse::Refused(refusal) => bail!("{refusal}; start it with `abide sessions new --pty`"),
        KeeperResponse::Done
        | KeeperResponse::Status(_)
        | KeeperResponse::Started(_)
        | KeeperResponse::Ran(_)
        | KeeperResponse::Output(_) => {}
        KeeperResponse::Ended(_)
        | KeeperResponse::Piece(_)
        | KeeperResponse::Exited(_)
        | KeeperResponse::Settled(_)
        | KeeperResponse::ShellRestarted(_) => {}
    }
    eprintln!("attached; ctrl-] leaves");
    let raw = RawTerminal::enter();
    let exit_code = relay(&mut keeper, size);
    drop(raw);
    eprintln!("\r");
    exit_code
}

fn relay(keeper: &mut KeeperConnection, mut size: TerminalSize) -> anyhow::Result<ExitCode> {
    keeper.socket.send(&TaggedRequest { tag: 2, act: KeeperRequest::Follow { job: 0, from: [0; 2] } })?;
    let input = std::io::stdin();
    let mut buffer = vec![0; 4096];
    loop {
        let mut fds = [PollFd::new(&input, PollFlags::IN), PollFd::new(&keeper.socket, PollFlags::IN)];
        let poll_timeout = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
        match poll(&mut fds, Some(&poll_timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_input = !fds[0].revents().is_empty();
        if terminal_size() != size {
            size = terminal_size();
            keeper.socket.send(&TaggedRequest {
                tag: 3,
                act: KeeperRequest::Resize { rows: size.rows, cols: size.cols },
            })?;
        }
        if has_input {
            let count = rustix::io::read(&input, &mut buffer).context("cannot read the terminal")?;
            let bytes = buffer.get(..count).unwrap_or_default();
            if count == 0 || bytes.contains(&DETACH_KEY) {
                return Ok(SUCCEEDED);
            }
            keeper.socket.send(&TaggedRequest {
                tag: 4,
                act: KeeperRequest::Input { bytes: bytes.to_vec(), eof: false },
            })?;
        }
        let mut out = std::io::stdout().lock();
        while let Some(answer) = keeper.socket.receive::<TaggedResponse>()? {
            match answer.news {
                KeeperResponse::Output(output) => out.write_all(&output.bytes)?,
                KeeperResponse::Exited(_) | KeeperResponse::Ended(_) => return Ok(SUCCEEDED),
                KeeperResponse::Done
                | KeeperResponse::Refused(_)
                | KeeperResponse::Status(_)
                | KeeperResponse::Started(_)
                | KeeperResponse::Ran(_)
                | KeeperResponse::Piece(_)
                | KeeperResponse::Settled(_)
                | KeeperResponse::ShellRestarted(_) => {}
            }
        }
        out.flush()?;
        if keeper.socket.is_closed() {
            return Ok(SUCCEEDED);
        }
    }
}

/// Puts our terminal into raw mode until it is dropped.
struct RawTerminal {
    before: Option<Termios>,
}

impl RawTerminal {
    fn enter() -> Self {
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            // Standard input may not be a terminal.
            tcsetattr(std::io::stdin(), OptionalActions::Flush, &raw).ok();
        }
        Self { before }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may be gone.
            tcsetattr(std::io::stdin(), OptionalActions::Flush, before).ok();
        }
    }
}
