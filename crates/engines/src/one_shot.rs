//! The shared frame of programs that execute one turn per process: they take the prompt, print their output and exit.
//!
//! An adapter implements [`OneShotProtocol`], which interprets single lines and classifies failures. The frame holds the
//! state of the turn and decides its outcome when the process has exited. A program that is kept for several turns, or
//! that asks inside a turn, implements [`LineProtocol`] instead.

use std::fmt::Debug;

use abide_domain::{effect::LaunchSession, engine::HandleType, event::TurnOutcome, failure::RunFailure};
use abide_ports::engine::{
    EngineAbility, EngineSessionStatus, ExitCause, FactKind, InterruptMethod, LaunchContext, ProcessExit,
    ProcessInterpreter, ProcessSignal, ShutdownMethod, UnsupportedOperation,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    argument,
    failure::{exit_without_result, exited_normally, exited_voluntarily, resume_failed, stderr_tail},
    line_protocol::{FactSink, LineInterpreter, LineProtocol},
};

/// A process executes only one turn.
const ONLY_TURN: u32 = 1;

/// Interprets the output of a program that executes one turn per process.
///
/// The order of calls is `on_line` for each line, then `on_exit`, then `is_success`. Without success, `reported_outcome`
/// follows, and then `failure`. The implementation holds the state that only this program needs. It is serialised in each
/// checkpoint.
pub(crate) trait OneShotProtocol:
    Debug + Default + Send + Serialize + DeserializeOwned + 'static
{
    /// See [`LineProtocol::VERSION`].
    const VERSION: &'static str;

    /// The signal that interrupts the turn.
    const INTERRUPT_SIGNAL: ProcessSignal = ProcessSignal::Interrupt;

    /// Processes a line of output; `None` if it is unknown.
    fn on_line(&mut self, line: &[u8], turn: &mut OneShotTurn, facts: &mut FactSink) -> Option<()>;

    /// See [`LineProtocol::on_blank_line`].
    fn on_blank_line(&mut self) {}

    /// Processes the exit of the process before the outcome is decided, for output that is complete only then.
    fn on_exit(&mut self, _exit: &ProcessExit<'_>, _turn: &mut OneShotTurn, _facts: &mut FactSink) {}

    /// Whether the turn has succeeded. Its answer is then [`OneShotTurn::answer`].
    fn is_success(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> bool {
        turn.completed && exited_normally(exit)
    }

    /// The reported outcome of a turn without success, for programs whose report counts whatever the exit status is.
    fn reported_outcome(&mut self, _turn: &OneShotTurn, _exit: &ProcessExit<'_>) -> Option<TurnOutcome> {
        None
    }

    /// The failure of a turn that has neither succeeded nor been interrupted.
    fn failure(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> RunFailure {
        if turn.failure.is_none() && turn.is_session_lost(exit) {
            return resume_failed("the session", &stderr_tail(exit.stderr));
        }
        turn.failure_or_exit(exit)
    }

    /// The refusal of a second prompt.
    fn prompt_refusal() -> UnsupportedOperation {
        UnsupportedOperation::MissingAbility { ability: EngineAbility::Hold }
    }
}

/// The state of the only turn of a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OneShotTurn {
    /// Whether the process was started to resume a session.
    pub(crate) resumes: bool,
    /// The id of the session that the program announced.
    pub(crate) session: Option<String>,
    /// The answer, as far as it is known.
    pub(crate) answer: String,
    /// Whether the program reported success. Later lines can revoke it.
    pub(crate) completed: bool,
    /// The last error that the program reported. It is the cause of the failure if the turn does not succeed.
    pub(crate) failure: Option<RunFailure>,
}

impl OneShotTurn {
    fn new(context: &LaunchContext<'_>) -> Self {
        Self {
            resumes: matches!(context.session, LaunchSession::Resumed(_)),
            session: None,
            answer: String::new(),
            completed: false,
            failure: None,
        }
    }

    /// Reports the session that the program announced; `None` if its id is invalid.
    pub(crate) fn on_session_id(&mut self, id: &str, facts: &mut FactSink) -> Option<()> {
        if !argument::is_valid_session_id(id) {
            return None;
        }
        self.session = Some(id.to_owned());
        facts.push(FactKind::Session { handle_type: HandleType::SessionId, value: id.to_owned() });
        Some(())
    }

    /// Whether the process exited by itself without announcing the session that it was started to resume.
    pub(crate) fn is_session_lost(&self, exit: &ProcessExit<'_>) -> bool {
        self.resumes && self.session.is_none() && exited_voluntarily(exit)
    }

    /// The reported failure; without one, the exit without a result.
    pub(crate) fn failure_or_exit(&self, exit: &ProcessExit<'_>) -> RunFailure {
        self.failure.clone().unwrap_or_else(|| exit_without_result(exit))
    }
}

/// An interpreter for a process that was started with this context.
pub(crate) fn interpreter<P: OneShotProtocol>(context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    Box::new(LineInterpreter::new(OneShotReader { turn: OneShotTurn::new(context), protocol: P::default() }))
}

/// The [`LineProtocol`] of a [`OneShotProtocol`].
#[derive(Debug, Serialize, Deserialize)]
struct OneShotReader<P> {
    turn: OneShotTurn,
    protocol: P,
}

impl<P: OneShotProtocol> LineProtocol for OneShotReader<P> {
    const VERSION: &'static str = P::VERSION;

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.protocol.on_line(line, &mut self.turn, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn on_blank_line(&mut self) {
        self.protocol.on_blank_line();
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        self.protocol.on_exit(exit, &mut self.turn, facts);
        if self.protocol.is_success(&self.turn, exit) {
            return facts.end_turn_with_answer(ONLY_TURN, &self.turn.answer);
        }
        let outcome = match self.protocol.reported_outcome(&self.turn, exit) {
            Some(outcome) => outcome,
            None if exit.cause == ExitCause::Interrupted => TurnOutcome::Interrupted,
            None => TurnOutcome::Failed { failure: self.protocol.failure(&self.turn, exit) },
        };
        facts.end_turn(ONLY_TURN, outcome);
    }

    fn status(&self) -> EngineSessionStatus {
        match self.turn.session {
            Some(_) => EngineSessionStatus::Working,
            None => EngineSessionStatus::Starting,
        }
    }

    fn encode_prompt(&mut self, _prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(P::prompt_refusal())
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        InterruptMethod::Signal(P::INTERRUPT_SIGNAL)
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}

#[cfg(test)]
mod tests {
    use abide_domain::{failure::FailureCode, process::ExitStatus};
    use abide_ports::engine::{EngineFact, EngineInstallation};

    use super::*;
    use crate::{
        failure::engine_failed,
        test_context::{launch_context, session_handle},
    };

    /// The lines `session ID`, `error TEXT` and `done ANSWER`.
    #[derive(Debug, Default, Serialize, Deserialize)]
    struct WordProtocol;

    impl OneShotProtocol for WordProtocol {
        const VERSION: &'static str = "word/1";

        fn on_line(&mut self, line: &[u8], turn: &mut OneShotTurn, facts: &mut FactSink) -> Option<()> {
            match std::str::from_utf8(line).ok()?.split_once(' ')? {
                ("session", id) => turn.on_session_id(id, facts)?,
                ("error", text) => turn.failure = Some(engine_failed(text)),
                ("done", text) => {
                    turn.answer = text.to_owned();
                    turn.completed = true;
                }
                _ => return None,
            }
            Some(())
        }
    }

    fn facts(session: &LaunchSession, stdout: &str, status: i32, cause: ExitCause) -> Vec<FactKind> {
        let installation = EngineInstallation::for_program("word");
        let mut interpreter = interpreter::<WordProtocol>(&launch_context(&installation, session));
        let mut facts = interpreter.feed(stdout.as_bytes());
        let status = ExitStatus::Code(status);
        facts.extend(interpreter.on_exit(&ProcessExit { status, stderr: b"on stderr", cause }));
        assert!(interpreter.encode_prompt("again").is_err(), "a process takes one prompt");
        facts.into_iter().map(|EngineFact { kind, .. }| kind).collect()
    }

    fn outcome(session: &LaunchSession, stdout: &str, status: i32, cause: ExitCause) -> TurnOutcome {
        match facts(session, stdout, status, cause).pop() {
            Some(FactKind::TurnEnded { turn: ONLY_TURN, outcome }) => outcome,
            other => panic!("{other:?} is not the end of the turn"),
        }
    }

    fn failure(session: &LaunchSession, stdout: &str, status: i32) -> RunFailure {
        let outcome = outcome(session, stdout, status, ExitCause::Voluntary);
        let TurnOutcome::Failed { failure } = outcome else { panic!("{outcome:?} is not a failure") };
        failure
    }

    #[test]
    fn success_needs_a_report_and_a_normal_exit() {
        let completed = TurnOutcome::Completed { text: "yes".to_owned() };
        let stdout = "error a\ndone yes\n";
        assert_eq!(outcome(&LaunchSession::New, stdout, 0, ExitCause::Voluntary), completed);
        assert_eq!(outcome(&LaunchSession::New, stdout, 143, ExitCause::TerminatedAfterOutput), completed);
        assert_eq!(
            outcome(&LaunchSession::New, stdout, 130, ExitCause::Interrupted),
            TurnOutcome::Interrupted
        );
        assert_eq!(failure(&LaunchSession::New, stdout, 1).message, "a");
        let silent = failure(&LaunchSession::New, "", 0).message;
        assert_eq!(silent, "the engine exited with code 0 without a result: on stderr");
    }

    #[test]
    fn a_session_that_is_not_announced_was_not_resumed() {
        let resumed = LaunchSession::Resumed(session_handle("word", "s1"));
        let lost = failure(&resumed, "", 1);
        assert_eq!(lost.code, FailureCode::SessionResumeFailed);
        assert_eq!(lost.message, "the session could not be resumed: on stderr");
        for (stdout, status) in [("session s1\n", 1), ("", 137), ("error a\n", 1)] {
            assert_eq!(failure(&resumed, stdout, status).code, FailureCode::EngineFailed, "{stdout}{status}");
        }
    }

    #[test]
    fn an_invalid_session_id_is_an_unknown_line() {
        let line = "session --help";
        let facts = facts(&LaunchSession::New, &format!("{line}\n"), 0, ExitCause::Voluntary);
        assert_eq!(facts.first(), Some(&FactKind::UnknownLine(line.to_owned())));
    }
}
