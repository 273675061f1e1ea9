//! The rows of one run, derived from its journal entries independently of any database.
//!
//! The memory store stores exactly these rows. A database is correct if it contains the same rows.

use std::{collections::BTreeMap, sync::Arc};

use abide_domain::{
    delivery::Delivery,
    event::KeyClaim,
    id::{DeliveryId, InteractionId, RunId, TurnId},
    inbound::{Inbound, MessageKey},
    interaction::Interaction,
    refused::RequestRefused,
    run::{self, Run},
    turn::Turn,
};

use super::{JournalEntry, RunChange};

/// All rows of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunTables {
    pub run: Option<Run>,
    pub inbound: BTreeMap<MessageKey, Inbound>,
    pub turns: BTreeMap<TurnId, Turn>,
    pub interactions: BTreeMap<InteractionId, Interaction>,
    pub deliveries: BTreeMap<DeliveryId, Delivery>,
    /// The keys that the run has claimed.
    pub claims: Vec<KeyClaim>,
}

impl RunTables {
    /// Derives the tables from all entries of a run, beginning with the first.
    pub fn derive<'a>(entries: impl IntoIterator<Item = &'a JournalEntry>) -> Result<Self, JournalMismatch> {
        let mut tables = Self::default();
        for entry in entries {
            tables.apply_entry(entry)?;
        }
        Ok(tables)
    }

    /// Applies the run's next entry to the tables derived from the entries before it.
    pub fn apply_entry(&mut self, entry: &JournalEntry) -> Result<(), JournalMismatch> {
        let step = run::apply(self.run.as_ref(), &entry.stamp, &entry.event)
            .map_err(|refused| JournalMismatch::EventRefused { entry: Box::new(entry.clone()), refused })?;
        let change = RunChange::new(self.run.as_ref(), entry.stamp, entry.event.clone(), step);
        if change.run.revision != entry.revision {
            return Err(JournalMismatch::Revision {
                run_id: entry.run_id,
                found: entry.revision,
                derived: change.run.revision,
            });
        }
        self.apply_change(change);
        Ok(())
    }

    /// Writes the rows of a change.
    pub fn apply_change(&mut self, change: RunChange) {
        self.claims.extend(change.claims());
        self.claims.sort();
        self.inbound.extend(change.inbound().map(|row| (row.message.key.clone(), row.clone())));
        self.turns.extend(change.turns().map(|row| (row.turn_id, row.clone())));
        self.interactions.extend(change.interactions().map(|row| (row.interaction_id, row.clone())));
        self.deliveries.extend(change.deliveries().map(|row| (row.delivery_id, row.clone())));
        self.run = Some(Arc::unwrap_or_clone(change.run));
    }

    /// The names of the tables in which two sets of rows differ.
    pub fn differing_tables(&self, other: &Self) -> Vec<&'static str> {
        let mut differing = Vec::new();
        let mut compare = |name, same: bool| {
            if !same {
                differing.push(name);
            }
        };
        compare("runs", self.run == other.run);
        compare("inbound", self.inbound == other.inbound);
        compare("turns", self.turns == other.turns);
        compare("interactions", self.interactions == other.interactions);
        compare("deliveries", self.deliveries == other.deliveries);
        compare("claims", self.claims == other.claims);
        differing
    }
}

/// A difference between a run's tables and its journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalMismatch {
    /// The rows differ from those derived from the journal.
    #[error("run {run_id}: the tables differ from the journal in {}", tables.join(", "))]
    Rows {
        run_id: RunId,
        /// The tables that differ.
        tables: Vec<&'static str>,
    },
    /// The journal contains an event that the domain refuses at that position.
    #[error("run {}: entry {} is not valid after the entries before it: {refused}", entry.run_id, entry.seq.0)]
    EventRefused { entry: Box<JournalEntry>, refused: RequestRefused },
    /// An entry is missing or duplicated.
    #[error("run {run_id}: an entry has the revision {found} instead of {derived}")]
    Revision {
        run_id: RunId,
        /// The revision in the journal.
        found: u64,
        /// The expected revision.
        derived: u64,
    },
}
