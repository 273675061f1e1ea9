//! The interface of the loop to tools: executes calls, returns observations, and cleans up after a crash.
//!
//! Failures that a model can react to are observations; errors are failures of the machine. All state is in the state
//! folder and in the home, so the next process continues where this one ended.

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

/// The environment of a workbench.
#[derive(Debug, Clone)]
pub struct ToolSetup {
    pub state: StateDirectory,
    /// The home's record of the state folder, with keepers and records of calls.
    pub record: PathBuf,
    pub former_sessions: FormerSessions,
    /// The working directory of the agent and of its tools.
    pub cwd: PathBuf,
    /// Starts this program as a keeper.
    pub launcher: KeeperLauncher,
    /// The environment of all tools.
    pub env: Vec<(String, String)>,
    /// The run that owns the sessions; constant across restarts.
    pub run: String,
    /// Size limit of an observation in bytes.
    pub observation_bytes: u64,
    pub stop: StopFlag,
    /// Texts that are removed from the records of calls.
    pub secrets: Vec<String>,
    /// The treatment of processes whose keeper was killed.
    pub orphans: OrphanPolicy,
    /// See [`abide_keeper::protocol::KeeperSpec::confinement`].
    pub confinement: Vec<Vec<u8>>,
}

/// Whether keepers of sessions may be in the state folder, where earlier versions started them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormerSessions {
    None,
    /// Sessions of earlier versions are used until they end, if [`abide_keeper::former`] verifies the keeper.
    Served {
        /// Only keepers that started before this process count.
        started_before: Option<ProcessIdentity>,
    },
}

/// The parent of processes whose keeper was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanPolicy {
    /// This process, which has no other children than keepers: see [`abide_keeper::leftovers::adopt_orphans`].
    Adopted,
    /// Another process.
    GoElsewhere,
}

/// Set when the run has to stop. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(pub Arc<AtomicBool>);

impl StopFlag {
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A failure of the machine that a model cannot correct.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A keeper could not be started or does not respond.
    #[error("{}", without_path(.0))]
    Keeper(#[from] KeeperError),
    /// A file could not be written.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The action id cannot be used as a directory name.
    #[error("{0:?} cannot be the id of an action")]
    ActionId(String),
}

/// The error without the keeper's path, which does not help a model.
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

/// Executes the tool calls of one run.
#[derive(Debug)]
pub struct ToolWorkbench {
    setup: ToolSetup,
    /// Keepers of sessions that this process started, by pid. They are reaped when they exit.
    children: BTreeMap<u32, Child>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenToolSession {
    pub id: String,
    pub tool: String,
    /// Whether calls without a session id use this session.
    pub default: bool,
}

/// The recovered state of a call whose end was not recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveredCall {
    /// Whether the call was started. If not, it executed nothing.
    pub begun: bool,
    /// Whether a process of the call still ran and was ended.
    pub was_running: bool,
    /// `None` if unknown.
    pub exit_code: Option<i32>,
    /// The output, within the size limit.
    pub output: String,
    /// Folder with all files of the call, relative to the state folder.
    pub execution_ref: Option<String>,
    /// The session that the call had started. It was ended, because the model never learned its id.
    pub ended_session: Option<String>,
    /// The running session that received the input.
    pub session: Option<String>,
    /// The state of that session's program; `None` for shells that track commands.
    pub progress: Option<ProgramState>,
}

/// The state of a program that has not answered completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramState {
    /// It waits for input.
    Finished,
    /// It is busy.
    AtWork,
    /// It is silent, and the system does not tell whether it waits for input.
    Unclear,
    Ended,
}

/// Default timeout of a program in seconds.
const TIMEOUT_SEC: u64 = 600;

impl ToolSetup {
    /// The criteria for keepers of earlier versions; `None` if there cannot be any.
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

    /// The working directory of a tool; a relative one is below the agent's.
    pub(crate) fn tool_cwd(&self, tool: &ToolDefinition) -> PathBuf {
        tool.cwd.as_ref().map_or_else(|| self.cwd.clone(), |cwd| self.cwd.join(cwd))
    }

    /// Whether values that begin with a dash need a `--` before them.
    pub(crate) fn dash_guard(&self, tool: &ToolDefinition) -> DashGuard {
        DashGuard::of(&tool.command, &self.tool_cwd(tool))
    }

    /// The complete environment of a tool, with the mark that identifies its processes.
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
    /// A workbench in this state folder. Opening starts and ends no processes.
    pub fn open(setup: ToolSetup) -> Self {
        Self { setup, children: BTreeMap::new() }
    }

    /// Allows to add secrets after the start.
    pub fn setup_mut(&mut self) -> &mut ToolSetup {
        &mut self.setup
    }

    /// Executes a call.
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

    /// Ends a session at the model's request.
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

    /// Whether the program of a session runs. A different process with its pid does not count (B8).
    pub fn is_alive(&self, id: &str) -> bool {
        matches!(find(&SessionFolders::new(&self.setup), id), SessionLookup::Living(_))
    }

    /// The sessions of this run, running or not.
    pub fn sessions(&self) -> Vec<OpenToolSession> {
        let ours = all(&SessionFolders::new(&self.setup))
            .into_iter()
            .filter(|(_, record)| record.run == self.setup.run);
        ours.map(|(id, record)| OpenToolSession { id, tool: record.tool, default: record.default }).collect()
    }

    /// Ends these sessions concurrently and removes the remains of dead ones. Returns the ids of those that existed.
    pub fn end_all(&mut self, ids: &[String]) -> Vec<String> {
        let place = SessionFolders::new(&self.setup);
        let there: Vec<String> = ids.iter().filter(|id| found::exists(&place, id)).cloned().collect();
        self.end(&there);
        there
    }

    /// The directory in which a new session of a tool starts.
    pub fn start_directory(&self, tool: &ToolDefinition) -> String {
        self.setup.tool_cwd(tool).display().to_string()
    }

    /// Closes the workbench and leaves all sessions running for the next process.
    pub fn leave(self) {
        drop(self);
    }

    /// Cleans up a call that an earlier process started and did not finish. Its processes are ended and its output is
    /// kept. A session that existed before the call continues.
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
            // The record of a call that starts a session contains its command line.
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

    /// Ends sessions. Returns whether no process of them remains.
    fn end(&mut self, ids: &[String]) -> bool {
        let gone = found::end(&SessionFolders::new(&self.setup), ids);
        for keeper in gone.iter().filter_map(|gone| gone.keeper) {
            if let Some(mut keeper) = self.children.remove(&keeper) {
                // The keeper has closed its connection, so it exits and this does not block.
                keeper.wait().ok();
            }
        }
        for id in ids {
            // The copies are for people; a copy that remains does no harm.
            SessionCopies::remove(&self.setup.state, id).ok();
        }
        // Reaps keepers that were killed in the meantime.
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
