//! A call to a stateful tool: selects or starts the session, sends the input, and composes the observation.

use abide_keeper::client::KeeperConnection;
use abide_keeper::protocol::OutputStream;
use abide_terminal::{ScreenText, ShellProgram};

use super::lookup::{LiveSession, SessionLookup, SessionOrigin, all_sessions, find_session};
use super::output_copies::SessionCopies;
use super::program::SessionProgram;
use super::program_input::SessionInput;
use super::record::{SessionFolders, SessionRecord, new_id};
use super::start::SessionStart;
use super::{program_input, shell};
use crate::definition::ToolDefinition;
use crate::tool::arguments::ToolArguments;
use crate::tool::clock::{monotonic_millis, now};
use crate::tool::execution::{CallRecord, ExitRecord, ToolExecution, new_mark};
use crate::tool::invocation::{ToolInvocation, text_to_send};
use crate::tool::observation::{OutputView, ToolCallResult, ToolSessionChange, ToolStatus, render_output};
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::{ProgramState, ToolError, ToolSetup};

/// The session id with which a model requests an additional session.
const NEW_SESSION: &str = "new";

/// The result of sending input to a session.
#[derive(Debug, Default)]
pub(crate) struct SessionReply {
    /// The exit code of the command, for shells that report it.
    pub(crate) exit_code: Option<i32>,
    /// Set if the session has ended; the inner value is its exit code, if known.
    pub(crate) session_exit: Option<Option<i32>>,
    pub(crate) timed_out: bool,
    pub(crate) interrupted: bool,
    /// The reason of a failure, for the model.
    pub(crate) failure: Option<String>,
    /// An additional remark for the model.
    pub(crate) note: Option<String>,
    /// Output that belongs to an earlier call; shown before the answer.
    pub(crate) earlier_output: String,
}

#[derive(Debug)]
pub(crate) struct SessionCall<'a> {
    pub(crate) setup: &'a ToolSetup,
    pub(crate) action: &'a str,
    pub(crate) tool: &'a ToolDefinition,
    pub(crate) arguments: &'a ToolArguments,
}

/// The observation of a call, and the keeper if one was started.
#[derive(Debug)]
pub(crate) struct SessionCallResult {
    pub(crate) observation: ToolCallResult,
    /// Set if the call started the session.
    pub(crate) keeper: Option<KeeperConnection>,
}

impl From<ToolCallResult> for SessionCallResult {
    fn from(observation: ToolCallResult) -> Self {
        Self { observation, keeper: None }
    }
}

/// The session that a call refers to.
enum SessionTarget {
    Running(Box<LiveSession>),
    Start { default: bool },
    Refused(Box<ToolCallResult>),
}

