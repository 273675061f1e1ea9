//! The conversation with an ACP agent: handshake, session, settings, then one prompt after the other.
//!
//! Messages before the first prompt are the session's history and never an answer. Some agents continue to replay
//! history after they reported the session as loaded. They begin each earlier exchange with the user's message, so a
//! user message also resets the answer.
//!
//! The answer of a turn is its last message. Text before a tool call is reported as progress.

use std::{borrow::Cow, collections::BTreeMap};

use abide_domain::{
    effect::LaunchSession,
    engine::HandleType,
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
};
use abide_ports::engine::{
    EngineSessionStatus, ExitCause, FactKind, GateAnswer, InterruptMethod, LaunchContext, ProcessExit,
    ProcessSignal, ShutdownMethod, UnsupportedOperation,
};
use serde_json::value::RawValue;

use super::{
    gates::{AcpGates, reject_option_id},
    messages::{
        AcpChunk, AcpError, AcpMessage, CancelRequestParams, ContentBlock, InitializeResult,
        OpenSessionResult, PlanEntry, PromptResult, ReopenMethod, RequestPermissionParams, SessionUpdate,
        SessionUpdateParams, UpdateLine, looks_like_chunk, parse_part,
    },
    preferences::{SessionPreferences, SessionSetting},
    requests,
    tool_calls::IncompleteRequest,
};
use crate::{
    failure::{engine_failed, exit_without_result},
    line_protocol::{FactSink, LineProtocol, LongLine, append_bounded},
    request_fields::JsonItems,
};

/// Maximum number of running tools whose titles are remembered.
const MAX_RUNNING_TOOLS: usize = 1_000;

mod failure;
mod long_line;

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
    /// Accepts prompts.
    Ready,
    /// Failed before the first prompt was sent; accepts no other.
    Failed,
}

