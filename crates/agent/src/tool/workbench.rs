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
use abide_keeper::former_keepers::FormerKeepers;
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::KeeperLauncher;
use abide_keeper::orphans::{end_orphans, kill_by_env_entry};
use abide_keeper::protocol::{ChildMode, LinkPolicy, OutputStream};
use abide_terminal::{TerminalSize, draw};

use super::arguments::{RawArguments, check_arguments};
use super::clock::{monotonic_millis, now};
use super::execution::{CallRecord, ExitRecord, MARK_VARIABLE, ToolExecution, mark_entry, new_mark};
use super::invocation::ToolInvocation;
use super::observation::{OutputView, ToolCallResult, ToolSessionChange, ToolStatus, render_output};
use super::one_shot::{OneShotCommand, OneShotEnd, read_output_and_end, recover_command};
use super::recorder::OutputRecorder;
use super::script::DashGuard;
use crate::definition::ToolDefinition;
use crate::session::call::{SessionCall, SessionCallResult};
use crate::session::interrupted_call::{InterruptedCall, recover_interrupted_call};
use crate::session::lookup::{self, SessionLookup, all_sessions, find_session};
use crate::session::output_copies::SessionCopies;
use crate::session::record::SessionFolders;
use crate::state_directory::StateDirectory;

/// The environment of a workbench.
#[derive(Debug, Clone)]
pub struct ToolSetup {
    pub state: StateDirectory,
    /// The home's record of the state folder, with keepers and records of calls.
    pub record_dir: PathBuf,
    pub former_sessions: FormerSessions,
    /// The working directory of the agent and of its tools.
    /// Resolved: without symbolic links.
    pub cwd: PathBuf,
    /// Starts this program as a keeper.
    pub launcher: KeeperLauncher,
    /// The environment of all tools.
    pub env: Vec<(String, String)>,
    /// The run that owns the sessions; constant across restarts.
    pub run_id: String,
    /// Size limit of an observation in bytes.
    pub observation_bytes: u64,
    pub stop_flag: StopFlag,
    /// Texts that are removed from the records of calls.
    pub secrets: Vec<String>,
    /// The treatment of processes whose keeper was killed.
    pub orphan_policy: OrphanPolicy,
    /// See [`abide_keeper::protocol::KeeperSpec::confinement`].
    pub confinement: Vec<Vec<u8>>,
}

/// Whether keepers of sessions may be in the state folder, where earlier versions started them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormerSessions {
    None,
    /// Sessions of earlier versions are used until they end, if [`abide_keeper::former_keepers`] verifies the keeper.
    Accepted {
        /// Only keepers that started before this process count.
        started_before: Option<ProcessIdentity>,
    },
}

/// The parent of processes whose keeper was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanPolicy {
    /// This process, which has no other children than keepers: see [`abide_keeper::orphans::adopt_orphans`].
    Adopted,
    /// Orphans are adopted by another process.
    NotAdopted,
}

/// Set when the run has to stop. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(pub Arc<AtomicBool>);

