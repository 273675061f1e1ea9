//! The one door to tools: calls in, observations out, and what is left behind after a crash found and cleared away.
//!
//! Everything that a model can do something about is an observation; an error here is the machine's. Nothing is
//! remembered that the state directory does not hold as well, so the next process goes on where this one ended.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_keeper::KeeperError;
use abide_keeper::former::FormerKeepers;
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::KeeperLauncher;
use abide_keeper::leftovers::{end_marked, end_orphans};
use abide_keeper::protocol::{ChildMode, OutputStream};
use abide_terminal::{TerminalSize, draw};

use super::arguments::{RawArguments, check};
use super::clock::{now, ticks_ms};
use super::execution::{CallRecord, ExitRecord, MARK_VARIABLE, ToolExecution, mark_entry, new_mark};
use super::invocation::ToolInvocation;
use super::observation::{OutputView, ToolCallResult, ToolSessionChange, ToolStatus, view};
use super::once::{CommandEnd, OneShotCommand, end_after, recover};
use super::recorder::{OutputRecorder, file_name};
use super::script::DashGuard;
use crate::definition::ToolDefinition;
use crate::session::call::{CallResult, SessionCall};
use crate::session::copies::SessionCopies;
use crate::session::found::{self, SessionLookup, all, find};
use crate::session::leaving::{InterruptedCall, leave_off};
use crate::session::record::SessionFolders;
use crate::state::StateDirectory;

/// What a workbench is told when it is opened.
#[derive(Debug, Clone)]
pub struct ToolSetup {
    /// The state directory, `.abide`.
    pub state: StateDirectory,
    /// The home's record of the state directory, where keepers and records of calls lie.
    pub record: PathBuf,
    pub former_sessions: FormerSessions,
    /// The working directory of the agent and of its tools.
    pub cwd: PathBuf,
    /// How this program becomes a keeper.
    pub launcher: KeeperLauncher,
    /// The environment of all tools.
    pub env: Vec<(String, String)>,
    /// The run whose sessions these are; the same over restarts.
    pub run: String,
    /// How much of an observation the model is shown.
    pub observation_bytes: u64,
    /// Asked when we are to stop.
    pub stop: StopFlag,
    /// Texts that are not written down in what was called.
    pub secrets: Vec<String>,
    /// What becomes of processes whose keeper was killed.
    pub orphans: OrphanPolicy,
    /// How tools are confined ([`abide_keeper::protocol::KeeperSpec::confinement`]).
    pub confinement: Vec<Vec<u8>>,
}

/// Whether keepers of sessions may lie in the state directory, where earlier versions started them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormerSessions {
    None,
    /// They are served until they end, each after [`abide_keeper::former`] has shown that it is one.
    Served {
        /// Only those that began before this process did.
        started_before: Option<ProcessIdentity>,
    },
}

/// Whose children processes become when their keeper was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanPolicy {
    /// They become children of this process, which has no other children than keepers: see
    /// [`abide_keeper::leftovers::adopt_orphans`].
    Adopted,
    /// Another process gets them.
    GoElsewhere,
}

/// Whether somebody wants us to stop. Clones are about the same wish.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(pub Arc<AtomicBool>);

impl StopFlag {
    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the machine refused; nothing that a model could do about it.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A keeper could not be started or does not answer.
    #[error("{}", without_path(.0))]
    Keeper(#[from] KeeperError),
    /// A file could not be written.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system answered.
        #[source]
        source: std::io::Error,
    },
    /// An action id that cannot be the name of a directory.
    #[error("{0:?} cannot be the id of an action")]
    ActionId(String),
}

/// What happened to a keeper, for a model: where its files lie is no help to it.
fn without_path(error: &KeeperError) -> String {
    match error {
        KeeperError::Gone { .. } | KeeperError::Silent { .. } => {
            "the process that supervises it does not answer".to_owned()
        }
        KeeperError::Refused(refusal) => refusal.to_string(),
        KeeperError::Protocol(what) => {
            format!("the process that supervises it does not answer as expected: {what}")
        }
        KeeperError::System { what: _, source } => format!("no process could be started for it: {source}"),
    }
}

