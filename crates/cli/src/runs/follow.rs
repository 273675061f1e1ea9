//! Follows a run: prints its events to standard error, asks its questions on a terminal, and prints its results.
//!
//! Printed lines come from events, each once and in order. The next action (ask, continue, exit) is derived from the
//! run's state, which is read again after the events are printed. A question answered elsewhere is therefore withdrawn,
//! and a restart of the daemon has no effect except a printed line.

use std::{process::ExitCode, time::Duration};

use abide_wire::{
    event::{EventEnvelope, RunEventView, TurnOutcomeValue},
    interaction::InteractionView,
    run::{ExecutionModeValue, RunStatusValue, RunView},
};
use serde_json::json;

use super::{
    console::{ConsoleEvent, InputConsole, InputInterest},
    event_text::{self, EventSeverity},
    input_buffer::{InputBuffer, SendResult, TypedResult},
    print_json, print_text, question,
    status_line::StatusLine,
    times,
};
use crate::{
    client::{DaemonClient, EventFeed, FeedUpdate},
    error::{CliError, eprint_line},
    exit,
    table::TextStyle,
    terminal_text,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowMode {
    /// Asks questions, and exits with the result.
    Task,
    /// Sends all input as messages.
    Conversation,
}

/// State of following one run.
#[derive(Debug)]
pub(super) struct FollowSession<'a> {
    client: &'a DaemonClient,
    run: RunView,
    mode: FollowMode,
    json: bool,
    interactive: bool,
    feed: EventFeed,
    console: InputConsole,
    status_line: StatusLine,
    /// Sequence number of the last printed event.
    last_seq: u64,
    /// Whether the run may have changed since it was read.
    stale: bool,
    /// Index of the last turn whose result was printed.
    last_printed_turn: u32,
    /// Ids of turns that ended with a question.
    question_turns: Vec<String>,
    /// The question shown on the terminal.
    shown_question: Option<InteractionView>,
    /// Whether a prompt is shown, after which the user may be typing.
    prompt_shown: bool,
    input: InputBuffer,
    /// Last progress text of the current turn.
    progress: String,
    turn: u32,
    started_at_sec: i64,
}

/// Delay before a request is retried that the daemon could not serve.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Interval at which the status line is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

impl<'a> FollowSession<'a> {
    /// Follows a run after the given event. From now on ctrl-c is handled as an event.
    pub(super) fn new(
        client: &'a DaemonClient,
        console: InputConsole,
        run: RunView,
        seen: u64,
        mode: FollowMode,
        json: bool,
    ) -> anyhow::Result<Self> {
        let feed = EventFeed::follow(client, &run.run_id, seen)?;
        let person = InputConsole::is_interactive() && !json;
        Ok(Self {
            client,
            run,
            mode,
            json,
            interactive: person,
            feed,
            console,
            status_line: StatusLine::new(json),
            last_seq: seen,
            stale: true,
            last_printed_turn: 0,
            question_turns: Vec::new(),
            shown_question: None,
            prompt_shown: false,
            input: InputBuffer::default(),
            progress: String::new(),
            turn: 0,
            started_at_sec: times::now_seconds(),
        })
    }

    /// Marks the results of turns up to this one as printed.
    pub(super) fn with_printed_turns(mut self, turn: u32) -> Self {
        self.last_printed_turn = turn;
        self
    }

