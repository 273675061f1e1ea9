//! Which engines there are on this machine, by the names that people use.

use std::sync::Arc;

use abide_domain::engine::EngineCommand;

use crate::engine::{Engine, EngineInstallation, IsolationMode};

/// Finds engines. Nobody else knows any of them by name.
pub trait EngineLookup: Send + Sync {
    /// The engine of that name and how it is called here; none if there is no such engine or it is switched off.
    fn engine(&self, name: &str) -> Option<InstalledEngine>;

    /// All names, in the order in which they are shown.
    fn names(&self) -> Vec<String>;
}

/// An engine and how it is called on this machine.
#[derive(Clone, Debug)]
pub struct InstalledEngine {
    /// The adapter.
    pub engine: Arc<dyn Engine>,
    /// How its program is called.
    pub installation: EngineInstallation,
    /// The name that stands for this program itself where an engine lives in it; it is stored in place of the path, so that
    /// a run goes on with whichever binary is the daemon then.
    pub own_name: Option<String>,
}

impl InstalledEngine {
    /// How the program is called, as it is stored with a run (A9).
    pub fn command_to_keep(&self) -> EngineCommand {
        let EngineInstallation { command, args, env, pass_env, isolation } = &self.installation;
        let mut command = command.clone();
        if let (Some(own), Some(program)) = (&self.own_name, command.first_mut()) {
            program.clone_from(own);
        }
        EngineCommand {
            command,
            args: args.clone(),
            env: env.keys().cloned().collect(),
            pass_env: Some(pass_env.clone()),
            isolation: Some(isolation.name().to_owned()),
        }
    }

    /// The same engine, called as it was stored with a run. The values of variables are those of the present
    /// configuration; one that is no longer set there is left to the environment.
    #[must_use]
    pub fn called_as(mut self, kept: Option<&EngineCommand>) -> Self {
        let Some(kept) = kept else { return self };
        let own = self.own_name.as_ref().zip(self.installation.command.first().cloned());
        let mut command = kept.command.clone();
        if let (Some((own, path)), Some(program)) = (own, command.first_mut())
            && program == own
        {
            *program = path;
        }
        let env = &self.installation.env;
        let env = kept.env.iter().filter_map(|name| Some((name.clone(), env.get(name)?.clone()))).collect();
        // A run of a version that passed everything gets what a new run would get.
        let pass_env = kept.pass_env.clone().unwrap_or(self.installation.pass_env);
        let isolation = kept.isolation.as_deref().and_then(IsolationMode::named);
        let isolation = isolation.unwrap_or(self.installation.isolation);
        self.installation = EngineInstallation { command, args: kept.args.clone(), env, pass_env, isolation };
        self
    }
}