impl ToolError {
    pub(crate) fn system(what: &'static str, source: std::io::Error) -> Self {
        Self::System { what, source }
    }
}

/// The tools of one run.
#[derive(Debug)]
pub struct ToolWorkbench {
    setup: ToolSetup,
    /// Keepers of sessions that we started, by pid, to be reaped when they are gone.
    children: BTreeMap<u32, Child>,
}

/// A session that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenToolSession {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub tool: String,
    /// Whether calls without a session id go there.
    pub default: bool,
}

/// What was found of a call that nobody heard the end of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveredCall {
    /// Whether it was begun at all: without this, nothing of it ever ran.
    pub begun: bool,
    /// Whether something of it still ran, and was ended.
    pub was_running: bool,
    /// How its program ended, if that is known.
    pub exit_code: Option<i32>,
    /// What it had printed, bounded; empty if nothing.
    pub output: String,
    /// Where everything of it lies.
    pub execution_ref: Option<String>,
    /// A session that it had started, which was ended because nobody was ever told of it.
    pub ended_session: Option<String>,
    /// The session that it spoke to, and that lives.
    pub session: Option<String>,
    /// What the program of that session does about it, unless it is a shell that takes commands.
    pub progress: Option<ProgramState>,
}

/// What a program does about a call whose result was given before its answer was complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramState {
    /// It waits for input again.
    Finished,
    /// It is still at work.
    AtWork,
    /// It is silent, and the system does not tell what it waits for.
    Unclear,
    /// The program has ended.
    Ended,
}

/// How long a program may take if its tool does not say.
const TIMEOUT_SEC: u64 = 600;

impl ToolSetup {
    /// What keepers of an earlier version must be like, if there may be any.
    pub(crate) fn former_keepers(&self) -> Option<FormerKeepers> {
        match &self.former_sessions {
            FormerSessions::None => None,
            FormerSessions::Served { started_before } => Some(FormerKeepers {
                arguments: self.launcher.arguments.clone(),
                started_before: started_before.clone(),
            }),
        }
    }

    pub(crate) fn window(&self) -> usize {
        usize::try_from(self.observation_bytes).unwrap_or(usize::MAX).clamp(256, 4 << 20)
    }

    /// Where a tool begins: a relative directory is below the agent's.
    pub(crate) fn tool_cwd(&self, tool: &ToolDefinition) -> PathBuf {
        tool.cwd.as_ref().map_or_else(|| self.cwd.clone(), |cwd| self.cwd.join(cwd))
    }

    /// Whether values that begin with a dash need a guard in front of them.
    pub(crate) fn dash_guard(&self, tool: &ToolDefinition) -> DashGuard {
        DashGuard::of(&tool.command, &self.tool_cwd(tool))
    }

    /// The whole environment of a tool, with the mark by which its processes are found.
    pub(crate) fn tool_env(
        &self,
        own: Vec<(String, String)>,
        mark: &str,
        on_terminal: bool,
    ) -> Vec<(String, String)> {
        let mut env: BTreeMap<String, String> = self.env.iter().cloned().collect();
        if on_terminal {
            env.insert("TERM".to_owned(), "xterm-256color".to_owned());
        }
        env.extend(own);
        env.insert(MARK_VARIABLE.to_owned(), mark.to_owned());
        env.into_iter().collect()
    }

