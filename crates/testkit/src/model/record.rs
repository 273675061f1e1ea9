//! The memory of a server: what came in, how it was treated, and how it ended.

use super::{heard::ReceivedRequest, watched::WatchedValue};

/// A request to the model and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelExchange {
    pub heard: ReceivedRequest,
    pub treatment: AnswerSource,
    pub end: AnswerEnd,
}

/// Who decided the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerSource {
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
pub enum AnswerEnd {
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
pub struct OtherRequest {
    pub method: String,
    pub path: String,
}

#[derive(Debug, Default)]
pub(super) struct ExchangeLog {
    pub exchanges: Vec<ModelExchange>,
    pub visits: Vec<OtherRequest>,
}

/// Writes how an answer ended, even when it is dropped half way.
#[derive(Debug)]
pub(super) struct AnswerEndGuard {
    record: std::sync::Arc<WatchedValue<ExchangeLog>>,
    at: usize,
    end: AnswerEnd,
}

impl AnswerSource {
    /// Whether it was a turn of a conversation, as opposed to a side request or a refused one.
    pub fn is_turn(&self) -> bool {
        match self {
            Self::Scripted | Self::Default => true,
            Self::ScriptedSide | Self::Side | Self::Unauthorised | Self::Faulty(_) => false,
        }
    }
}

impl AnswerEndGuard {
    pub(super) fn new(record: std::sync::Arc<WatchedValue<ExchangeLog>>, at: usize) -> Self {
        Self { record, at, end: AnswerEnd::Abandoned }
    }

    pub(super) fn will_be(&mut self, end: AnswerEnd) {
        self.end = end;
    }
}

impl Drop for AnswerEndGuard {
    fn drop(&mut self) {
        let (at, end) = (self.at, self.end);
        self.record.update(|record| record.exchanges[at].end = end);
    }
}
