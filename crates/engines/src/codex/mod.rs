//! Codex by `codex exec`: one process for each turn, which can never wait for a person; a new process resumes the thread.
//!
//! The app-server, where approvals and questions arrive inside the turn, is another adapter.

mod launch;
mod native;
mod reader;

use abide_domain::engine::{EngineResumeCapability, EngineSessionHandle, ProbeMethod};
use abide_ports::engine::{
    Abilities, Ability, Check, Engine, Health, Installation, Interpreter, Launch, Observed, Order,
    Unsupported,
};

use crate::{failing::unusable, tongue::LineInterpreter};

/// The adapter.
#[derive(Debug)]
pub(crate) struct Codex;

/// Its name.
const NAME: &str = "codex";

impl Engine for Codex {
    fn name(&self) -> &str {
        NAME
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(&[Ability::Resume, Ability::Progress])
    }

    fn installation(&self) -> Installation {
        Installation::named("codex").passing(&["OPENAI_*", "CODEX_*", "AZURE_OPENAI_*"])
    }

    fn checks(&self, installation: &Installation) -> Vec<Check> {
        let call = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            Check::command(installation.command.iter().cloned().chain(arguments))
        };
        vec![call(&["--version"]), call(&["exec", "resume", "--help"])]
    }

    fn judge(&self, observed: &[Observed]) -> Health {
        let [version, help] = observed else { return Health::unseen() };
        let resumes = help.success().is_some_and(|help| help.contains("SESSION_ID"));
        let detail = if resumes {
            "`codex exec resume` takes a session id"
        } else {
            "`codex exec resume --help` shows no session id"
        };
        Health {
            version: version.version(),
            trouble: unusable(NAME, version, "npm install -g @openai/codex"),
            resume: EngineResumeCapability {
                supported: resumes,
                probe_method: ProbeMethod::Command,
                detail: detail.to_owned(),
            },
            abilities: if resumes { self.abilities() } else { self.abilities().except(Ability::Resume) },
        }
    }

    fn name_session(&self, _fresh: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, order: &Order<'_>) -> Result<Launch, Unsupported> {
        launch::launch(order)
    }

    fn interpreter(&self, order: &Order<'_>) -> Box<dyn Interpreter> {
        Box::new(LineInterpreter::new(reader::Reader::new(order)))
    }

    fn skills_folder(&self) -> &str {
        ".agents/skills"
    }
}
