//! Serves a scripted model on the loopback interface, and writes a home for Abide in which a real agent program is
//! configured to use it. It needs no account, no key and no internet.
//!
//! `cargo xtask playground codex` installs the program and starts this example, which runs until its input ends or it
//! is stopped. The model asks a question and then writes a file, whatever the prompt is. The example demonstrates Abide;
//! it does not evaluate the agent program.

#[path = "../tests/engines/dressing.rs"]
mod dressing;
#[path = "../tests/engines/programs.rs"]
mod programs;

use std::{
    error::Error,
    fs,
    io::{self, Read},
    path::Path,
};

use abide_engines::catalogue::EngineConfig;
use abide_testkit::model::{ModelScript, ModelServer, ReceivedRequest, ScriptedAnswer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(engine), Some(home)) = (arguments.next(), arguments.next()) else {
        return Err("usage: playground ENGINE HOME".into());
    };
    let home = Path::new(&home);
    let program = programs::installed(&engine).ok_or("the program is not installed")?;
    let model = ModelServer::start(ModelScript::new().decide(answer));
    fs::create_dir_all(home)?;
    let config =
        dressing::write_config(&program, &home.join("playground"), model.url("").trim_end_matches('/'));
    fs::write(home.join("config.toml"), config_text(&engine, &config)?)?;
    println!("{engine} is configured to use the scripted model at {}", model.url(""));
    // Until the terminal's end-of-file, or a signal.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Returns the next answer of the model: a question, then a file, then the end.
fn answer(request: &ReceivedRequest) -> Option<ScriptedAnswer> {
    Some(match (request.user_count(), request.new_tool_results().is_empty()) {
        (0 | 1, _) => ScriptedAnswer::say(QUESTION),
        (_, true) => ScriptedAnswer::shell(WRITE_COMMAND),
        (_, false) => {
            ScriptedAnswer::say(format!("CHANGELOG.md is there; its format: {}.", request.last_user_text()))
        }
    })
}

const QUESTION: &str = "\
I have looked around: there is no changelog yet, and two common ways to keep one.

```abide-question
{\"kind\": \"choose_one\", \"prompt\": \"Which format shall the changelog have?\", \"options\": [{\"label\": \"Keep a \
Changelog\", \"safe\": true}, {\"label\": \"plain list of commits\"}], \"default_decision_policy\": \"safe_default\"}
```";

const WRITE_COMMAND: &str = "printf '# Changelog\\n\\n## Unreleased\\n\\n- A changelog.\\n' > CHANGELOG.md";

/// `config.toml` with this one engine. JSON's strings and lists are TOML's too.
fn config_text(engine: &str, config: &EngineConfig) -> serde_json::Result<String> {
    let command = serde_json::to_string(&config.command)?;
    let args = serde_json::to_string(&config.args)?;
    let mut text =
        format!("[engines.{engine}]\ncommand = {command}\nargs = {args}\n\n[engines.{engine}.env]\n");
    for (name, value) in &config.env {
        text += &format!("{name} = {}\n", serde_json::to_string(value)?);
    }
    Ok(text)
}
