//! A run as it happens: told on standard error, its questions asked where there is a person, its results printed.
//!
//! What is told comes from events, each once and in order; what is done next (ask, go, end) from the run as it stands,
//! looked at whenever the events have been told. So a question that was answered elsewhere goes away, and a daemon that
//! was killed and came back changes nothing but a line.

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

/// How a run is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowMode {
    /// A task: questions are asked, and the result ends it.
    Task,
    /// A talk: whatever is typed is sent.
    Talk,
}

/// Somebody who follows a run.
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
    /// Everything up to here was told.
    seen: u64,
    /// Whether the run may have changed since it was looked at.
    stale: bool,
    /// Answers of turns up to this one were printed.
    printed: u32,
    /// Turns that ended with a question.
    asking: Vec<String>,
    /// The question that stands on the terminal.
    asked: Option<InteractionView>,
    /// Whether a prompt stands there, behind which somebody may be typing.
    prompted: bool,
    /// What they say.
    speech: InputBuffer,
    /// What the turn at work said last, and which that is.
    progress: String,
    turn: u32,
    since: i64,
}

/// How long to wait before something is tried again that the daemon could not do.
const AGAIN: Duration = Duration::from_millis(200);
/// How often the line that says what happens is drawn.
const DRAW_EVERY: Duration = Duration::from_secs(1);

impl<'a> FollowSession<'a> {
    /// Follows from behind this event on, with what was typed as ctrl-c from now on.
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

    /// Takes the answers of turns up to this one as known.
    pub(super) fn knowing(mut self, turn: u32) -> Self {
        self.printed = turn;
        self
    }

    /// Follows until the run ends, or waits and cannot be asked, or the person leaves.
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
        // What a turn says in the end is its result, and a question is asked: neither is news.
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

    /// Looks at the run, and does what its state asks for. The exit code, if that is the end.
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
        // What could not be sent is tried again with the next look.
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

    /// The run as it stands, after everything was told that led there.
    fn looked(&mut self) -> anyhow::Result<RunView> {
        let run = self.client.run_now(&self.run.run_id)?;
        // With new events the run may be another one than the one that was just looked at.
        let (events, all) = self.client.events_now(&run.run_id, self.seen)?;
        events.iter().for_each(|event| self.tell(event));
        self.stale |= !all;
        if self.manner == FollowMode::Talk && run.execution_mode == ExecutionModeValue::Chat && !self.json {
            self.print_turns()?;
        }
        Ok(run)
    }

    /// Prints what turns have said since the last time. What one said before it asked was told with its question.
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
            let _nobody_reads_it = print_json(&self.run);
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
        // A chat's answers were printed as they came.
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

    /// The person typed something.
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

    /// Sends what was typed; it goes again under its own key, as often as it takes.
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

    /// Leaves the run to itself.
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

    /// The person has nothing more to say.
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

    /// Puts the prompt there, unless it is.
    fn prompt(&mut self) {
        if !std::mem::replace(&mut self.prompted, true) {
            self.voice.prompt(if self.speech.goes_on() { "… " } else { "> " });
        }
    }

    /// Begins a new line if a prompt is in the way.
    fn unprompt(&mut self) {
        if std::mem::take(&mut self.prompted) {
            self.voice.line("");
        }
    }

    /// Takes a question away that can no longer be answered here.
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

/// Whether the daemon may well answer in a moment.
fn is_passing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CliError>().is_some_and(CliError::is_passing)
}
