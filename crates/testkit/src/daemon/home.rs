//! A temporary home directory for a daemon, and everything observable of it from outside: files, processes and address.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use super::{
    command::TestCommandOutput,
    events::EventReader,
    http::TestHttpClient,
    process::{TestDaemon, signal},
};
use crate::wait::sleep;

/// A temporary home directory. When it is dropped, its processes are killed and its files deleted.
#[derive(Debug)]
pub struct TestHome {
    folder: TempDir,
    home: PathBuf,
    program: PathBuf,
    /// The words before the program on each command line.
    launcher: Vec<String>,
    env: Vec<(String, String)>,
    /// The standard error of the daemons. It is outside of the home, because tests examine the home's files.
    log: File,
    pub(super) events: OnceLock<EventReader>,
}

impl TestHome {
    /// Creates an empty home for the daemon at `program`.
    pub fn new(program: impl AsRef<Path>) -> Self {
        let folder = tempfile::Builder::new().prefix("abide-").tempdir().expect("a folder can be made");
        Self {
            home: folder.path().to_owned(),
            folder,
            program: absolute(program.as_ref()),
            launcher: vec![],
            env: vec![],
            log: tempfile::tempfile().expect("a file can be made"),
            events: OnceLock::new(),
        }
    }

    /// Adds a variable to the environment of the daemon and of commands.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a configuration file in which the daemon listens on a free port, also if a command starts it.
    #[must_use]
    pub fn with_config(self, config: &str) -> Self {
        let config = format!("listen = \"127.0.0.1:0\"\n{config}");
        fs::write(self.path().join("config.toml"), config).expect("the home can be written");
        self
    }

    /// Starts the daemon and commands through another program, such as `setpriv` with its options.
    #[must_use]
    pub fn with_launcher(mut self, words: &[&str]) -> Self {
        self.launcher = words.iter().copied().map(str::to_owned).collect();
        self
    }

    /// Uses a subfolder that does not exist yet as the home.
    #[must_use]
    pub fn in_subfolder(mut self, name: &str) -> Self {
        self.home = self.folder.path().join(name);
        self
    }

    /// Uses another daemon binary for later starts and commands.
    pub fn replace_program(&mut self, program: &Path) {
        self.program = absolute(program);
    }

    pub fn path(&self) -> &Path {
        &self.home
    }

    /// Creates and returns a directory in which a run can work.
    pub fn workspace(&self, name: &str) -> PathBuf {
        let path = self.path().join("work").join(name);
        fs::create_dir_all(&path).expect("the home can be written");
        path
    }

    /// Starts the daemon and waits until it is ready.
    ///
    /// # Panics
    ///
    /// If the daemon exits instead.
    #[track_caller]
    pub fn start(&self) -> TestDaemon {
        self.start_with(&[], &[])
    }

    /// Like [`TestHome::start`], with additional arguments and environment variables.
    #[track_caller]
    pub fn start_with(&self, arguments: &[&str], env: &[(&str, &str)]) -> TestDaemon {
        let daemon = TestDaemon::wait_until_ready(self.spawn(arguments, env), &self.log);
        assert!(daemon.is_ready(), "the daemon did not start: {}", self.stderr_tail());
        daemon
    }

    /// Starts the daemon and waits until it is ready or has exited.
    pub fn try_start(&self, env: &[(&str, &str)]) -> TestDaemon {
        TestDaemon::wait_until_ready(self.spawn(&[], env), &self.log)
    }

    /// Starts the daemon without waiting for it.
    pub fn start_without_waiting(&self) -> TestDaemon {
        TestDaemon::spawned(self.spawn(&[], &[]), &self.log)
    }

    fn spawn(&self, arguments: &[&str], env: &[(&str, &str)]) -> Child {
        // All daemons share the file's offset, so that each one appends.
        let log = self.log.try_clone().expect("the file is open");
        let mut command = self.command();
        command.args(["up", "--listen", "127.0.0.1:0"]).args(arguments);
        command.envs(env.iter().copied()).stdout(Stdio::piped()).stderr(log);
        command.spawn().expect("the daemon's program can be started")
    }

    /// Runs `abide down`, waits for the daemon's exit and returns the daemon's standard error.
    #[track_caller]
    pub fn down(&self, mut daemon: TestDaemon) -> String {
        self.run_ok(&["down"]);
        daemon.wait_for_exit();
        daemon.stderr()
    }

