//! `abide agent show`: prints the journal of a state folder and the open question. Read-only.

use std::{io::Write, process::ExitCode};

use abide_agent::{
    ask_human::HumanQuestion,
    journal::{AgentJournal, ParsedJournal},
    journal_state::JournalState,
};

use super::{AgentPaths, event_text, prompt};
use crate::{args::AgentShow, error::CliError, exit::SUCCEEDED, table::ColourMode, terminal_text};

pub(super) fn run(arguments: &AgentShow) -> anyhow::Result<ExitCode> {
    let paths = AgentPaths::of(&arguments.paths)?;
    let journal = match paths.existing_state()? {
        Some(state) => AgentJournal::read(&state)?,
        None => ParsedJournal::default(),
    };
    if journal.entries.is_empty() && journal.torn_tail.is_none() {
        let detail = format!("there is no run in {}; `abide agent run` starts one", paths.state.display());
        return Err(CliError::failure("NOT_FOUND", detail).into());
    }
    let mut out = std::io::stdout().lock();
    if arguments.output.json {
        for entry in &journal.entries {
            writeln!(out, "{}", entry.to_line()?)?;
        }
        return Ok(SUCCEEDED);
    }
    let colour = ColourMode::of_stdout();
    let mut journal_state = JournalState::default();
    for entry in &journal.entries {
        // An inconsistent entry is still printed; `run` reports it with its line number.
        journal_state.apply(&entry.event).ok();
        if let Some(line) = event_text::format_event(&entry.event, colour) {
            writeln!(out, "{line}")?;
        }
    }
    if journal.torn_tail.is_some() {
        writeln!(out, "(a crash truncated the last event; the next run moves it to another file)")?;
    }
    let open: Vec<&str> = journal_state.sessions().map(|(id, _)| id).collect();
    if !open.is_empty() {
        writeln!(out, "open sessions: {}", terminal_text::one_line(&open.join(", ")))?;
    }
    if let Some(question) =
        journal_state.question().and_then(|request| HumanQuestion::from_request(request).ok())
    {
        for line in prompt::lines(&question, colour) {
            writeln!(out, "{line}")?;
        }
        writeln!(out, "answer it with: abide agent run --answer '…'")?;
    }
    Ok(SUCCEEDED)
}
