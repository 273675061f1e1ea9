//! Lines of an agent that are too long to be read: requests are refused under their ids, and a turn that cannot go on
//! without such a line fails.

use abide_domain::event::TurnOutcome;
use abide_ports::engine::{EngineSessionStatus, FactKind};

use super::{AcpPhase, AcpReader, AcpTurn};
use crate::{
    acp::words,
    head::JsonMembers,
    tongue::{FactSink, LineProtocol as _, LongLine},
};

impl AcpReader {
    /// A line of which only the beginning is known.
    pub(super) fn skipped(&mut self, line: &LongLine<'_>, facts: &mut FactSink) {
        // What is no object is no message.
        let Some(members) = JsonMembers::of(line.head) else { return };
        let what = match (members.text("method").as_deref(), members.raw("id")) {
            // Told for people who watch. What a request needs of it is declined then.
            (Some("session/update" | "$/cancel_request"), None) => return,
            (Some(_), Some(id)) => return facts.say(FactKind::Write(words::too_long(id))),
            (Some(_), None) => "a request",
            (None, _) => "an answer",
        };
        let failure = line.failure(what);
        match self.phase {
            AcpPhase::Greeting | AcpPhase::Opening { .. } | AcpPhase::Setting(..) => {
                self.give_up(failure, facts)
            }
            AcpPhase::Talking => match self.status() {
                EngineSessionStatus::Working | EngineSessionStatus::AtGate => {
                    self.turn = AcpTurn::default();
                    self.ended += 1;
                    self.gates.forget();
                    facts.ended(self.ended, TurnOutcome::Failed { failure });
                }
                EngineSessionStatus::Starting
                | EngineSessionStatus::BetweenTurns
                | EngineSessionStatus::Over => {}
            },
            AcpPhase::Broken => {}
        }
    }
}
