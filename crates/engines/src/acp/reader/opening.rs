//! The opening of a session: handshake, session, settings, first prompt.

use abide_domain::{
    engine::HandleType,
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
};
use abide_ports::engine::FactKind;
use serde_json::value::RawValue;

use super::{AcpPhase, AcpReader};
use crate::{
    acp::{
        messages::{InitializeResult, OpenSessionResult, ReopenMethod},
        requests,
    },
    line_protocol::FactSink,
};

impl AcpReader {
    pub(super) fn on_initialized(&mut self, greeted: &InitializeResult<'_>, facts: &mut FactSink) {
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

    pub(super) fn on_session_opened(
        &mut self,
        opened: &OpenSessionResult<'_>,
        replays: bool,
        facts: &mut FactSink,
    ) {
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
    pub(super) fn send_next_setting_or_prompt(&mut self, facts: &mut FactSink) {
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

    /// Ends the conversation with a failure; later lines are ignored.
    pub(super) fn fail_session(&mut self, failure: RunFailure, facts: &mut FactSink) {
        self.phase = AcpPhase::Failed;
        self.ended_turns = 1;
        facts.end_turn(1, TurnOutcome::Failed { failure });
    }
}
