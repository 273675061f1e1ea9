//! Interprets the output of iFlow: all of it is the answer, except the `<Execution Info>` block at its end.
//!
//! No line reports the outcome of the turn. It has succeeded if the process exited with 0, printed an answer, and
//! printed the block, which it does at the end. The block is on standard output or, in one version, on standard error,
//! which is read after the exit.

use abide_domain::{
    effect::LaunchSession,
    engine::HandleType,
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    process::ExitStatus,
};
use abide_ports::engine::{
    EngineSessionStatus, ExitCause, FactKind, InterruptMethod, LaunchContext, ProcessExit, ProcessSignal,
    ShutdownMethod,
};

use super::messages::{begins_block, split};
use crate::{
    argument,
    failure::{exit_without_result, exited_voluntarily, stderr_tail},
    line_protocol::{FactSink, LineProtocol},
    lines::MAX_LINE_BYTES,
};

/// A process executes only one turn.
const ONLY_TURN: u32 = 1;

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct IFlowReader {
    resumes: bool,
    /// The complete output.
    text: String,
    /// Whether a block has begun. Later lines are not reported as progress.
    in_block: bool,
}

impl IFlowReader {
    pub(super) fn new(context: &LaunchContext<'_>) -> Self {
        let resumes = matches!(context.session, LaunchSession::Resumed(_));
        Self { resumes, text: String::new(), in_block: false }
    }

    /// Appends a line, up to the size limit of a line of other engines. The rest is dropped.
    fn append_line(&mut self, line: &str) {
        if self.text.len() + line.len() < MAX_LINE_BYTES {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    fn failure(&self, exit: &ProcessExit<'_>) -> RunFailure {
        if self.resumes
            && exited_voluntarily(exit)
            && exit.status != ExitStatus::Code(0)
            && self.text.trim().is_empty()
        {
            let stderr_tail = stderr_tail(exit.stderr);
            let message = format!("the session could not be resumed: {stderr_tail}");
            return RunFailure::new(FailureCode::SessionResumeFailed, message);
        }
        exit_without_result(exit)
    }
}

impl LineProtocol for IFlowReader {
    const VERSION: &'static str = "iflow/1";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        let line = String::from_utf8_lossy(line);
        self.in_block = self.in_block || begins_block(&line);
        if !self.in_block {
            facts.push(FactKind::Text(line.clone().into_owned()));
        }
        self.append_line(&line);
    }

    fn on_blank_line(&mut self) {
        self.append_line("");
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        let exited_normally =
            exit.status == ExitStatus::Code(0) || exit.cause == ExitCause::TerminatedAfterOutput;
        let stderr = String::from_utf8_lossy(exit.stderr);
        let (answer, info) = match split(&self.text) {
            Some((answer, info)) => (answer, Some(info)),
            None => (self.text.as_str(), split(&stderr).map(|(_, info)| info)),
        };
        let answer = answer.trim();
        let session = info
            .as_ref()
            .and_then(|info| info.session_id.as_deref())
            .filter(|id| argument::is_valid_session_id(id));
        if let Some(id) = session {
            facts.push(FactKind::Session { handle_type: HandleType::SessionId, value: id.to_owned() });
        }
        if exited_normally && info.is_some() && !answer.is_empty() {
            facts.end_turn_with_answer(ONLY_TURN, answer);
        } else if exit.cause == ExitCause::Interrupted {
            facts.end_turn(ONLY_TURN, TurnOutcome::Interrupted);
        } else {
            facts.end_turn(ONLY_TURN, TurnOutcome::Failed { failure: self.failure(exit) });
        }
    }

    fn status(&self) -> EngineSessionStatus {
        // The session id is known only at the end.
        EngineSessionStatus::Starting
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}