    /// Follows until the run ends, or waits without a person to ask, or the user leaves.
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        loop {
            while let Some(update) = self.feed.try_next() {
                self.handle_update(update)?;
            }
            if self.stale
                && let Some(code) = self.refresh()?
            {
                return Ok(code);
            }
            let longest = match (self.stale, self.shows_status()) {
                (true, _) => Some(RETRY_DELAY),
                (false, true) => Some(REDRAW_INTERVAL),
                (false, false) => None,
            };
            match self.console.wait(self.feed.wakeup(), self.input_interest(), longest)? {
                ConsoleEvent::Wakeup => {}
                ConsoleEvent::TimedOut => self.draw_status(),
                ConsoleEvent::Input(text) => self.on_input(&text),
                ConsoleEvent::Closed => return Ok(self.on_end_of_input()),
                ConsoleEvent::Interrupted => return Ok(self.on_interrupt()),
            }
        }
    }

    fn handle_update(&mut self, update: FeedUpdate) -> anyhow::Result<()> {
        match update {
            FeedUpdate::Event(event) => self.print_event(&event),
            FeedUpdate::Disconnected => {
                self.end_prompt_line();
                self.status_line.line(
                    "abide: the connection to the daemon is lost; waiting for the daemon (`abide up --detach` starts it, \
                     ctrl-c detaches)",
                );
            }
            FeedUpdate::Reconnected => {
                self.end_prompt_line();
                self.status_line.line("abide: connected to the daemon again");
                self.shown_question = None;
                self.stale = true;
            }
            FeedUpdate::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn print_event(&mut self, event: &EventEnvelope) {
        if event.seq <= self.last_seq {
            return;
        }
        self.last_seq = event.seq;
        self.stale |= event_text::may_change_run(event);
        if self.input.is_own_event(event) {
            return;
        }
        let Some(event_line) = event_text::format_event(event) else { return };
        // The result of a turn and its question are printed elsewhere, so they are not repeated here.
        let is_printed_elsewhere = match event.event.known() {
            Some(RunEventView::TurnEnded(_)) => event_line.severity == EventSeverity::Step,
            Some(RunEventView::GateRaised(_)) => true,
            Some(_) | None => false,
        };
        match event_line.severity {
            EventSeverity::Detail => {}
            EventSeverity::Progress if self.shows_status() => {
                self.progress = event_line.line;
                self.draw_status();
            }
            EventSeverity::Progress | EventSeverity::Step | EventSeverity::Problem
                if !is_printed_elsewhere =>
            {
                self.end_prompt_line();
                let line = self.status_line.colour.text(event_line.severity.style(), event_line.line);
                self.status_line.line(&line);
            }
            EventSeverity::Progress | EventSeverity::Step | EventSeverity::Problem => {}
        }
        if let Some(RunEventView::TurnEnded(end)) = event.event.known()
            && end.outcome == TurnOutcomeValue::Asked
        {
            self.question_turns.push(end.turn_id.clone());
            if let Some(words) = event_line.full_text {
                self.end_prompt_line();
                self.status_line.line(&terminal_text::escape_control_chars(&words));
            }
        }
    }

    /// Reads the run and reacts to its state. Returns the exit code if following has ended.
    fn refresh(&mut self) -> anyhow::Result<Option<ExitCode>> {
        self.send();
        while self.stale {
            self.stale = false;
            match self.load_run() {
                Ok(run) => self.run = run,
                Err(error) if is_transient(&error) => {
                    self.stale = true;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        // Unsent input is retried in the next iteration.
        self.stale = self.input.has_unsent();
        let turn = std::mem::replace(&mut self.turn, self.run.turn_index);
        if turn != 0 && turn != self.run.turn_index {
            self.progress.clear();
        }
        match self.run.status {
            RunStatusValue::Queued | RunStatusValue::Running => {
                self.withdraw_question();
                self.draw_status();
                Ok(None)
            }
            RunStatusValue::WaitingUser => self.show_question(),
            RunStatusValue::Idle => Ok(self.on_idle()),
            RunStatusValue::Succeeded | RunStatusValue::Failed | RunStatusValue::Canceled => {
                self.on_ended().map(Some)
            }
        }
    }

    /// Reads the run, after printing all events up to its state.
    fn load_run(&mut self) -> anyhow::Result<RunView> {
        let run = self.client.run_now(&self.run.run_id)?;
        // New events may have changed the run since it was read.
        let (events, all) = self.client.events_now(&run.run_id, self.last_seq)?;
        events.iter().for_each(|event| self.print_event(event));
        self.stale |= !all;
        if self.mode == FollowMode::Conversation
            && run.execution_mode == ExecutionModeValue::Chat
            && !self.json
        {
            self.print_turns()?;
        }
        Ok(run)
    }

    /// Prints results of turns since the last call. Text before a question is printed with the question.
    fn print_turns(&mut self) -> anyhow::Result<()> {
        for turn in self.client.turns_now(&self.run.run_id, self.last_printed_turn)? {
            if turn.execution_status != "completed" {
                continue;
            }
            self.last_printed_turn = turn.turn_index;
            if let Some(reply) = turn.reply.filter(|_| !self.question_turns.contains(&turn.turn_id)) {
                self.end_prompt_line();
                self.status_line.clear();
                print_text(&reply)?;
            }
        }
        Ok(())
    }

    fn show_question(&mut self) -> anyhow::Result<Option<ExitCode>> {
        let Some(pending) = self.run.pending_interaction_id.clone() else { return Ok(None) };
        if self.input.has_unsent() {
            return Ok(None);
        }
        if self.shown_question.as_ref().is_some_and(|interaction| interaction.interaction_id == pending) {
            self.prompt();
            return Ok(None);
        }
        self.withdraw_question();
        let interaction = match self.client.interaction_now(&self.run.run_id, &pending) {
            Ok(interaction) => interaction,
            Err(error) if error.is_transient() => None,
            Err(error) => return Err(error.into()),
        };
        let Some(question) = interaction else {
            self.stale = true;
            return Ok(None);
        };
        if !self.interactive {
            return self.exit_waiting(&question).map(Some);
        }
        for line in question::lines(&question, self.status_line.colour) {
            self.status_line.line(&line);
        }
        let advice =
            self.status_line.colour.text(TextStyle::Dim, format!("  ({})", question::answer_hint(&question)));
        self.status_line.line(&advice);
        if let Some(deadline) = &question.deadline_at {
            let line = format!("  (it waits for {})", times::time_until(deadline));
            let line = self.status_line.colour.text(TextStyle::Dim, line);
            self.status_line.line(&line);
        }
        self.console.discard_pending_input();
        self.shown_question = Some(question);
        self.prompt();
        Ok(None)
    }

    fn exit_waiting(&mut self, question: &InteractionView) -> anyhow::Result<ExitCode> {
        if self.json {
            print_json(&self.run)?;
            let detail =
                format!("the run waits for a person; answer with `{}`", question::reply_command(question));
            eprint_line(json!({ "code": "WAITING_FOR_PERSON", "detail": detail, "interaction": question }));
            return Ok(exit::waiting());
        }
        for line in question::lines(question, self.status_line.colour) {
            self.status_line.line(&line);
        }
        self.status_line.line(&format!(
            "abide: the run waits for a person; answer with: {}",
            question::reply_command(question)
        ));
        self.status_line.line(&format!("abide: and follow it with: abide attach {}", self.run.run_id));
        Ok(exit::waiting())
    }

    fn on_idle(&mut self) -> Option<ExitCode> {
        self.withdraw_question();
        if self.input.has_unsent() {
            return None;
        }
        if self.interactive && self.mode == FollowMode::Conversation {
            self.prompt();
            return None;
        }
        if self.json {
            // A closed stdout does not change the exit code.
            print_json(&self.run).ok();
        }
        self.status_line.line(&format!("abide: it is your turn: abide send {} '…'", self.run.run_id));
        Some(exit::run_exit_code(RunStatusValue::Idle))
    }

    fn on_ended(&mut self) -> anyhow::Result<ExitCode> {
        self.withdraw_question();
        self.status_line.clear();
        if self.json {
            print_json(&self.run)?;
            return Ok(exit::run_exit_code(self.run.status));
        }
        // The results of a chat have been printed as they arrived.
        let was_printed =
            self.mode == FollowMode::Conversation && self.run.execution_mode == ExecutionModeValue::Chat;
        if let (Some(result), false) = (&self.run.result, was_printed) {
            print_text(&result.text)?;
        }
        if let Some(error) = &self.run.error {
            let (code, message) =
                (terminal_text::one_line(&error.code), terminal_text::escape_control_chars(&error.message));
            let line = format!(
                "abide: {} {}: {message} ({code})",
                self.run.run_id,
                super::status_name(self.run.status)
            );
            let line = self.status_line.colour.text(TextStyle::Error, line);
            self.status_line.line(&line);
            self.status_line.line(&format!("abide: details: abide show {}", self.run.run_id));
        }
        Ok(exit::run_exit_code(self.run.status))
    }

    fn on_input(&mut self, typed: &str) {
        self.prompt_shown = false;
        match self.input.push_line(typed, self.shown_question.as_ref()) {
            TypedResult::Continues => self.prompt(),
            TypedResult::Empty | TypedResult::Ready => self.stale = true,
            TypedResult::Invalid(reason) => {
                self.status_line.line(&reason);
                self.prompt();
            }
        }
    }

    /// Sends the input. Retries use the same idempotency key.
    fn send(&mut self) {
        match self.input.send(self.client, &self.run.run_id) {
            SendResult::NothingToSend | SendResult::Retry => {}
            SendResult::Accepted => self.shown_question = None,
            SendResult::Refused(error) => {
                self.shown_question = None;
                let line = self.status_line.colour.text(TextStyle::Error, format!("abide: {error}"));
                self.status_line.line(&line);
            }
        }
    }

    /// Stops following; the run continues.
    fn on_interrupt(&mut self) -> ExitCode {
        self.end_prompt_line();
        self.status_line.clear();
        if self.input.has_unsent() {
            eprint_line("abide: the last input was not sent to the daemon");
        }
        let id = &self.run.run_id;
        eprint_line(format_args!(
            "abide: detached; the run continues. Follow it: abide attach {id}. End it: abide cancel {id}"
        ));
        exit::interrupted()
    }

    /// Handles the end of the input.
    fn on_end_of_input(&mut self) -> ExitCode {
        self.end_prompt_line();
        let id = &self.run.run_id;
        match &self.shown_question {
            Some(question) => {
                eprint_line(format_args!(
                    "abide: the question stays open; answer with: {}, or follow the run: abide attach {id}",
                    question::reply_command(question)
                ));
                exit::waiting()
            }
            None => {
                eprint_line(format_args!("abide: detached; follow the run: abide attach {id}"));
                exit::run_exit_code(RunStatusValue::Idle)
            }
        }
    }

    fn input_interest(&self) -> InputInterest {
        let talks = self.mode == FollowMode::Conversation && self.interactive;
        if !self.input.has_unsent() && (self.shown_question.is_some() || talks) {
            InputInterest::Read
        } else {
            InputInterest::Ignore
        }
    }

    /// Prints the prompt, unless it is shown.
    fn prompt(&mut self) {
        if !std::mem::replace(&mut self.prompt_shown, true) {
            self.status_line.prompt(if self.input.is_multiline() { "… " } else { "> " });
        }
    }

    /// Begins a new line if a prompt is shown.
    fn end_prompt_line(&mut self) {
        if std::mem::take(&mut self.prompt_shown) {
            self.status_line.line("");
        }
    }

    /// Withdraws a question that can no longer be answered here.
    fn withdraw_question(&mut self) {
        if self.shown_question.take().is_some() {
            self.end_prompt_line();
            self.console.discard_pending_input();
            self.input.discard_draft();
            self.status_line.line("abide: the question is no longer open");
        }
    }

    fn shows_status(&self) -> bool {
        let works = matches!(self.run.status, RunStatusValue::Queued | RunStatusValue::Running);
        works && self.status_line.is_live() && !self.prompt_shown && self.mode == FollowMode::Task
    }

    fn draw_status(&mut self) {
        if !self.shows_status() {
            return;
        }
        let queue_text =
            self.run.queue_position.map(|place| format!(", {place} in the queue")).unwrap_or_default();
        let progress = if self.progress.is_empty() { String::new() } else { format!(": {}", self.progress) };
        self.status_line.draw(&format!(
            "{}{queue_text} {} (turn {}){progress}",
            super::status_name(self.run.status),
            times::format_duration(times::now_seconds() - self.started_at_sec),
            self.run.turn_index,
        ));
    }
}

/// Returns whether a retry may succeed soon.
fn is_transient(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CliError>().is_some_and(CliError::is_transient)
}
