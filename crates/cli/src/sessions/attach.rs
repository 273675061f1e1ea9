//! `abide sessions attach`: connects this terminal to a session until ctrl-] is typed or the session ends.

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use abide_os::poll::wait_readable;
use abide_os::tty::{TerminalModeGuard, read_input, window_size};
use abide_terminal::TerminalSize;
use abide_terminal::direct::{AttachedEvent, DirectSession, DirectSessionError};
use anyhow::{Context, bail};

use super::DEFAULT_SIZE;
use crate::exit::SUCCEEDED;

/// Ctrl-], which detaches.
const DETACH_KEY: u8 = 0x1d;
/// Interval at which the size of the terminal is read.
const SIZE_POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(super) fn terminal_size() -> TerminalSize {
    match window_size(std::io::stdout()) {
        Some(size) if size.rows > 0 && size.columns > 0 => TerminalSize {
            rows: size.rows.min(TerminalSize::MAX_ROWS_OR_COLS),
            cols: size.columns.min(TerminalSize::MAX_ROWS_OR_COLS),
        },
        Some(_) | None => DEFAULT_SIZE,
    }
}

pub(super) fn run(mut session: DirectSession) -> anyhow::Result<ExitCode> {
    let size = terminal_size();
    match session.attach(size) {
        Err(DirectSessionError::Refused(refusal)) => {
            bail!("{refusal}; start it with `abide sessions new --pty`")
        }
        attached => attached?,
    }
    eprintln!("attached; ctrl-] leaves");
    let raw = TerminalModeGuard::raw();
    let exit_code = relay(&mut session, size);
    drop(raw);
    eprintln!("\r");
    exit_code
}

fn relay(session: &mut DirectSession, mut size: TerminalSize) -> anyhow::Result<ExitCode> {
    let input = std::io::stdin();
    let mut buffer = vec![0; 4096];
    loop {
        let ready = match wait_readable(&[input.as_fd(), session.as_fd()], Some(SIZE_POLL_INTERVAL)) {
            Ok(ready) => ready,
            Err(error) if error.kind() == ErrorKind::Interrupted => vec![],
            Err(error) => return Err(error.into()),
        };
        if terminal_size() != size {
            size = terminal_size();
            session.resize(size)?;
        }
        if ready.first() == Some(&true) {
            let count = read_input(&mut buffer).context("cannot read the terminal")?;
            let bytes = buffer.get(..count).unwrap_or_default();
            if count == 0 || bytes.contains(&DETACH_KEY) {
                return Ok(SUCCEEDED);
            }
            session.send_input(bytes)?;
        }
        let mut out = std::io::stdout().lock();
        while let Some(event) = session.next_event()? {
            match event {
                AttachedEvent::Output(bytes) => out.write_all(&bytes)?,
                AttachedEvent::Ended => {
                    out.flush()?;
                    return Ok(SUCCEEDED);
                }
            }
        }
        out.flush()?;
    }
}