impl SessionCall<'_> {
    pub(crate) fn execute(&self) -> Result<SessionCallResult, ToolError> {
        let text = match text_to_send(self.tool, self.arguments) {
            Ok(text) => text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => return Ok(ToolCallResult::refused(error.to_string()).into()),
        };
        let start_ms = monotonic_millis();
        let execution = ToolExecution::new(self.setup, self.action);
        let mut recorder = OutputRecorder::new(&execution.folder, self.setup.observation_limit());
        let (mut session, started) = match self.resolve_target() {
            SessionTarget::Refused(observation) => return Ok((*observation).into()),
            SessionTarget::Running(session) => {
                let job = session.record.shell.is_some().then_some(session.status.jobs + 1);
                self.record_call(&execution, &session.id, Vec::new(), job, text.as_deref())?;
                // The folder of a session that an earlier version started belongs to its keeper.
                if session.origin == SessionOrigin::Current {
                    recorder.set_copies(SessionCopies::open(&self.setup.state, &session.id).ok());
                }
                (*session, None)
            }
            SessionTarget::Start { default } => {
                match self.start_session(default, &execution, text.as_deref(), &mut recorder)? {
                    Ok((session, reply)) => (session, Some(reply)),
                    Err(observation) => return Ok((*observation).into()),
                }
            }
        };
        session.take_ownership()?;
        let is_new = started.is_some();
        let reply = match started {
            // A session that ended at once or was interrupted gets no further input.
            Some(first) if first.session_exit.is_some() || first.interrupted || text.is_none() => first,
            Some(_) | None => self.send_input(&mut session, text.as_deref(), &mut recorder),
        };
        recorder.finish();
        let shown = self.render_output(&mut session, &recorder, &execution);
        let keeper = is_new.then_some(session.keeper);
        let mut observation = compose_result(&session.id, is_new, &shown, &reply, &execution);
        let exit = ExitRecord {
            exit_code: observation.exit_code,
            timed_out: reply.timed_out,
            interrupted: reply.interrupted,
            printed: OutputStream::ALL.map(|stream| recorder.stream(stream).total_bytes),
            duration_ms: monotonic_millis().saturating_sub(start_ms),
            ended_at: now(),
        };
        if let Err(error) = execution.write_exit_record(&exit) {
            observation.note_missing_record(&error);
        }
        Ok(SessionCallResult { observation, keeper })
    }

    fn resolve_target(&self) -> SessionTarget {
        let folders = SessionFolders::new(self.setup);
        match self.arguments.session.as_deref() {
            Some(NEW_SESSION) => SessionTarget::Start { default: false },
            Some(id) => match find_session(&folders, id) {
                SessionLookup::Running(session) if self.belongs_to_call(&session.record) => {
                    SessionTarget::Running(session)
                }
                SessionLookup::Dead(code)
                    if SessionRecord::read(folders.keeper_dir(id).path())
                        .is_some_and(|of| self.belongs_to_call(&of)) =>
                {
                    SessionTarget::Refused(Box::new(session_ended_result(id, code)))
                }
                SessionLookup::Running(_) | SessionLookup::Dead(_) | SessionLookup::Unknown => {
                    SessionTarget::Refused(Box::new(ToolCallResult::refused(self.unknown_session_text(id))))
                }
            },
            None => {
                let default = all_sessions(&folders)
                    .into_iter()
                    .find(|(_, record)| record.default && self.belongs_to_call(record));
                match default.map(|(id, _)| (find_session(&folders, &id), id)) {
                    Some((SessionLookup::Running(session), _)) => SessionTarget::Running(session),
                    // The state of the dead session is lost. The model has to know, so no new session is started
                    // silently.
                    Some((SessionLookup::Dead(code), id)) => {
                        SessionTarget::Refused(Box::new(session_ended_result(&id, code)))
                    }
                    Some((SessionLookup::Unknown, _)) | None => SessionTarget::Start { default: true },
                }
            }
        }
    }

    fn belongs_to_call(&self, record: &SessionRecord) -> bool {
        record.tool == self.tool.name && record.run == self.setup.run_id
    }

    fn unknown_session_text(&self, id: &str) -> String {
        let folders = SessionFolders::new(self.setup);
        let open: Vec<String> = all_sessions(&folders)
            .into_iter()
            .filter(|(id, record)| {
                self.belongs_to_call(record)
                    && matches!(find_session(&folders, id), SessionLookup::Running(_))
            })
            .map(|(id, _)| id)
            .collect();
        let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
        format!(
            "the call was not carried out: \"{}\" has no session \"{id}\"; open sessions of it: {open}; leave session_id out for \
             the default session, or give \"{NEW_SESSION}\" for another one",
            self.tool.name
        )
    }

    fn record_call(
        &self,
        execution: &ToolExecution,
        id: &str,
        argv: Vec<String>,
        job: Option<u64>,
        text: Option<&str>,
    ) -> Result<(), ToolError> {
        let call = CallRecord {
            tool: self.tool.name.clone(),
            argv: argv.iter().map(|word| self.setup.redact(word)).collect(),
            cwd: self.setup.tool_cwd(self.tool).to_string_lossy().into_owned(),
            stdin_bytes: text.map_or(0, |text| text.len() as u64),
            session: Some(id.to_owned()),
            job,
            started_at: now(),
            mark: String::new(),
        };
        execution.write_call_record(&call).map_err(|error| ToolError::system("cannot record a call", error))
    }

    /// Starts a session and waits until it is ready. Its output until then belongs to this call.
    fn start_session(
        &self,
        default: bool,
        execution: &ToolExecution,
        text: Option<&str>,
        recorder: &mut OutputRecorder,
    ) -> Result<Result<(LiveSession, SessionReply), Box<ToolCallResult>>, ToolError> {
        let refused = |words: String| Ok(Err(Box::new(ToolCallResult::refused(words))));
        if !self.arguments.missing_to_start.is_empty() {
            let missing = self.arguments.missing_to_start.join("; ");
            return refused(format!("the call was not carried out: to start a session, {missing}"));
        }
        let ToolInvocation { argv, env, .. } =
            match ToolInvocation::new(self.tool, self.arguments, self.setup.dash_guard(self.tool)) {
                Ok(invocation) => invocation,
                Err(error) => return refused(error.to_string()),
            };
        let pty = self.tool.pty.map(|size| (size.rows.max(1), size.cols.max(1)));
        let mark = new_mark();
        let env = self.setup.tool_env(env, &mark, pty.is_some());
        let program = match SessionProgram::of(argv.clone(), &env, pty.is_some()) {
            Ok(program) => program,
            Err(error) => return refused(format!("the session could not be started: {error}")),
        };
        let folders = SessionFolders::new(self.setup);
        let start = SessionStart {
            id: new_id(&self.tool.name, |id| folders.keeper_dir(id).path().exists()),
            program,
            env,
            cwd: self.setup.tool_cwd(self.tool),
            cwd_links: self.setup.tool_cwd_links(self.tool),
            confinement: self.setup.confinement.clone(),
            record: SessionRecord {
                tool: self.tool.name.clone(),
                run: self.setup.run_id.clone(),
                default,
                shell: None,
                pty,
                started_at: now(),
                mark,
            },
        };
        self.record_call(execution, &start.id, argv, None, text)?;
        let mut session = match start.start(folders.own_dir(), &self.setup.launcher)? {
            Ok(session) => session,
            Err(reason) => {
                let mut observation =
                    ToolCallResult::refused(format!("the session could not be started: {reason}"));
                observation.execution_ref = Some(execution.reference.clone());
                return Ok(Err(Box::new(observation)));
            }
        };
        // The copies are for people only; the session works without them.
        let copies = SessionCopies::open(&self.setup.state, &session.id).ok();
        copies.as_ref().and_then(|copies| copies.write_pid(session.status.child.pid).ok());
        recorder.set_copies(copies);
        if session.record.shell.is_some() {
            return Ok(Ok((session, SessionReply::default())));
        }
        // The tool's timeout limits answers, not the start of the program.
        let input = SessionInput {
            action: self.action,
            text: None,
            timeout_ms: program_input::FIRST_IDLE_TIMEOUT_MS,
        };
        let reply = program_input::send_and_wait(&mut session, input, recorder, &self.setup.stop_flag);
        // A remark that the start may be incomplete is only a guess and is dropped, unless the start timed out.
        let remark = reply.note.filter(|_| reply.timed_out);
        Ok(Ok((session, SessionReply { note: remark, timed_out: false, ..reply })))
    }

    fn send_input(
        &self,
        session: &mut LiveSession,
        text: Option<&str>,
        recorder: &mut OutputRecorder,
    ) -> SessionReply {
        let timeout_ms = self.timeout_ms(session);
        let stop = &self.setup.stop_flag;
        let Some(path) = session.record.shell.clone() else {
            return self.send_to_program(
                session,
                SessionInput { action: self.action, text, timeout_ms },
                recorder,
            );
        };
        let Some(command) = text else {
            let busy = session.status.running.is_some();
            let remark =
                format!("the session {}", if busy { "runs a command" } else { "waits for a command" });
            return SessionReply { note: Some(remark), ..SessionReply::default() };
        };
        if command.contains('\0') {
            let failure = Some("a command cannot hold a NUL character".to_owned());
            return SessionReply { failure, ..SessionReply::default() };
        }
        match ShellProgram::find(&path, &[]) {
            Ok(shell) => shell::run_command(session, &shell, command, timeout_ms, recorder, stop),
            Err(error) => SessionReply { failure: Some(error.to_string()), ..SessionReply::default() },
        }
    }

    /// Sends input to a program that is not a shell. Output that still belongs to an earlier call, which timed out, is
    /// shown as that call's.
    fn send_to_program(
        &self,
        session: &mut LiveSession,
        input: SessionInput<'_>,
        recorder: &mut OutputRecorder,
    ) -> SessionReply {
        let stop = &self.setup.stop_flag;
        let earlier = program_input::unfinished_call(session).filter(|earlier| earlier != self.action);
        let Some(earlier) = earlier.filter(|_| input.text.is_some()) else {
            return program_input::send_and_wait(session, input, recorder, stop);
        };
        let earlier = ToolExecution::new(self.setup, &earlier);
        let budget = self.setup.observation_limit() / 2;
        let mut late_output = OutputRecorder::new(&earlier.folder, budget);
        let progress = program_input::observe(session, &mut late_output);
        late_output.finish();
        let mut reply = program_input::send_and_wait(session, input, recorder, stop);
        let is_empty =
            OutputStream::ALL.into_iter().all(|stream| late_output.stream(stream).total_bytes == 0);
        if !is_empty && session.record.pty.is_none() {
            let output = render_output(&late_output, OutputView { budget, path: &earlier.shown_path });
            reply.earlier_output = format!(
                "[an earlier call to this session ({}) printed this after its result was given:]\n{output}[end of the \
                 earlier call's output]\n",
                earlier.shown_path
            );
        }
        if progress == ProgramState::Busy {
            reply.earlier_output.push_str(&format!(
                "[the program was still working on an earlier call ({}) when this text was sent; the following may \
                 belong to that call]\n",
                earlier.shown_path
            ));
        }
        reply
    }

    fn timeout_ms(&self, session: &LiveSession) -> u64 {
        let default = if session.record.shell.is_some() { COMMAND_TIMEOUT_SEC } else { INPUT_TIMEOUT_SEC };
        self.tool.timeout_sec.unwrap_or(default).saturating_mul(1_000)
    }

    fn render_output(
        &self,
        session: &mut LiveSession,
        recorder: &OutputRecorder,
        execution: &ToolExecution,
    ) -> String {
        if let Some(screen) = program_input::read_screen(session) {
            return screen_text(&screen, &execution.shown_path);
        }
        render_output(
            recorder,
            OutputView { budget: self.setup.observation_limit(), path: &execution.shown_path },
        )
    }
}

