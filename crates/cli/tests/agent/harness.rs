//! The harness of the agent tests: an agent's folder, a working directory, a loopback model and the real binary.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use abide_testkit::{
    daemon::{TestCommandOutput, TestHome},
    model::{ModelScript, ModelServer, ReceivedRequest, ScriptedAnswer, write_agent},
    proc::is_running,
};
use serde_json::{Value, json};

pub(crate) struct AgentTestHome {
    home: TestHome,
    pub(crate) model: ModelServer,
}

impl AgentTestHome {
    /// Creates a home with this model, which refuses messages in a wrong order.
    pub(crate) fn new(script: ModelScript) -> Self {
        Self::with(script, "")
    }

    /// Like [`AgentTestHome::new`], with additional configuration.
    pub(crate) fn with(script: ModelScript, more: &str) -> Self {
        let home = TestHome::new(env!("CARGO_BIN_EXE_abide")).in_subfolder("home");
        let model = ModelServer::start(script.require_message_order());
        let fixture = Self { home, model };
        write_agent(&fixture.agent(), &fixture.model.url("/v1")).unwrap();
        fs::create_dir_all(fixture.workdir()).unwrap();
        let mut config = fs::File::options().append(true).open(fixture.agent().join("config.yaml")).unwrap();
        config.write_all(more.as_bytes()).unwrap();
        fixture
    }

    /// Replaces a part of the agent's configuration.
    pub(crate) fn configure(&self, from: &str, to: &str) {
        let path = self.agent().join("config.yaml");
        let config = fs::read_to_string(&path).unwrap();
        assert!(config.contains(from), "{config}");
        fs::write(&path, config.replacen(from, to, 1)).unwrap();
    }

    /// Returns the folder of the agent's definition.
    fn agent(&self) -> PathBuf {
        self.home.path().with_file_name("agent")
    }

    pub(crate) fn workdir(&self) -> PathBuf {
        self.home.path().with_file_name("work")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.home.path().to_owned()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.workdir().join(".abide")
    }

    /// Returns the command `abide agent run` with these arguments.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.home.command();
        command.args(["agent", "run", "--agent"]).arg(self.agent());
        command.arg("--workdir").arg(self.workdir()).args(words);
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> TestCommandOutput {
        TestCommandOutput::of(self.command(words))
    }

    /// Runs any `abide` command in the working directory.
    pub(crate) fn abide(&self, words: &[&str]) -> TestCommandOutput {
        self.abide_with(words, &[])
    }

    pub(crate) fn abide_with(&self, words: &[&str], env: &[(&str, &str)]) -> TestCommandOutput {
        let mut command = self.home.command();
        command.args(words).current_dir(self.workdir()).envs(env.iter().copied());
        TestCommandOutput::of(command)
    }

    /// Starts `abide agent run` without waiting for it.
    pub(crate) fn start(&self, words: &[&str]) -> Child {
        self.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Returns the events of the journal.
    pub(crate) fn journal(&self) -> Vec<Value> {
        events(&self.state())
    }

    /// Returns the payloads of all events of one type.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let of_kind = |event: &Value| (event["type"] == kind).then(|| event["payload"].clone());
        self.journal().iter().filter_map(of_kind).collect()
    }

    /// Returns the sessions on disk, each with the pid of its program.
    pub(crate) fn sessions(&self) -> Vec<(String, u32)> {
        sessions(&self.state())
    }

    /// Asserts that no request was refused because of its order.
    pub(crate) fn assert_message_order(&self) {
        assert_eq!(self.model.faults(), [""; 0]);
    }
}

impl Drop for AgentTestHome {
    /// Ends shells that a failed test left running.
    fn drop(&mut self) {
        for (_, pid) in self.sessions().into_iter().filter(|(_, pid)| is_running(*pid)) {
            kill(pid);
        }
    }
}

pub(crate) fn events(state: &Path) -> Vec<Value> {
    let text = fs::read_to_string(state.join("journal.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn sessions(state: &Path) -> Vec<(String, u32)> {
    let Ok(folders) = fs::read_dir(state.join("sessions")) else { return Vec::new() };
    let pid = |folder: fs::DirEntry| {
        let pid = fs::read_to_string(folder.path().join("pid.txt")).ok()?;
        Some((folder.file_name().into_string().ok()?, pid.trim().parse().ok()?))
    };
    let mut sessions: Vec<(String, u32)> = folders.filter_map(|folder| pid(folder.unwrap())).collect();
    sessions.sort();
    sessions
}

/// Kills a process that is not our child, and waits until it is gone.
pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let held = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let mut fds = [rustix::event::PollFd::new(&held, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, None).unwrap();
}

/// Returns the texts of all tool results in a request, in order.
pub(crate) fn results(request: &ReceivedRequest) -> Vec<String> {
    request.tool_results().into_iter().map(|result| result.text).collect()
}

/// Answers with a call of the agent's tool `shell`.
pub(crate) fn shell(command: &str) -> ScriptedAnswer {
    ScriptedAnswer::call("shell", json!({ "command": command }))
}

/// Creates a script with one answer for each request.
pub(crate) fn script(answers: impl IntoIterator<Item = ScriptedAnswer>) -> ModelScript {
    answers.into_iter().fold(ModelScript::new(), ModelScript::then)
}
