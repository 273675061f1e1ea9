//! The rows that a step changes: what the tables hold is derived here, and nowhere else.
//!
//! A record that is gone from the run is not deleted from the ledger: it was finished, and its last row stands.

use alloc::vec::Vec;

use crate::{
    delivery::Delivery,
    inbound::Inbound,
    interaction::{Interaction, InteractionState},
    run::Run,
    turn::Turn,
};

/// The rows that differ between two states of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Messages.
    pub inbound: Vec<Inbound>,
    /// Turns.
    pub turns: Vec<Turn>,
    /// Questions.
    pub interactions: Vec<Interaction>,
    /// Deliveries.
    pub deliveries: Vec<Delivery>,
}

impl Rows {
    /// The rows to write when a run turns from `before` into `after`.
    pub fn changed(before: Option<&Run>, after: &Run) -> Self {
        Self {
            inbound: changed(before.map(|run| &run.inbox), &after.inbox, |a, b| {
                a.message.key == b.message.key
            }),
            turns: changed(before.map(|run| &run.turns), &after.turns, |a, b| a.turn_id == b.turn_id),
            interactions: changed(before.map(|run| &run.interactions), &after.interactions, |a, b| {
                a.interaction_id == b.interaction_id
            }),
            deliveries: changed(before.map(|run| &run.deliveries), &after.deliveries, |a, b| {
                a.delivery_id == b.delivery_id
            }),
        }
    }
}

fn changed<T: Clone + PartialEq>(
    before: Option<&Vec<T>>,
    after: &[T],
    same: impl Fn(&T, &T) -> bool,
) -> Vec<T> {
    let unchanged = |row: &T| {
        before.is_some_and(|rows| rows.iter().find(|earlier| same(earlier, row)).is_some_and(|it| it == row))
    };
    after.iter().filter(|row| !unchanged(row)).cloned().collect()
}

impl InteractionState {
    /// The state in one word, for the ledger's index and for listings.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Answered(_) => "answered",
            Self::Closed { .. } => "closed",
        }
    }
}
