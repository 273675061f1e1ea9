//! A scripted engine, deterministic and cheap: `abide __parrot`. It is a child process with session files, like any
//! other agent program (E3). Demos and tests use it. Its adapter is in `engines`.
//!
//! The instructions are in `script`, the line protocol in `protocol`, the session files and their guarantees in `session`.
//! Without `--sticky` a process takes one prompt and exits after its result: with 0 if there is one, 130 if it was
//! interrupted, 1 if it failed. With `--sticky` it takes prompts until its input ends, and keeps no session file.
//!
//! A prompt is a script, unless the last turn ended with a question: then it is the reply, and the script continues
//! after the question. A reply after which no instruction is left is answered with `heard: <reply>`.

mod protocol;
mod script;
mod session;
mod turn;
mod workspace;

use std::{collections::VecDeque, ffi::OsString, path::PathBuf, process::ExitCode};

use abide_engines::asking::patch::strip_instructions;
use anyhow::bail;
use clap::{Parser, ValueEnum};

use self::{
    protocol::{ParrotInbox, ParrotInput, ParrotOutput, send},
    script::ParrotScript,
    session::{ParrotSession, ParrotSessionState},
    turn::{ParrotProcess, ParrotTurn, ParrotTurnEnd},
    workspace::ParrotWorkspace,
};
/// The hidden subcommand that runs the parrot.
pub const PARROT_SUBCOMMAND: &str = "__parrot";

/// A scripted engine for demos and tests: prompts come as JSON lines on stdin
#[derive(Debug, Parser)]
#[command(name = "parrot", version)]
struct ParrotOptions {
    /// Create a session with this id
    #[arg(long, value_name = "ID", conflicts_with_all = ["resume", "sticky"])]
    session_id: Option<String>,
    /// Continue a session
    #[arg(long, value_name = "ID", conflicts_with = "sticky")]
    resume: Option<String>,
    /// Keep running and execute one prompt after the other; the session cannot be resumed
    #[arg(long)]
    sticky: bool,
    /// Whether files may be written
    #[arg(long, value_enum)]
    sandbox: Option<ParrotSandbox>,
    /// Accepted and ignored, because the parrot has no model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ParrotSandbox {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

/// Directories of the parrot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParrotDirs {
    /// Abide's home, in which the parrot writes no files of a script.
    pub home: PathBuf,
    /// The folder of the session files.
    pub sessions: PathBuf,
}

/// Exit code after an interruption: 128 + SIGINT, as shells report it.
const INTERRUPTED_CODE: u8 = 130;

/// Runs the parrot with these arguments. Missing directories are reported as its own error.
pub fn main(arguments: impl Iterator<Item = OsString>, dirs: anyhow::Result<ParrotDirs>) -> ExitCode {
    let options = ParrotOptions::parse_from([OsString::from("parrot")].into_iter().chain(arguments));
    let done = dirs.and_then(|dirs| match options.sticky {
        true => run_sticky(&options, &dirs),
        false => run_one_turn(&options, &dirs),
    });
    done.unwrap_or_else(|error| {
        eprintln!("parrot: {error:#}");
        ExitCode::FAILURE
    })
}

fn run_one_turn(options: &ParrotOptions, dirs: &ParrotDirs) -> anyhow::Result<ExitCode> {
    let workspace = workspace(options, dirs)?;
    let folder = &dirs.sessions;
    let mut session = match (&options.resume, &options.session_id) {
        (Some(id), _) => ParrotSession::resume(folder, id, &workspace.name())?,
        (None, Some(id)) => ParrotSession::create(folder, id, &workspace.name())?,
        (None, None) => ParrotSession::create(folder, &session::new_id(), &workspace.name())?,
    };
    let mut process = new_process(workspace)?;
    let mut script = ParrotScript::default();
    let Some(prompt) = next_prompt(&mut process, &mut script) else { bail!("no prompt") };
    let (state, reply) = session.take_state()?;
    let open = match state {
        ParrotSessionState::Idle | ParrotSessionState::Lost => None,
        ParrotSessionState::Asked { rest } => Some(rest),
    };
    prepare_script(&mut script, open, reply, &prompt);
    if !script.is_mute() {
        send(&ParrotOutput::Session { id: session.id() })?;
    }
    send(&ParrotOutput::Turn)?;
    process.session = Some(session);
    let end = ParrotTurn { process: &mut process, script: &mut script }.run()?;
    let (rest, reply) = script.into_rest();
    let state = match &end {
        ParrotTurnEnd::Asked { .. } => ParrotSessionState::Asked { rest },
        ParrotTurnEnd::Done { .. } | ParrotTurnEnd::Failed { .. } | ParrotTurnEnd::Interrupted => {
            ParrotSessionState::Idle
        }
    };
    // The session is saved before the result is printed, so that a client can resume it immediately.
    if let Some(session) = &mut process.session {
        session.save(state, &reply)?;
    }
    Ok(match report_end(&end)? {
        ReportedEnd::Answer => ExitCode::SUCCESS,
        ReportedEnd::Failure => ExitCode::FAILURE,
        ReportedEnd::Interruption => ExitCode::from(INTERRUPTED_CODE),
    })
}

