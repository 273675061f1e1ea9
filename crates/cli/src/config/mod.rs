//! The configuration: flags override the environment, which overrides `config.toml`, which overrides defaults. Each
//! value keeps its origin.
//!
//! Reading order: [`settings`] (all settings), `layers` (merging), `file` and `value` (parsing), `show`
//! (`abide config`). Errors are in [`abide_os::config_problem`]. This file reads the sources; no other crate does.

mod file;
mod keys;
mod layers;
pub mod settings;
pub(crate) mod show;
mod value;

use std::{collections::BTreeMap, io::ErrorKind, path::PathBuf};

use abide_engines::registry;
use abide_host::machine;
pub use abide_os::config_problem::{ConfigError, ConfigOrigin, ConfigProblem};
use anyhow::Context;

pub(crate) use layers::is_setting;
pub use layers::{ConfigSources, GivenSetting, LocatedSetting, merge};
pub use settings::{CliConfig, MachineFacts};

use crate::home;

/// A configuration with the origin of each value.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: CliConfig,
    pub settings: BTreeMap<String, LocatedSetting>,
    /// Path of the file, whether it exists or not.
    pub path: PathBuf,
    pub exists: bool,
}

/// Loads the configuration of this home. An invalid one yields a [`ConfigError`] in the error.
pub fn load(overrides: &[GivenSetting]) -> anyhow::Result<LoadedConfig> {
    let sources = sources(overrides)?;
    let (config, settings) = merge(&sources)?;
    Ok(LoadedConfig { config, settings, path: sources.path, exists: sources.text.is_some() })
}

const FILE: &str = "config.toml";

fn sources(overrides: &[GivenSetting]) -> anyhow::Result<ConfigSources> {
    let path = home::home()?.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    Ok(ConfigSources {
        machine_facts: machine_facts()?,
        path,
        text,
        variables: home::environment(),
        overrides: overrides.to_vec(),
        built_in: registry::built_in().iter().map(|engine| engine.name().to_owned()).collect(),
    })
}

/// Returns the facts of this machine that the defaults depend on.
pub fn machine_facts() -> anyhow::Result<MachineFacts> {
    Ok(MachineFacts { home: home::home()?, cores: machine::cores(), memory: machine::memory_bytes() })
}
