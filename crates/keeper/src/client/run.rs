//! Runs a child, or a command in a shell, to its end, and passes its output on.

use super::connection::KeeperConnection;
use super::end::EndMode;
use super::timeouts::{END_TIMEOUT_MS, STOP_POLL_MS, STOP_TIMEOUT_MS};
use super::watchdog::{KeeperDuty, KeeperWatchdog};
use crate::clock::boottime_millis;
use crate::error::KeeperError;
use crate::launch::kill_keeper;
use crate::protocol::{
    CommandResult, KeeperRequest, KeeperResponse, OutputChunk, ShellCommand, TaggedResponse,
};

/// Receives the output of a child or command, and may stop it.
pub trait OutputConsumer {
    type Error;

    /// Takes the next output. `lost_bytes` before it are not kept any more.
    fn output(&mut self, chunk: &OutputChunk, lost_bytes: u64) -> Result<(), Self::Error>;

    /// Whether the child or command shall be stopped. Asked at least every [`STOP_POLL_MS`].
    fn is_stopped(&self) -> bool {
        false
    }
}

/// The complete input of a child.
#[derive(Debug)]
pub enum ChildInput {
    /// For a child on pipes: the bytes, then end-of-file.
    Stdin(Vec<u8>),
    /// For a child on a terminal: typed bytes.
    Typed(Vec<u8>),
}

/// Why a child was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStop {
    TimedOut,
    /// [`OutputConsumer::is_stopped`].
    Interrupted,
}

/// The end of a child.
#[derive(Debug, PartialEq, Eq)]
pub enum ChildEnd {
    /// It exited by itself, or was stopped.
    Exited {
        /// 128 + n for death by signal n.
        code: i32,
        stop: Option<RunStop>,
    },
    /// The keeper was killed, so the exit status is unknown.
    Lost,
}

/// Sends the input, passes the output on until the child has ended, and ends the processes that it left. The child is
/// stopped after the timeout or when the consumer wants it.
pub fn run_to_end<C: OutputConsumer>(
    keeper: &mut KeeperConnection,
    input: ChildInput,
    timeout_ms: u64,
    consumer: &mut C,
) -> Result<ChildEnd, C::Error> {
    let deadline = boottime_millis().saturating_add(timeout_ms);
    let input = match input {
        ChildInput::Stdin(bytes) => KeeperRequest::Write { key: 1, bytes, eof: true },
        ChildInput::Typed(bytes) => KeeperRequest::Input { bytes, eof: false },
    };
    let Ok(follow) = keeper.send(KeeperRequest::FollowClosely { job: 0, from: [0; 2] }) else {
        return Ok(ChildEnd::Lost);
    };
    // The child may exit without reading its input.
    if keeper.send(input).is_err() {
        return Ok(ChildEnd::Lost);
    }
    let (mut stop, mut code) = (None, None);
    // The tag and the time limit of the request to end.
    let mut end = None;
    let mut watchdog = KeeperWatchdog::new();
    let mut next_offsets = [0; 2];
    loop {
        let now = boottime_millis();
        if end.is_none() && code.is_none() {
            stop = match consumer.is_stopped() {
                true => Some(RunStop::Interrupted),
                false => (now >= deadline).then_some(RunStop::TimedOut),
            };
        }
        if end.is_none() && (stop.is_some() || code.is_some()) {
            let Ok(tag) = keeper.request_end(EndMode::Graceful) else { break };
            end = Some((tag, now + END_TIMEOUT_MS));
        }
        let wait_ms = match end {
            Some(_) => STOP_POLL_MS,
            None => deadline.saturating_sub(now).min(STOP_POLL_MS),
        };
        let Ok(response) = keeper.next_response(wait_ms) else { break };
        if response.is_some() {
            watchdog.on_response();
        }
        match response {
            Some(TaggedResponse { news: KeeperResponse::Output(chunk), .. }) => {
                pass_on(&chunk, &mut next_offsets, consumer)?;
            }
            Some(TaggedResponse { tag, news: KeeperResponse::Ended(outcome) }) if tag == follow => {
                code = Some(outcome.code)
            }
            Some(TaggedResponse { news: KeeperResponse::Exited(exit), .. }) if end.is_some() => {
                code.get_or_insert(exit.code);
            }
            Some(TaggedResponse { tag, .. }) if end.is_some_and(|(end, _)| tag == end) => break,
            Some(_) => {}
            None if end.is_some_and(|(_, give_up_at)| now >= give_up_at) => break,
            None => {
                let duty = if end.is_some() { KeeperDuty::Stop } else { KeeperDuty::Respond };
                if keeper.is_overdue(&mut watchdog, duty) {
                    break;
                }
            }
        }
    }
    if code.is_none() && !keeper.is_closed() {
        kill_keeper(&keeper.keeper_dir, None);
    }
    Ok(code.map_or(ChildEnd::Lost, |code| ChildEnd::Exited { code, stop }))
}

