//! The result of a command that a test ran.

use std::process::{Command, Output};

/// The result of an `abide` command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCommandOutput {
    /// `None` if a signal ended the command.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl TestCommandOutput {
    /// Runs a command and waits for its exit.
    pub fn of(mut command: Command) -> Self {
        Self::new(command.output().expect("the program can be started"))
    }

    pub(super) fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("a command prints UTF-8");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Asserts the exit code, and prints the output if it differs.
    #[track_caller]
    pub fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }
}
