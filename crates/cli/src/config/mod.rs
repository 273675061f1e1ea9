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
pub use layers::{Given, Setting, Sources, settle};
pub use problem::{Place, Problem, Problems};
pub use settings::{Circumstances, Config};

use crate::{home, machine};

/// A configuration with its origins.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Each of them with its place.
    pub settings: BTreeMap<String, Setting>,
    /// The file, whether it exists or not.
    pub path: PathBuf,
    /// Whether it exists.
    pub exists: bool,
}

/// Reads the configuration of this home. What is wrong with it is a [`Problems`] in the error.
pub fn load(given: &[Given]) -> anyhow::Result<Loaded> {
    let sources = sources(given)?;
    let (config, settings) = settle(&sources)?;
    Ok(Loaded { config, settings, path: sources.path, exists: sources.text.is_some() })
}

/// The name of the file in the home.
const FILE: &str = "config.toml";

fn sources(given: &[Given]) -> anyhow::Result<Sources> {
    let path = home::home()?.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    Ok(Sources {
        circumstances: circumstances()?,
        path,
        text,
        variables: home::environment(),
        given: given.to_vec(),
        built_in: registry::built_in().iter().map(|engine| engine.name().to_owned()).collect(),
    })
}

/// What the standard values depend on, here.
pub fn circumstances() -> anyhow::Result<Circumstances> {
    Ok(Circumstances { home: home::home()?, cores: machine::cores(), memory: machine::memory() })
}
