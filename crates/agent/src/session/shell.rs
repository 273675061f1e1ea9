//! Runs a command in a tracked shell: its output, exit code and end are known exactly.

use abide_keeper::KeeperError;
use abide_keeper::client::{CommandEnd, CommandError, run_command as run_in_shell};
use abide_keeper::protocol::{CommandInput, ExecOutcome, ShellCommand};
use abide_terminal::ShellProgram;

use super::call::SessionReply;
use super::lookup::LiveSession;
use super::program_input::keeper_lost_reply;
use crate::tool::one_shot::RecordingConsumer;
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::StopFlag;

/// Told to the model if its command prevented the shell from being stopped.
const SHELL_REPLACED_NOTE: &str = "the shell could not be stopped and was replaced by a new one in the same directory; its \
     variables, functions and options are lost";

/// Runs a command. The keeper enforces its timeout.
pub(crate) fn run_command(
    session: &mut LiveSession,
    shell: &ShellProgram,
    command: &str,
    timeout_ms: u64,
    recorder: &mut OutputRecorder,
    stop: &StopFlag,
) -> SessionReply {
    let request = ShellCommand {
        text: shell.command(command, &[]).into_bytes(),
        input: CommandInput::Nothing,
        timeout_ms: Some(timeout_ms),
        keep: 0,
        follow: true,
    };
    let mut consumer = RecordingConsumer { recorder, stop };
    let end = run_in_shell(&mut session.keeper, request, &mut consumer);
    match end {
        Ok(CommandEnd::Finished { result, shell_restarted, is_interrupted }) => {
            let remark = shell_restarted.then(|| SHELL_REPLACED_NOTE.to_owned());
            SessionReply { note: remark, ..session_reply(result.outcome, is_interrupted) }
        }
        Err(CommandError::Keeper(KeeperError::Refused(refusal))) => {
            SessionReply { failure: Some(refusal.to_string()), ..SessionReply::default() }
        }
        Ok(CommandEnd::Lost { is_interrupted }) => {
            SessionReply { interrupted: is_interrupted, ..keeper_lost_reply() }
        }
        Err(CommandError::Keeper(_)) => keeper_lost_reply(),
    }
}

fn session_reply(outcome: ExecOutcome, interrupted: bool) -> SessionReply {
    SessionReply {
        exit_code: Some(outcome.code),
        session_exit: outcome.exit.map(|exit| Some(exit.code)),
        timed_out: outcome.timed_out,
        interrupted,
        failure: outcome.lost,
        note: None,
        earlier_output: String::new(),
    }
}
