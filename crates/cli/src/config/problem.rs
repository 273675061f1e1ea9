//! Problems of a configuration: all are reported together, each with its origin and a suggestion.

use std::{fmt, path::PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    pub origin: SettingOrigin,
    /// A fragment without a final full stop.
    pub message: String,
    /// The most similar valid name.
    pub suggestion: Option<String>,
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// Line and column count from 1.
    File {
        path: PathBuf,
        line: usize,
        /// In characters.
        column: usize,
    },
    Environment {
        variable: String,
    },
    Flag {
        flag: String,
    },
    Default,
}

impl ConfigProblem {
    pub(super) fn new(origin: SettingOrigin, message: impl Into<String>) -> Self {
        Self { origin, message: message.into(), suggestion: None }
    }

    pub(super) fn with_suggestion(mut self, suggestion: Option<String>) -> Self {
        self.suggestion = suggestion;
        self
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Environment { variable } => f.write_str(variable),
            Self::Flag { flag } => f.write_str(flag),
            Self::Default => f.write_str("default"),
        }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, "; did you mean {suggestion}?"),
            None => Ok(()),
        }
    }
}

/// An invalid configuration with all its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub Vec<ConfigProblem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for ConfigError {}
