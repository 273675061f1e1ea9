//! How a command to run an agent ended.
//!
//! Not here: exit codes, which are the command line's.

use serde::Serialize;

use crate::{
    event::{EndStatus, RunEnd},
    human::HumanQuestion,
};

/// What became of a run, for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AgentOutcome {
    Completed {
        answer: String,
    },
    Failed {
        reason: String,
    },
    BudgetExhausted {
        reason: String,
    },
    /// A person is to answer this.
    Waiting {
        question: HumanQuestion,
    },
    /// A person stopped it; the same command goes on.
    Interrupted,
}

impl AgentOutcome {
    /// What a run's own end says.
    pub fn of(end: &RunEnd) -> Self {
        let reason = end.reason.clone().unwrap_or_default();
        match end.status {
            EndStatus::Completed => Self::Completed { answer: end.answer.clone().unwrap_or_default() },
            EndStatus::Failed => Self::Failed { reason },
            EndStatus::BudgetExhausted => Self::BudgetExhausted { reason },
        }
    }
}
