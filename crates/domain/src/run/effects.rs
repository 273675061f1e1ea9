//! Reports of performed and obsolete effects that no other event settles.

use alloc::{sync::Arc, vec::Vec};

use super::{ApplyOutcome, transition::RunTransition};
use crate::{
    effect::{Effect, EffectNumber},
    inbound::MessageKey,
    process::Attempt,
};

impl RunTransition {
    pub(super) fn on_effect_performed(&mut self, number: EffectNumber) -> ApplyOutcome {
        let Some(effect) = self.settle_effect(number) else { return ApplyOutcome::Ignored };
        if let Effect::Steer { message, .. } = effect {
            self.accept_steered_message(&message);
        }
        ApplyOutcome::Changed
    }

    /// A message that was to be added to a turn waits for its own turn. All other such effects were for a process,
    /// whose exit is a separate event.
    pub(super) fn on_effect_obsolete(&mut self, number: EffectNumber) -> ApplyOutcome {
        if self.settle_effect(number).is_some() { ApplyOutcome::Changed } else { ApplyOutcome::Ignored }
    }

    /// Removes a pending effect if it is of a kind that is settled in this way.
    fn settle_effect(&mut self, number: EffectNumber) -> Option<Effect> {
        let index = self.run.pending_effects.iter().position(|pending| pending.number == number)?;
        match &self.run.pending_effects[index].effect {
            Effect::SendPrompt { .. }
            | Effect::Answer { .. }
            | Effect::Steer { .. }
            | Effect::Interrupt { .. }
            | Effect::Terminate { .. } => Some(self.run.pending_effects.remove(index).effect),
            // These effects are settled by the event with their result. Removing them here would lose the result.
            Effect::Probe { .. }
            | Effect::Launch { .. }
            | Effect::Recover { .. }
            | Effect::Deliver { .. } => None,
        }
    }

    /// Settles the pending effects that add messages to the turn of this attempt, before Abide ends its process. The
    /// process may have received them, so they share the status of the turn.
    pub(super) fn accept_steered_messages(&mut self, attempt: Attempt) {
        if !self.ends_steered_messages() {
            return;
        }
        let steers = |effect: &Effect| matches!(effect, Effect::Steer { attempt: of, .. } if *of == attempt);
        let pending = self.run.pending_effects.iter().filter(|pending| steers(&pending.effect));
        let numbers: Vec<EffectNumber> = pending.map(|pending| pending.number).collect();
        for number in numbers {
            self.on_effect_performed(number);
        }
    }

    /// Records that the running turn accepted the message. If the turn had ended before, the effect would have been
    /// canceled and the message would still wait for its own turn.
    fn accept_steered_message(&mut self, key: &MessageKey) {
        let (at, turn_id) = (self.at, self.turn_id());
        // The turn may have been replaced between the effect and its report.
        let message_status = self.turn().execution_status.message_status();
        for inbound in self.run.inbox.iter_mut().filter(|inbound| inbound.message.key == *key) {
            let inbound = Arc::make_mut(inbound);
            (inbound.turn_id, inbound.accepted_at) = (Some(turn_id), Some(at));
            inbound.set_status(message_status, at);
        }
    }
}
