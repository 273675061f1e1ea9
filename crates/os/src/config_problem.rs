//! Problems of configuration: all are reported together, each with its origin, key, reason and suggestion.
//!
//! The parsers of the formats are in the crates that know the keys. They report positions as byte offsets or as lines
//! and columns. A position can have an excerpt, in which values that look like secrets are masked.

use std::{borrow::Cow, fmt, path::PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    pub origin: ConfigOrigin,
    /// The dotted name of the key. `None` if the origin names it, or if the problem concerns no single key.
    pub key: Option<String>,
    /// A lower-case fragment.
    pub reason: String,
    pub suggestion: Option<ConfigSuggestion>,
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigOrigin {
    File {
        path: PathBuf,
        /// `None` for the whole file.
        position: Option<Box<FilePosition>>,
    },
    Environment {
        variable: String,
    },
    Flag {
        flag: String,
    },
    Default,
}

/// A position in a file; line and column start at 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePosition {
    pub line: usize,
    /// In characters.
    pub column: usize,
    pub excerpt: Option<FileExcerpt>,
}

/// The line of a position, with a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileExcerpt {
    /// The complete line.
    pub line_text: String,
    /// Length of the marked text in characters.
    pub marked_chars: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSuggestion {
    /// The name that was probably meant.
    Name(String),
    /// A fragment that states the remedy.
    Advice(String),
}

/// An invalid configuration with all its problems; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// A line before the problems, which are then indented.
    pub heading: Option<&'static str>,
    pub problems: Vec<ConfigProblem>,
}

/// Size limit of a reason or suggestion in characters, because it may contain values from the file.
const MAX_MESSAGE_CHARS: usize = 400;
/// Size limit of a shown line in characters.
const MAX_LINE_CHARS: usize = 160;
/// Maximum number of shown problems.
const MAX_SHOWN_PROBLEMS: usize = 50;

impl ConfigProblem {
    pub fn new(origin: ConfigOrigin, reason: impl Into<String>) -> Self {
        Self { origin, key: None, reason: reason.into(), suggestion: None }
    }

    /// Names the key. An empty name stands for none.
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into()).filter(|key| !key.is_empty());
        self
    }

    /// Suggests the name that was probably meant.
    pub fn with_similar_name(self, name: Option<String>) -> Self {
        self.with_suggestion(name.map(ConfigSuggestion::Name))
    }

    pub fn with_advice(self, advice: Option<String>) -> Self {
        self.with_suggestion(advice.map(ConfigSuggestion::Advice))
    }

    pub fn with_suggestion(mut self, suggestion: Option<ConfigSuggestion>) -> Self {
        self.suggestion = suggestion;
        self
    }

    /// The key and the reason.
    pub fn message(&self) -> Cow<'_, str> {
        match &self.key {
            Some(key) => Cow::Owned(format!("{key}: {}", self.reason)),
            None => Cow::Borrowed(&self.reason),
        }
    }
}

impl ConfigOrigin {
    /// A problem that concerns the whole file and no position.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File { path: path.into(), position: None }
    }

    pub fn file_at(path: impl Into<PathBuf>, position: FilePosition) -> Self {
        Self::File { path: path.into(), position: Some(Box::new(position)) }
    }

    /// The line and column in a file.
    fn line_and_column(&self) -> Option<(usize, usize)> {
        match self {
            Self::File { position, .. } => position.as_ref().map(|at| (at.line, at.column)),
            Self::Environment { .. } | Self::Flag { .. } | Self::Default => None,
        }
    }
}

impl FilePosition {
    /// The position of a byte in a text, without an excerpt.
    pub fn of_byte(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |start| start.chars().count()) + 1;
        Self { line, column, excerpt: None }
    }

    /// The position of `marked_chars` characters in a text, with an excerpt.
    pub fn with_excerpt(text: &str, line: usize, column: usize, marked_chars: usize) -> Self {
        let line_text = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().to_owned();
        let rest = line_text.chars().count().saturating_sub(column.saturating_sub(1)).max(1);
        let excerpt = FileExcerpt { line_text, marked_chars: marked_chars.clamp(1, rest) };
        Self { line, column, excerpt: Some(excerpt) }
    }

    fn write_excerpt(&self, f: &mut fmt::Formatter<'_>, indentation: &str) -> fmt::Result {
        let Some(FileExcerpt { line_text, marked_chars }) = &self.excerpt else { return Ok(()) };
        if line_text.trim().is_empty() {
            return Ok(());
        }
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let shown = mask_secrets(line_text);
        let (shown, column) = excerpt_around(&shown, self.column);
        // Tabs are copied, so that the marker has the same width as the line above.
        let before: String =
            shown.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let length = (*marked_chars).min(shown.chars().count().saturating_sub(column - 1)).max(1);
        let mark = "^".repeat(length);
        write!(f, "\n{indentation} {number} | {shown}\n{indentation} {margin} | {before}{mark}")
    }
}

