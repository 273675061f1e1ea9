//! A call to a stateful tool: selects or starts the session, sends the input, and composes the observation.

use abide_keeper::launch::KeeperConnection;
use abide_keeper::protocol::OutputStream;
use abide_terminal::{ScreenText, ShellProgram};

use super::copies::SessionCopies;
use super::found::{LiveSession, SessionLookup, SessionOrigin, all, find};
use super::program::SessionProgram;
use super::record::{SessionFolders, SessionRecord, new_id};
use super::start::SessionStart;
use super::talk::SessionInput;
use super::{shell, talk};
use crate::definition::ToolDefinition;
use crate::tool::arguments::ToolArguments;
use crate::tool::clock::{now, ticks_ms};
use crate::tool::execution::{CallRecord, ExitRecord, ToolExecution, new_mark};
use crate::tool::invocation::{ToolInvocation, text_to_send};
use crate::tool::observation::{OutputView, ToolCallResult, ToolSessionChange, ToolStatus, view};
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
    pub(crate) ended: Option<Option<i32>>,
    pub(crate) timed_out: bool,
    pub(crate) interrupted: bool,
    /// The reason of a failure, for the model.
    pub(crate) trouble: Option<String>,
    /// An additional remark for the model.
    pub(crate) remark: Option<String>,
    /// Output that belongs to an earlier call; shown before the answer.
    pub(crate) before: String,
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
pub(crate) struct CallResult {
    pub(crate) observation: ToolCallResult,
    /// Set if the call started the session.
    pub(crate) keeper: Option<KeeperConnection>,
}

impl From<ToolCallResult> for CallResult {
    fn from(observation: ToolCallResult) -> Self {
        Self { observation, keeper: None }
    }
}

/// The session that a call refers to.
enum SessionTarget {
    Living(Box<LiveSession>),
    Start { default: bool },
    None(Box<ToolCallResult>),
}

