//! The script templates for each kind of shell: how it takes commands, reports them, and is recalled from one.
//!
//! Two mechanisms make a shell survive its commands. A command is sourced from a pipe, so it is data. And SIGURG, which
//! a shell ignores by default, is trapped: the trap leaves every loop, function and sourced file of the command and
//! returns to our line, with all variables and the directory kept. No further word of the command is executed. The
//! report of the status uses nothing that a command can redefine. Both mechanisms differ between shells.

use std::path::Path;

use abide_keeper::protocol::ShellTemplates;

/// A kind of shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShellDialect {
    Posix,
    Bash,
    Zsh,
}

/// Whether a shell runs on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShellIo {
    Terminal,
    Pipes,
}

impl ShellDialect {
    /// Determined from the resolved program, so that a `/bin/sh` that is bash counts as bash.
    pub(crate) fn of(shell: &str) -> Self {
        let real = std::fs::canonicalize(shell).unwrap_or_else(|_| Path::new(shell).to_owned());
        let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.trim_start_matches('r') {
            name if name.starts_with("bash") => Self::Bash,
            name if name.starts_with("zsh") => Self::Zsh,
            _ => Self::Posix,
        }
    }

    /// The same for a shell whose path has been resolved before. It saves a system call per command.
    pub(crate) fn of_resolved_path(shell: &str) -> Self {
        match shell.rsplit('/').next().unwrap_or_default() {
            name if name.starts_with("bash") => Self::Bash,
            name if name.starts_with("zsh") => Self::Zsh,
            "sh" => Self::of(shell),
            _ => Self::Posix,
        }
    }

