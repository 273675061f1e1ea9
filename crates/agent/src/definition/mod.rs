//! What an agent is: its model, its limits, its tools and its system prompt.
//!
//! Reading order: the types here, `load` (from a folder and the environment to a definition), `file` (what can be
//! written, and its schema), `check` and `rules` (what can be wrong), `yaml` and `problem` (where), `example`.
//!
//! Not here: how a call of a tool becomes a process; that is [`crate::tool`].

mod check;
mod example;
mod file;
mod keys;
mod load;
mod nearest;
mod offer;
mod problem;
mod rules;
mod yaml;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use example::{InitError, InitializedFiles, init, schema_text};
pub use keys::ModelKeys;
pub use load::{
    API_KEY_VARIABLE, BASE_URL_VARIABLE, CONFIG, EnvironmentLookup, MODEL_VARIABLE, SYSTEM_PROMPT,
};
pub(crate) use nearest::nearest;
pub use offer::{SESSION_ID, offer};
pub use problem::{DefinitionError, DefinitionProblem, FileLocation};

/// An agent's folder, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentDefinition {
    pub model: ModelConfig,
    pub limits: AgentLimits,
    pub tools: Vec<ToolDefinition>,
    pub system_prompt: String,
    pub folder: PathBuf,
    /// The variable that `model.api_key_env` names, also if its key is for another server than the one that is asked.
    pub key_variable: Option<String>,
}

/// Where the model is and how it is asked.
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

/// What a run may use up.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentLimits {
    pub max_iterations: u64,
    pub max_total_tokens: Option<u64>,
    /// How much of an observation the model is shown.
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
    /// The one command string is given to `sh -c`; parameters reach it only as arguments or environment.
    pub shell: bool,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
}

/// A terminal of this size instead of pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolPty {
    pub cols: u16,
    pub rows: u16,
}

/// One parameter of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolParameter {
    pub name: String,
    pub kind: ParameterKind,
    pub description: String,
    pub required: bool,
    pub inject_as: ParameterInjection,
    pub option_name: Option<String>,
}

/// What a parameter's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    String,
    Integer,
    Number,
    Boolean,
}

/// How a parameter's value reaches the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterInjection {
    Argument,
    Option,
    Stdin,
}
