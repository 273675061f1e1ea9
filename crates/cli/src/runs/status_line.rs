//! Status output while a run is followed: lines on standard error, and a status line that is redrawn on a terminal.

use std::io::{IsTerminal, Write};

use abide_os::tty::window_size;

use crate::{
    table::{self, ColourMode},
    terminal_text,
};

/// Standard error, for people.
#[derive(Debug)]
pub(super) struct StatusLine {
    mode: OutputMode,
    is_drawn: bool,
    pub(super) colour: ColourMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputMode {
    /// A terminal that can redraw a line.
    Live,
    Plain,
    /// No output, because a program reads the JSON.
    Quiet,
}

impl StatusLine {
    /// Selects the mode; `json` disables the output.
    pub(super) fn new(json: bool) -> Self {
        let mode = match (json, std::io::stderr().is_terminal() && !table::is_dumb()) {
            (true, _) => OutputMode::Quiet,
            (false, true) => OutputMode::Live,
            (false, false) => OutputMode::Plain,
        };
        Self { mode, is_drawn: false, colour: ColourMode::of_stderr() }
    }

    /// Returns whether the status line can be redrawn.
    pub(super) fn is_live(&self) -> bool {
        self.mode == OutputMode::Live
    }

    /// Prints a permanent line.
    pub(super) fn line(&mut self, line: &str) {
        self.clear();
        if self.mode != OutputMode::Quiet {
            self.write(&format!("{line}\n"));
        }
    }

    /// Redraws the status line, if the terminal supports it.
    pub(super) fn draw(&mut self, line: &str) {
        if self.mode == OutputMode::Live {
            let line = terminal_text::truncate(line, terminal_width().saturating_sub(1));
            self.write(&format!("\r\x1b[K{line}"));
            self.is_drawn = true;
        }
    }

    /// Removes the status line.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            self.write("\r\x1b[K");
        }
    }

    /// Prints a prompt without a line end.
    pub(super) fn prompt(&mut self, prompt: &str) {
        self.clear();
        self.write(prompt);
    }

    fn write(&self, text: &str) {
        let mut err = std::io::stderr().lock();
        // A closed stderr is no reason to stop.
        err.write_all(text.as_bytes()).and_then(|()| err.flush()).ok();
    }
}

/// Returns the width of the terminal in columns.
pub(super) fn terminal_width() -> usize {
    match window_size(std::io::stderr()) {
        Some(size) if size.columns > 0 => usize::from(size.columns),
        Some(_) | None => 80,
    }
}
