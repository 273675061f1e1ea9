//! A daemon whose agents are hostile programs, with a bystander run that must be unaffected and a tree that must not
//! change.
//!
//! If the suite runs as root, the daemon and its children run as an ordinary user, because file modes and RLIMIT_NPROC
//! do not apply to root.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

use abide_os::{beneath::Directory, remove::remove};
use abide_testkit::{
    daemon::{TestDaemon, TestHome, TestHttpResponse},
    model::{ModelScript, ModelServer, ReceivedRequest, ScriptedAnswer, write_agent},
    user, wait,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::canary::{CanaryTree, SECRET};

pub(crate) struct AdversaryDaemon {
    daemon: TestDaemon,
    pub(crate) home: TestHome,
    pub(crate) canary: CanaryTree,
    bystander: String,
    owner: Option<u32>,
    outside: TempDir,
    _model: ModelServer,
}

/// The maximum peak memory of the daemon, in bytes.
const MAX_MEMORY_BYTES: u64 = 200 << 20;

impl AdversaryDaemon {
    pub(crate) fn new() -> Self {
        Self::with_env(&[])
    }

    /// Starts a daemon with these environment variables.
    pub(crate) fn with_env(settings: &[(&str, &str)]) -> Self {
        // Each test process uses its own user id, because process limits count per user.
        let owner = rustix::process::geteuid().is_root().then(|| 61_000 + std::process::id() % 4_000);
        let outside = tempfile::tempdir().expect("the test machine allows it");
        let at = |name: &str| outside.path().join(name);
        fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        let canary = CanaryTree::new(at("canary"), owner);
        fs::create_dir_all(at("programs")).expect("the test machine allows it");
        fs::create_dir_all(at("errors")).expect("the test machine allows it");
        chown(at("errors"), owner, owner).expect("it is ours");
        fs::create_dir_all(at("skill/heron")).expect("the test machine allows it");
        let skill = "---\nname: heron\ndescription: counts herons\n---\nCount twice.\n";
        fs::write(at("skill/heron/SKILL.md"), skill).expect("the test machine allows it");
        let mark = outside.path().display().to_string();
        write_executable(&at("hostile"), &HOSTILE_ENGINE_SCRIPT.replace("OUTSIDE", &mark));
        let home = TestHome::new(env!("CARGO_BIN_EXE_abide")).with_env("ABIDE_SLOTS_MAX_RUNNING", "6");
        let home = match owner {
            Some(user) => home.with_launcher(&user::launcher(user).each_ref().map(String::as_str)),
            None => home,
        };
        let home = settings.iter().fold(home, |home, (name, value)| home.with_env(name, value));
        let model =
            ModelServer::start(ModelScript::new().decide(|request| Some(answer_with_command(request))));
        let home = prepare_home(home, &model, &at("hostile"), owner);
        let daemon = home.start();
        let mut fixture =
            Self { daemon, home, canary, bystander: String::new(), owner, outside, _model: model };
        // This run stays in one process from the beginning to the end of the test.
        let bystander = json!({ "engine": "parrot-sticky", "prompt": "say one" });
        fixture.bystander = fixture.create("bystander", bystander);
        fixture.home.wait_for_status(&fixture.bystander, "idle");
        fixture
    }

    /// Creates a workspace that belongs to the daemon's user.
    pub(crate) fn workspace(&self, name: &str) -> PathBuf {
        let path = self.home.workspace(name);
        for folder in [self.home.path().join("work"), path.clone()] {
            chown(folder, self.owner, self.owner).expect("it is ours");
        }
        path
    }

    /// Creates a workspace outside the home, on a tmpfs if there is one, because large trees are created and deleted
    /// there.
    pub(crate) fn fast_workspace(&self) -> FastWorkspace {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.expect("the test machine allows it");
        chown(folder.path(), self.owner, self.owner).expect("it is ours");
        FastWorkspace { folder: folder.keep() }
    }

    /// Sets the program that the hostile agent runs at each turn in the workspace of this name; `any` stands for all
    /// others. `CANARY` is replaced by the path of the tree that must not change.
    pub(crate) fn set_program(&self, workspace: &str, body: &str) {
        let body = body.replace("CANARY", &self.canary.path().display().to_string());
        let path = self.outside.path().join("programs").join(format!("{workspace}.sh"));
        fs::write(path, body).expect("the test machine allows it");
    }

    /// Returns the standard error of the hostile program of this workspace.
    pub(crate) fn stderr_of(&self, workspace: &str) -> String {
        let path = self.outside.path().join("errors").join(format!("{workspace}.sh"));
        fs::read_to_string(path).unwrap_or_else(|_| "it did not run".to_owned())
    }

    /// Returns the folder of a skill, for the option `skill` of a run.
    pub(crate) fn skill(&self) -> PathBuf {
        self.outside.path().join("skill/heron")
    }

    /// Creates another skill of the same name.
    pub(crate) fn other_skill(&self) -> PathBuf {
        let path = self.outside.path().join("other/heron");
        fs::create_dir_all(&path).expect("the test machine allows it");
        let text = "---\nname: heron\ndescription: feeds herons\n---\nFeed twice.\n";
        fs::write(path.join("SKILL.md"), text).expect("the test machine allows it");
        path
    }

    /// Moves the workspace of a finished run to the trash, as retention does after its expiry, and returns the new
    /// path.
    pub(crate) fn expire_workspace(&self, run: &str) -> PathBuf {
        let trash = self.home.path().join("trash");
        fs::create_dir_all(&trash).expect("the home can be written");
        chown(&trash, self.owner, self.owner).expect("it is ours");
        fs::set_permissions(&trash, fs::Permissions::from_mode(0o700)).expect("it is ours");
        let moved = trash.join(format!("{run}.0"));
        fs::rename(self.home.path().join("workspaces").join(run), &moved).expect("Abide made it");
        moved
    }

    /// Creates a run in the workspace of this name; by default a chat of the hostile agent.
    pub(crate) fn create(&self, workspace: &str, more: Value) -> String {
        let mut body = json!({ "engine": "parrot", "prompt": "go", "execution_mode": "chat",
            "workspace": self.workspace(workspace) });
        for (name, value) in more.as_object().expect("options are an object") {
            body[name] = value.clone();
        }
        // Without a workspace in the request, Abide creates one.
        if body["workspace"].is_null() {
            body.as_object_mut().expect("it is an object").remove("workspace");
        }
        self.home.create_run(&body)
    }

    /// Sends a message, which begins the next turn.
    pub(crate) fn send_message(&self, run: &str, text: &str) {
        let sent = self.home.try_post(&format!("/v1/runs/{run}/messages"), &json!({ "text": text }));
        assert_eq!(sent.status, 202, "{}", sent.text);
    }

    /// Cancels a run and waits for the cancellation.
    pub(crate) fn cancel(&self, run: &str) {
        let accepted = self.home.try_post(&format!("/v1/runs/{run}/cancel"), &json!({}));
        assert_eq!(accepted.status, 200, "{}", accepted.text);
        self.wait_for_status(run, &["canceled"]);
    }

    pub(crate) fn rpc(&self, method: &str, params: Value) -> Value {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answered = self.home.try_post("/v1/rpc", &call);
        assert_eq!(answered.status, 200, "{}", answered.text);
        answered.body
    }

    /// Sends a GET request and checks that the response contains nothing of the canary tree.
    pub(crate) fn get(&self, path: &str) -> TestHttpResponse {
        let response = self.home.try_get(path);
        assert!(!response.text.contains(SECRET), "{path}: {}", response.text);
        response
    }

    /// Returns the listed paths of a run's artifacts.
    pub(crate) fn artifacts(&self, run: &str) -> Vec<String> {
        let listed = self.get(&format!("/v1/runs/{run}/artifacts?limit=100"));
        assert_eq!(listed.status, 200, "{}", listed.body);
        let items = listed.body["items"].as_array().cloned().expect("a page has items");
        items.iter().filter_map(|item| item["path"].as_str().map(str::to_owned)).collect()
    }

    /// Waits until a run has one of these statuses.
    pub(crate) fn wait_for_status(&self, run: &str, statuses: &[&str]) -> Value {
        self.home.wait_for_run(run, &statuses.join(" or "), |run_view| {
            assert!(!run_view.to_string().contains(SECRET), "{run_view:#}");
            statuses.iter().any(|status| run_view["status"] == *status)
        })
    }

    /// Waits until a turn has ended or has asked a question.
    pub(crate) fn wait_for_turn_end(&self, run: &str) -> Value {
        self.wait_for_status(run, &["idle", "waiting_user", "succeeded", "failed"])
    }

    /// Waits until the hostile agent has created this file in its workspace.
    pub(crate) fn wait_for_file(&self, workspace: &str, name: &str) {
        let path = self.home.workspace(workspace).join(name);
        wait::until(name, || path.exists());
    }

    /// Returns the live processes of hostile programs.
    pub(crate) fn hostile_processes(&self) -> Vec<u32> {
        let mark = format!("HOSTILE={}", self.outside.path().display());
        let all = fs::read_dir("/proc").expect("processes are listed").flatten();
        let pids = all.filter_map(|process| process.file_name().to_str()?.parse().ok());
        let is_marked = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
        };
        pids.filter(is_marked).collect()
    }

    /// Returns the processes of the bystander run.
    pub(crate) fn bystander(&self) -> BystanderProcesses {
        let keeper = self.home.keeper_of(&self.bystander, 1).expect("it has a keeper").pid;
        let turns = self.get(&format!("/v1/runs/{}/turns", self.bystander)).body;
        let agent = turns["items"][0]["attempts"][0]["pid"].as_u64().expect("it has a process");
        BystanderProcesses { keeper_dir: self.home.keeper_dir(&self.bystander, 1), keeper, agent }
    }

    /// Checks that the bystander run answers in its original process while hostile programs are running.
    pub(crate) fn assert_bystander_works(&self) {
        self.send_message(&self.bystander, "say two");
        let answered = self.wait_for_status(&self.bystander, &["idle"]);
        assert_eq!(answered["result"]["text"], "two", "{answered:#}");
        let turns = self.get(&format!("/v1/runs/{}/turns", self.bystander)).body;
        let attempts = turns["items"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|turn| turn["attempts"].as_array().cloned().unwrap_or_default());
        let mut pids: Vec<_> = attempts.filter_map(|attempt| attempt["pid"].as_u64()).collect();
        assert!(pids.len() >= 2, "{turns:#}");
        pids.dedup();
        assert_eq!(pids.len(), 1, "its process was lost: {turns:#}");
    }

    /// Checks that the daemon is still the same process, stayed within its memory limit and serves other runs, and that
    /// nothing outside was changed.
    pub(crate) fn assert_unharmed(&mut self) {
        self.assert_bystander_works();
        let fresh = json!({ "engine": "parrot-sticky", "prompt": "say fine", "execution_mode": "auto" });
        let fresh = self.create("fresh", fresh);
        self.wait_for_status(&fresh, &["succeeded"]);
        assert_eq!(self.daemon.try_exit(), None, "the daemon died: {}", self.home.stderr_tail());
        assert_eq!(self.home.daemon_pid(), Some(self.daemon.pid()), "another daemon serves this home");
        let peak = self.daemon.peak_memory();
        assert!(peak < MAX_MEMORY_BYTES, "the daemon had {peak} bytes");
        self.canary.assert_unchanged();
    }
}

