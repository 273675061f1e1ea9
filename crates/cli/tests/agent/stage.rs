//! The harness of the agent tests: an agent's folder, a working directory, a loopback model and the real binary.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use abide_testkit::{
    environment,
    model::{ModelScript, ModelServer, ReceivedRequest, ScriptedAnswer},
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct AgentTestHome {
    folder: TempDir,
    pub(crate) model: ModelServer,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct AgentCommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl AgentTestHome {
    /// Creates a home with this model, which refuses messages in a wrong order.
    pub(crate) fn new(script: ModelScript) -> Self {
        Self::with(script, "")
    }

    /// Like [`AgentTestHome::new`], with additional configuration.
    pub(crate) fn with(script: ModelScript, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = ModelServer::start(script.require_message_order());
        let agent = folder.path().join("agent");
        fs::create_dir_all(&agent).unwrap();
        fs::create_dir_all(folder.path().join("work")).unwrap();
        let config = CONFIG.replace("BASE_URL", &model.url("/v1")) + more;
        fs::write(agent.join("config.yaml"), config).unwrap();
        fs::write(agent.join("system_prompt.md"), "You are a careful agent.\n").unwrap();
        Self { folder, model }
    }

    /// Replaces a part of the agent's configuration.
    pub(crate) fn configure(&self, from: &str, to: &str) {
        let path = self.folder.path().join("agent").join("config.yaml");
        let config = fs::read_to_string(&path).unwrap();
        assert!(config.contains(from), "{config}");
        fs::write(&path, config.replacen(from, to, 1)).unwrap();
    }

    pub(crate) fn workdir(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.workdir().join(".abide")
    }

    /// Returns the command `abide agent run` with these arguments.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = environment::abide(env!("CARGO_BIN_EXE_abide"));
        command.args(["agent", "run", "--agent"]).arg(self.folder.path().join("agent"));
        command.arg("--workdir").arg(self.workdir()).args(words);
        command.env("ABIDE_HOME", self.folder.path().join("home"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> AgentCommandOutput {
        run_to_exit(self.command(words))
    }

    /// Runs any `abide` command in the working directory.
    pub(crate) fn abide(&self, words: &[&str]) -> AgentCommandOutput {
        self.abide_with(words, &[])
    }

    pub(crate) fn abide_with(&self, words: &[&str], env: &[(&str, &str)]) -> AgentCommandOutput {
        let mut command = environment::abide(env!("CARGO_BIN_EXE_abide"));
        command.args(words).current_dir(self.workdir()).stdin(Stdio::null());
        command.env("ABIDE_HOME", self.folder.path().join("home")).envs(env.iter().copied());
        run_to_exit(command)
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

pub(crate) fn run_to_exit(mut command: Command) -> AgentCommandOutput {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    AgentCommandOutput {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

impl AgentCommandOutput {
    /// Asserts the exit code, and prints the output if it differs.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
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

/// Whether a process with this pid runs and is not a zombie.
pub(crate) fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
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

/// Answers with a call of the tool `shell` below.
pub(crate) fn shell(command: &str) -> ScriptedAnswer {
    ScriptedAnswer::call("shell", json!({ "command": command }))
}

/// Creates a script with one answer for each request.
pub(crate) fn script(answers: impl IntoIterator<Item = ScriptedAnswer>) -> ModelScript {
    answers.into_iter().fold(ModelScript::new(), ModelScript::then)
}

/// `note` appends a line to a file, so that executions can be counted.
pub(crate) const CONFIG: &str = r#"
model:
  base_url: "BASE_URL"
  name: loopback
  max_retries: 1
tools:
  - name: note
    description: Writes a line into notes.txt.
    command: [sh, -c, 'echo "$1" >> notes.txt && echo "noted $1"', note]
    parameters:
      - { name: text, type: string, description: The line., inject_as: argument }
  - name: look
    description: Shows notes.txt.
    command: [sh, -c, 'echo NOTES; cat notes.txt; true']
  - name: linger
    description: Never ends by itself.
    command: [sh, -c, 'echo begun; echo begun >> lingering.txt; exec sleep 1000']
  - name: shell
    description: A shell that remembers.
    stateful: true
    command: [bash, -i]
    parameters:
      - { name: command, type: string, description: The command., inject_as: stdin, required: false }
  - name: python
    description: A Python that remembers.
    stateful: true
    command: [python3, -i]
    parameters:
      - { name: code, type: string, description: The code., inject_as: stdin, required: false }
"#;
