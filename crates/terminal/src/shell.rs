//! A shell that takes commands: its program, its start under a keeper, and its commands.
//!
//! Also for clients that talk to a keeper without the pool. The templates for each kind of shell are in `dialect`.

use abide_keeper::protocol::ChildMode;

use crate::call::TerminalSize;
use crate::dialect::{ShellDialect, ShellIo};
use crate::error::{TerminalError, TerminalErrorCode};

/// A shell program and its dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellProgram {
    program: String,
    dialect: ShellDialect,
}

impl ShellProgram {
    /// The shell with this name or path, searched in the `PATH` of `env`.
    pub fn find(name: &str, env: &[(String, String)]) -> Result<Self, TerminalError> {
        let program = find_program(name, env)?;
        Ok(Self { dialect: ShellDialect::of(&program), program })
    }

    /// Whether the program with this name or path is a shell that can take commands.
    pub fn is_supported(program: &str) -> bool {
        matches!(program.rsplit('/').next(), Some("sh" | "bash" | "dash" | "zsh" | "rbash"))
    }

    pub fn program(&self) -> &str {
        &self.program
    }

    /// The program with its arguments, and the mode in which a keeper runs it.
    pub fn launch_spec(&self, pty: Option<TerminalSize>) -> (Vec<String>, ChildMode) {
        let mut argv = vec![self.program.clone()];
        match pty {
            Some(TerminalSize { rows, cols }) => {
                argv.push("-i".to_owned());
                let script = Some(self.dialect.templates(ShellIo::Terminal));
                (argv, ChildMode::Pty { rows, cols, script })
            }
            None => {
                argv.extend(self.dialect.arguments().iter().map(|argument| (*argument).to_owned()));
                (argv, ChildMode::Shell(self.dialect.templates(ShellIo::Pipes)))
            }
        }
    }

    /// The text that the shell sources for a command with these variables.
    pub fn command(&self, command: &str, env: &[(String, String)]) -> String {
        self.dialect.command(command, env)
    }
}

/// The path of a shell that may be given by name.
fn find_program(shell: &str, env: &[(String, String)]) -> Result<String, TerminalError> {
    if shell.contains('/') {
        return Ok(shell.to_owned());
    }
    let path =
        env.iter().find(|(name, _)| name == "PATH").map_or("/usr/bin:/bin", |(_, value)| value.as_str());
    path.split(':')
        .map(|directory| format!("{directory}/{shell}"))
        .find(|candidate| rustix::fs::access(candidate.as_str(), rustix::fs::Access::EXEC_OK).is_ok())
        .ok_or_else(|| {
            TerminalError::new(TerminalErrorCode::ShellNotFound, format!("there is no shell {shell}"))
        })
}
