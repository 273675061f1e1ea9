//! How a run of the agent is told while it happens: lines for people on standard error, or every event as JSON on
//! standard output. The answer itself is printed by `run`.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use abide_agent::{
    event::{AgentEvent, AgentJournalEntry},
    hands::{AgentObserver, HumanReply},
    human::HumanQuestion,
    model::ReplyDelta,
};
use serde_json::json;

use super::{person, story};
use crate::{table::ColourMode, text, trouble::note};

/// Whoever started the agent.
pub(super) struct CliAgentObserver<'a> {
    pub(super) json: bool,
    /// The name of its session, until that was said. It is said once there is something to go on with.
    pub(super) session: Option<String>,
    pub(super) interrupt: &'a AtomicBool,
}

impl CliAgentObserver<'_> {
    /// Says which session this is, if it has a name and nobody was told.
    pub(super) fn announce(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take().filter(|_| self.json) else { return Ok(()) };
        let mut out = io::stdout().lock();
        writeln!(out, "{}", json!({ "type": "session", "session_id": session }))?;
        out.flush()
    }
}

impl AgentObserver for CliAgentObserver<'_> {
    fn happened(&mut self, entry: &AgentJournalEntry, line: &str) {
        if self.json {
            let told = self.announce().and_then(|()| {
                let mut out = io::stdout().lock();
                writeln!(out, "{line}").and_then(|()| out.flush())
            });
            if told.is_err() {
                // Nobody hears us any more: what is begun is ended in order, and the next command goes on.
                self.interrupt.store(true, Ordering::Relaxed);
            }
            return;
        }
        // The answer goes to standard output, once.
        let is_answer = matches!(&entry.event, AgentEvent::Thought(thought) if thought.is_answer());
        if !is_answer && let Some(line) = story::line(&entry.event, ColourMode::of_stderr()) {
            note(line);
        }
    }

    fn saying(&mut self, piece: ReplyDelta<'_>) {
        match piece {
            ReplyDelta::Retry { attempt, of, wait, why } => note(format_args!(
                "abide: {}; attempt {attempt} of {of} in {} ms",
                text::one_line(why),
                wait.as_millis()
            )),
            ReplyDelta::Text(_) | ReplyDelta::Reasoning(_) | ReplyDelta::Call(_) => {}
        }
    }

    fn note(&mut self, text: &str) {
        note(format_args!("abide: {}", text::tame(text)));
    }

    fn ask(&mut self, question: &HumanQuestion) -> HumanReply {
        // A program that reads events answers by starting us again.
        if self.json { HumanReply::Nobody } else { person::ask(question, self.interrupt) }
    }
}
