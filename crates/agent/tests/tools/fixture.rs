//! A workbench in a temporary folder, and helpers that inspect its files and processes.
//!
//! Keepers are started from a program. Here it is this test program, which runs one ignored test for that purpose.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use abide_agent::definition::{ParameterInjection, ParameterKind, ToolDefinition, ToolParameter, ToolPty};
use abide_agent::state_directory::StateDirectory;
use abide_agent::tool::workbench::{OrphanPolicy, StopFlag};
use abide_agent::tool::{FormerSessions, ToolCallResult, ToolSetup, ToolWorkbench};
use abide_keeper::launch::KeeperLauncher;
use abide_testkit::skip::skip;
use abide_testkit::wait;
use serde_json::Value;

/// Not a test: the entry point of the keeper processes.
#[test]
#[ignore = "becomes a keeper when a test asks for it"]
fn keeper_entry_point() {
    if std::env::args().any(|argument| argument == "--exact") {
        // The test notices a failed keeper by its missing socket.
        abide_keeper::main().ok();
    }
}

/// A temporary folder with a workbench.
pub(crate) struct WorkbenchFixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) workbench: ToolWorkbench,
    calls: u32,
}

impl WorkbenchFixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let workbench = ToolWorkbench::open(setup(folder.path()));
        Self { folder, workbench, calls: 0 }
    }

    /// Replaces the workbench, as a restarted process would.
    pub(crate) fn restart(&mut self) {
        let next = ToolWorkbench::open(setup(self.folder.path()));
        std::mem::replace(&mut self.workbench, next).close();
    }

    pub(crate) fn call(&mut self, tool: &ToolDefinition, arguments: Value) -> ToolCallResult {
        self.calls += 1;
        let action = format!("act_{}", self.calls);
        let arguments = arguments.as_object().cloned().expect("arguments are an object");
        self.workbench.run(&action, tool, &arguments.into()).expect("the machine does as it is told")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join(".abide")
    }

    /// The contents of a file of the newest call.
    pub(crate) fn read_call_file(&self, file: &str) -> Vec<u8> {
        let path = self.state().join(format!("executions/act_{}/{file}", self.calls));
        fs::read(&path).unwrap_or_default()
    }

    /// The pid in the session's `pid.txt`.
    pub(crate) fn pid(&self, session: &str) -> u32 {
        let text = fs::read_to_string(self.state().join("sessions").join(session).join("pid.txt"));
        text.expect("a session has a pid").trim().parse().expect("a pid is a number")
    }
}

impl Drop for WorkbenchFixture {
    fn drop(&mut self) {
        let ids: Vec<String> = self.workbench.sessions().into_iter().map(|session| session.id).collect();
        self.workbench.end_existing_sessions(&ids);
    }
}

pub(crate) fn setup(folder: &Path) -> ToolSetup {
    let program = std::env::current_exe().expect("this program has a path");
    let words =
        ["fixture::keeper_entry_point", "--exact", "--include-ignored", "--test-threads=1", "--quiet"];
    let path = std::env::vars().find(|(name, _)| name == "PATH");
    ToolSetup {
        state: StateDirectory::create(folder, Path::new(".abide")).expect("there is room for a folder"),
        record_dir: folder.join("record"),
        former_sessions: FormerSessions::None,
        cwd: folder.to_owned(),
        launcher: KeeperLauncher { program, arguments: words.map(str::to_owned).to_vec(), groups: None },
        env: path.into_iter().chain([("HOME".to_owned(), folder.to_string_lossy().into_owned())]).collect(),
        run_id: "run_1".to_owned(),
        observation_bytes: 16 << 10,
        stop_flag: StopFlag::default(),
        secrets: Vec::new(),
        orphan_policy: OrphanPolicy::NotAdopted,
        confinement: Vec::new(),
    }
}

/// A tool without parameters.
pub(crate) fn tool(name: &str, command: &[&str]) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: String::new(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        parameters: Vec::new(),
        timeout_sec: None,
        stateful: false,
        pty: None,
        shell: false,
        env: BTreeMap::new(),
        cwd: None,
    }
}

