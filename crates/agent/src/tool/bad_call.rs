//! Why a call was not carried out, said so that a model can do better the next time.
//!
//! Not here: what went wrong while it was carried out; that is an observation.

use std::fmt;

use crate::definition::nearest;

/// A call that cannot be carried out as it is. Everything that is wrong with it is said at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidToolCall {
    problems: Vec<String>,
}

impl InvalidToolCall {
    /// One problem.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()] }
    }

    /// Nothing if there is no problem.
    pub fn unless_empty(problems: Vec<String>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }
}

impl fmt::Display for InvalidToolCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the call was not carried out: {}", self.problems.join("; "))
    }
}

impl std::error::Error for InvalidToolCall {}

/// The known name that somebody may have meant, in brackets for a sentence.
pub(crate) fn suggestion<'a>(meant: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(meant, known).map(|name| format!(" (did you mean \"{name}\"?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_answered_with_the_one_that_was_meant() {
        let known = ["read_file", "write_file", "session_end"];
        assert_eq!(suggestion("readFile", known), " (did you mean \"read_file\"?)");
        assert_eq!(suggestion("sesion_end", known), " (did you mean \"session_end\"?)");
        assert_eq!(suggestion("quux", known), "");
    }
}
