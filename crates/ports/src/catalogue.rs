//! The engines that are installed on this machine, by their configured names.

use std::sync::Arc;

use abide_domain::engine::EngineCommand;

use crate::engine::{Engine, EngineInstallation, IsolationMode};

/// Looks up engines by name. Other code does not refer to an engine by name.
pub trait EngineLookup: Send + Sync {
    /// Returns the engine and its installation, or none if the name is unknown or the engine is disabled.
    fn engine(&self, name: &str) -> Option<InstalledEngine>;

    /// All names, in display order.
    fn names(&self) -> Vec<String>;
}

/// An engine adapter together with its program on this machine.
#[derive(Clone, Debug)]
pub struct InstalledEngine {
    pub engine: Arc<dyn Engine>,
    /// The command, environment and isolation of its program.
    pub installation: EngineInstallation,
    /// A placeholder for the daemon's own binary, for engines that are part of it. It is stored instead of the path, so
    /// that a run continues with the binary of the current daemon.
    pub binary_placeholder: Option<String>,
}

impl InstalledEngine {
    /// The command in the form that is stored with a run (A9).
    pub fn stored_command(&self) -> EngineCommand {
        let EngineInstallation { command, args, env, pass_env, isolation } = &self.installation;
        let mut command = command.clone();
        if let (Some(own), Some(program)) = (&self.binary_placeholder, command.first_mut()) {
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

    /// The same engine with the command that was stored with a run. Values of variables come from the current
    /// configuration. A variable that is no longer configured is inherited from the environment.
    #[must_use]
    pub fn with_stored_command(mut self, stored: Option<&EngineCommand>) -> Self {
        let Some(stored) = stored else { return self };
        let own = self.binary_placeholder.as_ref().zip(self.installation.command.first().cloned());
        let mut command = stored.command.clone();
        if let (Some((own, path)), Some(program)) = (own, command.first_mut())
            && program == own
        {
            *program = path;
        }
        let env = &self.installation.env;
        let env = stored.env.iter().filter_map(|name| Some((name.clone(), env.get(name)?.clone()))).collect();
        // Runs of versions that passed the whole environment use the current setting.
        let pass_env = stored.pass_env.clone().unwrap_or(self.installation.pass_env);
        let isolation = stored.isolation.as_deref().and_then(IsolationMode::from_name);
        let isolation = isolation.unwrap_or(self.installation.isolation);
        self.installation =
            EngineInstallation { command, args: stored.args.clone(), env, pass_env, isolation };
        self
    }
}
