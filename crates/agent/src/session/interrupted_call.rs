//! Recovers a call to a session that a crash interrupted. A shell command is stopped, another program continues, and
//! the output of both is stored.

use abide_keeper::client::timeouts::STOP_TIMEOUT_MS;
use abide_keeper::protocol::{JobId, KeeperRequest, KeeperResponse, TaggedResponse};

use super::lookup::LiveSession;
use super::program_input;
use super::record::OutputProgress;
use crate::state_directory::StateSubfolder;
use crate::tool::one_shot::{RecoveredCommand, read_remaining_output};
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::ProgramState;

/// The recovered state of a call to a running session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptedCall {
    /// A shell command: it had ended, or it ran and was stopped.
    Command(RecoveredCommand),
    /// Input to another program, which continues.
    Input(ProgramState),
}

/// Recovers the call `action`. `job` is the number of its shell command, if it has one.
pub(crate) fn recover_interrupted_call(
    session: &mut LiveSession,
    action: &str,
    job: Option<JobId>,
    folder: &StateSubfolder,
) -> InterruptedCall {
    if session.record.shell.is_none() {
        let progress_dir = session.progress_dir.clone();
        let mut output_progress = OutputProgress::read(&progress_dir);
        output_progress.seen = read_remaining_output(&mut session.keeper, 0, output_progress.seen, folder);
        output_progress.write(&progress_dir);
        let mut recorder = OutputRecorder::new(folder, 0);
        let progress = program_input::observe(session, &mut recorder);
        match progress {
            ProgramState::Busy | ProgramState::Unknown => {
                program_input::record_unfinished_call(session, action)
            }
            ProgramState::WaitingForInput | ProgramState::Ended => {}
        }
        return InterruptedCall::Input(progress);
    }
    let nothing = RecoveredCommand { exit_code: None, was_running: false };
    // The shell has received fewer commands, so this one was never sent.
    let Some(job) = job.filter(|job| *job <= session.status.jobs) else {
        return InterruptedCall::Command(nothing);
    };
    let was_running = session.status.running.is_some_and(|(running, _)| running == job);
    let stopped = !was_running || stop_command(session, job);
    read_remaining_output(&mut session.keeper, job, [0; 2], folder);
    let last = session.status.last.as_ref().filter(|last| last.job == job && !was_running);
    InterruptedCall::Command(RecoveredCommand {
        exit_code: last.map(|last| last.code),
        was_running: was_running && stopped,
    })
}

/// Stops a running command and waits for its end. Returns whether it has ended.
fn stop_command(session: &mut LiveSession, job: JobId) -> bool {
    let keeper = &mut session.keeper;
    let Ok(follow) = keeper.send(KeeperRequest::Follow { job, from: [u64::MAX; 2] }) else { return false };
    if keeper.send(KeeperRequest::Interrupt).is_err() {
        return false;
    }
    // The keeper's sequence of signals always ends the command, so this loop ends.
    loop {
        match keeper.next_response(STOP_TIMEOUT_MS) {
            Ok(Some(TaggedResponse { tag, news: KeeperResponse::Ended(_) })) if tag == follow => return true,
            Ok(Some(_)) => {}
            Ok(None) => return false,
            // The command ends with its keeper.
            Err(_) => return keeper.is_closed(),
        }
    }
}
