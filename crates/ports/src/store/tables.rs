//! What the tables hold of one run: the meaning of a change, free of any database.
//!
//! A store that keeps these and nothing else is the memory store; a database is right if it holds the same.

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
    /// The run as it stands.
    pub run: Option<Run>,
    /// Its messages.
    pub inbound: BTreeMap<MessageKey, Inbound>,
    /// Its turns.
    pub turns: BTreeMap<TurnId, Turn>,
    /// Its questions.
    pub interactions: BTreeMap<InteractionId, Interaction>,
    /// Its deliveries.
    pub deliveries: BTreeMap<DeliveryId, Delivery>,
    /// The keys that it has used up.
    pub claims: Vec<KeyClaim>,
}

impl RunTables {
    /// The tables that a run's entries add up to, all of them from the first on.
    pub fn derive<'a>(entries: impl IntoIterator<Item = &'a JournalEntry>) -> Result<Self, JournalMismatch> {
        let mut tables = Self::default();
        for entry in entries {
            tables.follow(entry)?;
        }
        Ok(tables)
    }

    /// Adds the run's next entry to the tables that the entries before it add up to.
    pub fn follow(&mut self, entry: &JournalEntry) -> Result<(), JournalMismatch> {
        let step = run::apply(self.run.as_ref(), &entry.stamp, &entry.event)
            .map_err(|refused| JournalMismatch::Refused { entry: Box::new(entry.clone()), refused })?;
        let change = RunChange::new(self.run.as_ref(), entry.stamp, entry.event.clone(), step);
        if change.run.revision != entry.revision {
            return Err(JournalMismatch::Revision {
                run_id: entry.run_id,
                found: entry.revision,
                derived: change.run.revision,
            });
        }
        self.write(change);
        Ok(())
    }

    /// Writes what a change says.
    pub fn write(&mut self, change: RunChange) {
        self.claims.extend(change.claims());
        self.claims.sort();
        self.inbound.extend(change.inbound().map(|row| (row.message.key.clone(), row.clone())));
        self.turns.extend(change.turns().map(|row| (row.turn_id, row.clone())));
        self.interactions.extend(change.interactions().map(|row| (row.interaction_id, row.clone())));
        self.deliveries.extend(change.deliveries().map(|row| (row.delivery_id, row.clone())));
        self.run = Some(Arc::unwrap_or_clone(change.run));
    }

    /// The names of the tables in which two sets of rows differ.
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
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

/// How a run's tables and its journal disagree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalMismatch {
    /// Rows differ from what the journal adds up to.
    #[error("run {run_id}: the journal adds up to something else in {}", tables.join(", "))]
    Rows {
        /// The run.
        run_id: RunId,
        /// In which tables.
        tables: Vec<&'static str>,
    },
    /// The journal holds an event that the domain refuses at that place.
    #[error("run {}: entry {} cannot follow what is before it: {refused}", entry.run_id, entry.seq.0)]
    Refused {
        /// The entry.
        entry: Box<JournalEntry>,
        /// Why not.
        refused: RequestRefused,
    },
    /// An entry is missing or doubled.
    #[error("run {run_id}: an entry says revision {found} where {derived} is due")]
    Revision {
        /// The run.
        run_id: RunId,
        /// What the journal says.
        found: u64,
        /// What it should say.
        derived: u64,
    },
}