/// The state of the current turn.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct AcpTurn {
    has_output: bool,
    answer: String,
    /// The message that becomes the answer.
    message: Option<String>,
    /// Whether the next chunk of text begins another message.
    interrupted: bool,
    is_thinking: bool,
    /// Whether the agent has reported an error of its thread.
    is_broken: bool,
    /// The titles of running tools, by id.
    tools: BTreeMap<String, String>,
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

    /// Processes a chunk of the session's current message; `None` if the line is not one.
    fn try_text_chunk(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        let AcpChunk { method, params } = serde_json::from_slice(line).ok()?;
        let (update, ours) = (params.update, self.session.as_deref());
        let is_text = method == "session/update" && update.session_update == "agent_message_chunk";
        if !is_text || ours != Some(&*params.session_id) {
            return None;
        }
        let message = Some(&*update.message_id).filter(|id| !id.is_empty());
        self.turn.has_output = true;
        self.turn.is_thinking = false;
        self.turn.on_text(update.content.text, message, facts);
        Some(())
    }

    /// Processes a response to one of our requests.
    fn on_response(
        &mut self,
        id: u64,
        answer: Result<Option<&RawValue>, AcpError<'_>>,
        facts: &mut FactSink,
    ) -> Option<()> {
        match (&mut self.phase, id) {
            (AcpPhase::Initializing, requests::INITIALIZE_ID) => match answer {
                Ok(result) => self.on_initialized(&parse_part(result)?, facts),
                Err(error) => self.fail_session(self.failure(&error), facts),
            },
            (AcpPhase::OpeningSession { replays }, requests::OPEN_SESSION_ID) => {
                let replays = *replays;
                match answer {
                    Ok(result) => {
                        self.on_session_opened(&parse_part(result).unwrap_or_default(), replays, facts)
                    }
                    Err(error) => self.fail_session(self.open_failure(&error), facts),
                }
            }
            (AcpPhase::ApplyingSettings(settings, done), id) if id == requests::setting_id(*done) => {
                let wanted = settings.get(*done).and_then(|setting| setting.wanted.clone());
                *done += 1;
                match (answer, wanted) {
                    (Err(error), Some(wanted)) => {
                        let mut failure = self.first_failure(&error);
                        if failure.code != FailureCode::SessionResumeFailed {
                            failure.message = format!("the agent refused the {wanted}: {}", failure.message);
                        }
                        self.fail_session(failure, facts);
                    }
                    (Ok(_), _) | (Err(_), None) => self.send_next_setting_or_prompt(facts),
                }
            }
            (AcpPhase::Ready, id) => {
                let turn = requests::turn_of_prompt_id(id).filter(|turn| *turn > self.ended_turns)?;
                let ending = match answer {
                    Ok(result) => self.outcome_of_stop_reason(
                        parse_part::<PromptResult<'_>>(result).unwrap_or_default().stop_reason,
                    ),
                    Err(error) if turn == 1 && !self.turn.has_output => {
                        Some(TurnOutcome::Failed { failure: self.first_failure(&error) })
                    }
                    Err(error) => Some(TurnOutcome::Failed { failure: self.failure(&error) }),
                };
                let turn_state = std::mem::take(&mut self.turn);
                self.ended_turns = turn;
                self.gates.clear();
                match ending {
                    Some(ending) => facts.end_turn(turn, ending),
                    None if turn_state.is_broken => {
                        facts.end_turn(
                            turn,
                            TurnOutcome::Failed { failure: engine_failed(turn_state.answer.trim()) },
                        );
                    }
                    None => facts.end_turn_with_answer(turn, &turn_state.answer),
                }
            }
            (
                AcpPhase::Initializing
                | AcpPhase::OpeningSession { .. }
                | AcpPhase::ApplyingSettings(..)
                | AcpPhase::Failed,
                _,
            ) => {
                return None;
            }
        }
        Some(())
    }

    fn on_initialized(&mut self, greeted: &InitializeResult<'_>, facts: &mut FactSink) {
        let logins = greeted.auth_methods.iter().flatten().filter_map(|method| method.name.as_deref());
        self.logins = logins.collect::<Vec<_>>().join(", ");
        if let Some(version) = greeted.protocol_version.map(RawValue::get)
            && version != requests::PROTOCOL_VERSION.to_string()
        {
            let ours = requests::PROTOCOL_VERSION;
            let message = format!(
                "the agent uses version {version} of the protocol, and Abide supports version {ours}; install a version of the agent that uses it"
            );
            return self.fail_session(RunFailure::new(FailureCode::EngineFailed, message), facts);
        }
        let (method, replays) = match (&self.resumes, ReopenMethod::from_capabilities(greeted)) {
            (None, _) => ("session/new", false),
            (Some(_), Some(ReopenMethod::Resume)) => ("session/resume", false),
            (Some(_), Some(ReopenMethod::Load)) => ("session/load", true),
            (Some(_), None) => {
                let message = "the agent cannot continue a session that another process started";
                let failure = RunFailure::new(FailureCode::SessionResumeFailed, message);
                return self.fail_session(failure, facts);
            }
        };
        self.phase = AcpPhase::OpeningSession { replays };
        facts.push(FactKind::WriteStdin(requests::open_session(
            method,
            self.resumes.as_deref(),
            &self.workspace,
        )));
    }

    fn on_session_opened(&mut self, opened: &OpenSessionResult<'_>, replays: bool, facts: &mut FactSink) {
        let announced = opened.session_id.as_deref().map(str::to_owned);
        // The response to a load request does not repeat the session id.
        let Some(session) = announced.or_else(|| self.resumes.clone()).filter(|id| !id.is_empty()) else {
            let message = "the agent opened a session without reporting its id";
            return self.fail_session(RunFailure::new(FailureCode::EngineFailed, message), facts);
        };
        self.session = Some(session.clone());
        facts.push(FactKind::Session { handle_type: HandleType::SessionId, value: session.clone() });
        match self.preferences.settings(&session, opened, replays) {
            Ok(settings) => {
                self.phase = AcpPhase::ApplyingSettings(settings, 0);
                self.send_next_setting_or_prompt(facts);
            }
            Err(reason) => self.fail_session(RunFailure::new(FailureCode::EngineFailed, reason), facts),
        }
    }

    /// Sends the next setting, or the first prompt after the last setting.
    fn send_next_setting_or_prompt(&mut self, facts: &mut FactSink) {
        let next = match &self.phase {
            AcpPhase::ApplyingSettings(settings, done) => settings.get(*done),
            AcpPhase::Initializing | AcpPhase::OpeningSession { .. } | AcpPhase::Ready | AcpPhase::Failed => {
                return;
            }
        };
        if let Some(setting) = next {
            facts.push(FactKind::WriteStdin(setting.request.clone()));
        } else {
            self.phase = AcpPhase::Ready;
            let prompt = std::mem::take(&mut self.prompt);
            let session = self.session.as_deref().unwrap_or_default();
            facts.push(FactKind::WriteStdin(requests::prompt(1, session, &prompt)));
        }
    }

    fn on_session_update(&mut self, updated: SessionUpdateParams<'_>, facts: &mut FactSink) -> Option<()> {
        let SessionUpdateParams { session_id, update } = updated;
        let is_ours = session_id.is_none_or(|id| Some(&*id) == self.session.as_deref());
        let is_new = match self.phase {
            AcpPhase::Ready => true,
            AcpPhase::Initializing
            | AcpPhase::OpeningSession { .. }
            | AcpPhase::ApplyingSettings(..)
            | AcpPhase::Failed => false,
        };
        let tells = is_ours && is_new;
        match &*update.session_update {
            "agent_message_chunk" | "agent_thought_chunk" | "tool_call" | "tool_call_update" | "plan"
                if tells =>
            {
                self.turn.has_output = true;
                if let Some(id) = update.tool_call_id.as_deref() {
                    match update.status.as_deref() {
                        Some("completed" | "failed") => self.gates.announced.remove(id),
                        Some(_) | None => self.gates.announced.record(id, update.raw_input, update.content),
                    }
                }
                self.turn.on_update(&update, facts);
            }
            "user_message_chunk" if tells => self.turn.reset_answer(),
            // An agent may end its turn normally and return the error as its answer, but it reports the error here.
            "session_info_update" if tells => {
                if let Some(status) = update.thread_status() {
                    self.turn.is_broken = status == "systemError";
                }
            }
            // History, updates of other sessions, and updates that only editors show.
            "agent_message_chunk"
            | "agent_thought_chunk"
            | "tool_call"
            | "tool_call_update"
            | "plan"
            | "user_message_chunk"
            | "available_commands_update"
            | "config_option_update"
            | "current_mode_update"
            | "session_info_update"
            | "usage_update" => {}
            _ => return None,
        }
        Some(())
    }

    /// Processes a request of the agent.
    fn on_request(&mut self, method: &str, id: &RawValue, params: Option<&RawValue>, facts: &mut FactSink) {
        if method != "session/request_permission" {
            return facts.push(FactKind::WriteStdin(requests::method_not_found(id)));
        }
        match (&self.phase, params, parse_part::<RequestPermissionParams<'_>>(params)) {
            (AcpPhase::Ready, Some(params), Some(asked)) => {
                self.turn.has_output = true;
                let purpose = abide_domain::interaction::GatePurpose::Approval;
                match self.gates.open(self.ended_turns + 1, id, params, &asked) {
                    Ok((gate, question)) => facts.push(FactKind::Gate { gate_id: gate, purpose, question }),
                    Err(IncompleteRequest) => {
                        let warning = "a permission request was declined: its input was in an earlier message that was \
                                       too long to keep, and the request does not repeat it";
                        facts.push(FactKind::Warning(warning.to_owned()));
                        facts.push(FactKind::WriteStdin(requests::permission(
                            id,
                            reject_option_id(&asked).as_deref(),
                        )));
                    }
                }
            }
            // A person cannot be asked before a turn has begun, or about a request that cannot be parsed.
            (
                AcpPhase::Ready
                | AcpPhase::Initializing
                | AcpPhase::OpeningSession { .. }
                | AcpPhase::ApplyingSettings(..)
                | AcpPhase::Failed,
                ..,
            ) => facts.push(FactKind::WriteStdin(requests::permission(id, None))),
        }
    }

    /// The outcome for a stop reason; `None` if the turn ended with an answer.
    fn outcome_of_stop_reason(&self, reason: Option<Cow<'_, str>>) -> Option<TurnOutcome> {
        let message = match reason.as_deref() {
            Some("end_turn") => return None,
            Some("cancelled") => return Some(TurnOutcome::Interrupted),
            Some("refusal") => "the agent refused the request; rephrase it".to_owned(),
            Some("max_tokens") => {
                "the agent reached its limit of tokens before it was done; ask for less at a time".to_owned()
            }
            Some("max_turn_requests") => {
                "the agent reached its limit of model requests before it was done; tell it to continue"
                    .to_owned()
            }
            Some(other) => format!("the agent stopped for an unknown reason: {other}"),
            None => "the agent stopped without a reason".to_owned(),
        };
        Some(TurnOutcome::Failed { failure: RunFailure::new(FailureCode::EngineFailed, message) })
    }

    /// Ends the conversation with a failure; later lines are ignored.
    fn fail_session(&mut self, failure: RunFailure, facts: &mut FactSink) {
        self.phase = AcpPhase::Failed;
        self.ended_turns = 1;
        facts.end_turn(1, TurnOutcome::Failed { failure });
    }
}

