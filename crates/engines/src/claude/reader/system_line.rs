//! Lines of the type `system`: the session, retries, refusals and background tasks.

use abide_domain::engine::HandleType;
use abide_ports::engine::FactKind;

use super::ClaudeReader;
use crate::{
    argument,
    claude::{ClaudeForm, messages::ClaudeSystemLine},
    line_protocol::FactSink,
};

impl ClaudeReader {
    pub(super) fn on_system(&mut self, system: &ClaudeSystemLine<'_>, facts: &mut FactSink) -> Option<()> {
        match system.subtype.or_empty() {
            "init" => {
                let id = system.session_id.get().filter(|id| argument::is_valid_session_id(id))?;
                self.turn_running |= !self.unprompted_turn;
                // The session is announced in each turn; only a new id is reported.
                if self.session.as_deref() != Some(id) {
                    self.session = Some(id.to_owned());
                    let value = id.to_owned();
                    facts.push(FactKind::Session { handle_type: HandleType::SessionId, value });
                }
            }
            "api_retry" => {
                let status = system.error_status.map_or_else(String::new, |status| format!(" {status}"));
                facts.push(FactKind::Warning(format!(
                    "the model's service failed ({}{status}); retry {} of {}",
                    system.error.get().unwrap_or("unknown"),
                    system.attempt.unwrap_or_default(),
                    system.max_retries.unwrap_or_default(),
                )));
            }
            "permission_denied" => {
                let (tool, message) = (system.tool_name.or_empty(), system.message.or_empty());
                facts.push(FactKind::Progress(format!("{tool} was refused: {message}")));
            }
            "informational" => facts.push(FactKind::Warning(system.content.or_empty().to_owned())),
            "task_started" | "task_progress" if !self.unprompted_turn => {
                if let Some(description) = system.description.get() {
                    facts.push(FactKind::Progress(description.to_owned()));
                }
            }
            "task_notification" => {
                self.unprompted_turn |= matches!(self.form, ClaudeForm::Stream { .. }) && !self.turn_running
            }
            "background_tasks_changed" => self.has_background_tasks = !system.tasks.is_empty(),
            "compact_boundary" => facts.push(FactKind::Progress("summarised the conversation".to_owned())),
            "status" | "task_started" | "task_progress" | "task_updated" | "hook_started"
            | "hook_progress" | "hook_response" => {}
            _ => return None,
        }
        Some(())
    }
}
