//! Follows a run: prints its events to standard error, asks its questions on a terminal, and prints its results.
//!
//! Printed lines come from events, each once and in order. The next action (ask, continue, exit) is derived from the
//! run's state, which is read again after the events are printed. A question answered elsewhere is therefore withdrawn,
//! and a restart of the daemon has no effect except a printed line.

use std::{process::ExitCode, time::Duration};

use abide_wire::{
    event::EventEnvelope,
    interaction::InteractionView,
    run::{ExecutionModeValue, RunStatusValue, RunView},
};
use serde_json::json;

use super::{
    console::{ConsoleEvent, InputConsole, InputInterest},
    print_json, print_words, question,
    speech::{InputBuffer, SendResult, TypedResult},
    story::{self, EventSeverity},
    voice::StatusLine,
    when,
};
use crate::{
    client::{DaemonClient, EventFeed, FeedUpdate},
    exit,
    table::TextStyle,
    text,
    trouble::{CliError, note},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowMode {
    /// Asks questions, and exits with the result.
    Task,
    /// Sends all input as messages.
    Talk,
}

/// State of following one run.
#[derive(Debug)]
pub(super) struct FollowSession<'a> {
    client: &'a DaemonClient,
    run: RunView,
    manner: FollowMode,
    json: bool,
    person: bool,
    feed: EventFeed,
    console: InputConsole,
    voice: StatusLine,
    /// Sequence number of the last printed event.
    seen: u64,
    /// Whether the run may have changed since it was read.
    stale: bool,
    /// Index of the last turn whose result was printed.
    printed: u32,
    /// Ids of turns that ended with a question.
    asking: Vec<String>,
    /// The question shown on the terminal.
    asked: Option<InteractionView>,
    /// Whether a prompt is shown, after which the user may be typing.
    prompted: bool,
    speech: InputBuffer,
    /// Last progress text of the current turn.
    progress: String,
    turn: u32,
    since: i64,
}

/// Delay before a request is retried that the daemon could not serve.
const AGAIN: Duration = Duration::from_millis(200);
/// Interval at which the status line is redrawn.
const DRAW_EVERY: Duration = Duration::from_secs(1);

impl<'a> FollowSession<'a> {
    /// Follows a run after the given event. From now on ctrl-c is handled as an event.
    pub(super) fn new(
        client: &'a DaemonClient,
        console: InputConsole,
        run: RunView,
        seen: u64,
        manner: FollowMode,
        json: bool,
    ) -> anyhow::Result<Self> {
        let feed = EventFeed::follow(client, &run.run_id, seen)?;
        let person = InputConsole::has_person() && !json;
        Ok(Self {
            client,
            run,
            manner,
            json,
            person,
            feed,
            console,
            voice: StatusLine::new(json),
            seen,
            stale: true,
            printed: 0,
            asking: Vec::new(),
            asked: None,
            prompted: false,
            speech: InputBuffer::default(),
            progress: String::new(),
            turn: 0,
            since: when::now(),
        })
    }

    /// Marks the results of turns up to this one as printed.
    pub(super) fn knowing(mut self, turn: u32) -> Self {
        self.printed = turn;
        self
    }

    /// Follows until the run ends, or waits without a person to ask, or the user leaves.
    pub(super) fn until_it_ends(mut self) -> anyhow::Result<ExitCode> {
        loop {
            while let Some(news) = self.feed.take() {
                self.hear(news)?;
            }
            if self.stale
                && let Some(code) = self.look()?
            {
                return Ok(code);
            }
            let longest = match (self.stale, self.is_drawing()) {
                (true, _) => Some(AGAIN),
                (false, true) => Some(DRAW_EVERY),
                (false, false) => None,
            };
            match self.console.wait(self.feed.bell(), self.listening(), longest)? {
                ConsoleEvent::Bell => {}
                ConsoleEvent::Nothing => self.draw(),
                ConsoleEvent::Typed(text) => self.typed(&text),
                ConsoleEvent::Closed => return Ok(self.left()),
                ConsoleEvent::Interrupted => return Ok(self.interrupted()),
            }
        }
    }

    fn hear(&mut self, news: FeedUpdate) -> anyhow::Result<()> {
        match news {
            FeedUpdate::Event(event) => self.tell(&event),
            FeedUpdate::Lost => {
                self.unprompt();
                self.voice.line(
                    "abide: the daemon is gone; waiting for it to come back (`abide up --detach` starts it, ctrl-c leaves)",
                );
            }
            FeedUpdate::Back => {
                self.unprompt();
                self.voice.line("abide: the daemon is back");
                self.asked = None;
                self.stale = true;
            }
            FeedUpdate::Over(trouble) => return Err(trouble.into()),
        }
        Ok(())
    }

