//! Recovers a call to a session that a crash interrupted. A shell command is stopped, another program continues, and
//! the output of both is stored.

use abide_keeper::protocol::{JobId, KeeperRequest, KeeperResponse, TaggedRequest, TaggedResponse};

use super::found::LiveSession;
use super::record::OutputProgress;
use super::talk;
use crate::state::StateSubfolder;
use crate::tool::once::{RecoveredCommand, take_rest};
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::ProgramState;

/// The recovered state of a call to a running session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptedCall {
    /// A shell command: it had ended, or it ran and was stopped.
    Command(RecoveredCommand),
    /// Input to another program, which continues.
    Talk(ProgramState),
}

/// Recovers the call `action`. `job` is the number of its shell command, if it has one.
pub(crate) fn leave_off(
    living: &mut LiveSession,
    action: &str,
    job: Option<JobId>,
    folder: &StateSubfolder,
) -> InterruptedCall {
    if living.record.shell.is_none() {
        let place = living.notes.clone();
        let mut heard = OutputProgress::read(&place);
        heard.seen = take_rest(&mut living.keeper, 0, heard.seen, folder);
        heard.write(&place);
        let mut recorder = OutputRecorder::new(folder, 0);
        let progress = talk::look(living, &mut recorder);
        match progress {
            ProgramState::AtWork | ProgramState::Unclear => talk::note_unfinished(living, action),
            ProgramState::Finished | ProgramState::Ended => {}
        }
        return InterruptedCall::Talk(progress);
    }
    let nothing = RecoveredCommand { exit_code: None, was_running: false };
    // The shell has received fewer commands, so this one was never sent.
    let Some(job) = job.filter(|job| *job <= living.status.jobs) else {
        return InterruptedCall::Command(nothing);
    };
    let was_running = living.status.running.is_some_and(|(running, _)| running == job);
    let stopped = !was_running || stop(living, job);
    take_rest(&mut living.keeper, job, [0; 2], folder);
    let last = living.status.last.as_ref().filter(|last| last.job == job && !was_running);
    InterruptedCall::Command(RecoveredCommand {
        exit_code: last.map(|last| last.code),
        was_running: was_running && stopped,
    })
}

const FOLLOW: u64 = 1;
const INTERRUPT: u64 = 2;
/// Longer than the keeper's sequence of signals for stopping a command.
const LADDER_MS: u64 = 15_000;

/// Stops a running command and waits for its end. Returns whether it has ended.
fn stop(living: &mut LiveSession, job: JobId) -> bool {
    let link = &mut living.keeper.link;
    let orders = [
        TaggedRequest { tag: FOLLOW, act: KeeperRequest::Follow { job, from: [u64::MAX; 2] } },
        TaggedRequest { tag: INTERRUPT, act: KeeperRequest::Interrupt },
    ];
    if orders.iter().any(|order| link.send(order).is_err()) {
        return false;
    }
    // The keeper's sequence of signals always ends the command, so this loop ends.
    while let Ok(answer) = link.wait::<TaggedResponse>(LADDER_MS) {
        match answer {
            Some(TaggedResponse { tag: FOLLOW, news: KeeperResponse::Ended(_) }) => return true,
            Some(_) => {}
            None => return link.is_closed(),
        }
    }
    false
}
