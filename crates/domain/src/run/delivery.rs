//! Deliveries of results, questions and notices to the conversation (E10).

use alloc::sync::Arc;

use super::{ApplyOutcome, draft::RunTransition};
use crate::{
    delivery::{Delivery, DeliveryContent, DeliveryFailure, DeliveryNotice, DeliveryStatus},
    effect::Effect,
    id::{DeliveryId, InteractionId, TurnId},
    settings::ExecutionMode,
};

/// The maximum number of failed deliveries that wait for activity of the conversation.
const MOST_UNDELIVERED: usize = 50;

impl RunTransition {
    /// Requests a delivery to the conversation. Without a conversation, results are read from the ledger and count as
    /// delivered once they are durable there.
    pub(super) fn deliver(&mut self, content: DeliveryContent, carries: Option<TurnId>) {
        let Some(conversation_ref) = self.run.settings.conversation_ref.clone() else {
            return self.mirror(carries, DeliveryStatus::Delivered);
        };
        let delivery_id = DeliveryId(self.mint());
        self.run.deliveries.push(Delivery {
            delivery_id,
            run_id: self.run.run_id,
            conversation_ref,
            content,
            carries,
            created_at: self.at,
            status: DeliveryStatus::Pending,
            last_failure: None,
            delivered_at: None,
            resent: false,
        });
        self.mirror(carries, DeliveryStatus::Pending);
        self.owe(Effect::Deliver { delivery_id });
    }

    pub(super) fn delivery_confirmed(&mut self, delivery_id: DeliveryId) -> ApplyOutcome {
        self.forgive(|effect| *effect == Effect::Deliver { delivery_id });
        let at = self.at;
        let Some(delivery) = self.pending_delivery(delivery_id) else { return ApplyOutcome::Absorbed };
        (delivery.status, delivery.delivered_at) = (DeliveryStatus::Delivered, Some(at));
        let carries = delivery.carries;
        self.mirror(carries, DeliveryStatus::Delivered);
        ApplyOutcome::Changed
    }

    /// After the first failure, the delivery waits for activity of the conversation. After the second, only a notice is
    /// sent.
    pub(super) fn delivery_failed(
        &mut self,
        delivery_id: DeliveryId,
        certainty: DeliveryFailure,
    ) -> ApplyOutcome {
        self.forgive(|effect| *effect == Effect::Deliver { delivery_id });
        let Some(delivery) = self.pending_delivery(delivery_id) else { return ApplyOutcome::Absorbed };
        (delivery.status, delivery.last_failure) = (DeliveryStatus::DeliveryUnavailable, Some(certainty));
        let (carries, given_up) = (delivery.carries, delivery.resent);
        let deserves_notice =
            matches!(delivery.content, DeliveryContent::Result(_) | DeliveryContent::Question(_));
        self.mirror(carries, DeliveryStatus::DeliveryUnavailable);
        self.bound_undelivered();
        if given_up && deserves_notice {
            self.deliver(DeliveryContent::Notice(DeliveryNotice::Undelivered(delivery_id)), None);
        }
        ApplyOutcome::Changed
    }

    /// Gives up the oldest failed deliveries, so that a silent conversation does not make its run grow without bound.
    /// They can still be read in the ledger.
    fn bound_undelivered(&mut self) {
        let waits = |it: &&mut Delivery| it.status == DeliveryStatus::DeliveryUnavailable && !it.resent;
        let waiting = self.run.deliveries.iter_mut().filter(waits).count();
        let too_many = waiting.saturating_sub(MOST_UNDELIVERED);
        for oldest in self.run.deliveries.iter_mut().filter(waits).take(too_many) {
            oldest.resent = true;
        }
    }