    fn tell(&mut self, event: &EventEnvelope) {
        if event.seq <= self.seen {
            return;
        }
        self.seen = event.seq;
        self.stale |= story::changes_the_run(event);
        if self.speech.is_own(event) {
            return;
        }
        let Some(told) = story::tell(event) else { return };
        // The result of a turn and its question are printed elsewhere, so they are not repeated here.
        let is_result = event.kind == "turn_ended" && told.weight == EventSeverity::Step;
        match told.weight {
            EventSeverity::Detail => {}
            EventSeverity::Progress if self.is_drawing() => {
                self.progress = told.line;
                self.draw();
            }
            EventSeverity::Progress | EventSeverity::Step | EventSeverity::Trouble
                if !is_result && event.kind != "gate_raised" =>
            {
                self.unprompt();
                let line = self.voice.colour.text(told.weight.look(), told.line);
                self.voice.line(&line);
            }
            EventSeverity::Progress | EventSeverity::Step | EventSeverity::Trouble => {}
        }
        if event.data.get("outcome").is_some_and(|outcome| outcome == "asked") {
            self.asking.extend(event.data.get("turn_id").and_then(|id| id.as_str()).map(str::to_owned));
            if let Some(words) = told.words {
                self.unprompt();
                self.voice.line(&text::tame(&words));
            }
        }
    }

