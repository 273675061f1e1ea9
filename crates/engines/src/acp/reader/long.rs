//! Lines of an agent that are too long to be read: requests are refused under their ids, and a turn that cannot go on
//! without such a line fails.

use abide_domain::event::TurnOutcome;
use abide_ports::engine::{EngineSessionStatus, FactKind};

use super::{Conversation, Phase, Turn};
use crate::{
    acp::words,
    head::Members,
    tongue::{Facts, LongLine, Tongue as _},
};

impl Conversation {
    /// A line of which only the beginning is known.
    pub(super) fn skipped(&mut self, line: &LongLine<'_>, facts: &mut Facts) {
        // What is no object is no message.
        let Some(members) = Members::of(line.head) else { return };
        let what = match (members.text("method").as_deref(), members.raw("id")) {
            // Told for people who watch. What a request needs of it is declined then.
            (Some("session/update" | "$/cancel_request"), None) => return,
            (Some(_), Some(id)) => return facts.say(FactKind::Write(words::too_long(id))),
            (Some(_), None) => "a request",
            (None, _) => "an answer",
        };
        let failure = line.failure(what);
        match self.phase {
            Phase::Greeting | Phase::Opening { .. } | Phase::Setting(..) => self.give_up(failure, facts),
            Phase::Talking => match self.status() {
                EngineSessionStatus::Working | EngineSessionStatus::AtGate => {
                    self.turn = Turn::default();
                    self.ended += 1;
                    self.gates.forget();
                    facts.ended(self.ended, TurnOutcome::Failed { failure });
                }
                EngineSessionStatus::Starting
                | EngineSessionStatus::BetweenTurns
                | EngineSessionStatus::Over => {}
            },
            Phase::Broken => {}
        }
    }
}
