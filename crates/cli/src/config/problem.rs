//! What is wrong with a configuration: everything at once, each with its place and the name that was perhaps meant.

use std::{fmt, path::PathBuf};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Where.
    pub place: SettingOrigin,
    /// What, as a fragment.
    pub message: String,
    /// The name that was perhaps meant.
    pub suggestion: Option<String>,
}

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// In the file; both numbers count from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The character in the line.
        column: usize,
    },
    /// In a variable of the environment.
    Environment {
        /// Its name.
        variable: String,
    },
    /// On the command line.
    Flag {
        /// The flag.
        flag: String,
    },
    /// Nowhere: it holds because nobody said anything.
    Default,
}

impl ConfigProblem {
    pub(super) fn new(place: SettingOrigin, message: impl Into<String>) -> Self {
        Self { place, message: message.into(), suggestion: None }
    }

    pub(super) fn suggesting(mut self, suggestion: Option<String>) -> Self {
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
        write!(f, "{}: {}", self.place, self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, "; did you mean {suggestion}?"),
            None => Ok(()),
        }
    }
}

/// A configuration that cannot be used, with all reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub Vec<ConfigProblem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for ConfigError {}