/// A stateful tool with one parameter `text` that becomes its input.
pub(crate) fn stateful_tool(name: &str, command: &[&str]) -> ToolDefinition {
    ToolDefinition {
        stateful: true,
        parameters: vec![parameter("text", ParameterInjection::Stdin)],
        ..tool(name, command)
    }
}

/// The same tool on a terminal.
pub(crate) fn on_terminal(tool: ToolDefinition) -> ToolDefinition {
    ToolDefinition { pty: Some(ToolPty { rows: 24, cols: 80 }), ..tool }
}

pub(crate) fn parameter(name: &str, inject_as: ParameterInjection) -> ToolParameter {
    ToolParameter {
        name: name.to_owned(),
        kind: ParameterKind::String,
        description: String::new(),
        required: true,
        inject_as,
        option_name: None,
    }
}

/// Whether a program is installed. If not, the test or a part of it is skipped.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::vars().find(|(name, _)| name == "PATH").map(|(_, value)| value).unwrap_or_default();
    let is_installed = path.split(':').any(|folder| Path::new(folder).join(program).exists());
    if !is_installed {
        skip(&format!("{program} is not installed"));
    }
    is_installed
}

/// The pids of processes whose command line contains this text.
pub(crate) fn pids_running(text: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let alive = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        alive && String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    })
    .collect()
}

/// The parent of a process.
pub(crate) fn parent_pid(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    stat.rsplit_once(") ")
        .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok())
        .expect("it has a parent")
}

/// Not a test: an agent as a separate process in the current directory, which uses its tools and then waits to be
/// killed.
#[test]
#[ignore = "becomes an agent when a test asks for it"]
fn agent_entry_point() {
    if std::env::args().any(|argument| argument == "--exact") {
        let folder = std::env::current_dir().expect("it was started somewhere");
        let setup = setup(&folder);
        // An earlier version had the records of calls in the state folder.
        let record =
            if Path::new("earlier").exists() { folder.join(".abide") } else { setup.record_dir.clone() };
        let mut workbench = ToolWorkbench::open(ToolSetup { record_dir: record, ..setup });
        let mut call = |action: &str, tool: &ToolDefinition, text: &str| {
            let arguments = serde_json::json!({ "text": text }).as_object().cloned().expect("an object");
            workbench.run(action, tool, &arguments.into()).expect("the machine does as it is told");
        };
        if Path::new("python").exists() {
            let python = stateful_tool("python", &["python3", "-i", "-q"]);
            call("act_1", &python, "import os, time");
            let work = "print('so far', flush=True)\nopen('begun', 'w').close()\n\
                        while not os.path.exists('go'): time.sleep(0.01)\n\nprint('late')\nopen('done', 'w').close()";
            return call("act_2", &python, work);
        }
        if Path::new("once").exists() {
            let long = ToolDefinition {
                parameters: vec![parameter("text", ParameterInjection::Argument)],
                ..tool(
                    "long",
                    &["sh", "-c", "echo so far; echo $$ > pid; touch begun; exec sleep \"$1\"", "long"],
                )
            };
            return call("act_9", &long, "71906");
        }
        call("act_1", &stateful_tool("shell", &["bash"]), "x=7");
        call("act_2", &stateful_tool("python", &["python3", "-i", "-q"]), "y = 8");
        call(
            "act_3",
            &stateful_tool("shell", &["bash"]),
            "echo so far; touch begun; while :; do sleep 0.05; done",
        );
    }
}

/// Starts such an agent, and returns during its last call.
pub(crate) fn start_agent_process(folder: &Path) -> std::process::Child {
    let program = std::env::current_exe().expect("this program has a path");
    let words = ["fixture::agent_entry_point", "--exact", "--include-ignored", "--test-threads=1", "--quiet"];
    let background = abide_keeper::detached::DetachedCommand {
        program: program.as_os_str(),
        arguments: &words.map(Into::into),
        env: &[],
        directory: folder,
        input: None,
        output: None,
        errors: None,
    };
    let mut agent = background.start().expect("this program can be started again");
    wait::until("the command has begun", || {
        assert!(agent.try_wait().is_ok_and(|ended| ended.is_none()), "the agent ended too early");
        folder.join("begun").exists()
    });
    agent
}
