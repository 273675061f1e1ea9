//! A real agent program on a stage: a model on the loopback interface that plays a developer who asks before it writes,
//! and a home of its own for Abide in which the engine is configured to talk to it. No account, no key, no internet.
//!
//! `cargo xtask stage codex` installs the program and starts this; it goes on until its input ends or it is stopped.
//! What is played is the same whatever is asked for. It is for trying Abide with a program that is really there, not
//! for judging that program.

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

use abide::catalogue::EngineConfig;
use abide_testkit::model::{ModelScript, ModelServer, ReceivedRequest, ScriptedAnswer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(engine), Some(home)) = (arguments.next(), arguments.next()) else {
        return Err("say which engine, and which folder is to be Abide's home".into());
    };
    let home = Path::new(&home);
    let program = programs::installed(&engine).ok_or("the program is not installed")?;
    let model = ModelServer::start(ModelScript::new().decide(play));
    fs::create_dir_all(home)?;
    let dressed = dressing::dress(&program, &home.join("stage"), model.url("").trim_end_matches('/'));
    fs::write(home.join("config.toml"), config(&engine, &dressed)?)?;
    println!("{engine} is on stage, with a model at {} that plays its part", model.url(""));
    // Until the terminal's end-of-file, or a signal.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// What the model says: a question, then a file, then the end.
fn play(heard: &ReceivedRequest) -> Option<ScriptedAnswer> {
    Some(match (heard.users(), heard.returned().is_empty()) {
        (0 | 1, _) => ScriptedAnswer::say(QUESTION),
        (_, true) => ScriptedAnswer::shell(WRITE),
        (_, false) => {
            ScriptedAnswer::say(format!("CHANGELOG.md is there; its format: {}.", heard.last_user()))
        }
    })
}

const QUESTION: &str = "\
I have looked around: there is no changelog yet, and two common ways to keep one.

```abide-question
{\"kind\": \"choose_one\", \"prompt\": \"Which format shall the changelog have?\", \"options\": [{\"label\": \"Keep a \
Changelog\", \"safe\": true}, {\"label\": \"plain list of commits\"}], \"default_decision_policy\": \"safe_default\"}
```";

const WRITE: &str = "printf '# Changelog\\n\\n## Unreleased\\n\\n- A changelog.\\n' > CHANGELOG.md";

/// `config.toml` with this one engine. JSON's strings and lists are TOML's too.
fn config(engine: &str, dressed: &EngineConfig) -> serde_json::Result<String> {
    let command = serde_json::to_string(&dressed.command)?;
    let args = serde_json::to_string(&dressed.args)?;
    let mut text =
        format!("[engines.{engine}]\ncommand = {command}\nargs = {args}\n\n[engines.{engine}.env]\n");
    for (name, value) in &dressed.env {
        text += &format!("{name} = {}\n", serde_json::to_string(value)?);
    }
    Ok(text)
}
