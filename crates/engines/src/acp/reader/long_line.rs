//! Lines of an agent that exceed the size limit. Requests are refused by their ids. A turn that depends on such a line
//! fails.

use abide_domain::event::TurnOutcome;
use abide_ports::engine::{EngineSessionStatus, FactKind};

use super::{AcpPhase, AcpReader, AcpTurn};
use crate::{
    acp::requests,
    json_head::JsonMembers,
    line_protocol::{FactSink, LineProtocol as _, LongLine},
};

impl AcpReader {
    /// Processes a line of which only the beginning is available.
    pub(super) fn on_skipped_line(&mut self, line: &LongLine<'_>, facts: &mut FactSink) {
        // A message is always an object.
        let Some(members) = JsonMembers::of(line.head) else { return };
        let content = match (members.text("method").as_deref(), members.raw("id")) {
            // Updates are informational. A request that depends on a lost update is declined.
            (Some("session/update" | "$/cancel_request"), None) => return,
            (Some(_), Some(id)) => return facts.push(FactKind::WriteStdin(requests::request_too_long(id))),
            (Some(_), None) => "a request",
            (None, _) => "an answer",
        };
        let failure = line.failure(content);
        match self.phase {
            AcpPhase::Initializing | AcpPhase::OpeningSession { .. } | AcpPhase::ApplyingSettings(..) => {
                self.fail_session(failure, facts)
            }
            AcpPhase::Ready => match self.status() {
                EngineSessionStatus::Working | EngineSessionStatus::WaitingForAnswer => {
                    self.turn = AcpTurn::default();
                    self.ended_turns += 1;
                    self.gates.clear();
                    facts.end_turn(self.ended_turns, TurnOutcome::Failed { failure });
                }
                EngineSessionStatus::Starting
                | EngineSessionStatus::BetweenTurns
                | EngineSessionStatus::Exited => {}
            },
            AcpPhase::Failed => {}
        }
    }
}
