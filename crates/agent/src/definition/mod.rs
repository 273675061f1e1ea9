//! The definition of an agent: model, limits, tools and system prompt.
//!
//! Reading order: the types here, `load` (from a folder and the environment to a definition), `file` (the file format
//! and its schema), `check` and `rules` (validation), `yaml` (values with their locations), `example`.
//! Mistakes are reported as [`ConfigError`].
//!
//! The execution of tools is in [`crate::tool`].

mod check;
mod example;
mod file;
mod keys;
mod load;
mod rules;
mod tool_schema;
mod yaml;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use abide_os::config_problem::ConfigError;
pub use example::{InitError, InitializedFiles, init, schema_text};
pub use keys::ModelKeys;
pub use load::{
    API_KEY_VARIABLE, BASE_URL_VARIABLE, CONFIG_FILE, EnvironmentLookup, MODEL_VARIABLE, SYSTEM_PROMPT_FILE,
};
pub use tool_schema::{SESSION_ID_PARAMETER, tool_json};

/// A loaded and checked agent folder.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentDefinition {
    pub model: ModelConfig,
    pub limits: AgentLimits,
    pub tools: Vec<ToolDefinition>,
    pub system_prompt: String,
    pub folder: PathBuf,
    /// The variable that `model.api_key_env` names, even if its key belongs to a server that is not used.
    pub key_variable: Option<String>,
}

/// The model server and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub base_url: String,
    pub name: String,
    pub api_key_env: Option<String>,
    pub context_tokens: u64,
    pub temperature: Option<f64>,
    pub max_output_tokens: Option<u64>,
    pub timeout_sec: u64,
    pub max_retries: u32,
}

/// The limits of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentLimits {
    pub max_iterations: u64,
    pub max_total_tokens: Option<u64>,
    /// Size limit of an observation in bytes.
    pub observation_bytes: u64,
}

/// A command that the model may call (B2).
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    pub command: Vec<String>,
    pub parameters: Vec<ToolParameter>,
    pub timeout_sec: Option<u64>,
    pub stateful: bool,
    pub pty: Option<ToolPty>,
    /// The single command string is passed to `sh -c`. Parameters reach it only as arguments or environment variables.
    pub shell: bool,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
}

/// Size of the terminal that replaces pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolPty {
    pub cols: u16,
    pub rows: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToolParameter {
    pub name: String,
    pub kind: ParameterKind,
    pub description: String,
    pub required: bool,
    pub inject_as: ParameterInjection,
    pub option_name: Option<String>,
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    String,
    Integer,
    Number,
    Boolean,
}

/// The way in which a parameter's value is passed to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterInjection {
    Argument,
    Option,
    Stdin,
}