    /// The conversation can be reached again, so failed deliveries are retried once.
    pub(super) fn conversation_spoke(&mut self) -> ApplyOutcome {
        let unavailable: alloc::vec::Vec<_> = (self.run.deliveries.iter_mut())
            .filter(|delivery| delivery.status == DeliveryStatus::DeliveryUnavailable && !delivery.resent)
            .map(|delivery| {
                (delivery.status, delivery.resent) = (DeliveryStatus::Pending, true);
                (delivery.delivery_id, delivery.carries)
            })
            .collect();
        if unavailable.is_empty() {
            return ApplyOutcome::Absorbed;
        }
        for (delivery_id, carries) in unavailable {
            self.mirror(carries, DeliveryStatus::Pending);
            self.owe(Effect::Deliver { delivery_id });
        }
        ApplyOutcome::Changed
    }

    /// Suppresses all output of the latest turn, including late output (E9).
    pub(super) fn suppress_turn(&mut self) {
        let turn_id = self.turn_id();
        self.suppress(|delivery| delivery.carries == Some(turn_id));
        let turn = self.turn();
        if turn.delivery_status != DeliveryStatus::Delivered {
            turn.delivery_status = DeliveryStatus::Suppressed;
        }
    }

    /// Delivers the text of a turn separately. It normally accompanies the turn's question; this is for a question that
    /// was closed before it was shown.
    pub(super) fn deliver_text_of(&mut self, turn_id: TurnId) {
        let asked = self.run.settings.execution_mode != ExecutionMode::Auto;
        let unseen = self.run.turns.iter().any(|turn| {
            let said_something = turn.reply.as_ref().is_some_and(|text| !text.is_empty());
            turn.turn_id == turn_id && turn.delivery_status == DeliveryStatus::Suppressed && said_something
        });
        if asked && unseen {
            self.deliver(DeliveryContent::Result(turn_id), Some(turn_id));
        }
    }

    /// Closes a question on all surfaces: pending deliveries are suppressed, and a shown question is marked as closed.
    pub(super) fn take_down(&mut self, interaction_id: InteractionId) {
        let content = DeliveryContent::Question(interaction_id);
        let never_shown = self.run.deliveries.iter().any(|delivery| {
            delivery.content == content
                && delivery.status == DeliveryStatus::DeliveryUnavailable
                && delivery.last_failure == Some(DeliveryFailure::Failed)
        });
        self.suppress(|delivery| delivery.content == content);
        let conversational = self.run.settings.conversation_ref.is_some();
        let was_asked = self.run.settings.execution_mode != ExecutionMode::Auto;
        if conversational && was_asked && !never_shown {
            self.deliver(DeliveryContent::QuestionClosed(interaction_id), None);
        }
    }

    fn suppress(&mut self, unwanted: impl Fn(&Delivery) -> bool) {
        let mut suppressed = alloc::vec![];
        for delivery in self.run.deliveries.iter_mut().filter(|delivery| unwanted(delivery)) {
            if !delivery.is_settled() {
                delivery.status = DeliveryStatus::Suppressed;
                suppressed.push((delivery.delivery_id, delivery.carries));
            }
        }
        for (delivery_id, carries) in suppressed {
            self.forgive(|effect| *effect == Effect::Deliver { delivery_id });
            self.mirror(carries, DeliveryStatus::Suppressed);
        }
    }

    /// Copies the status of a delivery to the row of its turn.
    pub(super) fn mirror(&mut self, carries: Option<TurnId>, status: DeliveryStatus) {
        let at = self.at;
        let carried = |turn: &&mut Arc<crate::turn::Turn>| Some(turn.turn_id) == carries;
        if let Some(turn) = self.run.turns.iter_mut().find(carried) {
            let turn = Arc::make_mut(turn);
            turn.delivery_status = status;
            if status == DeliveryStatus::Delivered {
                turn.delivered_at = Some(at);
            }
        }
    }

    fn pending_delivery(&mut self, delivery_id: DeliveryId) -> Option<&mut Delivery> {
        let wanted = |delivery: &&mut Delivery| {
            delivery.delivery_id == delivery_id && delivery.status == DeliveryStatus::Pending
        };
        self.run.deliveries.iter_mut().find(wanted)
    }
}