/// Default timeout of a shell command in seconds; the command is then stopped.
const COMMAND_TIMEOUT_SEC: u64 = 600;
/// Default timeout of other programs in seconds; the program continues and the model is told.
const INPUT_TIMEOUT_SEC: u64 = 60;

fn session_ended_result(id: &str, code: Option<i32>) -> ToolCallResult {
    let exit_text = code.map_or(String::new(), |code| format!(" with exit code {code}"));
    ToolCallResult {
        session_id: Some(id.to_owned()),
        session_event: Some(ToolSessionChange::Ended),
        ..ToolCallResult::refused(format!(
            "the call was not carried out: session {id} is not running any more; its program has ended{exit_text} and what it \
             held is lost; the next call without session_id starts a new session"
        ))
    }
}

fn screen_text(screen: &ScreenText, path: &str) -> String {
    let lines: Vec<&str> = screen.lines.iter().map(String::as_str).collect();
    let used = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    let mut text = lines.get(..used).unwrap_or_default().join("\n");
    text.push_str(&format!(
        "\n[screen of {} rows and {} columns, cursor in row {}, column {}; everything that was printed is in {path}/stdout]\n",
        screen.size.rows,
        screen.size.cols,
        screen.row + 1,
        screen.col + 1
    ));
    text
}

