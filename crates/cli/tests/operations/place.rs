//! The harness of the operator tests: a home with a real daemon.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use abide_testkit::{environment, wait};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) struct OperatorTestHome {
    folder: TempDir,
    home: PathBuf,
    umask: Option<String>,
}

/// A daemon in the foreground; dropping it kills the process.
pub(crate) struct OperatorTestDaemon {
    child: Child,
    pub(crate) url: String,
    token: String,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl OperatorTestHome {
    /// Creates a home with this configuration.
    pub(crate) fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), format!("listen = \"127.0.0.1:0\"\n{config}"))
            .unwrap();
        let home = folder.path().to_owned();
        Self { folder, home, umask: None }
    }

    /// Uses a subfolder that does not exist yet as the home.
    pub(crate) fn in_subfolder(mut self, name: &str) -> Self {
        self.home = self.folder.path().join(name);
        self
    }

    /// Starts programs with this umask.
    pub(crate) fn with_umask(mut self, umask: &str) -> Self {
        self.umask = Some(umask.to_owned());
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.home
    }

    fn program(&self) -> Command {
        let own = env!("CARGO_BIN_EXE_abide");
        let mut command = match &self.umask {
            None => environment::abide(own),
            Some(umask) => {
                let mut shell = environment::abide("/bin/sh");
                shell.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\""), own]);
                // There is no configuration file yet.
                shell.env("ABIDE_LISTEN", "127.0.0.1:0");
                shell
            }
        };
        command.current_dir(self.folder.path()).env("ABIDE_HOME", self.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command and returns its output.
    pub(crate) fn abide(&self, words: &[&str]) -> Output {
        self.program().args(words).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub(crate) fn run_ok(&self, words: &[&str]) -> String {
        let output = self.abide(words);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "abide {words:?}: {}\n{stdout}\n{stderr}", output.status);
        stdout
    }

    /// Starts the daemon and waits until it is ready.
    pub(crate) fn up(&self, env: &[(&str, &str)]) -> OperatorTestDaemon {
        self.up_with(&[], env)
    }

    /// Like [`OperatorTestHome::up`], with additional arguments.
    pub(crate) fn up_with(&self, words: &[&str], env: &[(&str, &str)]) -> OperatorTestDaemon {
        let mut command = self.program();
        command.arg("up").args(words).envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut complaints = child.stderr.take().unwrap();
        let complaints = std::thread::spawn(move || {
            let mut said = Vec::new();
            complaints.read_to_end(&mut said).unwrap();
            text(&said)
        });
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        if url.is_empty() {
            panic!("the daemon did not start: {}", complaints.join().unwrap());
        }
        let token = std::fs::read_to_string(self.path().join("token")).unwrap().trim().to_owned();
        OperatorTestDaemon { child, url, token, stderr: Some(complaints) }
    }

    /// Returns all files of the home with their contents.
    pub(crate) fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let (mut found, mut folders) = (Vec::new(), vec![self.path().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => folders.push(entry.path()),
                    kind if kind.is_file() => {
                        found.push((entry.path(), std::fs::read(entry.path()).unwrap_or_default()));
                    }
                    _ => {}
                }
            }
        }
        found
    }
}

impl OperatorTestDaemon {
    pub(crate) fn get(&self, path: &str) -> String {
        let answer = ureq::get(format!("{}{path}", self.url))
            .header("Authorization", format!("Bearer {}", self.token))
            .header("Accept", "application/json")
            .call();
        answer.unwrap().body_mut().read_to_string().unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let answer = ureq::post(format!("{}{path}", self.url))
            .header("Authorization", format!("Bearer {}", self.token))
            .header("Content-Type", "application/json")
            .send(body.to_string());
        serde_json::from_str(&answer.unwrap().body_mut().read_to_string().unwrap()).unwrap()
    }

    /// Sends a GET request, or a POST request if there is a body, and returns the status and the body of the response.
    pub(crate) fn request(&self, path: &str, body: Option<&Value>) -> (u16, Value) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let (url, token) = (format!("{}{path}", self.url), format!("Bearer {}", self.token));
        let answer = match body {
            Some(body) => agent
                .post(url)
                .header("Authorization", token)
                .header("Content-Type", "application/json")
                .send(body.to_string()),
            None => agent.get(url).header("Authorization", token).header("Accept", "application/json").call(),
        };
        let mut answer = answer.unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Kills the daemon, and returns its standard error.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.stderr.take().unwrap().join().unwrap()
    }

    /// Starts a run on the parrot and returns its id.
    pub(crate) fn run(&self, script: &str) -> String {
        let body =
            serde_json::json!({ "engine": "parrot", "prompt": script, "execution_mode": "interactive" });
        self.post("/v1/runs", &body)["run_id"].as_str().unwrap().to_owned()
    }

    /// Waits until a run has this status, and returns the run.
    pub(crate) fn wait_for_status(&self, run: &str, status: &str) -> Value {
        wait::until_some(&format!("{run} is {status}"), || {
            let found: Value = serde_json::from_str(&self.get(&format!("/v1/runs/{run}"))).unwrap();
            if found["status"] == status {
                return Some(found);
            }
            let ended = ["succeeded", "failed", "canceled"].iter().any(|it| found["status"] == **it);
            assert!(!ended, "the run ended otherwise: {found}");
            None
        })
    }

    /// Stops the daemon in order, and returns its standard error.
    pub(crate) fn down(mut self, home: &OperatorTestHome) -> String {
        home.run_ok(&["down"]);
        self.child.wait().unwrap();
        self.stderr.take().unwrap().join().unwrap()
    }
}

impl Drop for OperatorTestDaemon {
    fn drop(&mut self) {
        // The daemon may have exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
