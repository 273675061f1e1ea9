//! The adapter for agents of the Agent Client Protocol with a configured command.
//!
//! The protocol is JSON-RPC 2.0 with one message per line on standard input and output. Adapters of programs that can
//! also be held through this protocol use [`interpreter`] and [`launch::opening`] for that form.
//!
//! The mapping of sandboxes is in `wishes.rs`. An adapter that sets the sandbox by other means removes it from the
//! context that it passes to [`interpreter`].

mod call;
mod gates;
pub(crate) mod launch;
mod native;
mod reader;
#[cfg(test)]
mod tests;
mod wishes;
mod words;

use abide_domain::{
    engine::{EngineResumeCapability, EngineSessionHandle, ProbeMethod},
    failure::{FailureCode, RunFailure},
};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use native::ReopenMethod;
use native::{AcpMessage, InitializeResult, part};
use reader::AcpReader;

use crate::{failing::complaint, tongue::LineInterpreter};

/// An interpreter for an agent that was started with this context and reads [`launch::opening`] first.
pub(crate) fn interpreter(order: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    Box::new(LineInterpreter::new(AcpReader::new(order)))
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
    fn unanswered(&self, observed: &ProbeResult) -> EngineHealth {
        let name = &self.name;
        let detail = match observed {
            ProbeResult::Ran { stderr, .. } => {
                let complaint = complaint(stderr.as_bytes());
                format!(
                    "{name} does not answer as an agent of the protocol acp; look at engines.{name}.command: \
                     {complaint}"
                )
            }
            ProbeResult::NotFound { reason } | ProbeResult::Unavailable { reason } => reason.clone(),
            ProbeResult::TimedOut => format!(
                "{name} does not answer in time; look whether engines.{name}.command starts it as an agent of the \
                 protocol acp"
            ),
        };
        EngineHealth {
            version: None,
            trouble: missing(name, observed),
            resume: EngineResumeCapability { supported: false, probe_method: ProbeMethod::Api, detail },
            abilities: self.abilities().except(EngineAbility::Resume),
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

    fn checks(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let argv = installation.command.iter().chain(&installation.args).cloned();
        vec![ProbeCommand {
            env: installation.env.clone().into_iter().collect(),
            stdin: words::initialize(),
            // The end of the first line that is a JSON object.
            until: Some("}\n".to_owned()),
            ..ProbeCommand::command(argv)
        }]
    }

    fn judge(&self, observed: &[ProbeResult]) -> EngineHealth {
        let [answer] = observed else { return EngineHealth::unseen() };
        let lines = answer.success().unwrap_or_default().lines();
        let Some(greeted) = lines.filter_map(greeting).next() else {
            return self.unanswered(answer);
        };
        let (supported, how) = match ReopenMethod::offered(&greeted) {
            Some(ReopenMethod::Resume) => (true, launch::OFFERS_RESUME),
            Some(ReopenMethod::Load) => (true, "it offers session/load"),
            None => (false, "it offers neither session/resume nor session/load"),
        };
        let logins = greeted.auth_methods.iter().flatten().filter_map(|method| method.name.as_deref());
        let logins = logins.collect::<Vec<_>>().join(", ");
        let detail = if logins.is_empty() { how.to_owned() } else { format!("{how}; logins: {logins}") };
        EngineHealth {
            version: greeted.agent_info.and_then(|agent| agent.version).map(String::from),
            trouble: None,
            resume: EngineResumeCapability { supported, probe_method: ProbeMethod::Api, detail },
            abilities: if supported {
                self.abilities()
            } else {
                self.abilities().except(EngineAbility::Resume)
            },
        }
    }

    fn name_session(&self, _fresh: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(order)
    }

    fn interpreter(&self, order: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        interpreter(order)
    }

    fn skills_folder(&self) -> &str {
        ".agents/skills"
    }
}

/// The failure for a missing program.
fn missing(name: &str, observed: &ProbeResult) -> Option<RunFailure> {
    let ProbeResult::NotFound { reason } = observed else { return None };
    let message =
        format!("{name} is not installed ({reason}); set engines.{name}.command to the agent's program");
    Some(RunFailure::new(FailureCode::EngineNotFound, message))
}

/// Parses a line as the response to `initialize`.
fn greeting(line: &str) -> Option<InitializeResult<'_>> {
    let message: AcpMessage<'_> = serde_json::from_str(line).ok()?;
    let id: u64 = message.id?.get().parse().ok()?;
    if id == words::GREETING { part(message.result) } else { None }
}
