//! The encoded rows of a commit, in one buffer.
//!
//! A commit has more than a dozen texts. Separate allocations would be made on one thread and freed on another, which
//! costs more than encoding.

use std::{fmt::Display, io::Write, ops::Index};

use abide_domain::{delivery::Delivery, inbound::Inbound, interaction::Interaction, turn::Turn};
use abide_ports::store::{RunChange, StoreError};
use serde::Serialize;

use crate::record::{DeliveryKeys, EntryRow, InteractionKeys, digest, number};

/// The initial capacity in bytes, sufficient for most commits without growing.
const ROOM: usize = 8 << 10;

/// The encoded texts.
#[derive(Debug)]
pub(crate) struct RowText(String);

/// The range of one text in the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextRange {
    start: usize,
    end: usize,
}

impl Index<TextRange> for RowText {
    type Output = str;

    fn index(&self, part: TextRange) -> &str {
        &self.0[part.start..part.end]
    }
}

/// The buffer to which rows are encoded.
pub(crate) struct RowBuffer(Vec<u8>);

impl RowBuffer {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(ROOM))
    }

    pub(crate) fn done(self) -> Result<RowText, StoreError> {
        String::from_utf8(self.0).map(RowText).map_err(|error| invalid(&error.to_string()))
    }

    /// Appends a plain text.
    pub(crate) fn word(&mut self, word: impl Display) -> TextRange {
        let start = self.0.len();
        // Writing to memory cannot fail.
        let _ = write!(self.0, "{word}");
        TextRange { start, end: self.0.len() }
    }

    /// Appends a value as JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<TextRange, StoreError> {
        let start = self.0.len();
        serde_json::to_writer(&mut self.0, value)
            .map_err(|error| invalid(&format!("a value that JSON cannot hold ({error})")))?;
        Ok(TextRange { start, end: self.0.len() })
    }

    pub(crate) fn inbound(&mut self, row: &Inbound) -> Result<(TextRange, TextRange, TextRange), StoreError> {
        let key = &row.message.key;
        Ok((self.word(&key.channel), self.word(&key.message_id), self.json(row)?))
    }

    pub(crate) fn turn(&mut self, row: &Turn) -> Result<(TextRange, TextRange), StoreError> {
        Ok((self.word(row.turn_id), self.json(row)?))
    }

    pub(crate) fn interaction(
        &mut self,
        row: &Interaction,
    ) -> Result<(TextRange, InteractionKeys, TextRange), StoreError> {
        Ok((self.word(row.interaction_id), InteractionKeys::of(row), self.json(row)?))
    }

    pub(crate) fn delivery(
        &mut self,
        row: &Delivery,
    ) -> Result<(TextRange, DeliveryKeys, TextRange), StoreError> {
        Ok((self.word(row.delivery_id), DeliveryKeys::of(row), self.json(row)?))
    }

    /// Encodes the journal entry of a change. `run` is the range of the run's id.
    pub(crate) fn entry(&mut self, run: TextRange, change: &RunChange) -> Result<EntryRow, StoreError> {
        let (revision, at) = (number(change.run.revision), change.stamp.at.0);
        let (fresh, event) = (self.word(change.stamp.fresh), self.json(&change.event)?);
        let digest = digest(self.at(run), revision, at, self.at(fresh), self.at(event));
        Ok(EntryRow { revision, at, fresh, event, digest })
    }

    fn at(&self, part: TextRange) -> &[u8] {
        &self.0[part.start..part.end]
    }
}

/// The error for a value that cannot be encoded.
pub(crate) fn invalid(what: &str) -> StoreError {
    StoreError::Invalid { what: what.to_owned() }
}
