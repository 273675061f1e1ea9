//! A temporary home directory for a daemon, and everything observable of it from outside: files, processes and address.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::{
    feed::sleep,
    http::TestHttpClient,
    process::{TestDaemon, signal},
};

/// A temporary home directory. When it is dropped, its processes are killed and its files deleted.
#[derive(Debug)]
pub struct TestHome {
    folder: TempDir,
    program: PathBuf,
    env: Vec<(String, String)>,
}

/// The result of an `abide` command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A process that belongs to a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeProcess {
    pub pid: u32,
    pub command: String,
}

impl TestHome {
    /// Creates an empty home for the daemon at `program`.
    pub fn new(program: &Path) -> Self {
        let folder = tempfile::Builder::new().prefix("abide-").tempdir().expect("a folder can be made");
        let program = std::path::absolute(program).expect("the program has a path");
        Self { folder, program, env: vec![] }
    }

    /// Adds a variable to the daemon's environment.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Uses another daemon binary for later starts and commands.
    pub fn replace_program(&mut self, program: &Path) {
        self.program = std::path::absolute(program).expect("the program has a path");
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Creates and returns a directory in which a run can work.
    pub fn workspace(&self, name: &str) -> PathBuf {
        let path = self.path().join("work").join(name);
        fs::create_dir_all(&path).expect("the home can be written");
        path
    }

    /// Starts the daemon and waits until it is ready or has exited.
    pub fn start(&self) -> TestDaemon {
        self.start_with(&[])
    }

    /// Starts the daemon without waiting for it.
    pub fn start_without_waiting(&self) -> TestDaemon {
        TestDaemon::spawned(self.spawn(&[]))
    }

    /// Like [`TestHome::start`], with additional environment variables.
    pub fn start_with(&self, env: &[(&str, &str)]) -> TestDaemon {
        TestDaemon::new(self.spawn(env))
    }

    fn spawn(&self, env: &[(&str, &str)]) -> Child {
        let log =
            fs::File::options().create(true).append(true).open(self.log()).expect("a log can be opened");
        let mut command = self.command();
        command.args(["up", "--listen", "127.0.0.1:0"]).stdin(Stdio::null());
        command.envs(env.iter().copied()).stdout(Stdio::piped()).stderr(log);
        command.spawn().expect("the daemon's program can be started")
    }

    /// Runs an `abide` command in this home and waits for its exit.
    pub fn run(&self, arguments: &[&str]) -> TestCommandOutput {
        let output = self.command().args(arguments).stdin(Stdio::null()).output();
        let output = output.expect("the program can be started");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        TestCommandOutput {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is who starts daemons for tests from outside")]
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().current_dir(self.path());
        command.env("ABIDE_HOME", self.path()).env("HOME", self.path());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns a client of the last daemon started here; fails if there has been none.
    pub fn client(&self) -> io::Result<TestHttpClient> {
        client_of(self.path())
    }

    /// Like [`TestHome::client`], as a function that does not borrow the home and may outlive it.
    pub fn client_factory(&self) -> impl Fn() -> io::Result<TestHttpClient> + Send + 'static {
        let path = self.path().to_owned();
        move || client_of(&path)
    }

    /// Returns the last lines that the daemons wrote to standard error.
    pub fn stderr_tail(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Returns everything that the daemons wrote to standard error, which is their log in the foreground.
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn log(&self) -> PathBuf {
        self.path().join("stderr.log")
    }

    /// Returns the names of the keepers in this home.
    pub fn keepers(&self) -> Vec<String> {
        let keepers = self.path().join("keepers");
        let mut names = subfolder_names(&keepers);
        names.retain(|name| name != "runs");
        names.extend(subfolder_names(&keepers.join("runs")));
        names.sort();
        names
    }

    /// Returns the keeper directory of a run's attempt.
    pub fn keeper_dir(&self, run: &str, attempt: u32) -> PathBuf {
        self.path().join("keepers/runs").join(format!("{run}-{attempt}"))
    }

    /// Returns the keeper of a run's attempt if it is alive. It is found by its working directory.
    pub fn keeper_of(&self, run: &str, attempt: u32) -> Option<HomeProcess> {
        let place = self.keeper_dir(run, attempt);
        let works =
            |left: &HomeProcess| fs::read_link(format!("/proc/{}/cwd", left.pid)).is_ok_and(|at| at == place);
        self.processes().into_iter().find(|left| left.command.contains("__keeper") && works(left))
    }

    /// Sends a signal to a process of this home. `name` is a signal name of `kill(1)`.
    pub fn signal(&self, process: &HomeProcess, name: &str) {
        signal(process.pid, name);
    }

    pub fn kill(&self, process: &HomeProcess) {
        signal(process.pid, "KILL");
    }

    /// Returns all processes of this home: those with its path in `ABIDE_HOME`, or with their working directory in it.
    pub fn processes(&self) -> Vec<HomeProcess> {
        let mark = format!("ABIDE_HOME={}", self.path().display());
        let Ok(entries) = fs::read_dir("/proc") else { return vec![] };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter_map(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let named = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
            // Keepers have an almost empty environment. Their working directory is their own directory.
            let works = fs::read_link(format!("/proc/{pid}/cwd"));
            let ours = named || works.is_ok_and(|works| works.starts_with(self.path()));
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|_| ours)?;
            // A zombie process has no command line.
            let command = String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned();
            (!command.is_empty()).then_some(HomeProcess { pid, command })
        })
        .collect()
    }
}

impl Drop for TestHome {
    fn drop(&mut self) {
        for _ in 0..MAX_EXIT_POLLS {
            let processes = self.processes();
            if processes.is_empty() {
                return;
            }
            for left in processes {
                signal(left.pid, "KILL");
            }
            // A dying process may still write a file, and removing the folder would then fail.
            sleep(EXIT_POLL_INTERVAL);
        }
    }
}

/// The number of checks, and the pause between them, while waiting for the processes of a home to exit.
const MAX_EXIT_POLLS: usize = 200;
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns the names of a folder's subfolders.
fn subfolder_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn client_of(home: &Path) -> io::Result<TestHttpClient> {
    let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let text = fs::read_to_string(home.join("daemon.json"))?;
    let json: serde_json::Value = serde_json::from_str(&text)?;
    let address = json["listen"].as_str().and_then(|listen| listen.parse().ok());
    let address = address.ok_or_else(|| broken("the address cannot be read"))?;
    let token = fs::read_to_string(home.join("token"))?.trim().to_owned();
    Ok(TestHttpClient { address, token })
}
