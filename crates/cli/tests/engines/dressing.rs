//! The configuration that each program needs to use the loopback model from a temporary home, without telemetry and
//! updates.

use std::{collections::BTreeMap, fs, path::Path};

use abide_engines::catalogue::{AgentProtocol, EngineConfig};
use serde_json::json;

use crate::programs::InstalledProgram;

/// The API key that the model may demand.
pub(crate) const API_KEY: &str = "a-key-for-tests";

/// Returns the configuration of this engine, and writes its files below `home`.
pub(crate) fn write_config(program: &InstalledProgram, home: &Path, model: &str) -> EngineConfig {
    let mut env: BTreeMap<String, String> = program.env.clone();
    let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
    let folder = |name: &str| {
        let folder = home.join(name);
        fs::create_dir_all(&folder).expect("the home can be written");
        folder
    };
    let mut args: Vec<String> = vec![];
    match program.engine.as_str() {
        "codex" | "codex-acp" => {
            let folder = folder("codex");
            fs::write(folder.join("config.toml"), codex_config(model)).expect("the home can be written");
            set("CODEX_HOME", &folder.to_string_lossy());
            set("STUB_KEY", API_KEY);
        }
        "claude" | "claude-acp" => {
            set("CLAUDE_CONFIG_DIR", &folder("claude").to_string_lossy());
            set("ANTHROPIC_BASE_URL", model);
            set("ANTHROPIC_API_KEY", API_KEY);
            set("CLAUDE_CODE_MAX_RETRIES", "0");
            set("IS_SANDBOX", "1");
        }
        "gemini" | "gemini-acp" => {
            // Over ACP it names its sessions itself. Then only the user's configuration prevents their deletion; see
            // docs/engines.md.
            let retention = json!({"enabled": program.engine == "gemini"});
            let settings = json!({
                "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
                "privacy": {"usageStatisticsEnabled": false},
                "general": {"enableAutoUpdate": false, "sessionRetention": retention},
            });
            fs::write(folder(".gemini").join("settings.json"), settings.to_string())
                .expect("the home can be written");
            set("GEMINI_API_KEY", API_KEY);
            set("GOOGLE_GEMINI_BASE_URL", model);
            args = vec!["-m".to_owned(), "gemini-2.5-flash".to_owned()];
        }
        "qwen" => {
            let settings = json!({
                "security": {"auth": {"selectedType": "openai"}},
                "privacy": {"usageStatisticsEnabled": false},
                "general": {"enableAutoUpdate": false},
                "memory": {"enableManagedAutoMemory": false, "enableManagedAutoDream": false},
                "ui": {"enableFollowupSuggestions": false},
            });
            fs::write(folder(".qwen").join("settings.json"), settings.to_string())
                .expect("the home can be written");
            set("OPENAI_API_KEY", API_KEY);
            set("OPENAI_BASE_URL", &format!("{model}/v1"));
            set("OPENAI_MODEL", "stub");
        }
        "opencode" => {
            let limits = json!({"context": 200_000, "output": 8_000});
            let settings = json!({
                "model": "stub/stub",
                "small_model": "stub/stub",
                "share": "disabled",
                "autoupdate": false,
                "provider": {"stub": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "stub",
                    "options": {"baseURL": format!("{model}/v1"), "apiKey": API_KEY},
                    "models": {"stub": {"name": "stub", "tool_call": true, "limit": limits}},
                }},
            });
            fs::write(folder(".config/opencode").join("opencode.json"), settings.to_string())
                .expect("the home can be written");
            set("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1");
        }
        "iflow" => {
            set("IFLOW_STAND_IN", &folder("iflow").to_string_lossy());
            set("IFLOW_STAND_IN_MODEL", &format!("{model}/v1"));
            set("IFLOW_API_KEY", API_KEY);
        }
        "parrot" | "parrot-sticky" => {
            set("PARROT_HOME", &folder("parrot").to_string_lossy());
        }
        "native" => {
            let folder = folder("agent");
            fs::write(folder.join("config.yaml"), agent_config(model)).expect("the home can be written");
            fs::write(folder.join("system_prompt.md"), "You work.\n").expect("the home can be written");
            set("ABIDE_MODEL_API_KEY", API_KEY);
            args = vec!["--agent".to_owned(), folder.to_string_lossy().into_owned()];
        }
        other => panic!("no rule to prepare {other}"),
    }
    set("HOME", &home.to_string_lossy());
    set("TMPDIR", &folder("tmp").to_string_lossy());
    let protocol = program.engine.ends_with("-acp").then_some(AgentProtocol::Acp);
    EngineConfig {
        command: Some(program.command.clone()),
        args,
        env,
        pass_env: None,
        isolation: None,
        disabled: false,
        protocol,
    }
}

fn agent_config(model: &str) -> String {
    format!(
        r#"
model:
  base_url: "{model}/v1"
  name: loopback
  max_retries: 0
tools:
  - name: exec_command
    description: Runs a command.
    command: [sh, -c, 'eval "$1"', sh]
    parameters:
      - {{ name: cmd, type: string, description: The command., inject_as: argument }}
  - name: shell_session
    description: A shell that remembers.
    stateful: true
    command: [bash]
    parameters:
      - {{ name: command, type: string, description: The command., inject_as: stdin, required: false }}
"#
    )
}

fn codex_config(model: &str) -> String {
    format!(
        r#"
model = "gpt-5.5"
model_provider = "stub"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[features]
plugins = false
apps = false
daemon_auto_start = false
unbounded_connection_retries = false
[analytics]
enabled = false
[model_providers.stub]
name = "stub"
base_url = "{model}/v1"
wire_api = "responses"
env_key = "STUB_KEY"
request_max_retries = 0
stream_max_retries = 0
"#
    )
}
