//! Collects the skipped tests and the reasons while the tests run, for the summary.
//!
//! A test that lacks a program or a permission calls `abide_testkit::skip::skip`, which appends a line to the file
//! named here. If everything is required, that call fails the test instead.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::engines::MissingPolicy;
use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

/// The variable with the path of the file for skips.
const FILE_VARIABLE: &str = "ABIDE_TEST_SKIPS";
/// If `1`, a skip is a failure of its test.
const FAIL_VARIABLE: &str = "ABIDE_TEST_NO_SKIPS";

/// The skips of one test run.
pub(crate) struct SkippedTests {
    file: PathBuf,
}

impl SkippedTests {
    /// Creates an empty list.
    pub(crate) fn create(workspace: &CargoWorkspace) -> Result<Self> {
        let file = workspace.target.join("skipped-tests.txt");
        fs::write(&file, "").with_context(|| format!("could not write {}", file.display()))?;
        Ok(Self { file })
    }

    /// Adds the file for skips, and whether they are failures, to the command that runs the tests.
    pub(crate) fn add_to_env(&self, tests: EchoedCommand, demand: MissingPolicy) -> EchoedCommand {
        let tests = tests.env(FILE_VARIABLE, &self.file);
        match demand {
            MissingPolicy::Required => tests.env(FAIL_VARIABLE, "1"),
            MissingPolicy::Reported => tests,
        }
    }

    /// Returns the skips, one per line.
    pub(crate) fn summary(&self) -> Result<String> {
        let text = fs::read_to_string(&self.file)
            .with_context(|| format!("could not read {}", self.file.display()))?;
        Ok(format_summary(&text))
    }
}

fn format_summary(lines: &str) -> String {
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
    use super::format_summary;

    #[test]
    fn every_skip_is_in_the_summary_once() {
        assert_eq!(format_summary(""), "skipped tests: none");
        assert_eq!(
            format_summary("b: no mount\na: no node\nb: no mount\n"),
            "skipped tests, or parts of tests: 2\n  a: no node\n  b: no mount"
        );
    }
}
