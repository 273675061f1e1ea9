//! Deliveries of results, questions and notices to the conversation (E10).

use alloc::sync::Arc;

use super::{ApplyOutcome, transition::RunTransition};
use crate::{
    delivery::{Delivery, DeliveryContent, DeliveryFailure, DeliveryNotice, DeliveryStatus},
    effect::Effect,
    id::{DeliveryId, InteractionId, TurnId},
    settings::ExecutionMode,
};

/// The maximum number of failed deliveries that wait for activity of the conversation.
const MAX_UNDELIVERED: usize = 50;

impl RunTransition {
    /// Requests a delivery to the conversation. Without a conversation, results are read from the ledger and count as
    /// delivered once they are durable there.
    pub(super) fn deliver(&mut self, content: DeliveryContent, result_turn: Option<TurnId>) {
        let Some(conversation_ref) = self.run.settings.conversation_ref.clone() else {
            return self.set_turn_delivery_status(result_turn, DeliveryStatus::Delivered);
        };
        let delivery_id = DeliveryId(self.next_id_seed());
        self.run.deliveries.push(Delivery {
            delivery_id,
            run_id: self.run.run_id,
            conversation_ref,
            content,
            outcome_turn_id: result_turn,
            created_at: self.at,
            status: DeliveryStatus::Pending,
            last_failure: None,
            delivered_at: None,
            resent: false,
        });
        self.set_turn_delivery_status(result_turn, DeliveryStatus::Pending);
        self.request_effect(Effect::Deliver { delivery_id });
    }

    pub(super) fn on_delivery_confirmed(&mut self, delivery_id: DeliveryId) -> ApplyOutcome {
        self.cancel_effects(|effect| *effect == Effect::Deliver { delivery_id });
        let at = self.at;
        let Some(delivery) = self.pending_delivery(delivery_id) else { return ApplyOutcome::Ignored };
        (delivery.status, delivery.delivered_at) = (DeliveryStatus::Delivered, Some(at));
        let result_turn = delivery.outcome_turn_id;
        self.set_turn_delivery_status(result_turn, DeliveryStatus::Delivered);
        ApplyOutcome::Changed
    }

    /// After the first failure, the delivery waits for activity of the conversation. After the second, only a notice is
    /// sent.
    pub(super) fn on_delivery_failed(
        &mut self,
        delivery_id: DeliveryId,
        certainty: DeliveryFailure,
    ) -> ApplyOutcome {
        self.cancel_effects(|effect| *effect == Effect::Deliver { delivery_id });
        let Some(delivery) = self.pending_delivery(delivery_id) else { return ApplyOutcome::Ignored };
        (delivery.status, delivery.last_failure) = (DeliveryStatus::DeliveryUnavailable, Some(certainty));
        let (result_turn, given_up) = (delivery.outcome_turn_id, delivery.resent);
        let deserves_notice =
            matches!(delivery.content, DeliveryContent::Result(_) | DeliveryContent::Question(_));
        self.set_turn_delivery_status(result_turn, DeliveryStatus::DeliveryUnavailable);
        self.drop_oldest_undelivered();
        if given_up && deserves_notice {
            self.deliver(DeliveryContent::Notice(DeliveryNotice::Undelivered(delivery_id)), None);
        }
        ApplyOutcome::Changed
    }

    /// Gives up the oldest failed deliveries, so that a silent conversation does not make its run grow without bound.
    /// They can still be read in the ledger.
    fn drop_oldest_undelivered(&mut self) {
        let waits = |it: &&mut Delivery| it.status == DeliveryStatus::DeliveryUnavailable && !it.resent;
        let waiting = self.run.deliveries.iter_mut().filter(waits).count();
        let too_many = waiting.saturating_sub(MAX_UNDELIVERED);
        for oldest in self.run.deliveries.iter_mut().filter(waits).take(too_many) {
            oldest.resent = true;
        }
    }

