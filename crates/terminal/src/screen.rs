//! What a terminal shows after all that was printed to it, by a real emulator.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::call::Size;

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
    pub size: Size,
}

/// Draws these bytes on an empty screen. An emulator that fails on hostile output gives an empty screen, not a crash.
pub fn draw(bytes: &[u8], size: Size) -> ScreenText {
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
    fn a_screen_shows_where_the_cursor_was_sent() {
        let screen = draw(b"one\r\ntwo\x1b[3;5Hhere", Size { rows: 4, cols: 20 });
        assert_eq!(screen.lines, ["one", "two", "    here", ""]);
        assert_eq!((screen.row, screen.col), (2, 8));
    }
}
