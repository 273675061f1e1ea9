//! The native agent across an upgrade. A session that the old binary started is kept while the agent waits for a
//! person, and the new binary continues in it. Tested from the command line and as an engine of the daemon.

use std::{fs, path::PathBuf};

use abide_testkit::{
    daemon::TestHome,
    model::{ModelScript, ModelServer, ScriptedAnswer, write_agent},
};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::wait_for_status;

/// A native agent with its model, and its state before the upgrade.
pub(super) struct NativeAgentFixture {
    model: ModelServer,
    folder: PathBuf,
    /// The working directory of the agent on the command line.
    workdir: PathBuf,
    engine_model: ModelServer,
    run: String,
}

/// Sets a variable in the shell and asks; after the answer it checks the variable.
fn script() -> ModelScript {
    let shell = |command: &str| ScriptedAnswer::call("shell", json!({ "command": command }));
    [
        shell("cd /usr; kept=before-the-upgrade"),
        ScriptedAnswer::call("ask_human", json!({ "question": "Which?" })),
        shell("echo $kept in $(pwd)"),
        ScriptedAnswer::say("done"),
    ]
    .into_iter()
    .fold(ModelScript::new(), ModelScript::then)
    .require_message_order()
}

impl NativeAgentFixture {
    /// Writes the agent definitions; called before the daemon reads its configuration.
    pub(super) fn prepare(home: &TestHome) -> Result<Self> {
        let (model, engine_model) = (ModelServer::start(script()), ModelServer::start(script()));
        let [folder, engine] = [("agent", &model), ("engine-agent", &engine_model)].map(|(name, model)| {
            let folder = home.path().join(name);
            write_agent(&folder, &model.url("/v1")).map(|()| folder)
        });
        let config = format!("[engines.native]\nargs = [\"--agent\", \"{}\"]\n", engine?.display());
        fs::write(home.path().join("config.toml"), config)?;
        let work = home.workspace("native-command");
        Ok(Self { model, folder: folder?, workdir: work, engine_model, run: String::new() })
    }

    /// Runs both agents up to their question, with the old binary.
    pub(super) fn begin(&mut self, home: &TestHome) -> Result<()> {
        let output = self.command(home, &["--message", "go"]);
        ensure!(output.code == Some(101), "the agent does not wait: {output:?}");
        ensure!(self.sessions() == 1, "the waiting agent has {} sessions", self.sessions());
        let body = json!({
            "engine": "native", "workspace": home.workspace("native-engine"), "execution_mode": "interactive",
            "prompt": "go",
        });
        let created = home.client()?.post("/v1/runs", &body)?;
        ensure!(created.status == 201, "{}", created.body);
        created.str_at("/run_id").clone_into(&mut self.run);
        wait_for_status(home, &self.run, "waiting_user").map(drop)
    }

    /// Answers both questions, with the new binary.
    pub(super) fn finish(&self, home: &TestHome) -> Result<()> {
        let done = self.command(home, &["--answer", "this"]);
        ensure!(done.code == Some(0) && done.stdout == "done\n", "the agent does not continue: {done:?}");
        check_variable_kept(&self.model).context("from the command line")?;
        ensure!(self.sessions() == 0, "sessions of a finished agent are left");
        let waiting = wait_for_status(home, &self.run, "waiting_user")?;
        let question = waiting["pending_interaction_id"].as_str().unwrap_or_default();
        let path = format!("/v1/interactions/{question}/reply");
        let replied = home.client()?.post(&path, &json!({ "text": "this" }))?;
        ensure!(replied.status == 200, "{}", replied.body);
        wait_for_status(home, &self.run, "succeeded")?;
        check_variable_kept(&self.engine_model).context("as an engine")
    }

    fn command(&self, home: &TestHome, words: &[&str]) -> abide_testkit::daemon::TestCommandOutput {
        let text = |path: &PathBuf| path.display().to_string();
        let (folder, work) = (text(&self.folder), text(&self.workdir));
        let all = [&["agent", "run", "--agent", &folder, "--workdir", &work], words].concat();
        home.run(&all)
    }

    fn sessions(&self) -> usize {
        let folder = self.workdir.join(".abide/sessions");
        fs::read_dir(folder).into_iter().flatten().count()
    }
}

/// Checks that the model received the variable set in the shell before the upgrade.
fn check_variable_kept(model: &ModelServer) -> Result<()> {
    let requests = model.requests().pop().context("the model was asked")?;
    let results: Vec<String> = requests.tool_results().into_iter().map(|result| result.text).collect();
    let seen = results.iter().any(|text| text.contains("before-the-upgrade in /usr"));
    ensure!(
        seen && model.faults().is_empty(),
        "the session did not continue: {results:?} {:?}",
        model.faults()
    );
    Ok(())
}
