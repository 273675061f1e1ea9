//! Progress of an agent run: lines for people on standard error, or all events as JSON on standard output. The answer
//! is printed by `run`.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use abide_agent::{
    ask_human::HumanQuestion,
    environment::{AgentObserver, HumanReply},
    event::{AgentEvent, AgentJournalEntry},
    model::ReplyDelta,
};
use serde_json::json;

use super::{event_text, prompt};
use crate::{error::eprint_line, table::ColourMode, terminal_text};

/// Prints the agent's events and asks its questions.
pub(super) struct CliAgentObserver<'a> {
    pub(super) json: bool,
    /// Name of the session until it is announced. It is announced with the first event, when there is something to
    /// resume.
    pub(super) session: Option<String>,
    pub(super) interrupt: &'a AtomicBool,
}

impl CliAgentObserver<'_> {
    /// Prints the session name in JSON mode, if there is one and it has not been announced.
    pub(super) fn announce(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take().filter(|_| self.json) else { return Ok(()) };
        let mut out = io::stdout().lock();
        writeln!(out, "{}", json!({ "type": "session", "session_id": session }))?;
        out.flush()
    }
}

impl AgentObserver for CliAgentObserver<'_> {
    fn on_entry(&mut self, entry: &AgentJournalEntry, line: &str) {
        if self.json {
            let written = self.announce().and_then(|()| {
                let mut out = io::stdout().lock();
                writeln!(out, "{line}").and_then(|()| out.flush())
            });
            if written.is_err() {
                // The output is closed. The agent is interrupted in order, and the next command resumes it.
                self.interrupt.store(true, Ordering::Relaxed);
            }
            return;
        }
        // The answer is printed once, to standard output.
        let is_answer = matches!(&entry.event, AgentEvent::Thought(thought) if thought.is_answer());
        if !is_answer && let Some(line) = event_text::format_event(&entry.event, ColourMode::of_stderr()) {
            eprint_line(line);
        }
    }

    fn on_reply_delta(&mut self, piece: ReplyDelta<'_>) {
        match piece {
            ReplyDelta::Retry { attempt, max_attempts: of, wait, reason } => eprint_line(format_args!(
                "abide: {}; attempt {attempt} of {of} in {} ms",
                terminal_text::one_line(reason),
                wait.as_millis()
            )),
            ReplyDelta::Text(_) | ReplyDelta::Reasoning(_) | ReplyDelta::Call(_) => {}
        }
    }

    fn on_notice(&mut self, text: &str) {
        eprint_line(format_args!("abide: {}", terminal_text::escape_control_chars(text)));
    }

    fn ask_person(&mut self, question: &HumanQuestion) -> HumanReply {
        // A program that reads JSON events answers with a new command.
        if self.json { HumanReply::NoAnswer } else { prompt::ask(question, self.interrupt) }
    }
}
