//! A slot is granted; the engine is asked what it can do; the first turn can start.

use super::{Hold, News, RunState, Working, draft::Draft};
use crate::{
    effect::Effect,
    engine::{Abilities, EngineCommand, Handle, Profile},
    failure::Failure,
    refused::Refused,
};

impl Draft {
    pub(super) fn admitted(&mut self) -> Result<News, Refused> {
        match &self.run.state {
            RunState::Queued { next, .. } => {
                let next = next.clone();
                self.begin_turn(next, None);
                Ok(News::Changed)
            }
            RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => Err(Refused::NotQueued { status: self.run.status() }),
        }
    }

    /// The profile is set once and never flipped (A2): a second answer changes nothing.
    pub(super) fn profile_resolved(
        &mut self,
        profile: &Profile,
        abilities: Abilities,
        handle: Option<&Handle>,
        command: Option<&EngineCommand>,
    ) -> News {
        match &self.run.state {
            RunState::Running(Working::Probing) => {
                self.forgive(|effect| matches!(effect, Effect::Probe { .. }));
                self.run.profile = Some(profile.clone());
                self.run.abilities = abilities;
                self.run.handle = handle.cloned();
                self.run.command = command.cloned();
                self.launch(1, self.at);
                News::Changed
            }
            RunState::Running(
                Working::Launching(_) | Working::Active(_) | Working::Stopping(_) | Working::Recovering(_),
            )
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => News::Absorbed,
        }
    }

    /// Only a wait without a process depends on what was deleted; a process has what it needs, or will say that it has not.
    pub(super) fn session_lost(&mut self, failure: &Failure) -> News {
        match &self.run.state {
            RunState::WaitingUser(waiting) if matches!(waiting.hold, Hold::Nothing) => {
                self.fail(failure.clone());
                News::Changed
            }
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => News::Absorbed,
        }
    }

    pub(super) fn engine_unusable(&mut self, failure: &Failure) -> News {
        match &self.run.state {
            RunState::Running(Working::Probing) => {
                self.forgive(|effect| matches!(effect, Effect::Probe { .. }));
                self.fail(failure.clone());
                News::Changed
            }
            RunState::Running(
                Working::Launching(_) | Working::Active(_) | Working::Stopping(_) | Working::Recovering(_),
            )
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => News::Absorbed,
        }
    }
}
