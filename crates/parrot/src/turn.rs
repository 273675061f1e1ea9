//! One turn: executes instructions until the script ends, asks, fails or is interrupted.
//!
//! The caller decides what is saved.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use abide_engines::asking::patch::strip_instructions;

use super::{
    protocol::{ParrotAction, ParrotInbox, ParrotInput, ParrotOutput, send, send_output},
    script::{ParrotGate, ParrotInstruction, ParrotQuestion, ParrotScript},
    session::ParrotSession,
    workspace::{ParrotWorkspace, WriteMode},
};

#[derive(Debug)]
pub(crate) enum ParrotTurnEnd {
    Done { answer: String },
    Asked { answer: String },
    Failed { message: String },
    Interrupted,
}

/// State of a process across its turns.
#[derive(Debug)]
pub(crate) struct ParrotProcess {
    pub(crate) inbox: ParrotInbox,
    pub(crate) workspace: ParrotWorkspace,
    /// Number of gates so far; used for their ids.
    pub(crate) gate_count: u32,
    /// `None` with `--sticky`.
    pub(crate) session: Option<ParrotSession>,
    /// Whether standard input has ended.
    pub(crate) input_ended: bool,
    /// Prompts received during a turn.
    pub(crate) queued_prompts: VecDeque<String>,
}

#[derive(Debug)]
pub(crate) struct ParrotTurn<'a> {
    pub(crate) process: &'a mut ParrotProcess,
    pub(crate) script: &'a mut ParrotScript,
}

/// The reason why the rest of the script is not executed.
enum ParrotStop {
    Asked(ParrotQuestion),
    Failed(String),
    Interrupted,
    OutputClosed(std::io::Error),
}

impl From<std::io::Error> for ParrotStop {
    fn from(error: std::io::Error) -> Self {
        Self::OutputClosed(error)
    }
}

impl ParrotTurn<'_> {
    /// Executes the script. An error means that the output is closed.
    pub(crate) fn run(mut self) -> std::io::Result<ParrotTurnEnd> {
        let mut answer = vec![];
        let stop = loop {
            if let Err(stop) = self.handle_pending_inputs() {
                break Some(stop);
            }
            let Some(instruction) = self.script.next() else { break None };
            if let Err(stop) = self.execute(instruction, &mut answer) {
                break Some(stop);
            }
        };
        let answer = |last: Option<String>| answer.iter().cloned().chain(last).collect::<Vec<_>>().join("\n");
        Ok(match stop {
            None => ParrotTurnEnd::Done { answer: answer(None) },
            Some(ParrotStop::Asked(asking)) => ParrotTurnEnd::Asked { answer: answer(Some(asking.block())) },
            Some(ParrotStop::Failed(message)) => ParrotTurnEnd::Failed { message },
            Some(ParrotStop::Interrupted) => ParrotTurnEnd::Interrupted,
            Some(ParrotStop::OutputClosed(error)) => return Err(error),
        })
    }

    fn execute(
        &mut self,
        instruction: ParrotInstruction,
        answer: &mut Vec<String>,
    ) -> Result<(), ParrotStop> {
        match instruction {
            ParrotInstruction::Say(text) => {
                send(&ParrotOutput::Text { text: &text })?;
                answer.push(text);
            }
            ParrotInstruction::Ask(asking) => return Err(ParrotStop::Asked(asking)),
            ParrotInstruction::Gate(gate) => self.request_approval(&gate)?,
            ParrotInstruction::Progress(text) => send(&ParrotOutput::Progress { text: &text })?,
            ParrotInstruction::Sleep(time) => self.pause(time)?,
            ParrotInstruction::Print(bytes) => {
                let mut remaining_bytes = bytes;
                while remaining_bytes > 0 {
                    remaining_bytes -= send_output(remaining_bytes)?;
                    self.handle_pending_inputs()?;
                }
            }
            ParrotInstruction::Write { path, text } => self.write_file(&path, &text, WriteMode::Replace)?,
            ParrotInstruction::Append { path, text } => self.write_file(&path, &text, WriteMode::Append)?,
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
                let lost = self.process.session.as_mut().map_or(Ok(()), ParrotSession::mark_lost);
                lost.map_err(|error| ParrotStop::Failed(format!("{error:#}")))?;
            }
        }
        Ok(())
    }

    fn write_file(&self, path: &str, text: &str, mode: WriteMode) -> Result<(), ParrotStop> {
        self.process
            .workspace
            .write_line(path, text, mode)
            .map_err(|error| ParrotStop::Failed(format!("{error:#}")))
    }

    /// Asks for approval and waits. The script continues in either case; `$reply` is the reply.
    fn request_approval(&mut self, gate: &ParrotGate) -> Result<(), ParrotStop> {
        let prompt = gate.prompt.as_str();
        let cwd = std::env::current_dir().ok().and_then(|cwd| cwd.into_os_string().into_string().ok());
        let action = gate.action.as_ref();
        let action = action.map(|(kind, command)| ParrotAction { kind, command, cwd: cwd.as_deref() });
        self.process.gate_count += 1;
        let id = format!("gate-{}", self.process.gate_count);
        send(&ParrotOutput::Gate { id: &id, prompt, action })?;
        loop {
            if self.process.input_ended {
                return Err(ParrotStop::Failed("the input ended at a gate".to_owned()));
            }
            match self.process.inbox.next() {
                ParrotInput::Answer { gate, text, approved } if gate == id => {
                    self.script.set_reply(&text);
                    let verdict = if approved { "approved" } else { "declined" };
                    send(&ParrotOutput::Progress { text: &format!("{verdict}: {prompt}") })?;
                    return Ok(());
                }
                other @ (ParrotInput::Answer { .. }
                | ParrotInput::Prompt { .. }
                | ParrotInput::Steer { .. }
                | ParrotInput::Interrupt
                | ParrotInput::End) => {
                    let handled = self.handle_input(other);
                    if handled.is_err() {
                        send(&ParrotOutput::Withdrawn { id: &id })?;
                    }
                    handled?;
                }
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the script requests this pause")]
    fn pause(&mut self, time: Duration) -> Result<(), ParrotStop> {
        let start = Instant::now();
        while let Some(remaining) = time.checked_sub(start.elapsed()).filter(|remaining| !remaining.is_zero())
        {
            if let Some(input) = self.process.inbox.next_within(remaining) {
                self.handle_input(input)?;
            }
        }
        Ok(())
    }

    fn handle_pending_inputs(&mut self) -> Result<(), ParrotStop> {
        while let Some(input) = self.process.inbox.try_next() {
            self.handle_input(input)?;
        }
        Ok(())
    }

    fn handle_input(&mut self, input: ParrotInput) -> Result<(), ParrotStop> {
        match input {
            ParrotInput::Steer { text } => self.script.add(strip_instructions(&text)),
            ParrotInput::Interrupt => return Err(ParrotStop::Interrupted),
            ParrotInput::End => self.process.input_ended = true,
            ParrotInput::Prompt { text } => self.process.queued_prompts.push_back(text),
            ParrotInput::Answer { gate, .. } => eprintln!("parrot: there is no open request {gate}"),
        }
        Ok(())
    }
}

/// Hangs forever, ignoring SIGTERM.
fn hang() -> std::io::Result<()> {
    let ignored = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::signal::SIGTERM, std::sync::Arc::clone(&ignored))?;
    send(&ParrotOutput::Progress { text: "hangs" })?;
    loop {
        std::thread::park();
    }
}
