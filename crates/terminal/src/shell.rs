//! A shell that takes commands: where its program is, how it is started under a keeper, and what it is given to run.
//!
//! For whoever talks to a keeper without the pool in between. Which words each kind of shell needs is in `dialect`.

use abide_keeper::protocol::ChildMode;

use crate::call::TerminalSize;
use crate::dialect::{ShellDialect, ShellIo};
use crate::error::{TerminalError, TerminalErrorCode};

/// A shell that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellProgram {
    program: String,
    dialect: ShellDialect,
}

impl ShellProgram {
    /// The shell of this name or path, looked for in the `PATH` of this environment.
    pub fn find(name: &str, env: &[(String, String)]) -> Result<Self, TerminalError> {
        let program = find_program(name, env)?;
        Ok(Self { dialect: ShellDialect::of(&program), program })
    }

    /// Whether a program of this name or path is a shell that can take commands.
    pub fn is_one(program: &str) -> bool {
        matches!(program.rsplit('/').next(), Some("sh" | "bash" | "dash" | "zsh" | "rbash"))
    }

    /// Its path.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The program with its arguments and how a keeper holds it, on a terminal or on pipes.
    pub fn start(&self, pty: Option<TerminalSize>) -> (Vec<String>, ChildMode) {
        let mut argv = vec![self.program.clone()];
        match pty {
            Some(TerminalSize { rows, cols }) => {
                argv.push("-i".to_owned());
                let script = Some(self.dialect.script(ShellIo::Yes));
                (argv, ChildMode::Pty { rows, cols, script })
            }
            None => {
                argv.extend(self.dialect.arguments().iter().map(|argument| (*argument).to_owned()));
                (argv, ChildMode::Shell(self.dialect.script(ShellIo::No)))
            }
        }
    }

    /// A command as the shell sources it, with variables for this command only.
    pub fn command(&self, command: &str, env: &[(String, String)]) -> String {
        self.dialect.command(command, env)
    }
}

/// The path of a shell that may have been named without one.
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