impl ConfigError {
    pub fn new(problems: Vec<ConfigProblem>) -> Self {
        Self { heading: None, problems }
    }
}

/// Sorts problems by their position in the file. Problems without a position come first.
pub fn sort_by_position(problems: &mut [ConfigProblem]) {
    problems.sort_by_key(|problem| problem.origin.line_and_column());
}

impl fmt::Display for ConfigOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, position: None } => write!(f, "{}", path.display()),
            Self::File { path, position: Some(at) } => {
                write!(f, "{}:{}:{}", path.display(), at.line, at.column)
            }
            Self::Environment { variable } => f.write_str(variable),
            Self::Flag { flag } => f.write_str(flag),
            Self::Default => f.write_str("default"),
        }
    }
}

impl fmt::Display for ConfigSuggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "did you mean {name}?"),
            Self::Advice(advice) => f.write_str(advice),
        }
    }
}

impl ConfigProblem {
    fn write_indented(&self, f: &mut fmt::Formatter<'_>, indentation: &str) -> fmt::Result {
        let message = self.message();
        write!(f, "{indentation}{}: {}", self.origin, truncate(&message, MAX_MESSAGE_CHARS))?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; {}", truncate(&suggestion.to_string(), MAX_MESSAGE_CHARS))?;
        }
        match &self.origin {
            ConfigOrigin::File { position: Some(at), .. } => at.write_excerpt(f, indentation),
            ConfigOrigin::File { position: None, .. }
            | ConfigOrigin::Environment { .. }
            | ConfigOrigin::Flag { .. }
            | ConfigOrigin::Default => Ok(()),
        }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_indented(f, "")
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indentation = if self.heading.is_some() { "  " } else { "" };
        if let Some(heading) = self.heading {
            writeln!(f, "{heading}")?;
        }
        for (index, problem) in self.problems.iter().take(MAX_SHOWN_PROBLEMS).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.write_indented(f, indentation)?;
        }
        match self.problems.len().saturating_sub(MAX_SHOWN_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\n{indentation}and {more} more"),
        }
    }
}

impl std::error::Error for ConfigError {}

fn truncate(text: &str, max_chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// The part of a long line around a column, and the column's position in that part.
fn excerpt_around(line: &str, column: usize) -> (String, usize) {
    let count = line.chars().count();
    let column = column.max(1);
    if count <= MAX_LINE_CHARS {
        return (line.to_owned(), column);
    }
    let start = (column - 1).saturating_sub(MAX_LINE_CHARS / 4).min(count - MAX_LINE_CHARS);
    let part: String = line.chars().skip(start).take(MAX_LINE_CHARS).collect();
    let (before, shift) = if start > 0 { ("…", 1) } else { ("", 0) };
    let after = if start + MAX_LINE_CHARS < count { "…" } else { "" };
    (format!("{before}{part}{after}"), column - start + shift)
}

/// Masks the value of a key with a secret-like name, and texts that look like API keys.
fn mask_secrets(line: &str) -> String {
    let Some((key, value)) = line.split_once(':') else { return line.to_owned() };
    let name = key.trim().trim_start_matches("- ").to_lowercase();
    let is_secret_name = ["key", "token", "secret", "password"].iter().any(|word| name.ends_with(word));
    let value = value.trim().trim_matches(['"', '\'']);
    if is_secret_name || looks_secret(value) { format!("{key}: ***") } else { line.to_owned() }
}

/// Returns whether a text looks like an API key rather than a name.
pub fn looks_secret(text: &str) -> bool {
    let prefixed =
        ["sk-", "sk_", "gsk_", "xai-", "AIza", "hf_"].iter().any(|prefix| text.starts_with(prefix));
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let mixed = text.chars().any(|c| c.is_ascii_digit()) && text.chars().any(|c| c.is_ascii_lowercase());
    plain && ((prefixed && text.len() > 8) || (text.len() >= 32 && mixed && !text.contains('.')))
}

#[cfg(test)]
mod tests;
