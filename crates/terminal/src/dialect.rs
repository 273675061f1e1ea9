//! What is said to each kind of shell so that it takes commands, reports them, and can be called back from one.
//!
//! Two things make a shell survive its commands. A command is sourced from a pipe, so it is data. And SIGURG, which
//! nobody else sends to a shell and which it ignores by default, is trapped: the trap leaves every loop and function
//! of the command and returns to our line, with all variables and the directory kept. How it leaves them is different
//! in each shell, and is all that this file knows.

use std::path::Path;

use abide_keeper::protocol::Script;

/// A kind of shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Posix,
    Bash,
    Zsh,
}

impl Dialect {
    /// By the name of the program that really runs, so that a `/bin/sh` that is bash counts as bash.
    pub(crate) fn of(shell: &str) -> Self {
        let real = std::fs::canonicalize(shell).unwrap_or_else(|_| Path::new(shell).to_owned());
        let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.trim_start_matches('r') {
            name if name.starts_with("bash") => Self::Bash,
            name if name.starts_with("zsh") => Self::Zsh,
            _ => Self::Posix,
        }
    }

    /// The same, for a shell that has been looked up before; looking again would cost every command a system call.
    pub(crate) fn of_known(shell: &str) -> Self {
        match shell.rsplit('/').next().unwrap_or_default() {
            name if name.starts_with("bash") => Self::Bash,
            name if name.starts_with("zsh") => Self::Zsh,
            "sh" => Self::of(shell),
            _ => Self::Posix,
        }
    }

    /// The arguments before the script.
    ///
    /// Bash and zsh are told to be interactive so that an error in a command ends the command and not the shell. There
    /// is no terminal, so nothing is prompted for.
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Posix => &[],
            Self::Bash => &["--norc", "--noprofile", "-i"],
            Self::Zsh => &["-f", "-i"],
        }
    }

    pub(crate) fn script(self) -> Script {
        let (init, line, slot, repair, trace) = match self {
            Self::Posix => (POSIX_INIT, "", POSIX_SLOT, POSIX_REPAIR, "\\set -x; "),
            Self::Bash => (BASH_INIT, "\\builtin . {s}\n", BASH_SLOT, BUILTIN_REPAIR, "\\builtin set -x; "),
            Self::Zsh => (ZSH_INIT, "", ZSH_SLOT, BUILTIN_REPAIR, "\\builtin set -x; "),
        };
        Script {
            init: init.to_owned(),
            line: line.to_owned(),
            slot: slot.to_owned(),
            repair: repair.to_owned(),
            trace: trace.to_owned(),
            rescue: RESCUE.to_owned(),
        }
    }

    /// The command as the shell sources it. Variables for this command only need an `eval` to be set for.
    pub(crate) fn command(self, command: &str, env: &[(String, String)]) -> String {
        if env.is_empty() {
            return command.to_owned();
        }
        let mut text = String::new();
        for (name, value) in env {
            text.push_str(&format!("{name}={} ", quote(value)));
        }
        match self {
            Self::Posix => text + "\\command \\eval " + &quote(command),
            // Behind `builtin`, bash forgets the variables at the first builtin that the command runs.
            Self::Bash => text + "\\eval " + &quote(command),
            // Zsh sets them for the builtin, but does not pass them on by itself.
            Self::Zsh => {
                let names: Vec<&str> = env.iter().map(|(name, _)| name.as_str()).collect();
                text + "\\builtin \\eval "
                    + &quote(&format!("\\builtin export {}; {command}", names.join(" ")))
            }
        }
    }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// An error of a special builtin inside the trap unwinds everything up to our `command`, and says nothing.
/// Between two commands the signal means nothing, and must not: an error there would end the shell.
const POSIX_INIT: &str = "trap 'case $__abide_on in 1) { set -o abide; } 2>/dev/null;; esac' URG\n";

/// `command` keeps errors from ending the shell; a function of that name is removed before it is needed again. The
/// nonce stands in the first word that a tracing shell would print of our own.
const POSIX_SLOT: &str = "\\command \\eval '__abide_on=1; \\command . {c}; __abide=\"{n} $?\" __abide_on=; \
     \\unset -f command; \\command \\printf \"%s %s\\\\n\" \"$__abide\" \"$-\" >|{r}'\n";

/// A function of such a name stands between us and the shell. The command that made it has no status that we could know,
/// but the session need not end with it.
const RESCUE: &str = "\\unset -f builtin command\n";

const POSIX_REPAIR: &str = "\\set +e +x +v; \\exec <{i} >|{o} 2>|{e}";

/// A debugging trap that returns 2 makes bash return from every function and sourced file that it is in. It stays
/// until our own line is reached. The same trap makes `set -e` end the command instead of the session.
const BASH_INIT: &str = r#"set +o history; set +H +m -T -E; unset HISTFILE TMOUT PROMPT_COMMAND; PS1= PS2=
__abide_2() { return 2; }; readonly -f __abide_2
trap 'if (( ${#BASH_SOURCE[@]} > 2 )); then builtin shopt -s extdebug; builtin trap '\''if (( ${#BASH_SOURCE[@]} > 2 )); then __abide_2; else builtin trap - DEBUG; builtin shopt -u extdebug; builtin set -T -E; fi'\'' DEBUG; fi' URG
trap '__abide_s=$?; if [[ $- == *e* && $BASHPID == $$ ]]; then builtin set +e; __abide_rc=$__abide_s; builtin shopt -s extdebug; builtin trap '\''if (( ${#BASH_SOURCE[@]} > 2 )); then __abide_2; else builtin trap - DEBUG; builtin shopt -u extdebug; builtin set -T -E; fi'\'' DEBUG; fi' ERR
"#;

/// A status that `set -e` has left behind shows in the flags, so that the keeper brings the shell back from it.
const BASH_SLOT: &str = "\\builtin . {c}; \
     \\builtin echo \"{n} ${__abide_rc-$?} ${__abide_rc+e}$-\" >|{r}\n";

/// Only an `exec` that nothing precedes keeps its redirections, so a function of that name has to go.
const BUILTIN_REPAIR: &str = "\\builtin set +e +x +v; \\builtin unset __abide_rc; \\builtin unset -f exec 2>/dev/null; \\exec <{i} >|{o} 2>|{e}";

/// A trap function that fails interrupts everything up to our `always`.
const ZSH_INIT: &str = "unsetopt bang_hist prompt_cr prompt_sp monitor notify beep; setopt interactive_comments\n\
     unset HISTFILE TMOUT; PS1= PS2=\n\
     TRAPURG() { if [[ -n ${__abide_on-} ]]; then return 143; fi; return 0 }\n\
     TRAPZERR() { __abide_s=$?; if [[ -o errexit && $ZSH_SUBSHELL == 0 ]]; then __abide_rc=$__abide_s; unsetopt errexit; return 1; fi; return 0 }\n";

const ZSH_SLOT: &str = "__abide_on=1; { \\builtin . {c} } always { __abide=\"{n} ${__abide_rc-$?}\" __abide_on=; TRY_BLOCK_ERROR=0; TRY_BLOCK_INTERRUPT=0 }; \
     \\builtin \\printf '%s %s\\n' \"$__abide\" \"${__abide_rc+e}$-\" >|{r}\n";