    pub(crate) fn hide(&self, text: &str) -> String {
        let secrets = self.secrets.iter().filter(|secret| !secret.is_empty());
        secrets.fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

impl ToolWorkbench {
    /// Tools in this state directory. Nothing is started and nothing ended by that.
    pub fn open(setup: ToolSetup) -> Self {
        Self { setup, children: BTreeMap::new() }
    }

    /// What it was told. The secrets may grow.
    pub fn setup_mut(&mut self) -> &mut ToolSetup {
        &mut self.setup
    }

    /// Carries out a call.
    pub fn run(
        &mut self,
        action: &str,
        tool: &ToolDefinition,
        arguments: &RawArguments,
    ) -> Result<ToolCallResult, ToolError> {
        check_action(action)?;
        let arguments = match check(tool, arguments) {
            Ok(arguments) => arguments,
            Err(bad) => return Ok(ToolCallResult::refused(bad.to_string())),
        };
        if !tool.stateful {
            return match ToolInvocation::new(tool, &arguments, self.setup.dash_guard(tool)) {
                Ok(invocation) => self.run_once(action, tool, invocation),
                Err(bad) => Ok(ToolCallResult::refused(bad.to_string())),
            };
        }
        let call = SessionCall { setup: &self.setup, action, tool, arguments: &arguments };
        let CallResult { observation, keeper } = call.carry_out()?;
        if let Some(process) = keeper.and_then(|mut keeper| keeper.take_process()) {
            self.children.insert(process.id(), process);
        }
        if let (Some(ToolSessionChange::Ended), Some(id)) =
            (observation.session_event, &observation.session_id)
        {
            self.end(std::slice::from_ref(id));
        }
        Ok(observation)
    }

    fn run_once(
        &self,
        action: &str,
        tool: &ToolDefinition,
        invocation: ToolInvocation,
    ) -> Result<ToolCallResult, ToolError> {
        let ToolInvocation { argv, env, stdin } = invocation;
        let stdin = stdin.unwrap_or_default();
        let setup = &self.setup;
        let execution = ToolExecution::new(setup, action);
        let cwd = setup.tool_cwd(tool);
        let mark = new_mark();
        let call = CallRecord {
            tool: tool.name.clone(),
            argv: argv.iter().map(|word| setup.hide(word)).collect(),
            cwd: cwd.to_string_lossy().into_owned(),
            stdin_bytes: stdin.len() as u64,
            session: None,
            job: None,
            started_at: now(),
            mark: mark.clone(),
        };
        execution.begin(&call).map_err(|error| ToolError::system("cannot record a call", error))?;
        let began = ticks_ms();
        let mut recorder = OutputRecorder::new(&execution.folder, setup.window());
        let size = tool.pty.map(|size| TerminalSize { rows: size.rows.max(1), cols: size.cols.max(1) });
        let timeout_sec = tool.timeout_sec.unwrap_or(TIMEOUT_SEC);
        let once = OneShotCommand {
            argv,
            env: setup.tool_env(env, &mark, size.is_some()),
            cwd,
            shape: size.map_or(ChildMode::Pipes, |TerminalSize { rows, cols }| ChildMode::Pty {
                rows,
                cols,
                script: None,
            }),
            stdin,
            timeout_ms: timeout_sec.saturating_mul(1_000),
            confinement: setup.confinement.clone(),
            place: &execution.held(),
        };
        let ended = once.run(&setup.launcher, &mut recorder, &setup.stop)?;
        if ended == CommandEnd::Lost {
            self.end_leftovers(&mark);
        }
        recorder.finish();
        let mut observation = match size {
            Some(size) => compose(&on_screen(&recorder, size), &ended, timeout_sec),
            None => {
                let view = view(&recorder, OutputView { budget: setup.window(), path: &execution.shown });
                compose(&view, &ended, timeout_sec)
            }
        };
        observation.execution_ref = Some(execution.reference.clone());
        let exit = ExitRecord {
            exit_code: observation.exit_code,
            timed_out: observation.timed_out,
            interrupted: observation.interrupted,
            printed: OutputStream::ALL.map(|stream| recorder.stream(stream).printed),
            duration_ms: ticks_ms().saturating_sub(began),
            ended_at: now(),
        };
        if let Err(error) = execution.end(&exit) {
            observation.note_missing_record(&error);
        }
        Ok(observation)
    }

    /// Ends a session because the model said so.
    pub fn end_session(&mut self, id: &str) -> ToolCallResult {
        let place = SessionFolders::new(&self.setup);
        let is_ours = |(known, record): &(String, _)| {
            let record: &crate::session::record::SessionRecord = record;
            known == id && record.run == self.setup.run
        };
        if !all(&place).iter().any(is_ours) {
            let open: Vec<String> = self.sessions().into_iter().map(|session| session.id).collect();
            let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
            return ToolCallResult::refused(format!("there is no session \"{id}\"; open sessions: {open}"));
        }
        let wholly = self.end(&[id.to_owned()]);
        let text = if wholly {
            format!("Session {id} terminated.")
        } else {
            format!("Session {id} was told to end, but something of it may be left.")
        };
        ToolCallResult {
            status: if wholly { ToolStatus::Success } else { ToolStatus::Error },
            session_id: Some(id.to_owned()),
            session_event: Some(ToolSessionChange::Ended),
            ..ToolCallResult::refused(text)
        }
    }

    /// Whether the program of a session still runs: the very one that was started, not another with its pid (B8).
    pub fn is_alive(&self, id: &str) -> bool {
        matches!(find(&SessionFolders::new(&self.setup), id), SessionLookup::Living(_))
    }

    /// The sessions of this run that are there, living or not.
    pub fn sessions(&self) -> Vec<OpenToolSession> {
        let ours = all(&SessionFolders::new(&self.setup))
            .into_iter()
            .filter(|(_, record)| record.run == self.setup.run);
        ours.map(|(id, record)| OpenToolSession { id, tool: record.tool, default: record.default }).collect()
    }

    /// Ends these sessions, all at once, and clears away what is left of those that are dead. Returns those that were
    /// there.
    pub fn end_all(&mut self, ids: &[String]) -> Vec<String> {
        let place = SessionFolders::new(&self.setup);
        let there: Vec<String> = ids.iter().filter(|id| found::exists(&place, id)).cloned().collect();
        self.end(&there);
        there
    }

    /// The directory in which a new session of a tool begins.
    pub fn start_directory(&self, tool: &ToolDefinition) -> String {
        self.setup.tool_cwd(tool).display().to_string()
    }

    /// Leaves everything as it is for the next process.
    pub fn leave(self) {
        drop(self);
    }

    /// Looks after a call that an earlier process began and nobody heard the end of: whatever of it still runs is ended,
    /// and what it printed is kept. A session that it only spoke to stays.
    pub fn recover(&mut self, action: &str) -> Result<RecoveredCall, ToolError> {
        check_action(action)?;
        let execution = ToolExecution::new(&self.setup, action);
        let Some(call) = execution.call() else { return Ok(RecoveredCall::default()) };
        let mut recovered = RecoveredCall {
            begun: true,
            execution_ref: Some(execution.reference.clone()),
            exit_code: execution.exit().and_then(|exit| exit.exit_code),
            ..RecoveredCall::default()
        };
        let left = match execution.former_keeper(&self.setup) {
            Some((mut keeper, status)) => Some(end_after(&mut keeper, &status, &execution.folder)),
            None => recover(&execution.held(), &execution.folder),
        };
        if let Some(left) = left {
            recovered.was_running = left.was_running;
            recovered.exit_code = recovered.exit_code.or(left.exit_code);
        }
        if !call.mark.is_empty() && recovered.exit_code.is_none() {
            end_marked(&mark_entry(&call.mark));
        }
        if let Some(id) = &call.session {
            let place = SessionFolders::new(&self.setup);
            // A call that was to start a session has the words for it in its record.
            if !call.argv.is_empty() {
                recovered.was_running = matches!(find(&place, id), SessionLookup::Living(_));
                if found::exists(&place, id) {
                    self.end(std::slice::from_ref(id));
                    recovered.ended_session = Some(id.clone());
                }
            } else if let SessionLookup::Living(mut living) = find(&place, id)
                && execution.exit().is_none()
                && living.own().is_ok()
            {
                recovered.session = Some(id.clone());
                match leave_off(&mut living, action, call.job, &execution.folder) {
                    InterruptedCall::Command(left) => {
                        recovered.was_running = left.was_running;
                        recovered.exit_code = recovered.exit_code.or(left.exit_code);
                    }
                    InterruptedCall::Talk(progress) => recovered.progress = Some(progress),
                }
            }
        }
        recovered.output = self.output_on_disk(&execution);
        Ok(recovered)
    }

    fn output_on_disk(&self, execution: &ToolExecution) -> String {
        let mut recorder = OutputRecorder::in_memory(self.setup.window());
        let mut any = false;
        for stream in OutputStream::ALL {
            let Ok(mut file) = execution.folder.open_file(file_name(stream)) else { continue };
            let mut buffer = vec![0; 256 << 10];
            while let Ok(count @ 1..) = std::io::Read::read(&mut file, &mut buffer) {
                any = true;
                recorder.push(stream, buffer.get(..count).unwrap_or_default());
            }
        }
        recorder.is_on_disk();
        let shown = OutputView { budget: self.setup.window(), path: &execution.shown };
        if any { view(&recorder, shown).trim_end().to_owned() } else { String::new() }
    }

    /// Ends sessions. Says whether nothing is left of them.
    fn end(&mut self, ids: &[String]) -> bool {
        let gone = found::end(&SessionFolders::new(&self.setup), ids);
        for keeper in gone.iter().filter_map(|gone| gone.keeper) {
            if let Some(mut keeper) = self.children.remove(&keeper) {
                // It has closed its connection, so it has ended.
                keeper.wait().ok();
            }
        }
        for id in ids {
            // Copies for people: what cannot be removed does no harm.
            SessionCopies::remove(&self.setup.state, id).ok();
        }
        // Those that were killed meanwhile.
        self.children.retain(|_, keeper| keeper.try_wait().is_ok_and(|status| status.is_none()));
        self.end_orphans();
        gone.iter().all(|gone| gone.wholly)
    }

    /// Ends the processes of a call whose keeper was killed.
    fn end_leftovers(&self, mark: &str) {
        self.end_orphans();
        end_marked(&mark_entry(mark));
    }

    fn end_orphans(&self) {
        match self.setup.orphans {
            OrphanPolicy::Adopted => end_orphans(&self.children.keys().copied().collect::<Vec<u32>>()),
            OrphanPolicy::GoElsewhere => {}
        }
    }
}

fn check_action(action: &str) -> Result<(), ToolError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if action.is_empty() || action.starts_with('.') || action.len() > 128 || !action.bytes().all(allowed) {
        return Err(ToolError::ActionId(action.to_owned()));
    }
    Ok(())
}

fn on_screen(recorder: &OutputRecorder, size: TerminalSize) -> String {
    let screen = draw(&recorder.stream(OutputStream::Stdout).all(), size);
    let lines: Vec<&str> = screen.lines.iter().map(String::as_str).collect();
    format!("{}\n", lines.join("\n").trim_end())
}

fn compose(shown: &str, ended: &CommandEnd, timeout_sec: u64) -> ToolCallResult {
    let (code, timed_out, interrupted) = match ended {
        CommandEnd::NotStarted(why) => {
            return ToolCallResult::refused(format!("the tool could not be started: {why}"));
        }
        CommandEnd::Lost => {
            return ToolCallResult::refused(format!(
                "{shown}[the process that supervises the program was killed, and the program was ended; how far it came is not known]"
            ));
        }
        CommandEnd::Exit { code, timed_out, interrupted } => (*code, *timed_out, *interrupted),
    };
    let mut text = shown.to_owned();
    if timed_out {
        text.push_str(&format!(
            "[stopped because it took longer than {timeout_sec} s; it and everything that it had started was ended]\n"
        ));
    }
    if interrupted {
        text.push_str("[interrupted: the agent was stopped while this ran]\n");
    }
    text.push_str(&format!("[exit code {code}]"));
    ToolCallResult {
        status: match (timed_out, code) {
            (true, _) => ToolStatus::TimedOut,
            (false, 0) => ToolStatus::Success,
            (false, _) => ToolStatus::Error,
        },
        exit_code: Some(code),
        timed_out,
        interrupted,
        ..ToolCallResult::refused(text)
    }
}
