//! A recorded process: its start, its output and its exit.

use std::{collections::BTreeMap, fmt::Write as _};

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineSessionHandle, HandleType, ProfileKind},
    process::ExitStatus,
    settings::ExecutionMode,
};
use abide_ports::engine::{
    Engine, EngineFact, EngineInstallation, ExitCause, FactKind, LaunchContext, ProcessExit, PromptSource,
    ReaderCheckpoint,
};

#[derive(Clone, Debug)]
pub struct RecordedProcess {
    /// The name of the recorded scenario.
    pub name: String,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: ExitStatus,
    pub cause: ExitCause,
    /// The profile kind that the process was started for.
    pub kind: ProfileKind,
    /// The id of the resumed session; `None` for a new session.
    pub resumes: Option<String>,
    pub mode: ExecutionMode,
}

impl RecordedProcess {
    /// Creates a process that printed `stdout` and exited with code 0.
    pub fn new(name: &str, stdout: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            stdout: stdout.to_vec(),
            stderr: vec![],
            exit: ExitStatus::Code(0),
            cause: ExitCause::Voluntary,
            kind: ProfileKind::Resumable,
            resumes: None,
            mode: ExecutionMode::Interactive,
        }
    }

    /// Applies notes: lines of `key value` with the keys `exit` (a code or `unseen`), `cause` (`itself`, `dismissed`,
    /// `interrupted`), `kind` (`resumable`, `sticky_process`), `resumes` (a session id) and `mode` (`auto`,
    /// `interactive`, `chat`).
    #[must_use]
    pub fn with_notes(mut self, notes: &str) -> Self {
        let notes_by_key: BTreeMap<&str, &str> =
            notes.lines().filter_map(|line| line.split_once(' ')).collect();
        for (key, value) in notes_by_key {
            match (key, value) {
                ("exit", "unseen") => self.exit = ExitStatus::Unknown,
                ("exit", code) => {
                    self.exit = ExitStatus::Code(code.parse().expect("an exit code is a number"))
                }
                ("cause", "itself") => self.cause = ExitCause::Voluntary,
                ("cause", "dismissed") => self.cause = ExitCause::TerminatedAfterOutput,
                ("cause", "interrupted") => self.cause = ExitCause::Interrupted,
                ("kind", "resumable") => self.kind = ProfileKind::Resumable,
                ("kind", "sticky_process") => self.kind = ProfileKind::StickyProcess,
                ("resumes", id) => self.resumes = Some(id.to_owned()),
                ("mode", "auto") => self.mode = ExecutionMode::Auto,
                ("mode", "interactive") => self.mode = ExecutionMode::Interactive,
                ("mode", "chat") => self.mode = ExecutionMode::Chat,
                (key, value) => panic!("{}: the notes contain {key} {value}, which is unknown", self.name),
            }
        }
        self
    }

    /// Feeds the whole output to a new interpreter in one piece and returns the facts.
    pub fn replay(&self, engine: &dyn Engine) -> Vec<EngineFact> {
        self.replay_in_chunks(engine, usize::MAX)
    }

    /// Like [`RecordedProcess::replay`], in pieces of `size` bytes.
    pub(crate) fn replay_in_chunks(&self, engine: &dyn Engine, size: usize) -> Vec<EngineFact> {
        let (installation, session) = (engine.installation(), self.session(engine));
        let mut interpreter = engine.interpreter(&self.launch_context(&installation, &session));
        let mut facts = vec![];
        for piece in self.stdout.chunks(size.min(self.stdout.len().max(1))) {
            facts.extend(interpreter.feed(piece));
        }
        let exit = ProcessExit { status: self.exit, stderr: &self.stderr, cause: self.cause };
        facts.extend(interpreter.on_exit(&exit));
        assert_eq!(interpreter.on_exit(&exit), [], "{}: nothing is said after the end", self.name);
        facts
    }

    /// Like [`RecordedProcess::replay`], with two interpreters: the first reads up to byte `at`, the second continues
    /// from its checkpoint.
    pub(crate) fn replay_restored(&self, engine: &dyn Engine, at: usize) -> Vec<EngineFact> {
        let (installation, session) = (engine.installation(), self.session(engine));
        let order = self.launch_context(&installation, &session);
        let (mut first, mut second) = (engine.interpreter(&order), engine.interpreter(&order));
        let mut facts = first.feed(&self.stdout[..at]);
        let checkpoint = first.checkpoint().expect("a process that is not over has a checkpoint");
        assert!(checkpoint.offset <= at as u64, "{}: a checkpoint is not ahead of the input", self.name);
        second.restore(&checkpoint).expect("a checkpoint fits its own adapter");
        assert_eq!(second.checkpoint().as_ref(), Some(&checkpoint), "{}: nothing is lost", self.name);
        assert_eq!(second.status(), first.status(), "{}: the status is the same", self.name);
        let foreign = ReaderCheckpoint { version: "another/1".to_owned(), ..checkpoint.clone() };
        assert!(first.restore(&foreign).is_err(), "{}: another version is refused", self.name);
        let from = usize::try_from(checkpoint.offset).expect("an offset fits");
        facts.extend(second.feed(&self.stdout[from..]));
        let exit = ProcessExit { status: self.exit, stderr: &self.stderr, cause: self.cause };
        facts.extend(second.on_exit(&exit));
        facts
    }

    pub(crate) fn session(&self, engine: &dyn Engine) -> LaunchSession {
        match &self.resumes {
            None => LaunchSession::New,
            Some(id) => LaunchSession::Resumed(handle(engine, id)),
        }
    }

    pub(crate) fn launch_context<'a>(
        &self,
        installation: &'a EngineInstallation,
        session: &'a LaunchSession,
    ) -> LaunchContext<'a> {
        LaunchContext {
            installation,
            kind: self.kind,
            session,
            prompt: "hello",
            workspace: "/somewhere",
            private_dir: "/elsewhere",
            mode: self.mode,
            model: None,
            sandbox: None,
            isolation: Default::default(),
            skill: None,
            session_started_at: None,
            resume_detail: "",
            prompt_source: PromptSource::Message,
        }
    }
}

/// Returns a session handle of the engine.
pub(crate) fn handle(engine: &dyn Engine, id: &str) -> EngineSessionHandle {
    EngineSessionHandle {
        engine: engine.name().to_owned(),
        handle_type: HandleType::SessionId,
        handle_value: id.to_owned(),
        created_at_turn: 1,
    }
}

/// Formats facts for snapshots, one per line.
pub fn format_facts(facts: &[EngineFact]) -> String {
    let mut text = String::new();
    for EngineFact { position: at, kind } in facts {
        let (offset, index) = (at.0 >> 8, at.0 & 0xff);
        let kind = match kind {
            FactKind::WriteStdin(bytes) => format!("Write({:?})", String::from_utf8_lossy(bytes)),
            FactKind::Session { .. }
            | FactKind::Text(_)
            | FactKind::Progress(_)
            | FactKind::Warning(_)
            | FactKind::Gate { .. }
            | FactKind::GateWithdrawn { .. }
            | FactKind::OutputComplete
            | FactKind::TurnEnded { .. }
            | FactKind::UnknownLine(_) => format!("{kind:?}"),
        };
        // Writing to a string cannot fail.
        writeln!(text, "{offset}.{index} {kind}").ok();
    }
    text
}