    /// The arguments before the script.
    ///
    /// Bash and zsh run in interactive mode, so that an error in a command ends the command and not the shell. There is
    /// no terminal, so no prompt is shown.
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Posix => &[],
            Self::Bash => &["--norc", "--noprofile", "-i"],
            Self::Zsh => &["-f", "-i"],
        }
    }

    /// The templates for a shell on pipes, or on a terminal, where commands are typed and the shell keeps its settings.
    pub(crate) fn templates(self, io: ShellIo) -> ShellTemplates {
        let (init, line, prepared_line, repair, trace, begin_report) = match self {
            Self::Posix => {
                let prepared_line = match io {
                    ShellIo::Terminal => POSIX_TYPED_PREPARED_LINE,
                    ShellIo::Pipes => POSIX_PREPARED_LINE,
                };
                (POSIX_INIT, "", prepared_line, POSIX_REPAIR, "\\set -x; ", POSIX_BEGIN_REPORT)
            }
            Self::Bash => {
                let line = "\\builtin . {s}\n";
                (BASH_INIT, line, BASH_PREPARED_LINE, BASH_REPAIR, "\\builtin set -x; ", BASH_BEGIN_REPORT)
            }
            Self::Zsh => {
                (ZSH_INIT, "", ZSH_PREPARED_LINE, ZSH_REPAIR, "\\builtin set -x; ", ZSH_BEGIN_REPORT)
            }
        };
        // The number of files through which a command is sourced before its own text begins.
        let (depth, guard) = match (self, io) {
            (Self::Bash, ShellIo::Pipes) => ("2", BASH_GUARD.to_owned()),
            // As on pipes, `set -e` and a RETURN trap last for one command. Otherwise they would end the session or
            // falsify the status of later commands.
            (Self::Bash, ShellIo::Terminal) => (
                "0",
                format!("\\builtin set +e; \\builtin trap - RETURN; \\builtin {BASH_STOP}; {BASH_GUARD}"),
            ),
            (Self::Posix, ShellIo::Terminal) => ("", format!("\\set +e; {POSIX_TYPED_STOP}")),
            (Self::Zsh, ShellIo::Terminal) => ("", format!("\\builtin unsetopt errexit; {ZSH_STOP}; ")),
            (Self::Posix | Self::Zsh, ShellIo::Pipes) => ("", String::new()),
        };
        let inner = if depth == "2" { "3" } else { "1" };
        let (descriptor_limit, reopen, bash_error_trap, zsh_error_trap) = match io {
            ShellIo::Terminal => ("3", ZSH_REOPEN, "-", "builtin trap - ZERR"),
            ShellIo::Pipes => ("0", "", r#"\"\${__abide_err-}\""#, ZSH_ERROR_TRAP),
        };
        let fill = |text: &str| {
            let text = text.replace("{depth}", depth).replace("{inner}", inner);
            let text = text.replace("{bash_error_trap}", bash_error_trap);
            let text = text.replace("{zsh_error_trap}", zsh_error_trap);
            text.replace("{kept}", descriptor_limit).replace("{reopen}", reopen)
        };
        let rescue = match self {
            Self::Posix => POSIX_RESCUE,
            Self::Bash => BASH_RESCUE,
            Self::Zsh => ZSH_RESCUE,
        };
        ShellTemplates {
            init: fill(init),
            line: line.to_owned(),
            slot: prepared_line.to_owned(),
            repair: repair.to_owned(),
            trace: trace.to_owned(),
            rescue: fill(rescue),
            began: begin_report.to_owned(),
            guard: fill(&guard),
            is_interruptible: self == Self::Posix || (self == Self::Bash && io == ShellIo::Terminal),
            executes_word_before_trap: matches!(self, Self::Bash | Self::Zsh),
        }
    }

    /// The text that the shell sources. Variables for this command only require an `eval`.
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
            // With `builtin`, bash drops the variables at the first builtin of the command.
            Self::Bash => text + "\\eval " + &quote(command),
            // Zsh sets them for the builtin, but does not export them.
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

/// A macro, so that the script and the rescue text have one definition at compile time.
macro_rules! posix_stop {
    () => {
        "trap '\\unset -f command; \
         case ${__abide_on-} in 1) \\set -i +e; \\trap - INT; \\command \\kill -INT $$;; esac' URG\n"
    };
}

/// An interrupted interactive shell leaves everything that it executes and reads the next line of its script. No part
/// of a command can intervene, so the trap interrupts the shell. A SIGINT trap of the command is removed. `__abide_on`
/// is set only while a command is sourced; between two commands the signal has no effect.
///
/// While the shell expands a substitution, no trap runs before the word itself. The keeper then sends SIGINT directly.
const POSIX_INIT: &str = posix_stop!();

/// On a terminal the shell reports first and then waits before it is interrupted, because its prompt is not output of
/// the command. The keeper has lowered the descriptor limit, and the report needs descriptors.
const POSIX_TYPED_STOP: &str = "trap '\\unset -f command; \
     case ${__abide_on-} in 1) \\set +e; \\command \\ulimit -S -n 16; \\command -V \"/{n} 143 $-\" >|{r} || \\:; \\. {w}; \\trap - INT; \\command \\kill -INT $$;; esac' URG; ";

/// Assembles the slot at compile time, for pipes and for terminals.
macro_rules! posix_prepared_line {
    () => {
        "\\command \\eval '__abide_on=1 \\command . {c}; \
         \\eval \"\\\\unset -f command; \\\\command -V \\\"/{n} $? $-\\\" || \\\\:\" >|{r}'"
    };
}

/// `command` keeps errors from ending the shell. The status is reported by `command -V`, which prints a name that it
/// does not find. Special builtins cannot be redefined in these shells: `eval` takes the status before it removes a
/// function named `command`, and no variable holds the status. So a command cannot falsify its report.
///
/// The shell is interactive only while it executes a command, so that an interrupt does not end it. Between commands an
/// interactive shell would print prompts and the ends of background jobs.
const POSIX_PREPARED_LINE: &str = concat!("\\set -i; ", posix_prepared_line!(), "; \\set +i\n");
const POSIX_TYPED_PREPARED_LINE: &str = concat!(posix_prepared_line!(), "\n");

const POSIX_BEGIN_REPORT: &str = "\\command -V '/{n} began' >|{r} || \\:; ";

const POSIX_REPAIR: &str = "\\set +e +x +v; \\exec <{i} >|{o} 2>|{e}";

/// A macro, so that the handler for pipes and for terminals has one definition at compile time.
macro_rules! bash_stop {
    () => {
        r#"trap '\builtin eval "if (( \${#BASH_SOURCE[@]} > {depth} )); then \builtin set +e; \builtin trap - DEBUG RETURN CHLD; \builtin trap {bash_error_trap} ERR; \builtin ulimit -S -n hard; \builtin return 143\`\builtin kill -URG \$\$\`; fi"' URG"#
    };
}

/// A `return` in the trap leaves one function or sourced file. The signal is sent again by a substitution in the same
/// command. So the trap runs again before the next word of the level above, until our own line is reached. The `eval`
/// takes the status. It also makes bash forget that `wait` was its last builtin, because a signal that arrives then
/// would end the next `wait`. The keeper has lowered the descriptor limit, and the substitution needs a pipe. The traps
/// that the command has set are removed first, because their bodies could then start programs. With `set -e`, the
/// status of the command would end the shell at our own line.
const BASH_STOP: &str = bash_stop!();

/// The ERR trap makes `set -e` end the command instead of the session. Every level returns its status, which is an
/// error of the level above, and the last one disables the option.
const BASH_INIT: &str = concat!(
    "set +o history; set +H +m -E; unset HISTFILE TMOUT PROMPT_COMMAND; PS1= PS2=\n",
    bash_stop!(),
    "\n",
    r#"__abide_err='\builtin eval "if [[ \$- == *e* && \$BASHPID == \$\$ ]]; then [[ \${FUNCNAME+x}\${#BASH_SOURCE[@]} == {inner} ]] && \builtin set +e; \builtin return $?; fi"'; trap "$__abide_err" ERR"#,
    "\n",
);

/// The report is an arithmetic error message, which repeats the expression. It needs no builtin and no variable, so a
/// command cannot change it. The second expression succeeds, and contains the nonce for traced lines.
const BASH_PREPARED_LINE: &str = "\\builtin . {c}; (( @{n} $? $- )) 2>|{r} || (( 0x{n} | 1 ))\n";

/// Detects a function named `builtin`, which would intercept the report. It appears in the call stack.
const BASH_GUARD: &str = "[[ ${FUNCNAME+x}${#BASH_SOURCE[@]} == {inner} ]] || (( @{n} broken )) 2>|{r}; ";

const BASH_BEGIN_REPORT: &str = "(( @{n} began )) 2>|{r} || (( 1 )); ";

/// Only an `exec` without a prefix keeps its redirections, so a function of that name is removed.
const BASH_REPAIR: &str =
    "\\builtin set +e +x +v; \\builtin unset -f exec 2>/dev/null; \\exec <{i} >|{o} 2>|{e}";

/// The same. In zsh, removing a function that does not exist fails, which would run the command's ZERR trap.
const ZSH_REPAIR: &str = "\\builtin set +e +x +v; [[ -z ${functions[exec]-} ]] || \\builtin unset -f exec; \
     \\exec <{i} >|{o} 2>|{e}";

/// Makes `set -e` end the command instead of the session.
macro_rules! zsh_error_trap {
    () => {
        r#"TRAPZERR() { builtin eval "if [[ -o errexit && \$ZSH_SUBSHELL == 0 ]]; then builtin unsetopt errexit; __abide_rc=$?; return 1; fi; return 0"; }"#
    };
}

const ZSH_ERROR_TRAP: &str = zsh_error_trap!();

macro_rules! zsh_stop {
    () => {
        "builtin zmodload zsh/rlimits zsh/parameter; \
         TRAPURG() { if (( ${#funcstack[@]} > 1 )); then builtin unsetopt errexit; builtin trap - CHLD; {zsh_error_trap}; __abide_unwind; return 143; fi; builtin unlimit -s descriptors; return 0; }; \
         __abide_unwind() { builtin ulimit -S -n {kept}; \
         TRAPDEBUG() { if (( ${#funcstack[@]} > 1 )); then builtin setopt errexit; else builtin unset -f TRAPDEBUG; builtin setopt localoptions posixtraps; builtin trap - EXIT; builtin unlimit -s descriptors; {reopen}fi; }; }"
    };
}

/// A trap function that fails interrupts the shell up to the next `always` block or sourced file. From then on the
/// DEBUG trap skips every command (by `errexit` inside it), until our own line is reached.
///
/// The DEBUG trap does not run before the words behind `. FILE ||`. A descriptor limit keeps those from starting a
/// program and from opening a file. It is lifted at our own line, and the keeper restores the original limit. The
/// modules are loaded beforehand, because loading opens a file.
///
/// The command's traps on CHLD and ZERR are removed before the shell unwinds. A trap on EXIT is removed at our own line;
/// otherwise it would run there. With `posixtraps` it is the shell's trap and not that of the function.
///
/// A redirection that the limit interrupts may close a standard stream. On pipes the keeper repairs the streams after a
/// stop; on a terminal the shell reopens closed streams.
const ZSH_STOP: &str = zsh_stop!();

const ZSH_REOPEN: &str = "[[ -e /dev/fd/0 ]] || exec </dev/tty; [[ -e /dev/fd/1 ]] || exec >/dev/tty; \
     [[ -e /dev/fd/2 ]] || exec 2>/dev/tty; ";

const ZSH_INIT: &str = concat!(
    "unsetopt bang_hist prompt_cr prompt_sp monitor notify beep; setopt interactive_comments\n",
    "unset HISTFILE TMOUT; PS1= PS2=\n",
    zsh_stop!(),
    "\n",
    zsh_error_trap!(),
    "\n",
);

/// With a function named `builtin` the report cannot be written, so the status is unknown. Where `set -e` interrupts a
/// function, zsh returns 126; only then the status recorded by the trap is used. If a command makes that variable
/// read-only, there is no report and the shell is replaced.
const ZSH_PREPARED_LINE: &str = "__abide_rc=; { \\builtin . {c}; } always { [[ -n {n} ]]; TRY_BLOCK_ERROR=0 TRY_BLOCK_INTERRUPT=0; }; \
     \\builtin \\printf '%s\\n' \"{n} ${${?:#126}:-${__abide_rc:-126}} $-\" >|{r}${functions[builtin]:+/}\n";

const ZSH_BEGIN_REPORT: &str = "\\builtin \\printf '%s\\n' '{n} began' >|{r}${functions[builtin]:+/}; ";

/// Removes functions that hide the builtins of our lines, and restores the trap that a command may have replaced.
const BASH_RESCUE: &str = concat!("\\unset -f builtin command\n", bash_stop!(), "\n");
const ZSH_RESCUE: &str = concat!("\\unset -f builtin command\n", zsh_stop!(), "\n");

/// The same, and restores the option that an interrupted slot left set. The shell may not have run our trap, because the
/// body of another trap failed first. It would run it in the next command, so it runs it here, where it has no effect.
/// It does so while it is interactive: otherwise, the failure of another body would end it.
const POSIX_RESCUE: &str = concat!(
    "\\command \\kill -URG $$\n\\command \\kill -URG $$\n\\set +i; \\unset -f builtin command\n",
    posix_stop!()
);
