//! One turn: orders are carried out one after the other until the script ends, asks, fails or is interrupted.
//!
//! What is remembered of it is decided by the caller.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use abide_engines::asking::patch::own_words;

use super::{
    script::{Asking, Gate, Order, Script},
    session::Session,
    talk::{Deed, Hears, Inbox, Says, print, say},
    workspace::{Manner, Workspace},
};

/// How a turn ended.
#[derive(Debug)]
pub(super) enum End {
    /// Everything was done.
    Done { answer: String },
    /// It asks.
    Asked { answer: String },
    /// It failed.
    Failed { message: String },
    /// It was told to stop.
    Interrupted,
}

/// What a process has for all its turns.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) inbox: Inbox,
    pub(super) workspace: Workspace,
    /// How many gates there were.
    pub(super) gates: u32,
    /// What is remembered; nothing if the process stays.
    pub(super) session: Option<Session>,
    /// Whether nothing more will be said on standard input.
    pub(super) deaf: bool,
    /// Prompts that came in the middle of a turn.
    pub(super) later: VecDeque<String>,
}

/// One turn.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) body: &'a mut Body,
    pub(super) script: &'a mut Script,
}

/// Why the rest of the script is not carried out.
enum Stop {
    Asked(Asking),
    Failed(String),
    Interrupted,
    Broken(std::io::Error),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error)
    }
}

impl Turn<'_> {
    /// Carries out the script. An error means that nobody listens any more.
    pub(super) fn run(mut self) -> std::io::Result<End> {
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
            None => End::Done { answer: answer(None) },
            Some(Stop::Asked(asking)) => End::Asked { answer: answer(Some(asking.block())) },
            Some(Stop::Failed(message)) => End::Failed { message },
            Some(Stop::Interrupted) => End::Interrupted,
            Some(Stop::Broken(error)) => return Err(error),
        })
    }

    fn carry_out(&mut self, order: Order, answer: &mut Vec<String>) -> Result<(), Stop> {
        match order {
            Order::Say(text) => {
                say(&Says::Text { text: &text })?;
                answer.push(text);
            }
            Order::Ask(asking) => return Err(Stop::Asked(asking)),
            Order::Gate(gate) => self.pass_gate(&gate)?,
            Order::Progress(text) => say(&Says::Progress { text: &text })?,
            Order::Sleep(time) => self.pause(time)?,
            Order::Print(bytes) => {
                let mut left = bytes;
                while left > 0 {
                    left -= print(left)?;
                    self.hear_what_was_said()?;
                }
            }
            Order::Write { path, text } => self.put(&path, &text, Manner::Replace)?,
            Order::Append { path, text } => self.put(&path, &text, Manner::Add)?,
            Order::Fail(message) => return Err(Stop::Failed(message)),
            Order::Crash => {
                let myself = rustix::process::getpid();
                rustix::process::kill_process(myself, rustix::process::Signal::KILL)
                    .map_err(std::io::Error::from)?;
            }
            Order::Hang => hang()?,
            // Seen to before the first order.
            Order::MuteSession => {}
            Order::LoseSession => {
                let lost = self.body.session.as_mut().map_or(Ok(()), Session::lose);
                lost.map_err(|error| Stop::Failed(format!("{error:#}")))?;
            }
        }
        Ok(())
    }

    fn put(&self, path: &str, text: &str, manner: Manner) -> Result<(), Stop> {
        self.body.workspace.put(path, text, manner).map_err(|error| Stop::Failed(format!("{error:#}")))
    }

    /// Asks for approval and waits. Either way the script goes on; `$reply` tells what was said.
    fn pass_gate(&mut self, gate: &Gate) -> Result<(), Stop> {
        let prompt = gate.prompt.as_str();
        let cwd = std::env::current_dir().ok().and_then(|cwd| cwd.into_os_string().into_string().ok());
        let deed = gate.deed.as_ref();
        let deed = deed.map(|(kind, command)| Deed { kind, command, cwd: cwd.as_deref() });
        self.body.gates += 1;
        let id = format!("gate-{}", self.body.gates);
        say(&Says::Gate { id: &id, prompt, deed })?;
        loop {
            if self.body.deaf {
                return Err(Stop::Failed("the input ended at a gate".to_owned()));
            }
            match self.body.inbox.wait() {
                Hears::Answer { gate, text, approved } if gate == id => {
                    self.script.replied(&text);
                    let verdict = if approved { "approved" } else { "declined" };
                    say(&Says::Progress { text: &format!("{verdict}: {prompt}") })?;
                    return Ok(());
                }
                other @ (Hears::Answer { .. }
                | Hears::Prompt { .. }
                | Hears::Steer { .. }
                | Hears::Interrupt
                | Hears::End) => {
                    let heard = self.hear(other);
                    if heard.is_err() {
                        say(&Says::Withdrawn { id: &id })?;
                    }
                    heard?;
                }
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a pause on order is what is wanted")]
    fn pause(&mut self, time: Duration) -> Result<(), Stop> {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            if let Some(said) = self.body.inbox.wait_for(left) {
                self.hear(said)?;
            }
        }
        Ok(())
    }

    fn hear_what_was_said(&mut self) -> Result<(), Stop> {
        while let Some(said) = self.body.inbox.look() {
            self.hear(said)?;
        }
        Ok(())
    }

    fn hear(&mut self, said: Hears) -> Result<(), Stop> {
        match said {
            Hears::Steer { text } => self.script.add(own_words(&text)),
            Hears::Interrupt => return Err(Stop::Interrupted),
            Hears::End => self.body.deaf = true,
            Hears::Prompt { text } => self.body.later.push_back(text),
            Hears::Answer { gate, .. } => eprintln!("parrot: nothing waits for an answer to {gate}"),
        }
        Ok(())
    }
}

/// For ever, whatever is asked of it.
fn hang() -> std::io::Result<()> {
    let ignored = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::signal::SIGTERM, std::sync::Arc::clone(&ignored))?;
    say(&Says::Progress { text: "hangs" })?;
    loop {
        std::thread::park();
    }
}