impl StopFlag {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A failure of the machine that a model cannot correct.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A keeper could not be started or does not respond.
    #[error("{}", message_without_path(.0))]
    Keeper(#[from] KeeperError),
    /// A file could not be written.
    #[error("{action}: {source}")]
    System {
        action: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The action id cannot be used as a directory name.
    #[error("{0:?} cannot be the id of an action")]
    ActionId(String),
}

/// The error without the keeper's path, which does not help a model.
fn message_without_path(error: &KeeperError) -> String {
    match error {
        KeeperError::NoKeeper { .. } | KeeperError::Unresponsive { .. } => {
            "the process that supervises it does not answer".to_owned()
        }
        KeeperError::Refused(refusal) => refusal.to_string(),
        KeeperError::Protocol(detail) => {
            format!("the process that supervises it does not answer as expected: {detail}")
        }
        KeeperError::System { action: _, source } => format!("no process could be started for it: {source}"),
    }
}

impl ToolError {
    pub(crate) fn system(detail: &'static str, source: std::io::Error) -> Self {
        Self::System { action: detail, source }
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
    pub was_started: bool,
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
    pub program_state: Option<ProgramState>,
}

/// The state of a program that has not answered completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramState {
    /// It waits for input.
    WaitingForInput,
    Busy,
    /// It is silent, and the system does not tell whether it waits for input.
    Unknown,
    Ended,
}

/// Default timeout of a program in seconds.
const DEFAULT_TIMEOUT_SEC: u64 = 600;

impl ToolSetup {
    /// The criteria for keepers of earlier versions; `None` if there cannot be any.
    pub(crate) fn former_keepers(&self) -> Option<FormerKeepers> {
        match &self.former_sessions {
            FormerSessions::None => None,
            FormerSessions::Accepted { started_before } => Some(FormerKeepers {
                arguments: self.launcher.arguments.clone(),
                started_before: started_before.clone(),
            }),
        }
    }

    pub(crate) fn observation_limit(&self) -> usize {
        usize::try_from(self.observation_bytes).unwrap_or(usize::MAX).clamp(256, 4 << 20)
    }

    /// The working directory of a tool; a relative one is below the agent's.
    pub(crate) fn tool_cwd(&self, tool: &ToolDefinition) -> PathBuf {
        tool.cwd.as_ref().map_or_else(|| self.cwd.clone(), |cwd| self.cwd.join(cwd))
    }

    /// Whether links in the working directory of a tool are followed. The agent's own directory was resolved at its start.
    /// A directory that the definition names may contain links.
    pub(crate) fn tool_cwd_links(&self, tool: &ToolDefinition) -> LinkPolicy {
        if tool.cwd.is_some() { LinkPolicy::Follow } else { LinkPolicy::Refuse }
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

    pub(crate) fn redact(&self, text: &str) -> String {
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

    pub fn run(
        &mut self,
        action: &str,
        tool: &ToolDefinition,
        arguments: &RawArguments,
    ) -> Result<ToolCallResult, ToolError> {
        check_action_id(action)?;
        let arguments = match check_arguments(tool, arguments) {
            Ok(arguments) => arguments,
            Err(error) => return Ok(ToolCallResult::refused(error.to_string())),
        };
        if !tool.stateful {
            return match ToolInvocation::new(tool, &arguments, self.setup.dash_guard(tool)) {
                Ok(invocation) => self.run_once(action, tool, invocation),
                Err(error) => Ok(ToolCallResult::refused(error.to_string())),
            };
        }
        let call = SessionCall { setup: &self.setup, action, tool, arguments: &arguments };
        let SessionCallResult { observation, keeper } = call.execute()?;
        if let Some(process) = keeper.and_then(|mut keeper| keeper.take_process()) {
            self.children.insert(process.id(), process);
        }
        if let (Some(ToolSessionChange::Ended), Some(id)) =
            (observation.session_event, &observation.session_id)
        {
            self.end_and_reap(std::slice::from_ref(id));
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
            argv: argv.iter().map(|word| setup.redact(word)).collect(),
            cwd: cwd.to_string_lossy().into_owned(),
            stdin_bytes: stdin.len() as u64,
            session: None,
            job: None,
            started_at: now(),
            mark: mark.clone(),
        };
        execution
            .write_call_record(&call)
            .map_err(|error| ToolError::system("cannot record a call", error))?;
        let start_ms = monotonic_millis();
        let mut recorder = OutputRecorder::new(&execution.folder, setup.observation_limit());
        let size = tool.pty.map(|size| TerminalSize { rows: size.rows.max(1), cols: size.cols.max(1) });
        let timeout_sec = tool.timeout_sec.unwrap_or(DEFAULT_TIMEOUT_SEC);
        let command = OneShotCommand {
            argv,
            env: setup.tool_env(env, &mark, size.is_some()),
            cwd,
            cwd_links: setup.tool_cwd_links(tool),
            mode: size.map_or(ChildMode::Pipes, |TerminalSize { rows, cols }| ChildMode::Pty {
                rows,
                cols,
                script: None,
            }),
            stdin,
            timeout_ms: timeout_sec.saturating_mul(1_000),
            confinement: setup.confinement.clone(),
            keeper_path: &execution.keeper_path(),
        };
        let ended = command.run(&setup.launcher, &mut recorder, &setup.stop_flag)?;
        if ended == OneShotEnd::Lost {
            self.end_leftovers(&mark);
        }
        recorder.finish();
        let mut observation = match size {
            Some(size) => compose_result(&render_screen(&recorder, size), &ended, timeout_sec),
            None => {
                let view = render_output(
                    &recorder,
                    OutputView { budget: setup.observation_limit(), path: &execution.shown_path },
                );
                compose_result(&view, &ended, timeout_sec)
            }
        };
        observation.execution_ref = Some(execution.reference.clone());
        let exit = ExitRecord {
            exit_code: observation.exit_code,
            timed_out: observation.timed_out,
            interrupted: observation.interrupted,
            printed: OutputStream::ALL.map(|stream| recorder.stream(stream).total_bytes),
            duration_ms: monotonic_millis().saturating_sub(start_ms),
            ended_at: now(),
        };
        if let Err(error) = execution.write_exit_record(&exit) {
            observation.note_missing_record(&error);
        }
        Ok(observation)
    }

    /// Ends a session at the model's request.
    pub fn end_session(&mut self, id: &str) -> ToolCallResult {
        let folders = SessionFolders::new(&self.setup);
        let is_ours = |(session_id, record): &(String, _)| {
            let record: &crate::session::record::SessionRecord = record;
            session_id == id && record.run == self.setup.run_id
        };
        if !all_sessions(&folders).iter().any(is_ours) {
            let open: Vec<String> = self.sessions().into_iter().map(|session| session.id).collect();
            let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
            return ToolCallResult::refused(format!("there is no session \"{id}\"; open sessions: {open}"));
        }
        let is_complete = self.end_and_reap(&[id.to_owned()]);
        let text = if is_complete {
            format!("Session {id} terminated.")
        } else {
            format!("Session {id} was asked to end, but some of its processes may still run.")
        };
        ToolCallResult {
            status: if is_complete { ToolStatus::Success } else { ToolStatus::Error },
            session_id: Some(id.to_owned()),
            session_event: Some(ToolSessionChange::Ended),
            ..ToolCallResult::refused(text)
        }
    }

    /// Whether the program of a session runs. A different process with its pid does not count (B8).
    pub fn is_alive(&self, id: &str) -> bool {
        matches!(find_session(&SessionFolders::new(&self.setup), id), SessionLookup::Running(_))
    }

    /// The sessions of this run, running or not.
    pub fn sessions(&self) -> Vec<OpenToolSession> {
        let ours = all_sessions(&SessionFolders::new(&self.setup))
            .into_iter()
            .filter(|(_, record)| record.run == self.setup.run_id);
        ours.map(|(id, record)| OpenToolSession { id, tool: record.tool, default: record.default }).collect()
    }

    /// Ends these sessions concurrently and removes the remains of dead ones. Returns the ids of those that existed.
    pub fn end_existing_sessions(&mut self, ids: &[String]) -> Vec<String> {
        let folders = SessionFolders::new(&self.setup);
        let existing: Vec<String> = ids.iter().filter(|id| lookup::exists(&folders, id)).cloned().collect();
        self.end_and_reap(&existing);
        existing
    }

    /// The directory in which a new session of a tool starts.
    pub fn start_directory(&self, tool: &ToolDefinition) -> String {
        self.setup.tool_cwd(tool).display().to_string()
    }

    /// Closes the workbench and leaves all sessions running for the next process.
    pub fn close(self) {
        drop(self);
    }

    /// Cleans up a call that an earlier process started and did not finish. Its processes are ended and its output is
    /// kept. A session that existed before the call continues.
    pub fn recover(&mut self, action: &str) -> Result<RecoveredCall, ToolError> {
        check_action_id(action)?;
        let execution = ToolExecution::new(&self.setup, action);
        let Some(call) = execution.read_call_record() else { return Ok(RecoveredCall::default()) };
        let mut recovered = RecoveredCall {
            was_started: true,
            execution_ref: Some(execution.reference.clone()),
            exit_code: execution.read_exit_record().and_then(|exit| exit.exit_code),
            ..RecoveredCall::default()
        };
        let command = match execution.former_keeper(&self.setup) {
            Some((mut keeper, status)) => Some(read_output_and_end(&mut keeper, &status, &execution.folder)),
            None => recover_command(&execution.keeper_path(), &execution.folder),
        };
        if let Some(command) = command {
            recovered.was_running = command.was_running;
            recovered.exit_code = recovered.exit_code.or(command.exit_code);
        }
        if !call.mark.is_empty() && recovered.exit_code.is_none() {
            kill_by_env_entry(&mark_entry(&call.mark));
        }
        if let Some(id) = &call.session {
            let folders = SessionFolders::new(&self.setup);
            // The record of a call that starts a session contains its command line.
            if !call.argv.is_empty() {
                recovered.was_running = matches!(find_session(&folders, id), SessionLookup::Running(_));
                if lookup::exists(&folders, id) {
                    self.end_and_reap(std::slice::from_ref(id));
                    recovered.ended_session = Some(id.clone());
                }
            } else if let SessionLookup::Running(mut session) = find_session(&folders, id)
                && execution.read_exit_record().is_none()
                && session.take_ownership().is_ok()
            {
                recovered.session = Some(id.clone());
                match recover_interrupted_call(&mut session, action, call.job, &execution.folder) {
                    InterruptedCall::Command(command) => {
                        recovered.was_running = command.was_running;
                        recovered.exit_code = recovered.exit_code.or(command.exit_code);
                    }
                    InterruptedCall::Input(progress) => recovered.program_state = Some(progress),
                }
            }
        }
        recovered.output = self.read_recorded_output(&execution);
        Ok(recovered)
    }

    fn read_recorded_output(&self, execution: &ToolExecution) -> String {
        let mut recorder = OutputRecorder::in_memory(self.setup.observation_limit());
        let mut any = false;
        for stream in OutputStream::ALL {
            let Ok(mut file) = execution.folder.open_file(stream.name()) else { continue };
            let mut buffer = vec![0; 256 << 10];
            while let Ok(count @ 1..) = std::io::Read::read(&mut file, &mut buffer) {
                any = true;
                recorder.push(stream, buffer.get(..count).unwrap_or_default());
            }
        }
        recorder.mark_as_stored();
        let shown = OutputView { budget: self.setup.observation_limit(), path: &execution.shown_path };
        if any { render_output(&recorder, shown).trim_end().to_owned() } else { String::new() }
    }

    /// Ends sessions. Returns whether no process of them remains.
    fn end_and_reap(&mut self, ids: &[String]) -> bool {
        let ended = lookup::end_sessions(&SessionFolders::new(&self.setup), ids);
        for keeper in ended.iter().filter_map(|ended| ended.keeper_pid) {
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
        ended.iter().all(|ended| ended.is_complete)
    }

    /// Ends the processes of a call whose keeper was killed.
    fn end_leftovers(&self, mark: &str) {
        self.end_orphans();
        kill_by_env_entry(&mark_entry(mark));
    }

    fn end_orphans(&self) {
        match self.setup.orphan_policy {
            OrphanPolicy::Adopted => end_orphans(&self.children.keys().copied().collect::<Vec<u32>>()),
            OrphanPolicy::NotAdopted => {}
        }
    }
}

fn check_action_id(action: &str) -> Result<(), ToolError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if action.is_empty() || action.starts_with('.') || action.len() > 128 || !action.bytes().all(allowed) {
        return Err(ToolError::ActionId(action.to_owned()));
    }
    Ok(())
}

fn render_screen(recorder: &OutputRecorder, size: TerminalSize) -> String {
    let screen = draw(&recorder.stream(OutputStream::Stdout).head_and_tail(), size);
    let lines: Vec<&str> = screen.lines.iter().map(String::as_str).collect();
    format!("{}\n", lines.join("\n").trim_end())
}

fn compose_result(output: &str, ended: &OneShotEnd, timeout_sec: u64) -> ToolCallResult {
    let (code, timed_out, interrupted) = match ended {
        OneShotEnd::NotStarted(reason) => {
            return ToolCallResult::refused(format!("the tool could not be started: {reason}"));
        }
        OneShotEnd::Lost => {
            return ToolCallResult::refused(format!(
                "{output}[the process that supervises the program was killed, and the program was ended; its progress is unknown]"
            ));
        }
        OneShotEnd::Exit { code, timed_out, interrupted } => (*code, *timed_out, *interrupted),
    };
    let mut text = output.to_owned();
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
