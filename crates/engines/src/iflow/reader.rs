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

use super::native::{begins_block, split};
use crate::{
    argument,
    failing::{complaint, left_by_itself, went_silently},
    lines::LONGEST,
    tongue::{FactSink, LineProtocol},
};

/// A process executes only one turn.
const TURN: u32 = 1;

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
    pub(super) fn new(order: &LaunchContext<'_>) -> Self {
        let resumes = matches!(order.session, LaunchSession::Resumed(_));
        Self { resumes, text: String::new(), in_block: false }
    }

    /// Appends a line, up to the size limit of a line of other engines. The rest is dropped.
    fn keep(&mut self, line: &str) {
        if self.text.len() + line.len() < LONGEST {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    fn failure(&self, departure: &ProcessExit<'_>) -> RunFailure {
        if self.resumes
            && left_by_itself(departure)
            && departure.exit != ExitStatus::Code(0)
            && self.text.trim().is_empty()
        {
            let complaint = complaint(departure.stderr);
            let message = format!("the session could not be resumed: {complaint}");
            return RunFailure::new(FailureCode::SessionResumeFailed, message);
        }
        went_silently(departure)
    }
}

impl LineProtocol for IFlowReader {
    const VERSION: &'static str = "iflow/1";

    fn line(&mut self, line: &[u8], facts: &mut FactSink) {
        let line = String::from_utf8_lossy(line);
        self.in_block = self.in_block || begins_block(&line);
        if !self.in_block {
            facts.say(FactKind::Text(line.clone().into_owned()));
        }
        self.keep(&line);
    }

    fn blank_line(&mut self) {
        self.keep("");
    }

    fn end(&mut self, departure: &ProcessExit<'_>, facts: &mut FactSink) {
        let left_well = departure.exit == ExitStatus::Code(0) || departure.cause == ExitCause::Dismissed;
        let complaints = String::from_utf8_lossy(departure.stderr);
        let (answer, info) = match split(&self.text) {
            Some((answer, info)) => (answer, Some(info)),
            None => (self.text.as_str(), split(&complaints).map(|(_, info)| info)),
        };
        let answer = answer.trim();
        let session =
            info.as_ref().and_then(|info| info.session_id.as_deref()).filter(|id| argument::is_session(id));
        if let Some(id) = session {
            facts.say(FactKind::Session { handle_type: HandleType::SessionId, value: id.to_owned() });
        }
        if left_well && info.is_some() && !answer.is_empty() {
            facts.answered(TURN, answer);
        } else if departure.cause == ExitCause::Interrupted {
            facts.ended(TURN, TurnOutcome::Interrupted);
        } else {
            facts.ended(TURN, TurnOutcome::Failed { failure: self.failure(departure) });
        }
    }

    fn status(&self) -> EngineSessionStatus {
        // The session id is known only at the end.
        EngineSessionStatus::Starting
    }

    fn interrupt(&mut self) -> InterruptMethod {
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn leave(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}
