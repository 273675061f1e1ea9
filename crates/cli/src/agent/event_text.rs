//! Formats agent events as text, about one line each.

use abide_agent::event::{ActionStatus, AgentEvent, EndStatus, MessageLevel};

use crate::{
    table::{ColourMode, TextStyle},
    terminal_text,
};

/// Formats an event; `None` for events that are not shown.
pub(super) fn format_event(event: &AgentEvent, colour: ColourMode) -> Option<String> {
    let cut = |words: &str| terminal_text::truncate(&terminal_text::one_line(words), MAX_LINE_COLUMNS);
    Some(match event {
        AgentEvent::RunStart(start) => {
            colour.text(TextStyle::Dim, format!("{} with {}", start.run_id, cut(&start.model)))
        }
        AgentEvent::RunEnd(end) => {
            let reason = end.reason.as_deref().map(|reason| format!(": {}", terminal_text::one_line(reason)));
            let word = match end.status {
                EndStatus::Completed => "completed",
                EndStatus::Failed => "failed",
                EndStatus::BudgetExhausted => "budget exhausted",
            };
            let figures = format!(
                "{} iterations, {} tokens in, {} out",
                end.iterations, end.usage.input_tokens, end.usage.output_tokens
            );
            colour.text(TextStyle::Dim, format!("{word}{} ({figures})", reason.unwrap_or_default()))
        }
        AgentEvent::UserMessage(message) => {
            format!("{} {}", colour.text(TextStyle::Heading, ">"), cut(&message.text))
        }
        AgentEvent::Thought(thought) => {
            let text = thought.text.as_deref().filter(|text| !text.trim().is_empty())?;
            terminal_text::escape_control_chars(text.trim_end())
        }
        AgentEvent::ActionRequest(request) => {
            let arguments = match &request.tool_args_raw {
                Some(raw) => raw.clone(),
                None => request.tool_args.to_string(),
            };
            let name = terminal_text::one_line(&request.tool_name);
            format!("{} {name} {}", colour.text(TextStyle::Warning, "*"), cut(&arguments))
        }
        AgentEvent::ActionResult(result) => {
            let style = match result.status {
                ActionStatus::Success => TextStyle::Dim,
                ActionStatus::Error
                | ActionStatus::TimedOut
                | ActionStatus::Unknown
                | ActionStatus::Interrupted => TextStyle::Error,
            };
            let code = result.exit_code.filter(|code| *code != 0).map(|code| format!("exit {code}: "));
            let words = cut(&result.observation_content);
            colour.text(style, format!("  {}{words}", code.unwrap_or_default()))
        }
        AgentEvent::SystemMessage(message) => match message.level {
            MessageLevel::Info => colour.text(TextStyle::Dim, cut(&message.content)),
            MessageLevel::Warn => colour.text(TextStyle::Warning, terminal_text::one_line(&message.content)),
        },
    })
}

/// Maximum length of a text in a line, in columns.
const MAX_LINE_COLUMNS: usize = 160;
