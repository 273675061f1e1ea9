//! The memory of a server: what came in, how it was treated, and how it ended.

use super::{heard::Heard, watched::Watched};

/// A request to the model and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    pub heard: Heard,
    pub treatment: Treatment,
    pub end: End,
}

/// Who decided the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Treatment {
    /// A turn that a rule or the queue answered.
    Scripted,
    /// A turn that got the default answer.
    Default,
    /// A side request that a rule answered.
    ScriptedSide,
    /// A side request that nobody had an opinion about.
    Side,
    /// It came with a wrong key.
    Unauthorised,
    /// Its messages were in no order that a service accepts.
    Faulty(Vec<String>),
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It has not yet.
    Open,
    /// All of it went out.
    Whole,
    /// It was cut as scripted.
    Cut,
    /// The program went away before it was complete.
    Abandoned,
}

/// A request for something else than an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    pub method: String,
    pub path: String,
}

#[derive(Debug, Default)]
pub(super) struct Record {
    pub exchanges: Vec<Exchange>,
    pub visits: Vec<Visit>,
}

/// Writes how an answer ended, even when it is dropped half way.
#[derive(Debug)]
pub(super) struct Ending {
    record: std::sync::Arc<Watched<Record>>,
    at: usize,
    end: End,
}

impl Treatment {
    /// Whether it was a turn of a conversation, as opposed to a side request or a refused one.
    pub fn is_turn(&self) -> bool {
        match self {
            Self::Scripted | Self::Default => true,
            Self::ScriptedSide | Self::Side | Self::Unauthorised | Self::Faulty(_) => false,
        }
    }
}

impl Ending {
    pub(super) fn new(record: std::sync::Arc<Watched<Record>>, at: usize) -> Self {
        Self { record, at, end: End::Abandoned }
    }

    pub(super) fn will_be(&mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let (at, end) = (self.at, self.end);
        self.record.update(|record| record.exchanges[at].end = end);
    }
}
