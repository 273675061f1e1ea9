//! An order was carried out, or came too late, and nothing else tells of it.

use alloc::sync::Arc;

use super::{ApplyOutcome, draft::RunTransition};
use crate::{
    effect::{Effect, EffectNumber},
    inbound::MessageKey,
};

impl RunTransition {
    pub(super) fn effect_performed(&mut self, number: EffectNumber) -> ApplyOutcome {
        let Some(effect) = self.strike(number) else { return ApplyOutcome::Absorbed };
        if let Effect::Steer { message, .. } = effect {
            self.steered(&message);
        }
        ApplyOutcome::Changed
    }

    /// A message that was to steer keeps waiting for a turn of its own; everything else was for a process whose
    /// end is news of its own.
    pub(super) fn effect_missed(&mut self, number: EffectNumber) -> ApplyOutcome {
        if self.strike(number).is_some() { ApplyOutcome::Changed } else { ApplyOutcome::Absorbed }
    }

    /// Takes an order off the list, if it is of a kind that is settled in this way.
    fn strike(&mut self, number: EffectNumber) -> Option<Effect> {
        let place = self.run.owed.iter().position(|owed| owed.number == number)?;
        match &self.run.owed[place].effect {
            Effect::Say { .. }
            | Effect::Answer { .. }
            | Effect::Steer { .. }
            | Effect::Interrupt { .. }
            | Effect::Terminate { .. } => Some(self.run.owed.remove(place).effect),
            // These are settled by what was found, or they would be forgotten half-way.
            Effect::Probe { .. }
            | Effect::Launch { .. }
            | Effect::Recover { .. }
            | Effect::Deliver { .. } => None,
        }
    }

    /// The turn at work has taken the message. Had the turn ended before, the order would have been taken back
    /// and the message would still wait for a turn of its own.
    fn steered(&mut self, key: &MessageKey) {
        let (at, turn_id) = (self.at, self.turn_id());
        // The turn may have been replaced between the order and its report.
        let becomes = self.turn().execution_status.of_its_messages();
        for inbound in self.run.inbox.iter_mut().filter(|inbound| inbound.message.key == *key) {
            let inbound = Arc::make_mut(inbound);
            (inbound.turn_id, inbound.accepted_at) = (Some(turn_id), Some(at));
            inbound.becomes(becomes, at);
        }
    }
}
