//! One turn: executes instructions until the script ends, asks, fails or is interrupted.
//!
//! The caller decides what is saved.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use abide_engines::asking::patch::own_words;

use super::{
    script::{ParrotGate, ParrotInstruction, ParrotQuestion, ParrotScript},
    session::ParrotSession,
    talk::{ParrotAction, ParrotInbox, ParrotInput, ParrotOutput, print, say},
    workspace::{ParrotWorkspace, WriteMode},
};

#[derive(Debug)]
pub(super) enum ParrotTurnEnd {
    Done { answer: String },
    Asked { answer: String },
    Failed { message: String },
    Interrupted,
}

/// State of a process across its turns.
#[derive(Debug)]
pub(super) struct ParrotProcess {
    pub(super) inbox: ParrotInbox,
    pub(super) workspace: ParrotWorkspace,
    /// Number of gates so far; used for their ids.
    pub(super) gates: u32,
    /// `None` with `--sticky`.
    pub(super) session: Option<ParrotSession>,
    /// Whether standard input has ended.
    pub(super) deaf: bool,
    /// Prompts received during a turn.
    pub(super) later: VecDeque<String>,
}

#[derive(Debug)]
pub(super) struct ParrotTurn<'a> {
    pub(super) body: &'a mut ParrotProcess,
    pub(super) script: &'a mut ParrotScript,
}

/// The reason why the rest of the script is not executed.
enum ParrotStop {
    Asked(ParrotQuestion),
    Failed(String),
    Interrupted,
    Broken(std::io::Error),
}

impl From<std::io::Error> for ParrotStop {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error)
    }
}

impl ParrotTurn<'_> {
    /// Executes the script. An error means that the output is closed.
    pub(super) fn run(mut self) -> std::io::Result<ParrotTurnEnd> {
        let mut answer = vec![];
        let stop = loop {
            if let Err(stop) = self.hear_what_was_said() {
                break Some(stop);
            }
            let Some(order) = self.script.next() else { break None };
            if let Err(stop) = self.carry_out(order, &mut answer) {
                break Some(stop);
            }
        };
        let answer = |last: Option<String>| answer.iter().cloned().chain(last).collect::<Vec<_>>().join("\n");
        Ok(match stop {
            None => ParrotTurnEnd::Done { answer: answer(None) },
            Some(ParrotStop::Asked(asking)) => ParrotTurnEnd::Asked { answer: answer(Some(asking.block())) },
            Some(ParrotStop::Failed(message)) => ParrotTurnEnd::Failed { message },
            Some(ParrotStop::Interrupted) => ParrotTurnEnd::Interrupted,
            Some(ParrotStop::Broken(error)) => return Err(error),
        })
    }

    fn carry_out(&mut self, order: ParrotInstruction, answer: &mut Vec<String>) -> Result<(), ParrotStop> {
        match order {
            ParrotInstruction::Say(text) => {
                say(&ParrotOutput::Text { text: &text })?;
                answer.push(text);
            }
            ParrotInstruction::Ask(asking) => return Err(ParrotStop::Asked(asking)),
            ParrotInstruction::Gate(gate) => self.pass_gate(&gate)?,
            ParrotInstruction::Progress(text) => say(&ParrotOutput::Progress { text: &text })?,
            ParrotInstruction::Sleep(time) => self.pause(time)?,
            ParrotInstruction::Print(bytes) => {
                let mut left = bytes;
                while left > 0 {
                    left -= print(left)?;
                    self.hear_what_was_said()?;
                }
            }
            ParrotInstruction::Write { path, text } => self.put(&path, &text, WriteMode::Replace)?,
            ParrotInstruction::Append { path, text } => self.put(&path, &text, WriteMode::Add)?,
            ParrotInstruction::Fail(message) => return Err(ParrotStop::Failed(message)),
            ParrotInstruction::Crash => {
                let myself = rustix::process::getpid();
                rustix::process::kill_process(myself, rustix::process::Signal::KILL)
                    .map_err(std::io::Error::from)?;
            }
            ParrotInstruction::Hang => hang()?,
            // Handled before the first instruction.
            ParrotInstruction::MuteSession => {}
            ParrotInstruction::LoseSession => {
                let lost = self.body.session.as_mut().map_or(Ok(()), ParrotSession::lose);
                lost.map_err(|error| ParrotStop::Failed(format!("{error:#}")))?;
            }
        }
        Ok(())
    }

    fn put(&self, path: &str, text: &str, manner: WriteMode) -> Result<(), ParrotStop> {
        self.body.workspace.put(path, text, manner).map_err(|error| ParrotStop::Failed(format!("{error:#}")))
    }

    /// Asks for approval and waits. The script continues in either case; `$reply` is the reply.
    fn pass_gate(&mut self, gate: &ParrotGate) -> Result<(), ParrotStop> {
        let prompt = gate.prompt.as_str();
        let cwd = std::env::current_dir().ok().and_then(|cwd| cwd.into_os_string().into_string().ok());
        let deed = gate.deed.as_ref();
        let deed = deed.map(|(kind, command)| ParrotAction { kind, command, cwd: cwd.as_deref() });
        self.body.gates += 1;
        let id = format!("gate-{}", self.body.gates);
        say(&ParrotOutput::Gate { id: &id, prompt, deed })?;
        loop {
            if self.body.deaf {
                return Err(ParrotStop::Failed("the input ended at a gate".to_owned()));
            }
            match self.body.inbox.wait() {
                ParrotInput::Answer { gate, text, approved } if gate == id => {
                    self.script.replied(&text);
                    let verdict = if approved { "approved" } else { "declined" };
                    say(&ParrotOutput::Progress { text: &format!("{verdict}: {prompt}") })?;
                    return Ok(());
                }
                other @ (ParrotInput::Answer { .. }
                | ParrotInput::Prompt { .. }
                | ParrotInput::Steer { .. }
                | ParrotInput::Interrupt
                | ParrotInput::End) => {
                    let heard = self.hear(other);
                    if heard.is_err() {
                        say(&ParrotOutput::Withdrawn { id: &id })?;
                    }
                    heard?;
                }
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a pause on order is what is wanted")]
    fn pause(&mut self, time: Duration) -> Result<(), ParrotStop> {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            if let Some(said) = self.body.inbox.wait_for(left) {
                self.hear(said)?;
            }
        }
        Ok(())
    }

    fn hear_what_was_said(&mut self) -> Result<(), ParrotStop> {
        while let Some(said) = self.body.inbox.look() {
            self.hear(said)?;
        }
        Ok(())
    }

    fn hear(&mut self, said: ParrotInput) -> Result<(), ParrotStop> {
        match said {
            ParrotInput::Steer { text } => self.script.add(own_words(&text)),
            ParrotInput::Interrupt => return Err(ParrotStop::Interrupted),
            ParrotInput::End => self.body.deaf = true,
            ParrotInput::Prompt { text } => self.body.later.push_back(text),
            ParrotInput::Answer { gate, .. } => eprintln!("parrot: nothing waits for an answer to {gate}"),
        }
        Ok(())
    }
}

/// Hangs forever, ignoring SIGTERM.
fn hang() -> std::io::Result<()> {
    let ignored = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::signal::SIGTERM, std::sync::Arc::clone(&ignored))?;
    say(&ParrotOutput::Progress { text: "hangs" })?;
    loop {
        std::thread::park();
    }
}