    /// Runs an `abide` command in this home and waits for its exit.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> TestCommandOutput {
        let mut command = self.command();
        command.args(arguments);
        TestCommandOutput::of(command)
    }

    /// Runs a command that must succeed, and returns its standard output.
    #[track_caller]
    pub fn run_ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.code, Some(0), "abide {arguments:?}: {}\n{}", output.stdout, output.stderr);
        output.stdout
    }

    /// Runs a command with `--json` that must succeed, and parses its standard output.
    #[track_caller]
    pub fn run_json(&self, arguments: &[&str]) -> Value {
        let stdout = self.run_ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {stdout}"))
    }

    /// Runs a command with this standard input.
    pub fn run_with_stdin(&self, arguments: &[&str], input: &[u8]) -> TestCommandOutput {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program can be started");
        child.stdin.take().expect("it is piped").write_all(input).expect("the command reads its input");
        TestCommandOutput::new(child.wait_with_output().expect("the child is ours"))
    }

    /// Returns a command without arguments that runs `abide` in this home. Its environment has no other variable of
    /// this process, and its standard input is empty.
    #[expect(clippy::disallowed_methods, reason = "daemons for tests from outside are started here")]
    pub fn command(&self) -> Command {
        let mut words = self.launcher.iter().map(OsStr::new).chain([self.program.as_os_str()]);
        let mut command = Command::new(words.next().expect("the program is a word"));
        command.args(words).env_clear().current_dir(self.folder.path()).stdin(Stdio::null());
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

    /// Returns the pid of the last daemon started here, from the file that it writes; `None` if there is no file.
    pub fn daemon_pid(&self) -> Option<u32> {
        let text = fs::read_to_string(self.path().join("daemon.json")).ok()?;
        let address: Value = serde_json::from_str(&text).ok()?;
        u32::try_from(address["process"]["pid"].as_u64()?).ok()
    }

    /// Kills the last daemon started here, also one that a command started in the background.
    pub fn kill_daemon(&self) {
        signal(self.daemon_pid().expect("a daemon was started"), "KILL");
    }

    /// Returns the last lines that the daemons wrote to standard error.
    pub fn stderr_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<_> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Returns everything that the daemons wrote to standard error, which is their log in the foreground.
    pub fn log_text(&self) -> String {
        text_after(&self.log, 0)
    }
}

impl Drop for TestHome {
    fn drop(&mut self) {
        // A daemon that runs as an ordinary user hides its environment, so it is not among the processes below.
        if let Some(pid) = self.daemon_pid().filter(|pid| is_abide(*pid)) {
            signal(pid, "KILL");
        }
        for _ in 0..MAX_EXIT_POLLS {
            let processes = self.processes();
            if processes.is_empty() {
                return;
            }
            for process in processes {
                signal(process.pid, "KILL");
            }
            // A dying process may still write a file, and removing the folder would then fail.
            sleep(EXIT_POLL_INTERVAL);
        }
    }
}

/// The number of checks, and the pause between them, while waiting for the processes of a home to exit.
const MAX_EXIT_POLLS: usize = 200;
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Whether a process is a daemon: a pid in a file may belong to another program by now.
fn is_abide(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"up"))
}

fn absolute(program: &Path) -> PathBuf {
    std::path::absolute(program).expect("the program has a path")
}

/// Returns the contents of a file from an offset on, without moving the offset at which others write.
pub(super) fn text_after(file: &File, offset: u64) -> String {
    let length = file.metadata().map_or(0, |meta| meta.len()).saturating_sub(offset);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut bytes, offset).expect("the file does not shrink");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn client_of(home: &Path) -> io::Result<TestHttpClient> {
    let broken = |problem: &str| io::Error::new(io::ErrorKind::InvalidData, problem.to_owned());
    let text = fs::read_to_string(home.join("daemon.json"))?;
    let json: Value = serde_json::from_str(&text)?;
    let address = json["listen"].as_str().and_then(|listen| listen.parse().ok());
    let address = address.ok_or_else(|| broken("the address cannot be read"))?;
    let token = fs::read_to_string(home.join("token"))?;
    Ok(TestHttpClient::new(address, token.trim()))
}
