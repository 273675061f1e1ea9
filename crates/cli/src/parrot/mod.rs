//! `abide __parrot`: a scripted engine, deterministic and cheap, that is a child process with session files like any
//! other agent program (E3). Demos and tests run on it.
//!
//! What it can be told is in `script`, how it talks in `talk`, what it remembers and guarantees in `session`. Without
//! `--sticky` a process takes one prompt and leaves after its result: 0 if there is one, 130 if it was interrupted, 1 if
//! it failed. With `--sticky` it takes one prompt after the other until its input ends, and nothing is remembered when it
//! is gone.
//!
//! A prompt is a script, unless the last turn ended with a question: then it is the reply, and the script goes on behind
//! the question. A reply after which nothing is left to be done is answered `heard: <reply>`.

mod script;
mod session;
mod talk;
mod turn;
mod workspace;

use std::{collections::VecDeque, ffi::OsString, path::PathBuf, process::ExitCode};

use abide_engines::asking::patch::own_words;
use anyhow::bail;
use clap::{Parser, ValueEnum};

use self::{
    script::Script,
    session::{Session, State},
    talk::{Hears, Inbox, Says, say},
    turn::{Body, End, Turn},
    workspace::Workspace,
};
use crate::{
    exit::{FAILED, SUCCEEDED},
    home,
};

/// The hidden subcommand by which this program becomes a parrot.
pub(crate) const PARROT: &str = "__parrot";

/// A scripted engine for demos and tests: prompts come as JSON lines on stdin
#[derive(Debug, Parser)]
#[command(name = "parrot", version)]
struct Options {
    /// Begin a session under this id
    #[arg(long, value_name = "ID", conflicts_with_all = ["resume", "sticky"])]
    session_id: Option<String>,
    /// Go on with a session
    #[arg(long, value_name = "ID", conflicts_with = "sticky")]
    resume: Option<String>,
    /// Stay and take one prompt after the other; such a session cannot be resumed
    #[arg(long)]
    sticky: bool,
    /// Whether files may be written
    #[arg(long, value_enum)]
    sandbox: Option<Sandbox>,
    /// Taken and not used: a parrot has no model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sandbox {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

/// Runs the parrot with these arguments.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let options = Options::parse_from([OsString::from("parrot")].into_iter().chain(arguments));
    let done = if options.sticky { stay(&options) } else { take_one_turn(&options) };
    done.unwrap_or_else(|error| {
        eprintln!("parrot: {error:#}");
        FAILED
    })
}

/// The exit code of a turn that was told to stop.
const INTERRUPTED: u8 = 130;

fn take_one_turn(options: &Options) -> anyhow::Result<ExitCode> {
    let workspace = workspace(options)?;
    let folder = sessions()?;
    let mut session = match (&options.resume, &options.session_id) {
        (Some(id), _) => Session::resume(&folder, id, &workspace.name())?,
        (None, Some(id)) => Session::begin(&folder, id, &workspace.name())?,
        (None, None) => Session::begin(&folder, &session::fresh_name()?, &workspace.name())?,
    };
    let mut body = body(workspace)?;
    let mut script = Script::default();
    let Some(prompt) = prompt(&mut body, &mut script) else { bail!("no prompt") };
    let (left, reply) = session.take()?;
    let open = match left {
        State::Idle | State::Lost => None,
        State::Asked { rest } => Some(rest),
    };
    prepare(&mut script, open, reply, &prompt);
    if !script.is_mute() {
        say(&Says::Session { id: session.id() })?;
    }
    say(&Says::Turn)?;
    body.session = Some(session);
    let end = Turn { body: &mut body, script: &mut script }.run()?;
    let (rest, reply) = script.rest();
    let state = match &end {
        End::Asked { .. } => State::Asked { rest },
        End::Done { .. } | End::Failed { .. } | End::Interrupted => State::Idle,
    };
    // Remembered before it is said: whoever has heard the end can resume at once.
    if let Some(session) = &mut body.session {
        session.keep(state, &reply)?;
    }
    Ok(match tell(&end)? {
        Told::Answer => SUCCEEDED,
        Told::Failure => FAILED,
        Told::Interruption => ExitCode::from(INTERRUPTED),
    })
}

fn stay(options: &Options) -> anyhow::Result<ExitCode> {
    let mut body = body(workspace(options)?)?;
    let id = session::fresh_name()?;
    let (mut announced, mut open, mut reply) = (false, None, String::new());
    let mut script = Script::default();
    while let Some(prompt) = prompt(&mut body, &mut script) {
        prepare(&mut script, open.take(), reply, &prompt);
        if !announced && !script.is_mute() {
            announced = true;
            say(&Says::Session { id: &id })?;
        }
        say(&Says::Turn)?;
        let end = Turn { body: &mut body, script: &mut script }.run()?;
        let (rest, last) = std::mem::take(&mut script).rest();
        reply = last;
        if matches!(end, End::Asked { .. }) {
            open = Some(rest);
        }
        match tell(&end)? {
            Told::Answer | Told::Interruption => {}
            Told::Failure => return Ok(FAILED),
        }
    }
    Ok(SUCCEEDED)
}

fn workspace(options: &Options) -> anyhow::Result<Workspace> {
    Workspace::here(options.sandbox == Some(Sandbox::ReadOnly))
}

fn body(workspace: Workspace) -> anyhow::Result<Body> {
    let later = VecDeque::new();
    Ok(Body { inbox: Inbox::open()?, workspace, gates: 0, session: None, deaf: false, later })
}

/// The next prompt. A message that came too late to be put into a turn is put into the next.
fn prompt(body: &mut Body, script: &mut Script) -> Option<String> {
    let mut prompt = body.later.pop_front();
    while prompt.is_none() && !body.deaf {
        match body.inbox.wait() {
            Hears::Prompt { text } => prompt = Some(text),
            Hears::Steer { text } => script.add(own_words(&text)),
            // There is nothing to be interrupted or answered.
            Hears::Interrupt | Hears::Answer { .. } => {}
            Hears::End => body.deaf = true,
        }
    }
    prompt.map(|prompt| own_words(&prompt).to_owned())
}

/// Makes the script of a turn: what an open question left, or the prompt itself.
fn prepare(script: &mut Script, open: Option<Vec<String>>, reply: String, prompt: &str) {
    let (late, _) = std::mem::take(script).rest();
    *script = Script::of(open.clone().unwrap_or_default(), reply);
    match open {
        None => script.add(prompt),
        Some(_) => {
            script.replied(prompt.trim());
            if script.is_empty() {
                script.add("say heard: $reply");
            }
        }
    }
    script.add(&late.join("\n"));
}

enum Told {
    Answer,
    Failure,
    Interruption,
}

fn tell(end: &End) -> std::io::Result<Told> {
    match end {
        End::Done { answer } | End::Asked { answer } => {
            say(&Says::Result { text: answer })?;
            Ok(Told::Answer)
        }
        End::Failed { message } => {
            say(&Says::Failed { message })?;
            Ok(Told::Failure)
        }
        End::Interrupted => {
            say(&Says::Interrupted)?;
            Ok(Told::Interruption)
        }
    }
}

/// Where sessions are remembered: `$PARROT_HOME`, or the folder `parrot` of the home.
fn sessions() -> anyhow::Result<PathBuf> {
    match home::variable("PARROT_HOME") {
        Some(folder) => Ok(folder.into()),
        None => Ok(home::home()?.join("parrot")),
    }
}
