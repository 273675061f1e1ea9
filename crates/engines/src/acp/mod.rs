//! The adapter for agents of the Agent Client Protocol with a configured command.
//!
//! The protocol is JSON-RPC 2.0 with one message per line on standard input and output. Adapters of programs that can
//! also be held through this protocol use [`interpreter`] and [`launch::initialize_stdin`] for that form.
//!
//! The mapping of sandboxes is in `preferences.rs`. An adapter that sets the sandbox by other means removes it from the
//! context that it passes to [`interpreter`].

mod gates;
pub(crate) mod launch;
mod messages;
mod preferences;
mod reader;
mod requests;
#[cfg(test)]
mod tests;
mod tool_calls;

use abide_domain::{
    engine::{EngineResumeCapability, EngineSessionHandle, ProbeMethod},
    failure::{FailureCode, RunFailure},
};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use messages::ReopenMethod;
use messages::{AcpMessage, InitializeResult, parse_part};
use reader::AcpReader;

use crate::{failure::stderr_tail, line_protocol::LineInterpreter};

/// An interpreter for an agent that was started with this context and reads [`launch::initialize_stdin`] first.
pub(crate) fn interpreter(context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    Box::new(LineInterpreter::new(AcpReader::new(context)))
}

/// A configured ACP agent.
#[derive(Debug)]
pub(crate) struct AcpEngine {
    name: String,
    installation: EngineInstallation,
}

impl AcpEngine {
    pub(crate) fn new(name: &str, installation: EngineInstallation) -> Self {
        Self { name: name.to_owned(), installation }
    }

    /// The health of an agent that did not respond. Only a missing program is rejected (A3).
    fn unresponsive_health(&self, results: &ProbeResult) -> EngineHealth {
        let name = &self.name;
        let detail = match results {
            ProbeResult::Ran { stderr, .. } => {
                let complaint = stderr_tail(stderr.as_bytes());
                format!(
                    "{name} does not respond as an ACP agent; check engines.{name}.command: \
                     {complaint}"
                )
            }
            ProbeResult::NotFound { reason } | ProbeResult::Unavailable { reason } => reason.clone(),
            ProbeResult::TimedOut => format!(
                "{name} does not answer in time; check that engines.{name}.command starts it as an \
             ACP agent"
            ),
        };
        EngineHealth {
            version: None,
            failure: missing_program_failure(name, results),
            resume: EngineResumeCapability { supported: false, probe_method: ProbeMethod::Api, detail },
            abilities: self.abilities().without(EngineAbility::Resume),
        }
    }
}

impl Engine for AcpEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn abilities(&self) -> AbilitySet {
        AbilitySet::of(&[
            EngineAbility::Resume,
            EngineAbility::Hold,
            EngineAbility::Progress,
            EngineAbility::Gates,
        ])
    }

    fn installation(&self) -> EngineInstallation {
        self.installation.clone()
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let argv = installation.command.iter().chain(&installation.args).cloned();
        vec![ProbeCommand {
            env: installation.env.clone().into_iter().collect(),
            stdin: requests::initialize(),
            // The end of the first line that is a JSON object.
            stop_at_output: Some("}\n".to_owned()),
            ..ProbeCommand::to_exit(argv)
        }]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [answer] = results else { return EngineHealth::unchecked() };
        let lines = answer.success().unwrap_or_default().lines();
        let Some(initialized) = lines.filter_map(parse_initialize_response).next() else {
            return self.unresponsive_health(answer);
        };
        let (supported, evidence) = match ReopenMethod::from_capabilities(&initialized) {
            Some(ReopenMethod::Resume) => (true, launch::RESUME_PROBE_DETAIL),
            Some(ReopenMethod::Load) => (true, "it offers session/load"),
            None => (false, "it offers neither session/resume nor session/load"),
        };
        let logins = initialized.auth_methods.iter().flatten().filter_map(|method| method.name.as_deref());
        let logins = logins.collect::<Vec<_>>().join(", ");
        let detail =
            if logins.is_empty() { evidence.to_owned() } else { format!("{evidence}; logins: {logins}") };
        EngineHealth {
            version: initialized.agent_info.and_then(|agent| agent.version).map(String::from),
            failure: None,
            resume: EngineResumeCapability { supported, probe_method: ProbeMethod::Api, detail },
            abilities: if supported {
                self.abilities()
            } else {
                self.abilities().without(EngineAbility::Resume)
            },
        }
    }

    fn new_session_handle(&self, _uuid: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(context)
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        interpreter(context)
    }

    fn skills_folder(&self) -> &str {
        ".agents/skills"
    }
}

/// The failure for a missing program.
fn missing_program_failure(name: &str, results: &ProbeResult) -> Option<RunFailure> {
    let ProbeResult::NotFound { reason } = results else { return None };
    let message =
        format!("{name} is not installed ({reason}); set engines.{name}.command to the agent's program");
    Some(RunFailure::new(FailureCode::EngineNotFound, message))
}

/// Parses a line as the response to `initialize`.
fn parse_initialize_response(line: &str) -> Option<InitializeResult<'_>> {
    let message: AcpMessage<'_> = serde_json::from_str(line).ok()?;
    let id: u64 = message.id?.get().parse().ok()?;
    if id == requests::INITIALIZE_ID { parse_part(message.result) } else { None }
}
