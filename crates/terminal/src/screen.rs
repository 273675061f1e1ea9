//! Draws the screen of a terminal from its output, with a terminal emulator.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::call::TerminalSize;
use crate::response_budget::AnswerPermit;

/// The screen as text, and the cursor position (from 0).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenText {
    /// One string per line.
    pub lines: Vec<String>,
    pub row: u16,
    pub col: u16,
    pub size: TerminalSize,
}

/// The output that a screen is drawn from. Drawing is slow, so it runs in the reader and not in the runtime.
#[derive(Debug)]
pub struct ScreenSource {
    /// The end of the output, at most one page.
    pub(crate) bytes: Vec<u8>,
    /// Whether earlier output was left out.
    pub(crate) is_truncated: bool,
    pub(crate) size: TerminalSize,
    /// Holds the memory of the output until it is dropped.
    pub(crate) permit: Option<AnswerPermit>,
}

impl ScreenSource {
    /// Number of bytes to draw.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Memory that [`Self::draw`] needs: the cells of the screen and their text, which is longer than the output if the
    /// output moves the cursor.
    pub fn drawing_bytes(&self) -> usize {
        usize::from(self.size.rows) * usize::from(self.size.cols) * CELL_BYTES
    }

    /// Whether there is no output.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Draws the screen. Truncated output is drawn from its first complete line on.
    pub fn draw(&self) -> ScreenText {
        let line = self
            .bytes
            .iter()
            .take(MAX_LINE_SEARCH_BYTES)
            .position(|byte| *byte == b'\n')
            .filter(|_| self.is_truncated);
        draw(self.bytes.get(line.map_or(0, |at| at + 1)..).unwrap_or_default(), self.size)
    }
}

/// Approximate memory of a cell and its text, in bytes.
const CELL_BYTES: usize = 40;

/// How far truncated output is searched for its first line end, in bytes.
const MAX_LINE_SEARCH_BYTES: usize = 64 << 10;

/// Draws these bytes on an empty screen. If the emulator panics on hostile output, the screen is empty.
pub fn draw(bytes: &[u8], size: TerminalSize) -> ScreenText {
    let drawn = catch_unwind(AssertUnwindSafe(|| {
        let mut parser = vt100::Parser::new(at_least_one(size.rows), at_least_one(size.cols), 0);
        parser.process(bytes);
        let screen = parser.screen();
        let (row, col) = screen.cursor_position();
        let lines = screen.rows(0, size.cols).map(|line| line.trim_end().to_owned()).collect();
        ScreenText { lines, row, col, size }
    }));
    drawn.unwrap_or(ScreenText { lines: Vec::new(), row: 0, col: 0, size })
}

fn at_least_one(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap_or(NonZero::<u16>::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_that_begins_in_the_middle_of_a_line_begins_with_the_next() {
        let source = |is_cut| ScreenSource {
            permit: None,
            bytes: b"5Hgarbage\r\nwhole".to_vec(),
            is_truncated: is_cut,
            size: TerminalSize { rows: 2, cols: 20 },
        };
        assert_eq!(source(true).draw().lines, ["whole", ""]);
        assert_eq!(source(false).draw().lines, ["5Hgarbage", "whole"]);
    }

    #[test]
    fn a_screen_shows_where_the_cursor_was_sent() {
        let screen = draw(b"one\r\ntwo\x1b[3;5Hhere", TerminalSize { rows: 4, cols: 20 });
        assert_eq!(screen.lines, ["one", "two", "    here", ""]);
        assert_eq!((screen.row, screen.col), (2, 8));
    }
}
