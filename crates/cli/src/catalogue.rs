//! The engines of this machine: those that are built in and those that the owner has named, as configured.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use abide_engines::{asking, registry};
use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    engine::{Engine, EngineInstallation, IsolationMode},
};

/// What the owner says about an engine: `[engines.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineConfig {
    /// The program, in place of the usual one.
    pub command: Option<Vec<String>>,
    /// Arguments for every turn.
    pub args: Vec<String>,
    /// Set on top of the environment.
    pub env: BTreeMap<String, String>,
    /// Which variables of the environment it gets, in place of the engine's own choice.
    pub pass_env: Option<Vec<String>>,
    /// How it is isolated, over what holds for all.
    pub isolation: Option<IsolationMode>,
    /// Switched off.
    pub disabled: bool,
    /// The protocol of an engine that is not built in.
    pub protocol: Option<AgentProtocol>,
}

/// A protocol that engines which are not built in may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentProtocol {
    /// The Agent Client Protocol.
    Acp,
}

/// All engines, with how each is called here.
#[derive(Debug)]
pub struct EngineCatalogue {
    entries: Vec<InstalledEngine>,
}

impl EngineCatalogue {
    /// The built-in engines and those of the configuration. `own` is this program, which is also an engine; `isolation` is
    /// for engines that say nothing about it.
    pub fn new(configured: &BTreeMap<String, EngineConfig>, own: &Path, isolation: IsolationMode) -> Self {
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
            let lives_here = installation.command.first().is_some_and(|program| program == OWN_NAME);
            if lives_here {
                // Whichever binary runs is the one that is meant, wherever it lies.
                installation.command[0] = own.to_string_lossy().into_owned();
            }
            let own_name = (lives_here && config.command.is_none()).then(|| OWN_NAME.to_owned());
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
                engine: Arc::from(asking::instructed(engine)),
                installation,
                own_name,
            })
        });
        Self { entries: entries.collect() }
    }
}

/// The name under which engines that live in this binary call it.
const OWN_NAME: &str = "abide";

impl EngineLookup for EngineCatalogue {
    fn engine(&self, name: &str) -> Option<InstalledEngine> {
        self.entries.iter().find(|entry| entry.engine.name() == name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.engine.name().to_owned()).collect()
    }
}
