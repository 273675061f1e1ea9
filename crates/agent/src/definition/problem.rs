//! Problems of a definition: all are reported together, each with its location, the line and a suggestion.
//!
//! Values that look like secrets are masked in the shown lines.

use std::{borrow::Cow, fmt, path::PathBuf};

/// One problem of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionProblem {
    /// The file, or the environment variable.
    pub source: PathBuf,
    /// `None` if the problem concerns the whole file.
    pub place: Option<FileLocation>,
    /// A lower-case fragment.
    pub message: String,
    /// The remedy.
    pub suggestion: Option<String>,
}

/// A location in a file; line and column start at 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLocation {
    pub line: usize,
    /// In characters.
    pub column: usize,
    /// Length of the marked text in characters.
    pub length: usize,
    /// The complete line.
    pub text: String,
}

/// All problems of a definition; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionError(pub Vec<DefinitionProblem>);

impl DefinitionProblem {
    pub(super) fn new(source: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self { source: source.into(), place: None, message: message.into(), suggestion: None }
    }

    pub(super) fn suggesting(mut self, suggestion: Option<String>) -> Self {
        self.suggestion = suggestion;
        self
    }
}

impl fmt::Display for DefinitionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source.display())?;
        if let Some(place) = &self.place {
            write!(f, ":{}:{}", place.line, place.column)?;
        }
        write!(f, ": {}", cut(&self.message, LONGEST_MESSAGE))?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; {}", cut(suggestion, LONGEST_MESSAGE))?;
        }
        let Some(FileLocation { line, column, length, text }) = &self.place else { return Ok(()) };
        if text.trim().is_empty() {
            return Ok(());
        }
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let shown = masked(text);
        let (shown, column) = around(&shown, *column);
        // Tabs are copied, so that the marker has the same width as the line above.
        let before: String =
            shown.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let length = (*length).min(shown.chars().count().saturating_sub(column - 1)).max(1);
        write!(f, "\n {number} | {shown}\n {margin} | {before}{}", "^".repeat(length))
    }
}

/// Size limit of a message in characters, because it may contain values from the file.
const LONGEST_MESSAGE: usize = 400;
/// Size limit of a shown line in characters.
const LONGEST_LINE: usize = 160;
/// Maximum number of shown problems.
const MOST_PROBLEMS: usize = 50;

fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// The part of a long line around a column, and the column's position in that part.
fn around(line: &str, column: usize) -> (String, usize) {
    let count = line.chars().count();
    if count <= LONGEST_LINE {
        return (line.to_owned(), column);
    }
    let start = (column - 1).saturating_sub(LONGEST_LINE / 4).min(count - LONGEST_LINE);
    let part: String = line.chars().skip(start).take(LONGEST_LINE).collect();
    let (before, shift) = if start > 0 { ("…", 1) } else { ("", 0) };
    let after = if start + LONGEST_LINE < count { "…" } else { "" };
    (format!("{before}{part}{after}"), column - start + shift)
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().take(MOST_PROBLEMS).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        match self.0.len().saturating_sub(MOST_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for DefinitionError {}

/// Masks the value of a key with a secret-like name, and texts that look like API keys.
fn masked(line: &str) -> String {
    let Some((key, value)) = line.split_once(':') else { return line.to_owned() };
    let name = key.trim().trim_start_matches("- ").to_lowercase();
    let sounds = ["key", "token", "secret", "password"].iter().any(|word| name.ends_with(word));
    let value = value.trim().trim_matches(['"', '\'']);
    if sounds || looks_secret(value) { format!("{key}: ***") } else { line.to_owned() }
}

/// Whether a text looks like an API key rather than a name.
pub(super) fn looks_secret(text: &str) -> bool {
    let prefixed =
        ["sk-", "sk_", "gsk_", "xai-", "AIza", "hf_"].iter().any(|prefix| text.starts_with(prefix));
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let mixed = text.chars().any(|c| c.is_ascii_digit()) && text.chars().any(|c| c.is_ascii_lowercase());
    plain && ((prefixed && text.len() > 8) || (text.len() >= 32 && mixed && !text.contains('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str, column: usize, length: usize) -> DefinitionProblem {
        let place = FileLocation { line: 12, column, length, text: text.to_owned() };
        let problem = DefinitionProblem::new("a/config.yaml", "unknown key comand");
        DefinitionProblem { place: Some(place), ..problem }
            .suggesting(Some("did you mean command?".to_owned()))
    }

    #[test]
    fn a_problem_points_at_its_place() {
        let expected = "a/config.yaml:12:5: unknown key comand; did you mean command?\n 12 |     comand: [ls]\n    |     ^^^^^^";
        assert_eq!(problem("    comand: [ls]", 5, 6).to_string(), expected);
    }

    #[test]
    fn of_a_long_line_the_part_around_the_place_is_shown() {
        for column in [1, 5, 100_000, 199_990] {
            let text = format!("{}{}{}", "a".repeat(column - 1), "HERE", "b".repeat(200_000 - column - 3));
            let told = problem(&text, column, 4).to_string();
            let lines: Vec<&str> = told.lines().collect();
            assert!(told.len() < 600, "{} bytes", told.len());
            let at =
                lines[1].chars().collect::<Vec<_>>().windows(4).position(|part| part == ['H', 'E', 'R', 'E']);
            let carets = lines[2].chars().position(|c| c == '^');
            assert_eq!((at, lines[2].matches('^').count()), (carets, 4), "{told}");
        }
        let told = problem(&"a".repeat(200_000), 1, 200_000).to_string();
        assert!(told.len() < 800, "{} bytes", told.len());
        let long = DefinitionProblem { message: "é".repeat(100_000), ..problem("", 1, 1) };
        assert!(long.to_string().len() < 1_000);
        let many = DefinitionError(vec![problem("x", 1, 1); 1_000]).to_string();
        assert!(many.ends_with("\nand 950 more") && many.lines().count() == 151, "{many}");
    }

    #[test]
    fn secrets_are_not_shown() {
        for line in ["  api_key: sk-abcdef", "  name: 'sk-proj-0123456789'", "- token: x"] {
            assert!(problem(line, 1, 1).to_string().contains(": ***"), "{line}");
        }
        for line in
            ["  api_key_env: OPENAI_API_KEY", "  name: gpt-4.1-mini-2025-04-14", "  description: a: b"]
        {
            assert!(!problem(line, 1, 1).to_string().contains("***"), "{line}");
        }
    }
}
