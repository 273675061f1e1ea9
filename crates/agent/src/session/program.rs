//! Classifies the program of a session: a shell whose commands are tracked, or any other program.
//!
//! Pure, except for the lookup of the shell.

use abide_terminal::{ShellProgram, TerminalError};

/// The program of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionProgram {
    /// A shell: the end and exit code of each command are known.
    Shell(ShellProgram),
    /// Another program: its answer ends when it reads its input again.
    Other(Vec<String>),
}

impl SessionProgram {
    /// Classifies a command line. Flags of a tracked shell are dropped, because the keeper sets its own.
    pub(crate) fn of(
        argv: Vec<String>,
        env: &[(String, String)],
        on_terminal: bool,
    ) -> Result<Self, TerminalError> {
        let program = argv.first().cloned().unwrap_or_default();
        // On a terminal the input is typed, also into programs that a shell starts there.
        if on_terminal {
            return Ok(Self::Other(argv));
        }
        if ShellProgram::is_supported(&program)
            && has_only_flags(argv.get(1..).unwrap_or_default(), SHELL_VALUE_OPTIONS, &["-c"])
        {
            return ShellProgram::find(&program, env).map(Self::Shell);
        }
        Ok(Self::Other(with_interactive_flag(argv)))
    }
}

/// Options of shells that take a value.
const SHELL_VALUE_OPTIONS: &[&str] = &["-o", "+o", "-O", "+O", "--rcfile", "--init-file"];

/// Adds the option for interactive mode to interpreters that would otherwise read their whole input first.
fn with_interactive_flag(mut argv: Vec<String>) -> Vec<String> {
    let name = argv.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
    let python = name
        .strip_prefix("python")
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'));
    let (values, scripts): (&[&str], &[&str]) = match name {
        _ if python => (&["-W", "-X"], &["-c", "-m", "-i"]),
        "node" | "nodejs" => {
            (&["-r", "--require", "--import"], &["-e", "-p", "-i", "--eval", "--print", "--interactive"])
        }
        _ => return argv,
    };
    if has_only_flags(argv.get(1..).unwrap_or_default(), values, scripts) {
        argv.insert(1, "-i".to_owned());
    }
    argv
}

/// Whether the words are only flags, without a script and without a flag that takes one.
fn has_only_flags(words: &[String], values: &[&str], scripts: &[&str]) -> bool {
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if values.contains(&word) {
            words.next();
        } else if !word.starts_with(['-', '+']) || word == "--" || word == "-" || scripts.contains(&word) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Vec<String> {
        let argv = words.iter().map(|word| (*word).to_owned()).collect();
        match SessionProgram::of(argv, &[("PATH".to_owned(), "/usr/bin:/bin".to_owned())], false).unwrap() {
            SessionProgram::Shell(shell) => vec!["a shell:".to_owned(), shell.program().to_owned()],
            SessionProgram::Other(argv) => argv,
        }
    }

    #[test]
    fn a_shell_with_any_flags_takes_commands_and_one_with_a_script_does_not() {
        assert_eq!(of(&["/bin/bash", "-i"]), ["a shell:", "/bin/bash"]);
        assert_eq!(of(&["/bin/sh", "-o", "pipefail", "-l"]), ["a shell:", "/bin/sh"]);
        assert_eq!(of(&["/bin/sh", "-c", "cat"]), ["/bin/sh", "-c", "cat"]);
        assert_eq!(of(&["bash", "serve.sh"]), ["bash", "serve.sh"]);
        assert!(
            SessionProgram::of(vec!["zsh".to_owned()], &[("PATH".to_owned(), "/none".to_owned())], false)
                .is_err()
        );
    }

    #[test]
    fn an_interpreter_that_would_read_to_the_end_of_its_input_is_told_to_be_interactive() {
        assert_eq!(of(&["python3"]), ["python3", "-i"]);
        assert_eq!(
            of(&["/usr/bin/python3.11", "-q", "-X", "utf8"]),
            ["/usr/bin/python3.11", "-i", "-q", "-X", "utf8"]
        );
        assert_eq!(of(&["node"]), ["node", "-i"]);
        for as_it_is in
            [&["python3", "-i"][..], &["python3", "a.py"], &["python3", "-m", "pdb"], &["psql", "db"]]
        {
            assert_eq!(of(as_it_is), as_it_is);
        }
    }
}
