//! What people are told while a run is followed: lines on standard error, and one that is drawn over and over on a
//! terminal.

use std::io::{IsTerminal, Write};

use rustix::termios::tcgetwinsize;

use crate::{
    table::{self, ColourMode},
    text,
};

/// Standard error, for people.
#[derive(Debug)]
pub(super) struct StatusLine {
    manner: OutputMode,
    drawn: bool,
    /// How it is coloured.
    pub(super) colour: ColourMode,
}

/// How much is said, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputMode {
    /// A terminal that can draw a line again.
    Live,
    /// Line by line.
    Plain,
    /// Nothing: a program listens.
    Quiet,
}

impl StatusLine {
    /// For people, or for programs that want none of it.
    pub(super) fn new(json: bool) -> Self {
        let manner = match (json, std::io::stderr().is_terminal() && !table::is_dumb()) {
            (true, _) => OutputMode::Quiet,
            (false, true) => OutputMode::Live,
            (false, false) => OutputMode::Plain,
        };
        Self { manner, drawn: false, colour: ColourMode::of_stderr() }
    }

    /// Whether a line can be drawn again.
    pub(super) fn is_live(&self) -> bool {
        self.manner == OutputMode::Live
    }

    /// Says a line that stays.
    pub(super) fn line(&mut self, line: &str) {
        self.clear();
        if self.manner != OutputMode::Quiet {
            self.write(&format!("{line}\n"));
        }
    }

    /// Draws the line that says what happens now; nothing where that cannot be done.
    pub(super) fn draw(&mut self, line: &str) {
        if self.manner == OutputMode::Live {
            let line = text::cut(line, columns().saturating_sub(1));
            self.write(&format!("\r\x1b[K{line}"));
            self.drawn = true;
        }
    }

    /// Takes the drawn line away.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            self.write("\r\x1b[K");
        }
    }

    /// Asks for input, behind which the cursor stays.
    pub(super) fn prompt(&mut self, prompt: &str) {
        self.clear();
        self.write(prompt);
    }

    fn write(&self, text: &str) {
        let mut err = std::io::stderr().lock();
        let _nobody_listens = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }
}

/// How wide the terminal is.
pub(super) fn columns() -> usize {
    match tcgetwinsize(std::io::stderr()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        Ok(_) | Err(_) => 80,
    }
}
