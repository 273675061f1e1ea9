//! An order was carried out, and nothing else tells of it.

use super::{News, draft::Draft};
use crate::{
    effect::{Effect, EffectNumber},
    inbound::{InboundStatus, MessageKey},
};

impl Draft {
    pub(super) fn effect_performed(&mut self, number: EffectNumber) -> News {
        let Some(owed) = self.run.owed.iter().find(|owed| owed.number == number) else {
            return News::Absorbed;
        };
        match owed.effect.clone() {
            Effect::Steer { message, .. } => self.steered(&message),
            Effect::Say { .. }
            | Effect::Answer { .. }
            | Effect::Interrupt { .. }
            | Effect::Terminate { .. } => {}
            // These are settled by what was found, or they would be forgotten half-way.
            Effect::Probe { .. }
            | Effect::Launch { .. }
            | Effect::Recover { .. }
            | Effect::Deliver { .. } => {
                return News::Absorbed;
            }
        }
        self.run.owed.retain(|owed| owed.number != number);
        News::Changed
    }

    /// The turn at work has taken the message. Had the turn ended before, the order would have been taken back
    /// and the message would still wait for a turn of its own.
    fn steered(&mut self, key: &MessageKey) {
        let (at, turn_id) = (self.at, self.turn_id());
        for inbound in self.run.inbox.iter_mut().filter(|inbound| inbound.message.key == *key) {
            (inbound.turn_id, inbound.accepted_at) = (Some(turn_id), Some(at));
            inbound.becomes(InboundStatus::Accepted, at);
        }
    }
}
