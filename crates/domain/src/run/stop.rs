//! A person stops the turn, or ends the run.

use super::{
    Hold, News, RunState, StopReason, Stopping, Working,
    draft::{Draft, canceled_by},
};
use crate::{deadline::STOP_GRACE, effect::Effect, interaction::Closing, process::Live, refused::Refused};

impl Draft {
    pub(super) fn interrupt_requested(&mut self, _by: &str) -> Result<News, Refused> {
        match &self.run.state {
            RunState::Running(Working::Active(active)) => {
                let live = active.live.clone();
                self.stop(live, StopReason::Interrupted);
                Ok(News::Changed)
            }
            // The turn waits inside its process: the question goes with it.
            RunState::WaitingUser(waiting) if matches!(waiting.hold, Hold::Turn { .. }) => {
                let live = self.run.live().cloned();
                self.run.waiting_gates.clear();
                self.close_questions(Closing::Stopped);
                if let Some(live) = live {
                    self.stop(live, StopReason::Interrupted);
                }
                Ok(News::Changed)
            }
            // Nothing has been heard of the process yet, or not any more: it is ended, not asked.
            RunState::Running(Working::Probing | Working::Launching(_) | Working::Recovering(_)) => {
                self.forgive(|effect| matches!(effect, Effect::Probe { .. }));
                self.end_process();
                self.interrupted(None);
                Ok(News::Changed)
            }
            RunState::Running(Working::Stopping(_)) => Ok(News::Absorbed),
            RunState::Queued { .. } | RunState::WaitingUser(_) | RunState::Idle { .. } => {
                Err(Refused::NothingToInterrupt { status: self.run.status() })
            }
            RunState::Finished(_) => Err(Refused::RunFinished { status: self.run.status() }),
        }
    }

    pub(super) fn cancel_requested(&mut self, by: &str) -> Result<News, Refused> {
        match &self.run.state {
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. } => {
                self.cancel(canceled_by(by), Closing::Stopped);
                Ok(News::Changed)
            }
            RunState::Finished(_) => Err(Refused::RunFinished { status: self.run.status() }),
        }
    }

    /// Tells a living process to stop its turn.
    pub(super) fn stop(&mut self, live: Live, reason: StopReason) {
        let (attempt, until) = (live.attempt, self.at.plus(STOP_GRACE));
        self.run.state = RunState::Running(Working::Stopping(Stopping { live, reason, until }));
        self.owe(Effect::Interrupt { attempt });
    }
}
