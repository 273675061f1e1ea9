//! The conversation with an ACP agent: handshake, session, settings, then one prompt after the other.
//!
//! Messages before the first prompt are the session's history and never an answer. Some agents continue to replay
//! history after they reported the session as loaded. They begin each earlier exchange with the user's message, so a
//! user message also resets the answer.
//!
//! The answer of a turn is its last message. Text before a tool call is reported as progress.

use abide_domain::{effect::LaunchSession, event::TurnOutcome, failure::FailureCode};
use abide_ports::engine::{
    EngineSessionStatus, ExitCause, FactKind, GateAnswer, InterruptMethod, LaunchContext, ProcessExit,
    ProcessSignal, ShutdownMethod, UnsupportedOperation,
};

use self::turn::AcpTurn;
use super::{
    gates::AcpGates,
    messages::{AcpError, AcpMessage, CancelRequestParams, UpdateLine, looks_like_chunk, parse_part},
    preferences::{SessionPreferences, SessionSetting},
    requests,
};
use crate::{
    failure::exit_without_result,
    line_protocol::{FactSink, LineProtocol, LongLine},
};

mod failure;
mod long_line;
mod opening;
mod response;
mod turn;
mod updates;

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct AcpReader {
    workspace: String,
    resumes: Option<String>,
    /// The prompt of turn 1, until it is sent.
    prompt: String,
    preferences: SessionPreferences,
    phase: AcpPhase,
    session: Option<String>,
    /// The login methods that the agent offers.
    logins: String,
    /// The last turn that has ended.
    ended_turns: u32,
    /// The last turn that [`LineProtocol::encode_prompt`] started; only for [`LineProtocol::status`], because it is not derived
    /// from output.
    prompted_turn: u32,
    turn: AcpTurn,
    gates: AcpGates,
}

/// The phase of the conversation.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum AcpPhase {
    /// Waits for the response to `initialize`.
    Initializing,
    /// Waits until the session is open.
    OpeningSession {
        /// Whether the agent replays the history.
        replays: bool,
    },
    /// Applies these settings; the number counts those that are done.
    ApplyingSettings(Vec<SessionSetting>, usize),
    /// The session is open, and prompts are accepted.
    Ready,
    /// Failed before the first prompt was sent; accepts no other.
    Failed,
}

impl AcpReader {
    pub(super) fn new(context: &LaunchContext<'_>) -> Self {
        Self {
            workspace: context.workspace.to_owned(),
            resumes: match context.session {
                LaunchSession::New | LaunchSession::Named(_) => None,
                LaunchSession::Resumed(handle) => Some(handle.handle_value.clone()),
            },
            prompt: context.prompt.to_owned(),
            preferences: SessionPreferences::of(context),
            phase: AcpPhase::Initializing,
            session: None,
            logins: String::new(),
            ended_turns: 0,
            prompted_turn: 1,
            turn: AcpTurn::default(),
            gates: AcpGates::default(),
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn try_line(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        if matches!(self.phase, AcpPhase::Ready) {
            if looks_like_chunk(line) && self.try_text_chunk(line, facts).is_some() {
                return Some(());
            }
            if let Ok(UpdateLine { id: None, method, params }) = serde_json::from_slice(line)
                && method == "session/update"
            {
                return self.on_session_update(params, facts);
            }
        }
        let message: AcpMessage<'_> = serde_json::from_slice(line).ok()?;
        match (message.method, message.id) {
            (Some(method), Some(id)) => self.on_request(&method, id, message.params, facts),
            (Some(method), None) if method == "session/update" => {
                self.on_session_update(parse_part(message.params)?, facts)?;
            }
            (Some(method), None) if method == "$/cancel_request" => {
                let cancelled: CancelRequestParams<'_> = parse_part(message.params)?;
                let gate = self.gates.withdraw(cancelled.request_id)?;
                facts.push(FactKind::GateWithdrawn { gate_id: gate });
            }
            (Some(_) | None, None) => return None,
            (None, Some(id)) => {
                let id: u64 = id.get().parse().ok()?;
                let answer = match message.error {
                    None => Ok(message.result),
                    Some(error) => Err(parse_part::<AcpError<'_>>(Some(error)).unwrap_or_default()),
                };
                self.on_response(id, answer, facts)?;
            }
        }
        Some(())
    }
}

impl LineProtocol for AcpReader {
    const VERSION: &'static str = "acp/2";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.try_line(line, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn on_long_line(&mut self, line: &LongLine<'_>, facts: &mut FactSink) {
        self.on_skipped_line(line, facts);
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        if self.ended_turns > 0 && !self.turn.has_output {
            return;
        }
        let turn = self.ended_turns + 1;
        if exit.cause == ExitCause::Interrupted {
            return facts.end_turn(turn, TurnOutcome::Interrupted);
        }
        let mut failure = exit_without_result(exit);
        let auth = failure.code == FailureCode::EngineAuthRequired;
        if self.resumes.is_some() && self.session.is_none() && !auth {
            failure.code = FailureCode::SessionResumeFailed;
        }
        facts.end_turn(turn, TurnOutcome::Failed { failure });
    }

    fn status(&self) -> EngineSessionStatus {
        match self.phase {
            AcpPhase::Initializing | AcpPhase::OpeningSession { .. } => EngineSessionStatus::Starting,
            AcpPhase::ApplyingSettings(..) => EngineSessionStatus::Working,
            AcpPhase::Ready if self.gates.any_open() => EngineSessionStatus::WaitingForAnswer,
            AcpPhase::Ready if self.turn.has_output || self.prompted_turn > self.ended_turns => {
                EngineSessionStatus::Working
            }
            AcpPhase::Ready | AcpPhase::Failed => EngineSessionStatus::BetweenTurns,
        }
    }

    fn encode_prompt(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        match (&self.phase, &self.session) {
            (AcpPhase::Ready, Some(session)) if self.ended_turns > 0 => {
                self.prompted_turn = self.ended_turns + 1;
                Ok(requests::prompt(self.prompted_turn, session, prompt))
            }
            (
                AcpPhase::Initializing
                | AcpPhase::OpeningSession { .. }
                | AcpPhase::ApplyingSettings(..)
                | AcpPhase::Ready,
                _,
            ) => Err(UnsupportedOperation::Refused { reason: "the first turn has not ended yet".to_owned() }),
            (AcpPhase::Failed, _) => {
                Err(UnsupportedOperation::Refused { reason: "the connection to the agent failed".to_owned() })
            }
        }
    }

    fn encode_answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        self.gates.answer(answer)
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        match (&self.phase, &self.session) {
            (AcpPhase::Ready, Some(session)) => {
                let mut bytes = requests::cancel(session);
                bytes.extend(self.gates.cancel_all());
                InterruptMethod::Write(bytes)
            }
            // There is no turn to cancel yet, and the prompt would still be sent.
            (
                AcpPhase::Initializing
                | AcpPhase::OpeningSession { .. }
                | AcpPhase::ApplyingSettings(..)
                | AcpPhase::Ready
                | AcpPhase::Failed,
                _,
            ) => InterruptMethod::Signal(ProcessSignal::Terminate),
        }
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        ShutdownMethod::CloseInput
    }
}
