//! The outcome of a command to run an agent.
//!
//! Exit codes are decided in `cli`.

use serde::Serialize;

use crate::{
    ask_human::HumanQuestion,
    event::{EndStatus, RunEnd},
};

/// The outcome of a run, or its present state.
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
    /// The run waits for the answer of a person.
    Waiting {
        question: HumanQuestion,
    },
    /// A person stopped the run; the same command continues it.
    Interrupted,
}

impl AgentOutcome {
    /// The outcome of a run that has ended.
    pub fn of(end: &RunEnd) -> Self {
        let reason = end.reason.clone().unwrap_or_default();
        match end.status {
            EndStatus::Completed => Self::Completed { answer: end.answer.clone().unwrap_or_default() },
            EndStatus::Failed => Self::Failed { reason },
            EndStatus::BudgetExhausted => Self::BudgetExhausted { reason },
        }
    }
}
