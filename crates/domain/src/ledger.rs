//! Derives the table rows that a step changes. This is the only place that does so.
//!
//! A record that was dropped from the run is not deleted from the ledger. It was finished, and its last row remains.

use alloc::vec::Vec;

use crate::{
    delivery::Delivery,
    inbound::Inbound,
    interaction::{Interaction, InteractionState},
    run::Run,
    turn::Turn,
};

/// The rows that differ between two states of a run, as indexes into the later state, so that rows are not copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedRows {
    inbound: Vec<usize>,
    turns: Vec<usize>,
    interactions: Vec<usize>,
    deliveries: Vec<usize>,
}

impl ChangedRows {
    /// The rows to write when a run changes from `before` to `after`.
    pub fn between(before: Option<&Run>, after: &Run) -> Self {
        Self {
            inbound: changed_indexes(before.map(|run| &run.inbox), &after.inbox, |a, b| {
                a.message.key == b.message.key
            }),
            turns: changed_indexes(before.map(|run| &run.turns), &after.turns, |a, b| a.turn_id == b.turn_id),
            interactions: changed_indexes(
                before.map(|run| &run.interactions),
                &after.interactions,
                |a, b| a.interaction_id == b.interaction_id,
            ),
            deliveries: changed_indexes(before.map(|run| &run.deliveries), &after.deliveries, |a, b| {
                a.delivery_id == b.delivery_id
            }),
        }
    }

    /// The changed messages. `after` must be the run with which the rows were computed; the same holds for the other
    /// methods.
    pub fn inbound<'a>(&'a self, after: &'a Run) -> impl Iterator<Item = &'a Inbound> {
        rows_at(&self.inbound, &after.inbox).map(|row| &**row)
    }

    pub fn turns<'a>(&'a self, after: &'a Run) -> impl Iterator<Item = &'a Turn> {
        rows_at(&self.turns, &after.turns).map(|row| &**row)
    }

    pub fn interactions<'a>(&'a self, after: &'a Run) -> impl Iterator<Item = &'a Interaction> {
        rows_at(&self.interactions, &after.interactions).map(|row| &**row)
    }

    pub fn deliveries<'a>(&'a self, after: &'a Run) -> impl Iterator<Item = &'a Delivery> {
        rows_at(&self.deliveries, &after.deliveries)
    }
}

fn changed_indexes<T: PartialEq>(
    before: Option<&Vec<T>>,
    after: &[T],
    same: impl Fn(&T, &T) -> bool,
) -> Vec<usize> {
    let unchanged = |row: &T| {
        before.is_some_and(|rows| rows.iter().find(|earlier| same(earlier, row)).is_some_and(|it| it == row))
    };
    after.iter().enumerate().filter(|(_, row)| !unchanged(row)).map(|(index, _)| index).collect()
}

fn rows_at<'a, T>(indexes: &'a [usize], rows: &'a [T]) -> impl Iterator<Item = &'a T> {
    indexes.iter().filter_map(|index| rows.get(*index))
}

impl InteractionState {
    /// The name of the state, for the ledger's index and for lists.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Answered(_) => "answered",
            Self::Closed { .. } => "closed",
        }
    }
}
