//! The configuration: flags over environment over `config.toml` over defaults, each value with where it was said.
//!
//! Reading order: [`settings`] (what can be set), `layers` (what follows from all sources), `file` and `value` (how each
//! source is read), `problem` (what is wrong), `show` (`abide config`). This file is where the sources are read; no
//! other crate reads them.

mod file;
mod keys;
mod layers;
mod problem;
pub mod settings;
pub(crate) mod show;
mod value;

use std::{collections::BTreeMap, io::ErrorKind, path::PathBuf};

use abide_engines::registry;
use anyhow::Context;

pub(crate) use layers::is_setting;
pub use layers::{ConfigSources, GivenSetting, LocatedSetting, settle};
pub use problem::{ConfigError, ConfigProblem, SettingOrigin};
pub use settings::{CliConfig, MachineFacts};

use crate::{home, machine};

/// A configuration with its origins.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The values.
    pub config: CliConfig,
    /// Each of them with its place.
    pub settings: BTreeMap<String, LocatedSetting>,
    /// The file, whether it exists or not.
    pub path: PathBuf,
    /// Whether it exists.
    pub exists: bool,
}

/// Reads the configuration of this home. What is wrong with it is a [`ConfigError`] in the error.
pub fn load(given: &[GivenSetting]) -> anyhow::Result<LoadedConfig> {
    let sources = sources(given)?;
    let (config, settings) = settle(&sources)?;
    Ok(LoadedConfig { config, settings, path: sources.path, exists: sources.text.is_some() })
}

/// The name of the file in the home.
const FILE: &str = "config.toml";

fn sources(given: &[GivenSetting]) -> anyhow::Result<ConfigSources> {
    let path = home::home()?.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    Ok(ConfigSources {
        circumstances: circumstances()?,
        path,
        text,
        variables: home::environment(),
        given: given.to_vec(),
        built_in: registry::built_in().iter().map(|engine| engine.name().to_owned()).collect(),
    })
}

/// What the standard values depend on, here.
pub fn circumstances() -> anyhow::Result<MachineFacts> {
    Ok(MachineFacts { home: home::home()?, cores: machine::cores(), memory: machine::memory() })
}
