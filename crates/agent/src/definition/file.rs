//! The format of `config.yaml`. The schema for editors and the check are generated from these types.

use std::collections::BTreeMap;

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::Deserialize;
use serde_json::Value;

/// An agent for `abide agent run`: its model, its limits and its tools. Its instructions are in `system_prompt.md` beside
/// this file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "An agent for abide")]
pub(super) struct DefinitionFile {
    /// The model that thinks. Any server that speaks OpenAI's chat completions will do.
    pub(super) model: FileModel,
    /// The limits of a run. Missing values have defaults.
    pub(super) limits: FileLimits,
    /// The tools of the model. `ask_human` and, for stateful tools, `session_end` are always there.
    pub(super) tools: Vec<FileTool>,
}

/// The model that thinks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FileModel {
    /// Where the server is, such as `https://api.openai.com/v1` or `http://127.0.0.1:11434`. The variable
    /// ABIDE_MODEL_BASE_URL goes over it.
    #[schemars(length(min = 1))]
    pub(super) base_url: Option<String>,
    /// The model's name, as the server knows it. The variable ABIDE_MODEL goes over it.
    #[schemars(length(min = 1))]
    pub(super) name: Option<String>,
    /// The variable of the environment that holds the key; leave it out for a server that wants none. The key itself never
    /// stands here. The variable ABIDE_MODEL_API_KEY goes over it.
    #[schemars(length(min = 1))]
    pub(super) api_key_env: Option<String>,
    /// How many tokens the model can take in. Older observations are shortened before a conversation gets longer.
    #[schemars(range(min = 2000))]
    pub(super) context_tokens: u64,
    /// How freely the model chooses its words; left to the server by default.
    #[schemars(range(min = 0.0, max = 2.0))]
    pub(super) temperature: Option<f64>,
    /// The longest answer; left to the server by default.
    #[schemars(range(min = 1))]
    pub(super) max_output_tokens: Option<u64>,
    /// How many seconds the server may be silent before the request is made again.
    #[schemars(range(min = 1, max = 86400))]
    pub(super) timeout_sec: u64,
    /// How often a request is made again when the server is busy, broken or silent.
    #[schemars(range(max = 100))]
    pub(super) max_retries: u32,
}

/// The limits of a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FileLimits {
    /// How often the model is asked before the run ends as BUDGET_EXHAUSTED.
    #[schemars(range(min = 1))]
    pub(super) max_iterations: u64,
    /// How many tokens, sent and answered, before the run ends as BUDGET_EXHAUSTED; no limit by default.
    #[schemars(range(min = 1))]
    pub(super) max_total_tokens: Option<u64>,
    /// How many bytes of an output the model is shown. All of it is kept on disk.
    #[schemars(range(min = 256))]
    pub(super) observation_bytes: u64,
}

/// A command that the model may call.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTool {
    /// The name by which the model calls it: letters, digits, _ and -, at most 64.
    #[schemars(length(min = 1))]
    pub(super) name: String,
    /// Purpose and use of the tool, for the model.
    #[schemars(length(min = 1))]
    pub(super) description: String,
    /// The program and its arguments, each a word of its own; no shell is involved. With `shell: true`, one text for sh.
    pub(super) command: FileCommand,
    /// The arguments of a call.
    #[serde(default)]
    pub(super) parameters: Vec<FileParameter>,
    /// How many seconds a call may take, 600 by default. In a session, a shell's command is then stopped, and any other program
    /// continues in the background after this time (60 s by default), and the model is informed.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86400))]
    pub(super) timeout_sec: Option<u64>,
    /// The program stays between calls: a session that remembers. Its `stdin` parameter is what is said to it.
    #[serde(default)]
    pub(super) stateful: bool,
    /// A terminal instead of pipes, for a program that wants one; the model is shown its screen.
    #[serde(default)]
    pub(super) pty: Option<FilePty>,
    /// The command is a text for sh. Parameters reach it as "$1", "$2", … and as $ARG_name, never as part of the text.
    #[serde(default)]
    pub(super) shell: bool,
    /// Variables of the environment, over those of this process.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// Where it runs, from the working directory.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(super) cwd: Option<String>,
}

/// A program and its arguments, or a text for sh.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum FileCommand {
    /// The program and its arguments.
    Words(#[schemars(length(min = 1))] Vec<String>),
    /// A text for sh; only with `shell: true`.
    Text(#[schemars(length(min = 1))] String),
}

/// A terminal.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum FilePty {
    /// One of the usual size, or none.
    Wanted(bool),
    /// One of a certain size.
    Size(FileSize),
}

/// The size of a terminal.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSize {
    /// Characters in a line.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) cols: u16,
    /// Lines.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) rows: u16,
}

/// One thing that the model says with a call.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileParameter {
    /// Its name: letters, digits, _ and -, at most 64.
    #[schemars(length(min = 1))]
    pub(super) name: String,
    /// The type of the value.
    #[serde(default, rename = "type")]
    pub(super) kind: FileParameterKind,
    /// The meaning, for the model.
    #[serde(default)]
    pub(super) description: String,
    /// Whether a call without it is refused.
    #[serde(default = "default_true")]
    pub(super) required: bool,
    /// How it reaches the program: as an argument in the order of the parameters, as an option with its value, or as what
    /// the program reads.
    #[serde(default)]
    pub(super) inject_as: FileInject,
    /// The option, such as --max-count; by default -- and the parameter's name. An option that ends with = is written in
    /// one word with its value.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(super) option_name: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FileParameterKind {
    #[default]
    String,
    Integer,
    Number,
    Boolean,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FileInject {
    #[default]
    Argument,
    Option,
    Stdin,
}

impl Default for FileModel {
    fn default() -> Self {
        Self {
            base_url: None,
            name: None,
            api_key_env: None,
            context_tokens: 128_000,
            temperature: None,
            max_output_tokens: None,
            timeout_sec: 300,
            max_retries: 6,
        }
    }
}

impl Default for FileLimits {
    fn default() -> Self {
        Self { max_iterations: 50, max_total_tokens: None, observation_bytes: 16 << 10 }
    }
}

fn default_true() -> bool {
    true
}

/// The schema of `config.yaml`, for editors and for the check.
pub(super) fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let generator: SchemaGenerator = settings.into_generator();
    generator.into_root_schema_for::<DefinitionFile>().to_value()
}
