//! The terminal of this process: its size, its modes and its pending input. Without a terminal nothing changes.

use std::{
    io::{self, stdin},
    os::fd::AsFd,
};

use rustix::{
    io::Errno,
    termios::{
        LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetwinsize, tcsetattr,
    },
};

/// Size of a terminal. A value is 0 if the terminal does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    pub rows: u16,
    pub columns: u16,
}

/// Returns the size of the terminal behind a descriptor; `None` if there is none.
pub fn window_size(fd: impl AsFd) -> Option<WindowSize> {
    let size = tcgetwinsize(fd).ok()?;
    Some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// Discards the input that was typed and not read.
pub fn discard_input() {
    // Standard input may not be a terminal.
    tcflush(stdin(), QueueSelector::IFlush).ok();
}

/// Reads standard input past the buffer of `std`. Linux reports a closed terminal as an error, see
/// [`is_closed_terminal`].
pub fn read_input(buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(stdin(), buffer)?)
}

/// Returns whether an error of [`read_input`] means that the terminal was closed.
pub fn is_closed_terminal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Changes the modes of the terminal on standard input until it is dropped.
#[derive(Debug)]
pub struct TerminalModeGuard {
    before: Option<Termios>,
}

impl TerminalModeGuard {
    /// Passes every key on at once, without echo and without signals.
    pub fn raw() -> Self {
        Self::with(Termios::make_raw)
    }

    /// Hides typed text except the line end.
    pub fn without_echo() -> Self {
        Self::with(|modes| {
            modes.local_modes.remove(LocalModes::ECHO);
            modes.local_modes.insert(LocalModes::ECHONL);
        })
    }

    fn with(change: impl FnOnce(&mut Termios)) -> Self {
        let before = tcgetattr(stdin()).ok();
        if let Some(mut modes) = before.clone() {
            change(&mut modes);
            // If the modes cannot be changed, the terminal works as before.
            tcsetattr(stdin(), OptionalActions::Flush, &modes).ok();
        }
        Self { before }
    }
}

impl Drop for TerminalModeGuard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may be gone.
            tcsetattr(stdin(), OptionalActions::Flush, before).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_window_size() {
        assert_eq!(window_size(std::fs::File::open("/dev/null").unwrap()), None);
    }

    #[test]
    fn only_the_error_of_a_closed_terminal_is_recognised() {
        assert!(is_closed_terminal(&Errno::IO.into()));
        assert!(!is_closed_terminal(&Errno::BADF.into()));
    }
}