    /// The conversation can be reached again, so failed deliveries are retried once.
    pub(super) fn on_conversation_active(&mut self) -> ApplyOutcome {
        let unavailable: alloc::vec::Vec<_> = (self.run.deliveries.iter_mut())
            .filter(|delivery| delivery.status == DeliveryStatus::DeliveryUnavailable && !delivery.resent)
            .map(|delivery| {
                (delivery.status, delivery.resent) = (DeliveryStatus::Pending, true);
                (delivery.delivery_id, delivery.outcome_turn_id)
            })
            .collect();
        if unavailable.is_empty() {
            return ApplyOutcome::Ignored;
        }
        for (delivery_id, result_turn) in unavailable {
            self.set_turn_delivery_status(result_turn, DeliveryStatus::Pending);
            self.request_effect(Effect::Deliver { delivery_id });
        }
        ApplyOutcome::Changed
    }

    /// Suppresses all output of the latest turn, including late output (E9).
    pub(super) fn suppress_turn(&mut self) {
        let turn_id = self.turn_id();
        self.suppress(|delivery| delivery.outcome_turn_id == Some(turn_id));
        let turn = self.turn();
        if turn.delivery_status != DeliveryStatus::Delivered {
            turn.delivery_status = DeliveryStatus::Suppressed;
        }
    }

    /// Delivers the text of a turn separately. It normally accompanies the turn's question; this is for a question that
    /// was closed before it was shown.
    pub(super) fn deliver_turn_text(&mut self, turn_id: TurnId) {
        let may_ask = self.run.settings.execution_mode != ExecutionMode::Auto;
        let unseen = self.run.turns.iter().any(|turn| {
            let has_text = turn.reply.as_ref().is_some_and(|text| !text.is_empty());
            turn.turn_id == turn_id && turn.delivery_status == DeliveryStatus::Suppressed && has_text
        });
        if may_ask && unseen {
            self.deliver(DeliveryContent::Result(turn_id), Some(turn_id));
        }
    }

    /// Closes a question on all surfaces: pending deliveries are suppressed, and a shown question is marked as closed.
    pub(super) fn retract_question(&mut self, interaction_id: InteractionId) {
        let content = DeliveryContent::Question(interaction_id);
        let never_shown = self.run.deliveries.iter().any(|delivery| {
            delivery.content == content
                && delivery.status == DeliveryStatus::DeliveryUnavailable
                && delivery.last_failure == Some(DeliveryFailure::Failed)
        });
        self.suppress(|delivery| delivery.content == content);
        let has_conversation = self.run.settings.conversation_ref.is_some();
        let was_asked = self.run.settings.execution_mode != ExecutionMode::Auto;
        if has_conversation && was_asked && !never_shown {
            self.deliver(DeliveryContent::QuestionClosed(interaction_id), None);
        }
    }

    fn suppress(&mut self, matches: impl Fn(&Delivery) -> bool) {
        let mut suppressed = alloc::vec![];
        for delivery in self.run.deliveries.iter_mut().filter(|delivery| matches(delivery)) {
            if !delivery.is_settled() {
                delivery.status = DeliveryStatus::Suppressed;
                suppressed.push((delivery.delivery_id, delivery.outcome_turn_id));
            }
        }
        for (delivery_id, result_turn) in suppressed {
            self.cancel_effects(|effect| *effect == Effect::Deliver { delivery_id });
            self.set_turn_delivery_status(result_turn, DeliveryStatus::Suppressed);
        }
    }

    /// Copies the status of a delivery to the row of its turn.
    pub(super) fn set_turn_delivery_status(&mut self, result_turn: Option<TurnId>, status: DeliveryStatus) {
        let at = self.at;
        let is_result_turn = |turn: &&mut Arc<crate::turn::Turn>| Some(turn.turn_id) == result_turn;
        if let Some(turn) = self.run.turns.iter_mut().find(is_result_turn) {
            let turn = Arc::make_mut(turn);
            turn.delivery_status = status;
            if status == DeliveryStatus::Delivered {
                turn.delivered_at = Some(at);
            }
        }
    }

    fn pending_delivery(&mut self, delivery_id: DeliveryId) -> Option<&mut Delivery> {
        let is_pending = |delivery: &&mut Delivery| {
            delivery.delivery_id == delivery_id && delivery.status == DeliveryStatus::Pending
        };
        self.run.deliveries.iter_mut().find(is_pending)
    }
}
