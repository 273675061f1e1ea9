//! What a terminal shows after all that was printed to it, by a real emulator.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::call::TerminalSize;
use crate::room::AnswerPermit;

/// The screen as text, and where the cursor is (from 0).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenText {
    /// One string per line.
    pub lines: Vec<String>,
    /// Line of the cursor.
    pub row: u16,
    /// Column of the cursor.
    pub col: u16,
    /// The size.
    pub size: TerminalSize,
}

/// What a terminal shows, not drawn yet: drawing takes time, which is its reader's and not the runtime's.
#[derive(Debug)]
pub struct ScreenSource {
    /// The end of what was printed, at most a page.
    pub(crate) bytes: Vec<u8>,
    /// Whether something was printed before it.
    pub(crate) is_cut: bool,
    pub(crate) size: TerminalSize,
    /// The room that its bytes take in the runtime.
    pub(crate) room: Option<AnswerPermit>,
}

impl ScreenSource {
    /// How many bytes are drawn.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was printed.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Draws it. What begins in the middle of something is drawn from its first whole line on.
    pub fn draw(&self) -> ScreenText {
        let line =
            self.bytes.iter().take(MAX_CUT_LINE).position(|byte| *byte == b'\n').filter(|_| self.is_cut);
        draw(self.bytes.get(line.map_or(0, |at| at + 1)..).unwrap_or_default(), self.size)
    }
}

/// How far the first line end is looked for in what begins in the middle of a line.
const MAX_CUT_LINE: usize = 64 << 10;

/// Draws these bytes on an empty screen. An emulator that fails on hostile output gives an empty screen, not a crash.
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
            room: None,
            bytes: b"5Hgarbage\r\nwhole".to_vec(),
            is_cut,
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
