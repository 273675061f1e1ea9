//! The error for a call that was not executed, worded so that a model can correct it.
//!
//! Failures during the execution are observations.

use std::fmt;

use abide_os::suggestion::nearest;

/// A call that cannot be executed, with all of its problems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidToolCall {
    problems: Vec<String>,
}

impl InvalidToolCall {
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()] }
    }

    /// `Ok` if there are no problems.
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

/// The known name that is most similar, as a parenthesis for an error text; empty if none is similar.
pub(crate) fn suggestion<'a>(misspelt: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(misspelt, candidates).map(|name| format!(" (did you mean \"{name}\"?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_answered_with_the_one_that_was_meant() {
        let tool_names = ["read_file", "write_file", "session_end"];
        assert_eq!(suggestion("readFile", tool_names), " (did you mean \"read_file\"?)");
        assert_eq!(suggestion("sesion_end", tool_names), " (did you mean \"session_end\"?)");
        assert_eq!(suggestion("quux", tool_names), "");
    }
}
