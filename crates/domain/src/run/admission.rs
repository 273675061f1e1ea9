//! Events before the first turn: admission to a slot, and the result of the engine's probe.

use super::{ApplyOutcome, HeldProcess, RunState, RunningPhase, transition::RunTransition};
use crate::{
    effect::Effect,
    engine::{EngineCommand, EngineInteractiveProfile, EngineSessionHandle, RunAbilities},
    failure::RunFailure,
    refused::RequestRefused,
};

impl RunTransition {
    pub(super) fn on_admitted(&mut self) -> Result<ApplyOutcome, RequestRefused> {
        match &self.run.state {
            RunState::Queued { next, .. } => {
                let next = next.clone();
                self.begin_turn(next, None);
                Ok(ApplyOutcome::Changed)
            }
            RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => Err(RequestRefused::NotQueued { status: self.run.status() }),
        }
    }

    /// The profile is set once and never changed (A2). A second result is ignored.
    pub(super) fn on_profile_resolved(
        &mut self,
        profile: &EngineInteractiveProfile,
        abilities: RunAbilities,
        handle: Option<&EngineSessionHandle>,
        command: Option<&EngineCommand>,
    ) -> ApplyOutcome {
        match &self.run.state {
            RunState::Running(RunningPhase::Probing) => {
                self.cancel_effects(|effect| matches!(effect, Effect::Probe { .. }));
                self.run.profile = Some(profile.clone());
                self.run.abilities = abilities;
                self.run.handle = handle.cloned();
                self.run.command = command.cloned();
                self.launch(1, self.at);
                ApplyOutcome::Changed
            }
            RunState::Running(
                RunningPhase::Launching(_)
                | RunningPhase::Active(_)
                | RunningPhase::Stopping(_)
                | RunningPhase::Recovering(_),
            )
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => ApplyOutcome::Ignored,
        }
    }

    /// Only a wait without a process depends on the deleted data. A running process either has its data or reports an
    /// error.
    pub(super) fn on_session_lost(&mut self, failure: &RunFailure) -> ApplyOutcome {
        match &self.run.state {
            RunState::WaitingUser(waiting) if matches!(waiting.held_process, HeldProcess::None) => {
                self.fail(failure.clone());
                ApplyOutcome::Changed
            }
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => ApplyOutcome::Ignored,
        }
    }

    pub(super) fn on_engine_unusable(&mut self, failure: &RunFailure) -> ApplyOutcome {
        match &self.run.state {
            RunState::Running(RunningPhase::Probing) => {
                self.cancel_effects(|effect| matches!(effect, Effect::Probe { .. }));
                self.fail(failure.clone());
                ApplyOutcome::Changed
            }
            RunState::Running(
                RunningPhase::Launching(_)
                | RunningPhase::Active(_)
                | RunningPhase::Stopping(_)
                | RunningPhase::Recovering(_),
            )
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => ApplyOutcome::Ignored,
        }
    }
}
