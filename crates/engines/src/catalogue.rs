//! The engines of this machine: built-in engines and those named in the configuration.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    engine::{Engine, EngineInstallation, IsolationMode},
};

use crate::{asking, registry};

/// Configuration of an engine: `[engines.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineConfig {
    /// Replaces the default program and its leading arguments.
    pub command: Option<Vec<String>>,
    /// Added to the arguments of every turn.
    pub args: Vec<String>,
    /// Overrides variables of the environment.
    pub env: BTreeMap<String, String>,
    /// Variables passed from the environment, in place of the engine's default list.
    pub pass_env: Option<Vec<String>>,
    /// Overrides the isolation for all engines.
    pub isolation: Option<IsolationMode>,
    pub disabled: bool,
    /// Protocol of an engine that is not built in.
    pub protocol: Option<AgentProtocol>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentProtocol {
    Acp,
}

/// All engines, with the command of each.
#[derive(Debug)]
pub struct EngineCatalogue {
    entries: Vec<InstalledEngine>,
}

impl EngineCatalogue {
    /// Builds the catalogue from built-in and configured engines. `own_program` is the path of this program, which implements
    /// some engines. `isolation` is the default.
    pub fn new(
        configured: &BTreeMap<String, EngineConfig>,
        own_program: &Path,
        isolation: IsolationMode,
    ) -> Self {
        let built_in = registry::built_in();
        let is_built_in = |name: &str| built_in.iter().any(|engine| engine.name() == name);
        let added: Vec<Box<dyn Engine>> = configured
            .iter()
            .filter(|(name, config)| config.protocol.is_some() && !is_built_in(name))
            .filter_map(|(name, config)| {
                let command = config.command.clone()?;
                Some(registry::acp(name, EngineInstallation { command, ..EngineInstallation::default() }))
            })
            .collect();
        let entries = built_in.into_iter().chain(added).filter_map(|engine| {
            let config = configured.get(engine.name()).cloned().unwrap_or_default();
            let mut installation = engine.installation();
            let is_own_program = installation.command.first().is_some_and(|program| program == OWN_PROGRAM);
            if is_own_program {
                // The running binary is used, wherever it is installed.
                installation.command[0] = own_program.to_string_lossy().into_owned();
            }
            let own_name = (is_own_program && config.command.is_none()).then(|| OWN_PROGRAM.to_owned());
            if let Some(command) = config.command {
                installation.command = command;
            }
            installation.args.extend(config.args);
            installation.env.extend(config.env);
            installation.isolation = config.isolation.unwrap_or(isolation);
            if let Some(pass_env) = config.pass_env {
                installation.pass_env = pass_env;
            }
            (!config.disabled).then(|| InstalledEngine {
                engine: Arc::from(asking::with_instructions(engine)),
                installation,
                binary_placeholder: own_name,
            })
        });
        Self { entries: entries.collect() }
    }
}

/// Command name under which built-in engines refer to this binary.
const OWN_PROGRAM: &str = "abide";

impl EngineLookup for EngineCatalogue {
    fn engine(&self, name: &str) -> Option<InstalledEngine> {
        self.entries.iter().find(|entry| entry.engine.name() == name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.engine.name().to_owned()).collect()
    }
}
