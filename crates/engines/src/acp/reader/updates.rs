//! Updates and requests that the agent sends during a turn.

use abide_ports::engine::FactKind;
use serde_json::value::RawValue;

use super::{AcpPhase, AcpReader};
use crate::{
    acp::{
        gates::reject_option_id,
        messages::{AcpChunk, RequestPermissionParams, SessionUpdateParams, parse_part},
        requests,
        tool_calls::IncompleteRequest,
    },
    line_protocol::FactSink,
};

impl AcpReader {
    /// Processes a chunk of the session's current message; `None` if the line is not one.
    pub(super) fn try_text_chunk(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        let AcpChunk { method, params } = serde_json::from_slice(line).ok()?;
        let (update, ours) = (params.update, self.session.as_deref());
        let is_text = method == "session/update" && update.session_update == "agent_message_chunk";
        if !is_text || ours != Some(&*params.session_id) {
            return None;
        }
        let message = Some(&*update.message_id).filter(|id| !id.is_empty());
        self.turn.has_output = true;
        self.turn.is_thinking = false;
        self.turn.on_text(update.content.text, message, facts);
        Some(())
    }

    pub(super) fn on_session_update(
        &mut self,
        updated: SessionUpdateParams<'_>,
        facts: &mut FactSink,
    ) -> Option<()> {
        let SessionUpdateParams { session_id, update } = updated;
        let is_ours = session_id.is_none_or(|id| Some(&*id) == self.session.as_deref());
        let is_new = match self.phase {
            AcpPhase::Ready => true,
            AcpPhase::Initializing
            | AcpPhase::OpeningSession { .. }
            | AcpPhase::ApplyingSettings(..)
            | AcpPhase::Failed => false,
        };
        let tells = is_ours && is_new;
        match &*update.session_update {
            "agent_message_chunk" | "agent_thought_chunk" | "tool_call" | "tool_call_update" | "plan"
                if tells =>
            {
                self.turn.has_output = true;
                if let Some(id) = update.tool_call_id.as_deref() {
                    match update.status.as_deref() {
                        Some("completed" | "failed") => self.gates.announced.remove(id),
                        Some(_) | None => self.gates.announced.record(id, update.raw_input, update.content),
                    }
                }
                self.turn.on_update(&update, facts);
            }
            "user_message_chunk" if tells => self.turn.reset_answer(),
            // An agent may end its turn normally and return the error as its answer, but it reports the error here.
            "session_info_update" if tells => {
                if let Some(status) = update.thread_status() {
                    self.turn.is_broken = status == "systemError";
                }
            }
            // History, updates of other sessions, and updates that only editors show.
            "agent_message_chunk"
            | "agent_thought_chunk"
            | "tool_call"
            | "tool_call_update"
            | "plan"
            | "user_message_chunk"
            | "available_commands_update"
            | "config_option_update"
            | "current_mode_update"
            | "session_info_update"
            | "usage_update" => {}
            _ => return None,
        }
        Some(())
    }

    /// Processes a request of the agent.
    pub(super) fn on_request(
        &mut self,
        method: &str,
        id: &RawValue,
        params: Option<&RawValue>,
        facts: &mut FactSink,
    ) {
        if method != "session/request_permission" {
            return facts.push(FactKind::WriteStdin(requests::method_not_found(id)));
        }
        match (&self.phase, params, parse_part::<RequestPermissionParams<'_>>(params)) {
            (AcpPhase::Ready, Some(params), Some(request)) => {
                self.turn.has_output = true;
                let purpose = abide_domain::interaction::GatePurpose::Approval;
                match self.gates.open(self.ended_turns + 1, id, params, &request) {
                    Ok((gate, question)) => facts.push(FactKind::Gate { gate_id: gate, purpose, question }),
                    Err(IncompleteRequest) => {
                        let warning = "a permission request was declined: its input was in an earlier message that was \
                                       too long to keep, and the request does not repeat it";
                        facts.push(FactKind::Warning(warning.to_owned()));
                        facts.push(FactKind::WriteStdin(requests::permission(
                            id,
                            reject_option_id(&request).as_deref(),
                        )));
                    }
                }
            }
            // A person cannot be asked before a turn has begun, or about a request that cannot be parsed.
            (
                AcpPhase::Ready
                | AcpPhase::Initializing
                | AcpPhase::OpeningSession { .. }
                | AcpPhase::ApplyingSettings(..)
                | AcpPhase::Failed,
                ..,
            ) => facts.push(FactKind::WriteStdin(requests::permission(id, None))),
        }
    }
}
