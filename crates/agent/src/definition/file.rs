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
    /// The language model, on any server with OpenAI's chat completions API.
    pub(super) model: FileModel,
    /// The limits of a run. Missing values have defaults.
    pub(super) limits: FileLimits,
    /// The tools of the model. `ask_human` and, if there are stateful tools, `session_end` are added automatically.
    pub(super) tools: Vec<FileTool>,
}

/// The language model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FileModel {
    /// The URL of the server, such as `https://api.openai.com/v1` or `http://127.0.0.1:11434`. The variable
    /// ABIDE_MODEL_BASE_URL overrides it.
    #[schemars(length(min = 1))]
    pub(super) base_url: Option<String>,
    /// The model's name on the server. The variable ABIDE_MODEL overrides it.
    #[schemars(length(min = 1))]
    pub(super) name: Option<String>,
    /// The name of the environment variable with the API key, never the key itself; omit it for a server without keys.
    /// The variable ABIDE_MODEL_API_KEY overrides it.
    #[schemars(length(min = 1))]
    pub(super) api_key_env: Option<String>,
    /// The context window of the model, in tokens. Older observations are shortened before the conversation exceeds it.
    #[schemars(range(min = 2000))]
    pub(super) context_tokens: u64,
    /// The sampling temperature; default: the server's.
    #[schemars(range(min = 0.0, max = 2.0))]
    pub(super) temperature: Option<f64>,
    /// The maximum length of one response, in tokens; default: the server's.
    #[schemars(range(min = 1))]
    pub(super) max_output_tokens: Option<u64>,
    /// The time without data from the server after which the request is retried, in seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub(super) timeout_sec: u64,
    /// The maximum number of retries of a request, if the server is busy, fails or sends no data.
    #[schemars(range(max = 100))]
    pub(super) max_retries: u32,
}

/// The limits of a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FileLimits {
    /// The maximum number of requests to the model. After them the run ends with BUDGET_EXHAUSTED.
    #[schemars(range(min = 1))]
    pub(super) max_iterations: u64,
    /// The maximum number of input and output tokens. After them the run ends with BUDGET_EXHAUSTED; default: no limit.
    #[schemars(range(min = 1))]
    pub(super) max_total_tokens: Option<u64>,
    /// The maximum number of bytes of one output that the model gets. The whole output is kept on disk.
    #[schemars(range(min = 256))]
    pub(super) observation_bytes: u64,
}

/// A command that the model may call.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTool {
    /// The name that the model uses: 1 to 64 letters, digits, _ and -.
    #[schemars(length(min = 1))]
    pub(super) name: String,
    /// Purpose and use of the tool, for the model.
    #[schemars(length(min = 1))]
    pub(super) description: String,
    /// The program and its arguments as a list of words, without a shell. With `shell: true`, one text for sh.
    pub(super) command: FileCommand,
    /// The arguments of a call.
    #[serde(default)]
    pub(super) parameters: Vec<FileParameter>,
    /// The timeout of a call in seconds, after which the program is killed; default 600. In a session, a command of a
    /// shell is stopped. Any other program of a session continues, and the model is told; its default is 60.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86400))]
    pub(super) timeout_sec: Option<u64>,
    /// Whether the program keeps running between calls, as a session. Its `stdin` parameter is the input of each call.
    #[serde(default)]
    pub(super) stateful: bool,
    /// Runs the program on a terminal instead of pipes. The model gets the screen of the terminal.
    #[serde(default)]
    pub(super) pty: Option<FilePty>,
    /// Whether the command is a text for sh. Parameters are passed as "$1", "$2", … and as $ARG_name, never as part
    /// of the text.
    #[serde(default)]
    pub(super) shell: bool,
    /// Environment variables. They override those of `abide agent run`.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// The working directory of the program, relative to that of the agent; default: the same.
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

/// Whether a tool runs on a terminal, and the size of the terminal.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum FilePty {
    /// A terminal of the default size, or none.
    Wanted(bool),
    /// A terminal of this size.
    Size(FileSize),
}

/// The size of a terminal.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSize {
    /// Width in columns.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) cols: u16,
    /// Height in lines.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) rows: u16,
}

/// A parameter of a tool, whose value the model gives with a call.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileParameter {
    /// Its name: 1 to 64 letters, digits, _ and -.
    #[schemars(length(min = 1))]
    pub(super) name: String,
    /// The type of the value.
    #[serde(default, rename = "type")]
    pub(super) kind: FileParameterKind,
    /// The meaning, for the model.
    #[serde(default)]
    pub(super) description: String,
    /// Whether a call without the parameter is refused.
    #[serde(default = "default_true")]
    pub(super) required: bool,
    /// How the value is passed to the program: as an argument in the order of the parameters, as an option with its
    /// value, or as standard input.
    #[serde(default)]
    pub(super) inject_as: FileInject,
    /// The name of the option, such as --max-count; default: -- and the parameter's name. An option that ends with = is
    /// joined with its value in one word.
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
