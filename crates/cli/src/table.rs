//! Formats aligned tables, coloured only on a terminal.

use std::io::IsTerminal;

use crate::{home, terminal_text::width as seen};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableCell {
    pub(crate) text: String,
    pub(crate) style: TextStyle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextStyle {
    Plain,
    Heading,
    Success,
    Warning,
    Error,
    Dim,
}

impl TextStyle {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Heading => "1",
            Self::Success => "32",
            Self::Warning => "33",
            Self::Error => "31",
            Self::Dim => "2",
        }
    }

    pub(crate) fn cell(self, text: impl Into<String>) -> TableCell {
        TableCell { text: text.into(), style: self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColourMode {
    On,
    Off,
}

impl ColourMode {
    pub(crate) fn of_stdout() -> Self {
        Self::of(&std::io::stdout())
    }

    pub(crate) fn of_stderr() -> Self {
        Self::of(&std::io::stderr())
    }

    /// Enables colours on a terminal that supports them, unless the user has disabled them.
    fn of(stream: &impl IsTerminal) -> Self {
        let unwanted = home::variable("NO_COLOR").is_some();
        if stream.is_terminal() && !unwanted && !is_dumb() { Self::On } else { Self::Off }
    }

    /// Applies a style to a text.
    pub(crate) fn text(self, style: TextStyle, text: impl Into<String>) -> String {
        self.paint(&style.cell(text))
    }

    pub(crate) fn paint(self, cell: &TableCell) -> String {
        match (self, cell.style.code()) {
            (Self::Off, _) | (Self::On, "") => cell.text.clone(),
            (Self::On, code) => format!("\x1b[{code}m{}\x1b[0m", cell.text),
        }
    }
}

/// Returns whether the terminal supports no control sequences (`TERM=dumb`).
pub(crate) fn is_dumb() -> bool {
    home::variable("TERM").is_none_or(|kind| kind == "dumb")
}

/// Formats rows as lines. Columns are padded to their widest cell, except the last one.
pub(crate) fn format_rows(rows: &[Vec<TableCell>], colour: ColourMode) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| seen(&cell.text)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<TableCell>| {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            line.push_str(&colour.paint(cell));
            if column + 1 < row.len() {
                let missing = widths[column] - seen(&cell.text);
                line.push_str(&" ".repeat(missing + 2));
            }
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_display_width() {
        let rows = vec![
            vec![TextStyle::Heading.cell("A"), TextStyle::Heading.cell("B")],
            vec![TextStyle::Success.cell("größer"), TextStyle::Plain.cell("x")],
            vec![TextStyle::Plain.cell("数据库"), TextStyle::Plain.cell("y")],
        ];
        assert_eq!(format_rows(&rows, ColourMode::Off), ["A       B", "größer  x", "数据库  y"]);
        let painted = ["\x1b[1mA\x1b[0m       \x1b[1mB\x1b[0m", "\x1b[32mgrößer\x1b[0m  x", "数据库  y"];
        assert_eq!(format_rows(&rows, ColourMode::On), painted);
    }
}
