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
    pub location: Option<FileLocation>,
    /// A lower-case fragment.
    pub message: String,
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
        Self { source: source.into(), location: None, message: message.into(), suggestion: None }
    }

    pub(super) fn with_suggestion(mut self, suggestion: Option<String>) -> Self {
        self.suggestion = suggestion;
        self
    }
}

impl fmt::Display for DefinitionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source.display())?;
        if let Some(place) = &self.location {
            write!(f, ":{}:{}", place.line, place.column)?;
        }
        write!(f, ": {}", truncate(&self.message, MAX_MESSAGE_CHARS))?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; {}", truncate(suggestion, MAX_MESSAGE_CHARS))?;
        }
        let Some(FileLocation { line, column, length, text }) = &self.location else { return Ok(()) };
        if text.trim().is_empty() {
            return Ok(());
        }
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let shown = mask_secrets(text);
        let (shown, column) = excerpt_around(&shown, *column);
        // Tabs are copied, so that the marker has the same width as the line above.
        let before: String =
            shown.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let length = (*length).min(shown.chars().count().saturating_sub(column - 1)).max(1);
        write!(f, "\n {number} | {shown}\n {margin} | {before}{}", "^".repeat(length))
    }
}

/// Size limit of a message in characters, because it may contain values from the file.
const MAX_MESSAGE_CHARS: usize = 400;
/// Size limit of a shown line in characters.
const MAX_LINE_CHARS: usize = 160;
/// Maximum number of shown problems.
const MAX_SHOWN_PROBLEMS: usize = 50;

fn truncate(text: &str, max_chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// The part of a long line around a column, and the column's position in that part.
fn excerpt_around(line: &str, column: usize) -> (String, usize) {
    let count = line.chars().count();
    if count <= MAX_LINE_CHARS {
        return (line.to_owned(), column);
    }
    let start = (column - 1).saturating_sub(MAX_LINE_CHARS / 4).min(count - MAX_LINE_CHARS);
    let part: String = line.chars().skip(start).take(MAX_LINE_CHARS).collect();
    let (before, shift) = if start > 0 { ("…", 1) } else { ("", 0) };
    let after = if start + MAX_LINE_CHARS < count { "…" } else { "" };
    (format!("{before}{part}{after}"), column - start + shift)
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().take(MAX_SHOWN_PROBLEMS).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        match self.0.len().saturating_sub(MAX_SHOWN_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for DefinitionError {}

/// Masks the value of a key with a secret-like name, and texts that look like API keys.
fn mask_secrets(line: &str) -> String {
    let Some((key, value)) = line.split_once(':') else { return line.to_owned() };
    let name = key.trim().trim_start_matches("- ").to_lowercase();
    let is_secret_name = ["key", "token", "secret", "password"].iter().any(|word| name.ends_with(word));
    let value = value.trim().trim_matches(['"', '\'']);
    if is_secret_name || looks_secret(value) { format!("{key}: ***") } else { line.to_owned() }
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
        DefinitionProblem { location: Some(place), ..problem }
            .with_suggestion(Some("did you mean command?".to_owned()))
    }

    #[test]
    fn a_problem_points_at_its_location() {
        let expected = "a/config.yaml:12:5: unknown key comand; did you mean command?\n 12 |     comand: [ls]\n    |     ^^^^^^";
        assert_eq!(problem("    comand: [ls]", 5, 6).to_string(), expected);
    }

    #[test]
    fn the_part_of_a_long_line_around_the_location_is_shown() {
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
