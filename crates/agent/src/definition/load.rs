//! Loads an [`AgentDefinition`] from a folder and the environment, or reports all problems.
//!
//! The folder may be a workspace, in which agents write. Its files are sent to the model, so a link in it is not followed:
//! it could lead to any file of the user, for example to the daemon's token.

use std::path::{Path, PathBuf};

use abide_os::{
    OsError,
    beneath::Directory,
    config_problem::{self, ConfigError, ConfigOrigin, ConfigProblem},
};

use super::{
    AgentDefinition, AgentLimits, ModelConfig, ParameterInjection, ParameterKind, ToolDefinition,
    ToolParameter, ToolPty, check,
    file::{
        self, DefinitionFile, FileCommand, FileInject, FileParameter, FileParameterKind, FilePty, FileSize,
        FileTool,
    },
    rules,
    yaml::YamlDocument,
};
use crate::model::{self, ApiKey};

/// Looks up an environment variable by its name. An empty variable counts as unset.
pub type EnvironmentLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The file with the model, the limits and the tools.
pub const CONFIG_FILE: &str = "config.yaml";
/// The file with the instructions.
pub const SYSTEM_PROMPT_FILE: &str = "system_prompt.md";

/// Overrides `model.base_url`.
pub const BASE_URL_VARIABLE: &str = "ABIDE_MODEL_BASE_URL";
/// Overrides `model.name`.
pub const MODEL_VARIABLE: &str = "ABIDE_MODEL";
/// Overrides the variable that `model.api_key_env` names.
pub const API_KEY_VARIABLE: &str = "ABIDE_MODEL_API_KEY";

/// Maximum size of a file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

impl AgentDefinition {
    /// Reads and checks the agent in `folder`.
    pub fn load(folder: &Path, environment: EnvironmentLookup<'_>) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let prompt = read_system_prompt(folder).map_err(|problem| problems.push(problem)).ok();
        let path = folder.join(CONFIG_FILE);
        let file =
            match read(folder, CONFIG_FILE).map_err(|problem| vec![suggest_similar_file(folder, problem)]) {
                Ok(text) => parse(&path, &text, environment),
                Err(problems) => Err(problems),
            };
        match (file, prompt) {
            (Ok((file, model)), Some(system_prompt)) => Ok(Self {
                model,
                limits: AgentLimits {
                    max_iterations: file.limits.max_iterations,
                    max_total_tokens: file.limits.max_total_tokens,
                    observation_bytes: file.limits.observation_bytes,
                },
                key_variable: file.model.api_key_env,
                tools: file.tools.into_iter().map(to_tool_definition).collect(),
                system_prompt,
                folder: folder.to_owned(),
            }),
            (Ok(_), None) => Err(ConfigError::new(problems)),
            (Err(mut of_config), _) => {
                of_config.append(&mut problems);
                Err(ConfigError::new(of_config))
            }
        }
    }

    /// The API key, if one is configured. The error for an unset variable contains the remedy.
    pub fn api_key(&self, environment: EnvironmentLookup<'_>) -> Result<Option<ApiKey>, ConfigError> {
        let nonblank_variable = |name: &str| environment(name).filter(|key| !key.trim().is_empty());
        if let Some(key) = nonblank_variable(API_KEY_VARIABLE) {
            return Ok(Some(ApiKey::new(&key, API_KEY_VARIABLE)));
        }
        let Some(name) = &self.model.api_key_env else { return Ok(None) };
        match nonblank_variable(name) {
            Some(key) => Ok(Some(ApiKey::new(&key, name.as_str()))),
            None => {
                let message = format!("the variable {name} is not set");
                let suggestion =
                    format!("export {name}=…, or {API_KEY_VARIABLE}; remove api_key_env if none is wanted");
                let problem = ConfigProblem::new(ConfigOrigin::file(self.folder.join(CONFIG_FILE)), message)
                    .with_key("model.api_key_env")
                    .with_advice(Some(suggestion));
                Err(ConfigError::new(vec![problem]))
            }
        }
    }
}