    /// Reads the run and reacts to its state. Returns the exit code if following is over.
    fn look(&mut self) -> anyhow::Result<Option<ExitCode>> {
        self.send();
        while self.stale {
            self.stale = false;
            match self.looked() {
                Ok(run) => self.run = run,
                Err(error) if is_passing(&error) => {
                    self.stale = true;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        // Unsent input is retried in the next iteration.
        self.stale = self.speech.is_waiting();
        let turn = std::mem::replace(&mut self.turn, self.run.turn_index);
        if turn != 0 && turn != self.run.turn_index {
            self.progress.clear();
        }
        match self.run.status {
            RunStatusValue::Queued | RunStatusValue::Running => {
                self.unask();
                self.draw();
                Ok(None)
            }
            RunStatusValue::WaitingUser => self.ask(),
            RunStatusValue::Idle => Ok(self.idle()),
            RunStatusValue::Succeeded | RunStatusValue::Failed | RunStatusValue::Canceled => {
                self.ended().map(Some)
            }
        }
    }

    /// Reads the run, after printing all events up to its state.
    fn looked(&mut self) -> anyhow::Result<RunView> {
        let run = self.client.run_now(&self.run.run_id)?;
        // New events may have changed the run since it was read.
        let (events, all) = self.client.events_now(&run.run_id, self.seen)?;
        events.iter().for_each(|event| self.tell(event));
        self.stale |= !all;
        if self.manner == FollowMode::Talk && run.execution_mode == ExecutionModeValue::Chat && !self.json {
            self.print_turns()?;
        }
        Ok(run)
    }

    /// Prints results of turns since the last call. Text before a question is printed with the question.
    fn print_turns(&mut self) -> anyhow::Result<()> {
        for turn in self.client.turns_now(&self.run.run_id, self.printed)? {
            if turn.execution_status != "completed" {
                continue;
            }
            self.printed = turn.turn_index;
            if let Some(reply) = turn.reply.filter(|_| !self.asking.contains(&turn.turn_id)) {
                self.unprompt();
                self.voice.clear();
                print_words(&reply)?;
            }
        }
        Ok(())
    }

    fn ask(&mut self) -> anyhow::Result<Option<ExitCode>> {
        let Some(pending) = self.run.pending_interaction_id.clone() else { return Ok(None) };
        if self.speech.is_waiting() {
            return Ok(None);
        }
        if self.asked.as_ref().is_some_and(|asked| asked.interaction_id == pending) {
            self.prompt();
            return Ok(None);
        }
        self.unask();
        let found = match self.client.interaction_now(&self.run.run_id, &pending) {
            Ok(found) => found,
            Err(trouble) if trouble.is_passing() => None,
            Err(trouble) => return Err(trouble.into()),
        };
        let Some(question) = found else {
            self.stale = true;
            return Ok(None);
        };
        if !self.person {
            return self.nobody_to_ask(&question).map(Some);
        }
        for line in question::lines(&question, self.voice.colour) {
            self.voice.line(&line);
        }
        let advice = self.voice.colour.text(TextStyle::Faint, format!("  ({})", question::advice(&question)));
        self.voice.line(&advice);
        if let Some(deadline) = &question.deadline_at {
            let line = format!("  (it waits for {})", when::until(deadline));
            let line = self.voice.colour.text(TextStyle::Faint, line);
            self.voice.line(&line);
        }
        self.console.forget_typed();
        self.asked = Some(question);
        self.prompt();
        Ok(None)
    }

    fn nobody_to_ask(&mut self, question: &InteractionView) -> anyhow::Result<ExitCode> {
        if self.json {
            print_json(&self.run)?;
            let detail =
                format!("the run waits for a person; answer with `{}`", question::elsewhere(question));
            note(json!({ "code": "WAITING_FOR_PERSON", "detail": detail, "interaction": question }));
            return Ok(exit::waiting());
        }
        for line in question::lines(question, self.voice.colour) {
            self.voice.line(&line);
        }
        self.voice.line(&format!(
            "abide: the run waits for a person; answer with: {}",
            question::elsewhere(question)
        ));
        self.voice.line(&format!("abide: and follow it with: abide attach {}", self.run.run_id));
        Ok(exit::waiting())
    }

    fn idle(&mut self) -> Option<ExitCode> {
        self.unask();
        if self.speech.is_waiting() {
            return None;
        }
        if self.person && self.manner == FollowMode::Talk {
            self.prompt();
            return None;
        }
        if self.json {
            // A closed stdout does not change the exit code.
            print_json(&self.run).ok();
        }
        self.voice.line(&format!("abide: it is your turn: abide send {} '…'", self.run.run_id));
        Some(exit::of_run(RunStatusValue::Idle))
    }

    fn ended(&mut self) -> anyhow::Result<ExitCode> {
        self.unask();
        self.voice.clear();
        if self.json {
            print_json(&self.run)?;
            return Ok(exit::of_run(self.run.status));
        }
        // The results of a chat have been printed as they arrived.
        let was_printed =
            self.manner == FollowMode::Talk && self.run.execution_mode == ExecutionModeValue::Chat;
        if let (Some(result), false) = (&self.run.result, was_printed) {
            print_words(&result.text)?;
        }
        if let Some(error) = &self.run.error {
            let (code, message) = (text::one_line(&error.code), text::tame(&error.message));
            let line = format!(
                "abide: {} {}: {message} ({code})",
                self.run.run_id,
                super::status_word(self.run.status)
            );
            let line = self.voice.colour.text(TextStyle::Bad, line);
            self.voice.line(&line);
            self.voice.line(&format!("abide: its whole story: abide show {}", self.run.run_id));
        }
        Ok(exit::of_run(self.run.status))
    }

    /// Handles typed input.
    fn typed(&mut self, typed: &str) {
        self.prompted = false;
        match self.speech.typed(typed, self.asked.as_ref()) {
            TypedResult::More => self.prompt(),
            TypedResult::Nothing | TypedResult::Said => self.stale = true,
            TypedResult::Wrong(why) => {
                self.voice.line(&why);
                self.prompt();
            }
        }
    }

    /// Sends the input. Retries use the same idempotency key.
    fn send(&mut self) {
        match self.speech.send(self.client, &self.run.run_id) {
            SendResult::Nothing | SendResult::Later => {}
            SendResult::Arrived => self.asked = None,
            SendResult::Refused(trouble) => {
                self.asked = None;
                let line = self.voice.colour.text(TextStyle::Bad, format!("abide: {trouble}"));
                self.voice.line(&line);
            }
        }
    }

    /// Stops following; the run continues.
    fn interrupted(&mut self) -> ExitCode {
        self.unprompt();
        self.voice.clear();
        if self.speech.is_waiting() {
            note("abide: what was typed last has not reached the daemon");
        }
        let id = &self.run.run_id;
        note(format_args!(
            "abide: left; the run goes on. Come back: abide attach {id}. End it: abide cancel {id}"
        ));
        exit::interrupted()
    }

    /// Handles the end of the input.
    fn left(&mut self) -> ExitCode {
        self.unprompt();
        let id = &self.run.run_id;
        match &self.asked {
            Some(question) => {
                note(format_args!(
                    "abide: the question stays open; answer with: {}, or come back: abide attach {id}",
                    question::elsewhere(question)
                ));
                exit::waiting()
            }
            None => {
                note(format_args!("abide: left; come back: abide attach {id}"));
                exit::of_run(RunStatusValue::Idle)
            }
        }
    }

    fn listening(&self) -> InputInterest {
        let talks = self.manner == FollowMode::Talk && self.person;
        if !self.speech.is_waiting() && (self.asked.is_some() || talks) {
            InputInterest::Yes
        } else {
            InputInterest::No
        }
    }

    /// Prints the prompt, unless it is shown.
    fn prompt(&mut self) {
        if !std::mem::replace(&mut self.prompted, true) {
            self.voice.prompt(if self.speech.goes_on() { "… " } else { "> " });
        }
    }

    /// Begins a new line if a prompt is shown.
    fn unprompt(&mut self) {
        if std::mem::take(&mut self.prompted) {
            self.voice.line("");
        }
    }

    /// Withdraws a question that can no longer be answered here.
    fn unask(&mut self) {
        if self.asked.take().is_some() {
            self.unprompt();
            self.console.forget_typed();
            self.speech.forget_draft();
            self.voice.line("abide: the question is no longer open");
        }
    }

    fn is_drawing(&self) -> bool {
        let works = matches!(self.run.status, RunStatusValue::Queued | RunStatusValue::Running);
        works && self.voice.is_live() && !self.prompted && self.manner == FollowMode::Task
    }

    fn draw(&mut self) {
        if !self.is_drawing() {
            return;
        }
        let waits =
            self.run.queue_position.map(|place| format!(", {place} in the queue")).unwrap_or_default();
        let progress = if self.progress.is_empty() { String::new() } else { format!(": {}", self.progress) };
        self.voice.draw(&format!(
            "{}{waits} {} (turn {}){progress}",
            super::status_word(self.run.status),
            when::span(when::now() - self.since),
            self.run.turn_index,
        ));
    }
}

/// Returns whether a retry may succeed soon.
fn is_passing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CliError>().is_some_and(CliError::is_passing)
}
