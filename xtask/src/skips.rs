//! Which tests skipped themselves, and why: collected while the tests run, printed in the summary.
//!
//! A test that lacks a program or a permission calls `abide_testkit::skip::skip`, which appends a line to the file named
//! here. Where everything is required, that call fails the test instead.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::engines::MissingPolicy;
use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

/// The variable in which tests find the file for their skips.
const FILE_VARIABLE: &str = "ABIDE_TEST_SKIPS";
/// With `1`, a skip is a failure of its test.
const FAIL_VARIABLE: &str = "ABIDE_TEST_NO_SKIPS";

/// The list of one run of the tests.
pub(crate) struct SkippedTests {
    file: PathBuf,
}

impl SkippedTests {
    /// An empty list.
    pub(crate) fn listen(workspace: &CargoWorkspace) -> Result<Self> {
        let file = workspace.target.join("skipped-tests.txt");
        fs::write(&file, "").with_context(|| format!("could not write {}", file.display()))?;
        Ok(Self { file })
    }

    /// The command that runs the tests, told where skips go and whether they are failures.
    pub(crate) fn told_to(&self, tests: EchoedCommand, demand: MissingPolicy) -> EchoedCommand {
        let tests = tests.env(FILE_VARIABLE, &self.file);
        match demand {
            MissingPolicy::Required => tests.env(FAIL_VARIABLE, "1"),
            MissingPolicy::Reported => tests,
        }
    }

    /// What was skipped, one line each.
    pub(crate) fn summary(&self) -> Result<String> {
        let text = fs::read_to_string(&self.file)
            .with_context(|| format!("could not read {}", self.file.display()))?;
        Ok(told(&text))
    }
}

fn told(lines: &str) -> String {
    let mut skipped: Vec<&str> = lines.lines().collect();
    skipped.sort_unstable();
    skipped.dedup();
    match skipped.as_slice() {
        [] => "skipped tests: none".to_owned(),
        some => format!("skipped tests, or parts of tests: {}\n  {}", some.len(), some.join("\n  ")),
    }
}

#[cfg(test)]
mod tests {
    use super::told;

    #[test]
    fn every_skip_is_in_the_summary_once() {
        assert_eq!(told(""), "skipped tests: none");
        assert_eq!(
            told("b: no mount\na: no node\nb: no mount\n"),
            "skipped tests, or parts of tests: 2\n  a: no node\n  b: no mount"
        );
    }
}
