//! Decides whether the command of a tool runs a script. Scripts receive their arguments unchanged, including a `--`.
//!
//! A program that parses options needs `--` before a value that begins with a dash. A script that is passed to an
//! interpreter, or that the tool names by its path, would read the `--` as a value.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Whether values that begin with a dash must follow a `--`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DashGuard {
    /// The program parses options.
    Needed,
    /// The arguments belong to a script.
    NotNeeded,
}

impl DashGuard {
    /// The guard for a command that is started in `cwd`.
    pub(crate) fn of(command: &[String], cwd: &Path) -> Self {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        if runs_script(&words) || words.first().is_some_and(|program| is_script_file(program, cwd)) {
            Self::NotNeeded
        } else {
            Self::Needed
        }
    }
}

/// The options of an interpreter that take a value, and those whose value is the script itself.
struct ScriptInterpreter {
    value_options: &'static [&'static str],
    script_options: &'static [&'static str],
    /// Options after which the next word is neither a script nor its argument.
    module_options: &'static [&'static str],
    /// Whether one-letter options can be combined in one word.
    takes_clusters: bool,
}

impl ScriptInterpreter {
    /// Whether the word is one of these options, or a cluster that ends with one.
    fn is_option(&self, word: &str, options: &[&str]) -> bool {
        let ends_with = |option: &&str| {
            self.takes_clusters
                && option.len() == 2
                && !word.starts_with("--")
                && word.starts_with('-')
                && option.chars().last() == word.chars().last()
        };
        options.iter().any(|option| *option == word || ends_with(option))
    }
}

fn interpreter(program: &str) -> Option<ScriptInterpreter> {
    let name = program.rsplit('/').next().unwrap_or_default();
    let version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is = |plain: &str| name.strip_prefix(plain).is_some_and(version);
    if abide_terminal::ShellProgram::is_supported(program) || is("ksh") {
        let with_value = &["-o", "+o", "-O", "+O", "--rcfile", "--init-file"];
        return Some(ScriptInterpreter {
            value_options: with_value,
            script_options: &["-c"],
            module_options: &[],
            takes_clusters: true,
        });
    }
    if is("python") || is("pypy") {
        let with_value = &["-W", "-X"];
        let takes_clusters = false;
        return Some(ScriptInterpreter {
            value_options: with_value,
            script_options: &["-c"],
            module_options: &["-m"],
            takes_clusters,
        });
    }
    // After `-e`, these interpreters still parse words that begin with a dash.
    if is("perl") || is("ruby") || is("lua") || is("php") {
        let with_value = &["-I", "-r", "-l"];
        return Some(ScriptInterpreter {
            value_options: with_value,
            script_options: &[],
            module_options: &["-e", "-E", "-M"],
            takes_clusters: true,
        });
    }
    if matches!(name, "node" | "nodejs" | "bun") {
        let with_value = &["-r", "--require", "--import", "--loader"];
        let with_module = &["-e", "-p", "--eval", "--print", "run", "x"];
        return Some(ScriptInterpreter {
            value_options: with_value,
            script_options: &[],
            module_options: with_module,
            takes_clusters: false,
        });
    }
    matches!(name, "Rscript" | "tclsh" | "wish" | "osascript" | "guile").then_some(ScriptInterpreter {
        value_options: &[],
        script_options: &[],
        module_options: &["-e"],
        takes_clusters: false,
    })
}

/// Whether an interpreter is given a script: a file, or a text after which all words belong to the script.
fn runs_script(words: &[&str]) -> bool {
    let Some((program, mut rest)) = words.split_first() else { return false };
    if program.rsplit('/').next() == Some("env") {
        while let Some((word, more)) = rest.split_first() {
            if word.contains('=') || matches!(*word, "-i" | "-S" | "-") {
                rest = more;
            } else {
                return runs_script(rest);
            }
        }
        return false;
    }
    let Some(interpreter) = interpreter(program) else { return false };
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        if interpreter.is_option(word, interpreter.script_options) {
            return true;
        } else if interpreter.is_option(word, interpreter.module_options) || *word == "--" || *word == "-" {
            return false;
        } else if interpreter.is_option(word, interpreter.value_options) {
            words.next();
        } else if !word.starts_with(['-', '+']) {
            return true;
        }
    }
    false
}

/// Whether the program is a script that the tool names by its path. A script in PATH counts as a program, because it is
/// likely to parse options.
fn is_script_file(program: &str, cwd: &Path) -> bool {
    if !program.contains('/') {
        return false;
    }
    let mut magic = [0; 2];
    let read = File::open(cwd.join(program)).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"#!"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(words: &[&str], cwd: &Path) -> DashGuard {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        DashGuard::of(&words, cwd)
    }

    #[test]
    fn a_script_gets_its_words_as_they_are_and_a_program_that_parses_options_does_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tool.sh"), "#!/bin/sh\necho \"$1\"\n").unwrap();
        std::fs::write(folder.path().join("binary"), b"\x7fELF").unwrap();
        for script in [
            &["sh", "count.sh"][..],
            &["bash", "-eu", "-o", "pipefail", "count.sh"],
            &["sh", "-c", "echo \"$1\"", "name"],
            &["bash", "-lc", "echo \"$1\"", "name"],
            &["bash", "-euo", "pipefail", "count.sh"],
            &["/usr/bin/python3.11", "-X", "utf8", "count.py"],
            &["python3", "-c", "import sys; print(sys.argv[1])"],
            &["node", "--no-warnings", "count.js"],
            &["perl", "-w", "count.pl"],
            &["/usr/bin/env", "LC_ALL=C", "python3", "count.py"],
            &["./tool.sh"],
        ] {
            assert_eq!(guard(script, folder.path()), DashGuard::NotNeeded, "{script:?}");
        }
        for program in [
            &["grep", "-n"][..],
            &["python3", "-m", "pytest"],
            &["perl", "-ne", "print"],
            &["perl", "-e", "print"],
            &["node", "-e", "1"],
            &["env", "grep"],
            &["./binary"],
            &["./missing.sh"],
            &[],
        ] {
            assert_eq!(guard(program, folder.path()), DashGuard::Needed, "{program:?}");
        }
    }
}