fn parse(
    path: &Path,
    text: &str,
    environment: EnvironmentLookup<'_>,
) -> Result<(DefinitionFile, ModelConfig), Vec<ConfigProblem>> {
    let document = YamlDocument::parse(path, text).map_err(|problem| vec![problem])?;
    let (value, mut problems) = check::check(&document, &file::schema());
    problems.extend(rules::check(&document));
    // In the order of the file.
    config_problem::sort_by_position(&mut problems);
    let file: DefinitionFile = match serde_json::from_value(value) {
        Ok(file) => file,
        // The check has already reported the cause of this error.
        Err(error) if problems.is_empty() => {
            return Err(vec![ConfigProblem::new(ConfigOrigin::file(path), error.to_string())]);
        }
        Err(_) => return Err(problems),
    };
    let at = document.root.get("model").map_or(document.root.location, |node| node.location);
    let missing = |key: &str, variable: &str, example: &str| {
        let problem = document.problem(at, format!("model.{key} is missing"));
        problem.with_advice(Some(format!("write {key}: {example}, or set {variable}")))
    };
    let env_value =
        |name: &str| environment(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let base_url = env_value(BASE_URL_VARIABLE);
    if let Some(url) = &base_url
        && let Err(error) = model::check_base_url(url)
    {
        let origin = ConfigOrigin::Environment { variable: BASE_URL_VARIABLE.to_owned() };
        problems.push(ConfigProblem::new(origin, error));
    }
    // The key belongs to the server in the file. It is not sent to another one.
    let is_other_server =
        base_url.is_some() && file.model.base_url.is_some() && base_url != file.model.base_url;
    let api_key_env = file.model.api_key_env.clone().filter(|_| !is_other_server);
    let base_url = base_url.or_else(|| file.model.base_url.clone());
    let name = env_value(MODEL_VARIABLE).or_else(|| file.model.name.clone());
    if base_url.is_none() {
        problems.push(missing("base_url", BASE_URL_VARIABLE, "https://api.openai.com/v1"));
    }
    if name.is_none() {
        problems.push(missing("name", MODEL_VARIABLE, "gpt-4.1"));
    }
    let (Some(base_url), Some(name), true) = (base_url, name, problems.is_empty()) else {
        return Err(problems);
    };
    let model = ModelConfig {
        base_url,
        name,
        api_key_env,
        context_tokens: file.model.context_tokens,
        temperature: file.model.temperature,
        max_output_tokens: file.model.max_output_tokens,
        timeout_sec: file.model.timeout_sec,
        max_retries: file.model.max_retries,
    };
    Ok((file, model))
}

fn to_tool_definition(tool: FileTool) -> ToolDefinition {
    ToolDefinition {
        name: tool.name,
        description: tool.description,
        command: match tool.command {
            FileCommand::Words(words) => words,
            FileCommand::Text(text) => vec![text],
        },
        parameters: tool.parameters.into_iter().map(to_tool_parameter).collect(),
        timeout_sec: tool.timeout_sec,
        stateful: tool.stateful,
        pty: match tool.pty {
            None | Some(FilePty::Wanted(false)) => None,
            Some(FilePty::Wanted(true)) => Some(ToolPty { cols: 80, rows: 24 }),
            Some(FilePty::Size(FileSize { cols, rows })) => Some(ToolPty { cols, rows }),
        },
        shell: tool.shell,
        env: tool.env,
        cwd: tool.cwd,
    }
}

fn to_tool_parameter(parameter: FileParameter) -> ToolParameter {
    let inject_as = match parameter.inject_as {
        FileInject::Argument => ParameterInjection::Argument,
        FileInject::Option => ParameterInjection::Option,
        FileInject::Stdin => ParameterInjection::Stdin,
    };
    let default_option = || format!("--{}", parameter.name.replace('_', "-"));
    ToolParameter {
        option_name: match inject_as {
            ParameterInjection::Option => Some(parameter.option_name.clone().unwrap_or_else(default_option)),
            ParameterInjection::Argument | ParameterInjection::Stdin => None,
        },
        kind: match parameter.kind {
            FileParameterKind::String => ParameterKind::String,
            FileParameterKind::Integer => ParameterKind::Integer,
            FileParameterKind::Number => ParameterKind::Number,
            FileParameterKind::Boolean => ParameterKind::Boolean,
        },
        name: parameter.name,
        description: parameter.description,
        required: parameter.required,
        inject_as,
    }
}

fn read_system_prompt(folder: &Path) -> Result<String, ConfigProblem> {
    let path = folder.join(SYSTEM_PROMPT_FILE);
    let text = read(folder, SYSTEM_PROMPT_FILE)?;
    if text.trim().is_empty() {
        let problem = ConfigProblem::new(ConfigOrigin::file(path), "it is empty");
        return Err(
            problem.with_advice(Some("write the role of the model and the rules for its work".to_owned()))
        );
    }
    Ok(text)
}

fn read(folder: &Path, name: &str) -> Result<String, ConfigProblem> {
    let path = folder.join(name);
    let problem = |message: String| ConfigProblem::new(ConfigOrigin::file(&path), message);
    let bytes = Directory::open(folder).and_then(|folder| folder.read_bounded(name, MAX_FILE_BYTES));
    let bytes = bytes.map_err(|error| match error {
        OsError::System { .. } if error.is_not_found() => {
            let example = "`abide agent init DIR` writes an example".to_owned();
            problem("the file does not exist".to_owned()).with_advice(Some(example))
        }
        OsError::System { source, .. } => problem(format!("cannot be read: {source}")),
        OsError::SymbolicLink { .. } => {
            problem("it is a symbolic link, which is not followed; put the file itself there".to_owned())
        }
        OsError::TooLarge { .. } => problem(format!("it has more than {MAX_FILE_BYTES} bytes")),
        OsError::NotRegular { .. } | OsError::InvalidPath { .. } => {
            problem("cannot be read: it is not a regular file".to_owned())
        }
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let line =
            error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        problem(format!("line {line} is not UTF-8"))
    })
}

/// Suggests a file with a similar name, if the expected one is missing.
fn suggest_similar_file(folder: &Path, problem: ConfigProblem) -> ConfigProblem {
    let other =
        ["config.yml", "agent.yaml", "config.json"].into_iter().find(|name| folder.join(name).is_file());
    if !folder.is_dir() {
        let missing_folder = ConfigProblem::new(ConfigOrigin::file(folder), "the folder does not exist");
        return missing_folder.with_advice(Some("--agent names the folder of a definition".to_owned()));
    }
    match (folder.join(CONFIG_FILE).exists(), other) {
        (false, Some(other)) => {
            let path: PathBuf = folder.join(CONFIG_FILE);
            ConfigProblem::new(ConfigOrigin::file(path), "the file does not exist")
                .with_advice(Some(format!("rename {other} to {CONFIG_FILE}")))
        }
        (true | false, _) => problem,
    }
}