fn run_sticky(options: &ParrotOptions, dirs: &ParrotDirs) -> anyhow::Result<ExitCode> {
    let mut process = new_process(workspace(options, dirs)?)?;
    let id = session::new_id();
    let (mut announced, mut open, mut reply) = (false, None, String::new());
    let mut script = ParrotScript::default();
    while let Some(prompt) = next_prompt(&mut process, &mut script) {
        prepare_script(&mut script, open.take(), reply, &prompt);
        if !announced && !script.is_mute() {
            announced = true;
            send(&ParrotOutput::Session { id: &id })?;
        }
        send(&ParrotOutput::Turn)?;
        let end = ParrotTurn { process: &mut process, script: &mut script }.run()?;
        let (rest, last) = std::mem::take(&mut script).into_rest();
        reply = last;
        if matches!(end, ParrotTurnEnd::Asked { .. }) {
            open = Some(rest);
        }
        match report_end(&end)? {
            ReportedEnd::Answer | ReportedEnd::Interruption => {}
            ReportedEnd::Failure => return Ok(ExitCode::FAILURE),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn workspace(options: &ParrotOptions, dirs: &ParrotDirs) -> anyhow::Result<ParrotWorkspace> {
    ParrotWorkspace::current_dir(&dirs.home, options.sandbox == Some(ParrotSandbox::ReadOnly))
}

fn new_process(workspace: ParrotWorkspace) -> anyhow::Result<ParrotProcess> {
    let later = VecDeque::new();
    Ok(ParrotProcess {
        inbox: ParrotInbox::open()?,
        workspace,
        gate_count: 0,
        session: None,
        input_ended: false,
        queued_prompts: later,
    })
}

/// Returns the next prompt. A message that came too late for its turn is added to the next one.
fn next_prompt(process: &mut ParrotProcess, script: &mut ParrotScript) -> Option<String> {
    let mut prompt = process.queued_prompts.pop_front();
    while prompt.is_none() && !process.input_ended {
        match process.inbox.next() {
            ParrotInput::Prompt { text } => prompt = Some(text),
            ParrotInput::Steer { text } => script.add(strip_instructions(&text)),
            // No turn is running, so there is nothing to interrupt or answer.
            ParrotInput::Interrupt | ParrotInput::Answer { .. } => {}
            ParrotInput::End => process.input_ended = true,
        }
    }
    prompt.map(|prompt| strip_instructions(&prompt).to_owned())
}

/// Sets up the script of a turn: the rest after an open question, or the prompt itself.
fn prepare_script(script: &mut ParrotScript, open: Option<Vec<String>>, reply: String, prompt: &str) {
    let (late, _) = std::mem::take(script).into_rest();
    *script = ParrotScript::restore(open.clone().unwrap_or_default(), reply);
    match open {
        None => script.add(prompt),
        Some(_) => {
            script.set_reply(prompt.trim());
            if script.is_empty() {
                script.add("say heard: $reply");
            }
        }
    }
    script.add(&late.join("\n"));
}

enum ReportedEnd {
    Answer,
    Failure,
    Interruption,
}

fn report_end(end: &ParrotTurnEnd) -> std::io::Result<ReportedEnd> {
    match end {
        ParrotTurnEnd::Done { answer } | ParrotTurnEnd::Asked { answer } => {
            send(&ParrotOutput::Result { text: answer })?;
            Ok(ReportedEnd::Answer)
        }
        ParrotTurnEnd::Failed { message } => {
            send(&ParrotOutput::Failed { message })?;
            Ok(ReportedEnd::Failure)
        }
        ParrotTurnEnd::Interrupted => {
            send(&ParrotOutput::Interrupted)?;
            Ok(ReportedEnd::Interruption)
        }
    }
}