fn compose_result(
    id: &str,
    is_new: bool,
    output: &str,
    reply: &SessionReply,
    execution: &ToolExecution,
) -> ToolCallResult {
    let mut text = String::new();
    if is_new {
        text.push_str(&format!("Session started with session_id: {id}\n"));
    }
    text.push_str(&reply.earlier_output);
    let is_silent =
        output == "(no output)\n" && reply.exit_code.is_none() && (is_new || reply.failure.is_some());
    if !is_silent {
        text.push_str(output);
    }
    for words in [&reply.failure, &reply.note].into_iter().flatten() {
        text.push_str(&format!("[{words}]\n"));
    }
    if reply.timed_out && reply.exit_code.is_some() {
        text.push_str("[stopped because its time was over; the session is still there]\n");
    }
    if reply.interrupted {
        text.push_str("[interrupted: the agent was stopped while this ran]\n");
    }
    if let Some(code) = reply.exit_code {
        text.push_str(&format!("[exit code {code}]\n"));
    }
    if let Some(code) = reply.session_exit {
        let exit_text =
            code.map_or("its exit code is not known".to_owned(), |code| format!("exit code {code}"));
        text.push_str(&format!("[session {id} has ended; {exit_text}]\n"));
    }
    let exit_code = reply.exit_code.or(reply.session_exit.flatten());
    let status = match (reply.timed_out, exit_code) {
        (true, _) => ToolStatus::TimedOut,
        (false, Some(code)) if code != 0 => ToolStatus::Error,
        (false, _) if reply.failure.is_some() => ToolStatus::Error,
        (false, _) => ToolStatus::Success,
    };
    ToolCallResult {
        text: text.trim_end().to_owned(),
        status,
        exit_code,
        timed_out: reply.timed_out,
        interrupted: reply.interrupted,
        execution_ref: Some(execution.reference.clone()),
        session_id: Some(id.to_owned()),
        session_event: match (is_new, reply.session_exit.is_some()) {
            (_, true) => Some(ToolSessionChange::Ended),
            (true, false) => Some(ToolSessionChange::Started),
            (false, false) => None,
        },
    }
}
