//! The server's record of requests, answers and their ends.

use super::{received::ReceivedRequest, watched_value::WatchedValue};

/// A request to the model, and how it was answered.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelExchange {
    pub request: ReceivedRequest,
    pub answer_source: AnswerSource,
    pub end: AnswerEnd,
}

/// The part of the script that determined the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerSource {
    /// A turn answered by a rule or the queue.
    Scripted,
    /// A turn answered by the default.
    Default,
    /// A side request answered by a rule.
    ScriptedSideRequest,
    /// A side request answered by the default.
    DefaultSideRequest,
    /// Refused because of a wrong API key.
    Unauthorised,
    /// Refused because of its messages' order or form; contains the reasons.
    Faulty(Vec<String>),
}

/// How the sending of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEnd {
    /// Not ended yet.
    Open,
    /// Sent completely.
    Complete,
    /// Truncated as scripted.
    Cut,
    /// The client disconnected before the answer was complete.
    Abandoned,
}

/// A request to another path than those of the model protocols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherRequest {
    pub method: String,
    pub path: String,
}

#[derive(Debug, Default)]
pub(super) struct ExchangeLog {
    pub exchanges: Vec<ModelExchange>,
    pub other_requests: Vec<OtherRequest>,
}

/// Records how an answer ended, also when it is dropped before its end.
#[derive(Debug)]
pub(super) struct AnswerEndGuard {
    record: std::sync::Arc<WatchedValue<ExchangeLog>>,
    index: usize,
    end: AnswerEnd,
}

impl AnswerSource {
    /// Whether it was a turn of a conversation and not a side request or a refused request.
    pub fn is_turn(&self) -> bool {
        match self {
            Self::Scripted | Self::Default => true,
            Self::ScriptedSideRequest | Self::DefaultSideRequest | Self::Unauthorised | Self::Faulty(_) => {
                false
            }
        }
    }
}

impl AnswerEndGuard {
    pub(super) fn new(record: std::sync::Arc<WatchedValue<ExchangeLog>>, at: usize) -> Self {
        Self { record, index: at, end: AnswerEnd::Abandoned }
    }

    pub(super) fn set_end(&mut self, end: AnswerEnd) {
        self.end = end;
    }
}

impl Drop for AnswerEndGuard {
    fn drop(&mut self) {
        let (at, end) = (self.index, self.end);
        self.record.update(|record| record.exchanges[at].end = end);
    }
}