impl AcpTurn {
    fn on_update(&mut self, update: &SessionUpdate<'_>, facts: &mut FactSink) {
        let thinks = update.session_update == "agent_thought_chunk";
        if thinks && !self.is_thinking {
            facts.push(FactKind::Progress("thinks".to_owned()));
        }
        self.is_thinking = thinks;
        match &*update.session_update {
            "agent_message_chunk" => {
                let text = parse_part::<ContentBlock<'_>>(update.content)
                    .map(|block| block.text)
                    .unwrap_or_default();
                self.on_text(text, update.message_id.as_deref(), facts);
            }
            "tool_call" | "tool_call_update" => {
                self.interrupted = true;
                if let Some(progress) = self.tool_progress(update) {
                    facts.push(FactKind::Progress(progress));
                }
            }
            "plan" => {
                let entries = update.entries.and_then(JsonItems::of).unwrap_or_default().0;
                let entries = entries.into_iter().filter_map(|raw| parse_part::<PlanEntry<'_>>(Some(raw)));
                let present = entries.filter(|entry| entry.status.as_deref() == Some("in_progress"));
                if let Some(text) = present.filter_map(|entry| entry.content).next() {
                    facts.push(FactKind::Progress(text.into_owned()));
                }
            }
            _ => {}
        }
    }

    fn on_text(&mut self, text: Cow<'_, str>, message: Option<&str>, facts: &mut FactSink) {
        if text.is_empty() {
            return;
        }
        let another = message.is_some() && self.message.is_some() && self.message.as_deref() != message;
        if self.interrupted || another {
            self.answer.clear();
        }
        self.interrupted = false;
        if self.message.as_deref() != message {
            self.message = message.map(str::to_owned);
        }
        append_bounded(&mut self.answer, &text);
        facts.push(FactKind::Text(text.into_owned()));
    }

    /// The progress text of a tool update.
    fn tool_progress(&mut self, update: &SessionUpdate<'_>) -> Option<String> {
        let id = update.tool_call_id.as_deref().unwrap_or_default();
        let title = update.title.as_deref().filter(|title| !title.is_empty());
        let known_title = self.tools.get(id).map(String::as_str);
        match update.status.as_deref() {
            Some(status @ ("completed" | "failed")) => {
                let title = title.or(known_title).unwrap_or("a tool").to_owned();
                self.tools.remove(id);
                Some(format!("{title}: {status}"))
            }
            Some(_) | None => {
                let title = title.filter(|title| Some(*title) != known_title)?.to_owned();
                if self.tools.len() < MAX_RUNNING_TOOLS && id.len() + title.len() <= 1 << 10 {
                    self.tools.insert(id.to_owned(), title.clone());
                }
                Some(title)
            }
        }
    }

    fn reset_answer(&mut self) {
        self.answer.clear();
        self.interrupted = true;
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