/// The keeper directory and the keeper's pid of the bystander run, and the pid of its agent.
pub(crate) struct BystanderProcesses {
    pub(crate) keeper_dir: PathBuf,
    pub(crate) keeper: u32,
    pub(crate) agent: u64,
}

pub(crate) struct FastWorkspace {
    folder: PathBuf,
}

impl FastWorkspace {
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for FastWorkspace {
    fn drop(&mut self) {
        // `std::fs::remove_dir_all` recurses, and these trees are too deep for that.
        let (parent, name) = (self.folder.parent(), self.folder.file_name());
        if let (Some(Ok(parent)), Some(name)) = (parent.map(Directory::open), name) {
            remove(&parent, name, wait::LIMIT);
        }
    }
}

/// Configures the hostile agent and the native one, and gives the home to the daemon's user.
fn prepare_home(home: TestHome, model: &ModelServer, hostile: &Path, owner: Option<u32>) -> TestHome {
    let agent = home.path().join("agent");
    write_agent(&agent, &model.url("/v1")).expect("the home can be written");
    let home = home.with_config(&format!(
        "[engines.native]\nargs = [\"--agent\", {agent:?}]\n[engines.parrot]\ncommand = [{hostile:?}]\n"
    ));
    for name in ["", "config.toml", "agent", "agent/config.yaml", "agent/system_prompt.md"] {
        chown(home.path().join(name), owner, owner).expect("it is ours");
    }
    home
}

fn write_executable(path: &Path, text: &str) {
    fs::write(path, text).expect("the test machine allows it");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// Answers with one call of the command between `<do>` and `</do>` in the prompt. With `<all>` it also runs the command
/// in a persistent shell and asks a person.
fn answer_with_command(request: &ReceivedRequest) -> ScriptedAnswer {
    let prompt = request.last_user_text();
    let order = prompt.split_once("<do>").and_then(|(_, rest)| rest.split_once("</do>"));
    match order {
        Some((order, _)) if request.new_tool_results().is_empty() => {
            let command = json!({ "command": order });
            let act = ScriptedAnswer::call("act", command.clone());
            if prompt.contains("<all>") {
                act.then_call("shell", command).then_call("ask_human", json!({ "question": "?" }))
            } else {
                act
            }
        }
        Some(_) | None => ScriptedAnswer::say("done"),
    }
}

/// Replaces the parrot: speaks its protocol and runs the program of the workspace. Processes that it starts are marked
/// in their environment.
const HOSTILE_ENGINE_SCRIPT: &str = r#"#!/bin/bash
case "$*" in *--version*) echo "abide 0.1.0"; exit;; *--help*) echo "--resume"; exit;; esac
session=s$$
while [ $# -gt 0 ]; do case $1 in --resume|--session-id) session=$2;; esac; shift; done
read -r prompt
echo '{"type":"session","id":"'$session'"}'
echo '{"type":"turn"}'
program="OUTSIDE/programs/$(basename "$PWD").sh"
[ -e "$program" ] || program="OUTSIDE/programs/any.sh"
PROMPT=$prompt HOSTILE="OUTSIDE" bash "$program" >/dev/null 2>>"OUTSIDE/errors/$(basename "$program")"
echo '{"type":"result","text":"done"}'
"#;
