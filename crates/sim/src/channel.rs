//! A fake conversation: it loses deliveries, leaves their outcome unknown, and records those that a person has seen.

use abide_domain::{
    delivery::{Delivery, DeliveryContent, DeliveryFailure},
    id::{DeliveryId, TurnId},
    turn::Turn,
};

use abide_testkit::seeded_rng::SeededRng;

/// The deliveries that reached the person, with their keys.
#[derive(Debug, Default)]
pub(crate) struct FakeChannel {
    pub(crate) shown: Vec<ShownDelivery>,
}

/// A delivery that a person has seen.
#[derive(Clone, Debug)]
pub(crate) struct ShownDelivery {
    pub(crate) key: DeliveryId,
    pub(crate) content: DeliveryContent,
    pub(crate) carries: Option<TurnId>,
    /// Whether the turn had been superseded when it was shown.
    pub(crate) superseded: bool,
    pub(crate) text: Option<String>,
}

/// The reliability of the channel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NetworkMode {
    Fair,
    Foul,
}

impl FakeChannel {
    /// Tries to show a delivery. A key that was shown before is not shown again.
    pub(crate) fn send(
        &mut self,
        key: DeliveryId,
        delivery: &Delivery,
        turn: Option<&Turn>,
        weather: NetworkMode,
        dice: &mut SeededRng,
    ) -> Result<(), DeliveryFailure> {
        let (arrives, said) = match weather {
            NetworkMode::Fair => (true, Ok(())),
            NetworkMode::Foul => match dice.below(5) {
                0 => (false, Err(DeliveryFailure::Failed)),
                1 => (false, Err(DeliveryFailure::Unknown)),
                2 => (true, Err(DeliveryFailure::Unknown)),
                _ => (true, Ok(())),
            },
        };
        if arrives && !self.shown.iter().any(|shown| shown.key == key) {
            self.shown.push(ShownDelivery {
                key,
                content: delivery.content.clone(),
                carries: delivery.outcome_turn_id,
                superseded: turn.is_some_and(|turn| turn.superseded.is_some()),
                text: turn.and_then(|turn| turn.reply.clone()),
            });
        }
        said
    }
}
