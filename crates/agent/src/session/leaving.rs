//! What an earlier process of ours was saying to a session when it died: a command is stopped, another program is left at
//! work, and what either has printed is taken.

use abide_keeper::protocol::{JobId, KeeperRequest, KeeperResponse, TaggedRequest, TaggedResponse};

use super::found::LiveSession;
use super::record::OutputProgress;
use super::talk;
use crate::state::StateSubfolder;
use crate::tool::once::{RecoveredCommand, take_rest};
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::ProgramState;

/// What was found of a call to a session that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptedCall {
    /// A command of a shell: how it had ended, or that it ran and was stopped.
    Command(RecoveredCommand),
    /// Something that was said to another program, which was left at its work.
    Talk(ProgramState),
}

/// Leaves off whatever the call was about. `job` is the command that it was to be.
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
    // A shell that has had fewer commands never heard of this one.
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
/// Longer than the ladder by which a command is stopped.
const LADDER_MS: u64 = 15_000;

/// Stops a running command and waits until it has ended.
fn stop(living: &mut LiveSession, job: JobId) -> bool {
    let link = &mut living.keeper.link;
    let orders = [
        TaggedRequest { tag: FOLLOW, act: KeeperRequest::Follow { job, from: [u64::MAX; 2] } },
        TaggedRequest { tag: INTERRUPT, act: KeeperRequest::Interrupt },
    ];
    if orders.iter().any(|order| link.send(order).is_err()) {
        return false;
    }
    // The ladder ends whatever it is, so this does too.
    while let Ok(answer) = link.wait::<TaggedResponse>(LADDER_MS) {
        match answer {
            Some(TaggedResponse { tag: FOLLOW, news: KeeperResponse::Ended(_) }) => return true,
            Some(_) => {}
            None => return link.is_closed(),
        }
    }
    false
}