fn pass_on<C: OutputConsumer>(
    chunk: &OutputChunk,
    next_offsets: &mut [u64; 2],
    consumer: &mut C,
) -> Result<(), C::Error> {
    let next = &mut next_offsets[chunk.stream.index()];
    let lost_bytes = chunk.offset.saturating_sub(*next);
    *next = chunk.offset + chunk.bytes.len() as u64;
    consumer.output(chunk, lost_bytes)
}

/// The end of a command that ran in a shell.
#[derive(Debug)]
pub enum CommandEnd {
    Finished {
        /// Without output if it was followed.
        result: CommandResult,
        /// The shell could not be recovered and was replaced.
        shell_restarted: bool,
        /// The command was stopped by [`OutputConsumer::is_stopped`], unless it had just ended.
        is_interrupted: bool,
    },
    /// The keeper is gone.
    Lost { is_interrupted: bool },
}

/// Runs a command without input in the shell of a keeper. Output of a followed command goes to the consumer.
///
/// The keeper enforces the timeout, and the command can stop its keeper. Such a keeper is continued. It is killed if it
/// stays stopped, or does not end the command in time.
pub fn run_command<C: OutputConsumer>(
    keeper: &mut KeeperConnection,
    command: ShellCommand,
    consumer: &mut C,
) -> Result<CommandEnd, CommandError<C::Error>> {
    let mut watchdog = KeeperWatchdog::new();
    // When the keeper has to begin to stop the command.
    let mut stop_due_ms = command.timeout_ms.map(|timeout_ms| boottime_millis().saturating_add(timeout_ms));
    let Ok(run) = keeper.send(KeeperRequest::Run(command)) else {
        return Ok(CommandEnd::Lost { is_interrupted: false });
    };
    let (mut is_interrupted, mut shell_restarted) = (false, false);
    let mut next_offsets = [0; 2];
    loop {
        if !is_interrupted && consumer.is_stopped() {
            is_interrupted = true;
            let now = boottime_millis();
            stop_due_ms = Some(stop_due_ms.map_or(now, |due_ms| due_ms.min(now)));
            if keeper.send(KeeperRequest::Interrupt).is_err() {
                return Ok(CommandEnd::Lost { is_interrupted });
            }
        }
        let Ok(response) = keeper.next_response(STOP_POLL_MS) else {
            return Ok(CommandEnd::Lost { is_interrupted });
        };
        if response.is_some() {
            watchdog.on_response();
        }
        match response {
            Some(TaggedResponse { news: KeeperResponse::ShellRestarted(_), .. }) => shell_restarted = true,
            Some(TaggedResponse { tag, news }) if tag == run => match news {
                KeeperResponse::Output(chunk) => {
                    pass_on(&chunk, &mut next_offsets, consumer).map_err(CommandError::Consumer)?;
                }
                KeeperResponse::Ran(result) => {
                    return Ok(CommandEnd::Finished { result: *result, shell_restarted, is_interrupted });
                }
                KeeperResponse::Ended(outcome) => {
                    let result = CommandResult::without_output(outcome);
                    return Ok(CommandEnd::Finished { result, shell_restarted, is_interrupted });
                }
                KeeperResponse::Refused(refusal) => {
                    return Err(CommandError::Keeper(KeeperError::Refused(refusal)));
                }
                KeeperResponse::Done
                | KeeperResponse::Status(_)
                | KeeperResponse::Started(_)
                | KeeperResponse::Piece(_)
                | KeeperResponse::Exited(_)
                | KeeperResponse::Settled(_)
                | KeeperResponse::Written { .. }
                | KeeperResponse::ShellRestarted(_)
                | KeeperResponse::ChildResumed(_) => {}
            },
            Some(_) => {}
            None => {
                let late_ms = stop_due_ms.and_then(|due_ms| boottime_millis().checked_sub(due_ms));
                let duty = if late_ms.is_some() { KeeperDuty::Stop } else { KeeperDuty::Respond };
                let is_late = late_ms.is_some_and(|late_ms| late_ms >= STOP_TIMEOUT_MS);
                if is_late || keeper.is_overdue(&mut watchdog, duty) {
                    kill_keeper(&keeper.keeper_dir, None);
                    return Ok(CommandEnd::Lost { is_interrupted });
                }
            }
        }
    }
}

/// Why a command has no result.
#[derive(Debug)]
pub enum CommandError<E> {
    /// The keeper refused the command.
    Keeper(KeeperError),
    /// The consumer failed.
    Consumer(E),
}