impl SessionCall<'_> {
    pub(crate) fn carry_out(&self) -> Result<CallResult, ToolError> {
        let text = match text_to_send(self.tool, self.arguments) {
            Ok(text) => text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            Err(bad) => return Ok(ToolCallResult::refused(bad.to_string()).into()),
        };
        let began = ticks_ms();
        let execution = ToolExecution::new(self.setup, self.action);
        let mut recorder = OutputRecorder::new(&execution.folder, self.setup.window());
        let (mut living, started) = match self.meant() {
            SessionTarget::None(observation) => return Ok((*observation).into()),
            SessionTarget::Living(living) => {
                let job = living.record.shell.is_some().then_some(living.status.jobs + 1);
                self.begin(&execution, &living.id, Vec::new(), job, text.as_deref())?;
                // The folder of a session that an earlier version started belongs to its keeper.
                if living.origin == SessionOrigin::Own {
                    recorder.copy_to(SessionCopies::open(&self.setup.state, &living.id).ok());
                }
                (*living, None)
            }
            SessionTarget::Start { default } => {
                match self.start(default, &execution, text.as_deref(), &mut recorder)? {
                    Ok((living, spoken)) => (living, Some(spoken)),
                    Err(observation) => return Ok((*observation).into()),
                }
            }
        };
        living.own()?;
        let is_new = started.is_some();
        let spoken = match started {
            // A session that ended at once or was interrupted gets no further input.
            Some(first) if first.ended.is_some() || first.interrupted || text.is_none() => first,
            Some(_) | None => self.say(&mut living, text.as_deref(), &mut recorder),
        };
        recorder.finish();
        let shown = self.shown(&mut living, &recorder, &execution);
        let keeper = is_new.then_some(living.keeper);
        let mut observation = compose(&living.id, is_new, &shown, &spoken, &execution);
        let exit = ExitRecord {
            exit_code: observation.exit_code,
            timed_out: spoken.timed_out,
            interrupted: spoken.interrupted,
            printed: OutputStream::ALL.map(|stream| recorder.stream(stream).printed),
            duration_ms: ticks_ms().saturating_sub(began),
            ended_at: now(),
        };
        if let Err(error) = execution.end(&exit) {
            observation.note_missing_record(&error);
        }
        Ok(CallResult { observation, keeper })
    }

    fn meant(&self) -> SessionTarget {
        let place = SessionFolders::new(self.setup);
        match self.arguments.session.as_deref() {
            Some(NEW_SESSION) => SessionTarget::Start { default: false },
            Some(id) => match find(&place, id) {
                SessionLookup::Living(living) if self.is_ours(&living.record) => {
                    SessionTarget::Living(living)
                }
                SessionLookup::Dead(code)
                    if SessionRecord::read(place.place(id).path()).is_some_and(|of| self.is_ours(&of)) =>
                {
                    SessionTarget::None(Box::new(dead(id, code)))
                }
                SessionLookup::Living(_) | SessionLookup::Dead(_) | SessionLookup::Unknown => {
                    SessionTarget::None(Box::new(ToolCallResult::refused(self.no_such_session(id))))
                }
            },
            None => {
                let default =
                    all(&place).into_iter().find(|(_, record)| record.default && self.is_ours(record));
                match default.map(|(id, _)| (find(&place, &id), id)) {
                    Some((SessionLookup::Living(living), _)) => SessionTarget::Living(living),
                    // The state of the dead session is lost. The model has to know, so no new session is started
                    // silently.
                    Some((SessionLookup::Dead(code), id)) => SessionTarget::None(Box::new(dead(&id, code))),
                    Some((SessionLookup::Unknown, _)) | None => SessionTarget::Start { default: true },
                }
            }
        }
    }

    fn is_ours(&self, record: &SessionRecord) -> bool {
        record.tool == self.tool.name && record.run == self.setup.run
    }

    fn no_such_session(&self, id: &str) -> String {
        let place = SessionFolders::new(self.setup);
        let open: Vec<String> = all(&place)
            .into_iter()
            .filter(|(id, record)| {
                self.is_ours(record) && matches!(find(&place, id), SessionLookup::Living(_))
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

    fn begin(
        &self,
        execution: &ToolExecution,
        id: &str,
        argv: Vec<String>,
        job: Option<u64>,
        text: Option<&str>,
    ) -> Result<(), ToolError> {
        let call = CallRecord {
            tool: self.tool.name.clone(),
            argv: argv.iter().map(|word| self.setup.hide(word)).collect(),
            cwd: self.setup.tool_cwd(self.tool).to_string_lossy().into_owned(),
            stdin_bytes: text.map_or(0, |text| text.len() as u64),
            session: Some(id.to_owned()),
            job,
            started_at: now(),
            mark: String::new(),
        };
        execution.begin(&call).map_err(|error| ToolError::system("cannot record a call", error))
    }

    /// Starts a session and waits until it is ready. Its output until then belongs to this call.
    fn start(
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
                Err(bad) => return refused(bad.to_string()),
            };
        let pty = self.tool.pty.map(|size| (size.rows.max(1), size.cols.max(1)));
        let mark = new_mark();
        let env = self.setup.tool_env(env, &mark, pty.is_some());
        let program = match SessionProgram::of(argv.clone(), &env, pty.is_some()) {
            Ok(program) => program,
            Err(error) => return refused(format!("the session could not be started: {error}")),
        };
        let place = SessionFolders::new(self.setup);
        let opening = SessionStart {
            id: new_id(&self.tool.name, |id| place.place(id).path().exists()),
            program,
            env,
            cwd: self.setup.tool_cwd(self.tool),
            confinement: self.setup.confinement.clone(),
            record: SessionRecord {
                tool: self.tool.name.clone(),
                run: self.setup.run.clone(),
                default,
                shell: None,
                pty,
                started_at: now(),
                mark,
            },
        };
        self.begin(execution, &opening.id, argv, None, text)?;
        let mut living = match opening.start(place.own(), &self.setup.launcher)? {
            Ok(living) => living,
            Err(why) => {
                let mut observation =
                    ToolCallResult::refused(format!("the session could not be started: {why}"));
                observation.execution_ref = Some(execution.reference.clone());
                return Ok(Err(Box::new(observation)));
            }
        };
        // The copies are for people only; the session works without them.
        let copies = SessionCopies::open(&self.setup.state, &living.id).ok();
        copies.as_ref().and_then(|copies| copies.write_pid(living.status.child.pid).ok());
        recorder.copy_to(copies);
        if living.record.shell.is_some() {
            return Ok(Ok((living, SessionReply::default())));
        }
        // The tool's timeout limits answers, not the start of the program.
        let saying = SessionInput { action: self.action, text: None, timeout_ms: talk::FIRST_MS };
        let spoken = talk::say(&mut living, saying, recorder, &self.setup.stop);
        // A remark that the start may be incomplete is only a guess and is dropped, unless the start timed out.
        let remark = spoken.remark.filter(|_| spoken.timed_out);
        Ok(Ok((living, SessionReply { remark, timed_out: false, ..spoken })))
    }

    fn say(
        &self,
        living: &mut LiveSession,
        text: Option<&str>,
        recorder: &mut OutputRecorder,
    ) -> SessionReply {
        let timeout_ms = self.timeout_ms(living);
        let stop = &self.setup.stop;
        let Some(path) = living.record.shell.clone() else {
            return self.talk(living, SessionInput { action: self.action, text, timeout_ms }, recorder);
        };
        let Some(command) = text else {
            let busy = living.status.running.is_some();
            let remark =
                format!("the session {}", if busy { "runs a command" } else { "waits for a command" });
            return SessionReply { remark: Some(remark), ..SessionReply::default() };
        };
        if command.contains('\0') {
            let trouble = Some("a command cannot hold a NUL character".to_owned());
            return SessionReply { trouble, ..SessionReply::default() };
        }
        match ShellProgram::find(&path, &[]) {
            Ok(shell) => shell::run(living, &shell, command, timeout_ms, recorder, stop),
            Err(error) => SessionReply { trouble: Some(error.to_string()), ..SessionReply::default() },
        }
    }

    /// Sends input to a program that is not a shell. Output that still belongs to an earlier call, which timed out, is
    /// shown as that call's.
    fn talk(
        &self,
        living: &mut LiveSession,
        saying: SessionInput<'_>,
        recorder: &mut OutputRecorder,
    ) -> SessionReply {
        let stop = &self.setup.stop;
        let earlier = talk::unfinished(living).filter(|earlier| earlier != self.action);
        let Some(earlier) = earlier.filter(|_| saying.text.is_some()) else {
            return talk::say(living, saying, recorder, stop);
        };
        let earlier = ToolExecution::new(self.setup, &earlier);
        let budget = self.setup.window() / 2;
        let mut late = OutputRecorder::new(&earlier.folder, budget);
        let progress = talk::look(living, &mut late);
        late.finish();
        let mut spoken = talk::say(living, saying, recorder, stop);
        let is_empty = OutputStream::ALL.into_iter().all(|stream| late.stream(stream).printed == 0);
        if !is_empty && living.record.pty.is_none() {
            let output = view(&late, OutputView { budget, path: &earlier.shown });
            spoken.before = format!(
                "[an earlier call to this session ({}) printed this after its result was given:]\n{output}[end of the \
                 earlier call's output]\n",
                earlier.shown
            );
        }
        if progress == ProgramState::AtWork {
            spoken.before.push_str(&format!(
                "[the program was still at work on an earlier call ({}) when this text was sent; what follows may \
                 belong to that call]\n",
                earlier.shown
            ));
        }
        spoken
    }

    fn timeout_ms(&self, living: &LiveSession) -> u64 {
        let default = if living.record.shell.is_some() { COMMAND_SEC } else { TALK_SEC };
        self.tool.timeout_sec.unwrap_or(default).saturating_mul(1_000)
    }

    fn shown(
        &self,
        living: &mut LiveSession,
        recorder: &OutputRecorder,
        execution: &ToolExecution,
    ) -> String {
        if let Some(screen) = talk::screen(living) {
            return screen_text(&screen, &execution.shown);
        }
        view(recorder, OutputView { budget: self.setup.window(), path: &execution.shown })
    }
}

/// Default timeout of a shell command in seconds; the command is then stopped.
const COMMAND_SEC: u64 = 600;
/// Default timeout of other programs in seconds; the program continues and the model is told.
const TALK_SEC: u64 = 60;

fn dead(id: &str, code: Option<i32>) -> ToolCallResult {
    let how = code.map_or(String::new(), |code| format!(" with exit code {code}"));
    ToolCallResult {
        session_id: Some(id.to_owned()),
        session_event: Some(ToolSessionChange::Ended),
        ..ToolCallResult::refused(format!(
            "the call was not carried out: session {id} is not running any more; its program has ended{how} and what it \
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

fn compose(
    id: &str,
    is_new: bool,
    shown: &str,
    spoken: &SessionReply,
    execution: &ToolExecution,
) -> ToolCallResult {
    let mut text = String::new();
    if is_new {
        text.push_str(&format!("Session started with session_id: {id}\n"));
    }
    text.push_str(&spoken.before);
    let said_nothing =
        shown == "(no output)\n" && spoken.exit_code.is_none() && (is_new || spoken.trouble.is_some());
    if !said_nothing {
        text.push_str(shown);
    }
    for words in [&spoken.trouble, &spoken.remark].into_iter().flatten() {
        text.push_str(&format!("[{words}]\n"));
    }
    if spoken.timed_out && spoken.exit_code.is_some() {
        text.push_str("[stopped because its time was over; the session is still there]\n");
    }
    if spoken.interrupted {
        text.push_str("[interrupted: the agent was stopped while this ran]\n");
    }
    if let Some(code) = spoken.exit_code {
        text.push_str(&format!("[exit code {code}]\n"));
    }
    if let Some(code) = spoken.ended {
        let how = code.map_or("its exit code is not known".to_owned(), |code| format!("exit code {code}"));
        text.push_str(&format!("[session {id} has ended; {how}]\n"));
    }
    let exit_code = spoken.exit_code.or(spoken.ended.flatten());
    let status = match (spoken.timed_out, exit_code) {
        (true, _) => ToolStatus::TimedOut,
        (false, Some(code)) if code != 0 => ToolStatus::Error,
        (false, _) if spoken.trouble.is_some() => ToolStatus::Error,
        (false, _) => ToolStatus::Success,
    };
    ToolCallResult {
        text: text.trim_end().to_owned(),
        status,
        exit_code,
        timed_out: spoken.timed_out,
        interrupted: spoken.interrupted,
        execution_ref: Some(execution.reference.clone()),
        session_id: Some(id.to_owned()),
        session_event: match (is_new, spoken.ended.is_some()) {
            (_, true) => Some(ToolSessionChange::Ended),
            (true, false) => Some(ToolSessionChange::Started),
            (false, false) => None,
        },
    }
}
