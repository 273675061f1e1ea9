//! Shells that are confined while their keeper stays outside, as the sessions of the native agent are: every mechanism,
//! every shell, and programs that attack the process which holds the shell's pipes.

use std::fs;
use std::path::{Path, PathBuf};

use abide_keeper::client::{EndMode, KeeperConnection, KeeperRequests};
use abide_keeper::confine::{Confinement, HidingMethod};
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::launch::KeeperLauncher;
use abide_keeper::protocol::{
    CommandInput, CommandResult, KeeperOwner, KeeperRequest, KeeperResponse, KeeperSpec, KeeperStatus,
    LinkPolicy, ShellCommand, SpoolOverflow,
};
use abide_os::confine::HiddenTree;
use abide_terminal::ShellProgram;
use abide_testkit::{skip::skip, user, wait};
use tempfile::TempDir;

/// A running session in a home whose other contents it must not see.
struct ConfinedShell {
    home: TempDir,
    shell: ShellProgram,
    keeper: KeeperConnection,
    status: KeeperStatus,
}

/// Whether the session may write files outside its home.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileAccess {
    All,
    ReadOnly,
}

impl ConfinedShell {
    fn start(name: &str, hiding: HidingMethod, access: FileAccess) -> Self {
        let home = tempfile::tempdir().expect("the test machine allows it");
        let workspace = home.path().join("workspaces/w");
        fs::create_dir_all(&workspace).expect("the test machine allows it");
        fs::write(home.path().join("token"), "SECRET").expect("the test machine allows it");
        let env = vec![
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
            ("HIDDEN".to_owned(), home.path().display().to_string()),
        ];
        let shell = ShellProgram::find(name, &env).expect("the shell is installed");
        let (argv, shape) = shell.launch_spec(None);
        let hidden = HiddenTree { directories: vec![home.path().to_owned()], shown: vec![workspace.clone()] };
        let writable = match access {
            FileAccess::All => None,
            FileAccess::ReadOnly => Some(vec![PathBuf::from("/dev")]),
        };
        let spec = KeeperSpec {
            argv,
            env,
            cwd: workspace,
            shape,
            retention: 1 << 20,
            meta: vec![],
            owner: KeeperOwner::Home,
            overflow: SpoolOverflow::DropOldest,
            confinement: Confinement { hidden: Some((hidden, hiding)), writable }.encode(),
            group: None,
            cwd_links: LinkPolicy::Refuse,
        };
        let launcher = KeeperLauncher {
            program: PathBuf::from(env!("CARGO_BIN_EXE_abide")),
            arguments: vec!["__keeper".to_owned()],
            groups: None,
        };
        let place = KeeperDir::new(&home.path().join("sessions"), "s-1");
        let mut keeper = launcher.start(place, spec, None).expect("the keeper starts");
        let status = keeper.status(30_000).expect("the shell starts");
        Self { home, shell, keeper, status }
    }

    fn run_within(&mut self, text: &str, timeout_ms: Option<u64>) -> CommandResult {
        let command = ShellCommand {
            text: self.shell.command(text, &[]).into_bytes(),
            input: CommandInput::Nothing,
            timeout_ms,
            keep: 64 << 10,
            follow: false,
        };
        let response = self.keeper.exchange(KeeperRequest::Run(command), 60_000);
        let response = response.expect("the keeper answers");
        let KeeperResponse::Ran(result) = response else { panic!("{text}: {response:?}") };
        *result
    }

    fn run(&mut self, text: &str) -> (String, i32) {
        let CommandResult { outcome, stdout, stderr, .. } = self.run_within(text, None);
        let printed = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        (printed, outcome.code)
    }

    /// The processes that hold pipes of the keeper for its shell.
    fn proxies(&self) -> Vec<u32> {
        let keeper = self.status.keeper.pid;
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
        let children = children.expect("the keeper is alive");
        let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        let is_proxy = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == b"--proxy-of")
        };
        pids.filter(is_proxy).collect()
    }

    fn end(mut self) {
        let processes = [self.proxies(), vec![self.status.child.pid]].concat();
        self.keeper.end(EndMode::Graceful).expect("it ends");
        assert!(self.keeper.is_closed() && self.keeper.reap());
        for pid in processes {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left");
        }
        assert_eq!(fs::read_dir(self.home.path().join("sessions")).expect("it is ours").count(), 0);
    }
}

const SHELLS: [&str; 3] = ["sh", "bash", "zsh"];

/// The mechanisms that this machine has.
fn mechanisms() -> Vec<HidingMethod> {
    let mut all = vec![HidingMethod::Namespace, HidingMethod::Landlock];
    let bubblewrap = ["/usr/bin/bwrap", "/usr/local/bin/bwrap"].map(PathBuf::from);
    match bubblewrap.into_iter().find(|path| path.is_file()) {
        Some(program) => all.push(HidingMethod::Bubblewrap(program)),
        None => skip("no bubblewrap is installed"),
    }
    all
}

/// Searches for files and pipes of the session's own keeper, for its secret and for those of the home.
const SEARCH: &str = r#"
cat "$HIDDEN/token" "$HIDDEN/sessions/s-1/secret" ../../token ../../sessions/s-1/secret 2>/dev/null
find "$HIDDEN" \( -name secret -o -name identity -o -name claim -o -name socket -o -name 'spool*' \) 2>/dev/null
mkdir "$HIDDEN/sessions" 2>/dev/null; ls "$HIDDEN/sessions" 2>/dev/null
cat "/proc/KEEPER/root$HIDDEN/token" "/proc/KEEPER/cwd/secret" 2>/dev/null
for fd in /proc/KEEPER/fd/*; do readlink "$fd"; done 2>/dev/null
true
"#;

#[test]
fn a_confined_shell_cannot_reach_the_directory_of_its_keeper() {
    for hiding in mechanisms() {
        for access in [FileAccess::All, FileAccess::ReadOnly] {
            let mut session = ConfinedShell::start("bash", hiding.clone(), access);
            let search = SEARCH.replace("KEEPER", &session.status.keeper.pid.to_string());
            assert_eq!(session.run(&search), (String::new(), 0), "{hiding:?}");
            let (printed, code) = session.run("echo kept > made");
            assert_eq!(code == 0, access == FileAccess::All, "{hiding:?}: {printed}");
            session.end();
        }
    }
}

/// C3, C5, C10 in a confined shell: state is kept, output of background processes is separated, a stop keeps the shell.
#[test]
fn a_confined_shell_keeps_its_state_and_is_stopped_like_any_other() {
    for hiding in mechanisms() {
        for name in SHELLS {
            let mut session = ConfinedShell::start(name, hiding.clone(), FileAccess::All);
            let shell = session.status.child.pid;
            assert_eq!(session.run("echo $$"), (format!("{shell}\n"), 0), "{hiding:?} {name}");
            assert_eq!(session.run("cd /usr; value=7; false"), (String::new(), 1));
            // Each background process keeps the output pipes, so the next command gets new ones through the proxy.
            for round in 0..5 {
                let (printed, _) = session.run(&format!("echo {round}; sleep 60 &"));
                assert!(printed.starts_with(&format!("{round}\n")), "{hiding:?} {name}: {printed}");
            }
            assert_eq!(session.run("wait_nothing=1; echo $value; pwd"), ("7\n/usr\n".to_owned(), 0));
            let stopped = session.run_within("echo begun; sleep 60; echo WRONG", Some(300));
            assert!(stopped.outcome.timed_out && stopped.outcome.lost.is_none(), "{:?}", stopped.outcome);
            assert_eq!(String::from_utf8_lossy(&stopped.stdout), "begun\n", "{hiding:?} {name}");
            assert_eq!(session.run("echo $value; pwd"), ("7\n/usr\n".to_owned(), 0), "{hiding:?} {name}");
            let large = session.run_within("head -c 3000000 /dev/zero | tr '\\0' x; echo over >&2", None);
            assert_eq!((large.stdout.len(), large.stderr.as_slice()), (64 << 10, b"over\n".as_slice()));
            let [proxy] = session.proxies()[..] else { panic!("one proxy: {:?}", session.proxies()) };
            assert!(proxy > 1);
            session.end();
        }
    }
}

/// A program in the session can find the process that holds the pipes, and kill or stop it.
#[test]
fn a_session_whose_pipe_proxy_is_killed_or_stopped_continues_with_a_new_shell() {
    for name in SHELLS {
        for signal in ["KILL", "STOP"] {
            let mut session = ConfinedShell::start(name, HidingMethod::Namespace, FileAccess::All);
            let [proxy] = session.proxies()[..] else { panic!("one proxy: {:?}", session.proxies()) };
            session.run_within(&format!("kill -{signal} {proxy}; sleep 60 &"), Some(5_000));
            wait::until("the shell works again", || session.run("echo here") == ("here\n".to_owned(), 0));
            assert_eq!(session.run("pwd -P").1, 0);
            wait::until("the old proxy is gone", || {
                let stat = fs::read_to_string(format!("/proc/{proxy}/stat")).unwrap_or_default();
                stat.is_empty() || stat.contains(") Z ")
            });
            let [newer] = session.proxies()[..] else { panic!("one proxy: {:?}", session.proxies()) };
            assert_ne!(newer, proxy, "{name} {signal}");
            session.keeper.end(EndMode::Forced).expect("it ends");
        }
    }
}

#[test]
fn an_unprivileged_users_shells_are_confined_too() {
    user::rerun_unprivileged(&[
        "a_confined_shell_cannot_reach_the_directory_of_its_keeper",
        "a_confined_shell_keeps_its_state_and_is_stopped_like_any_other",
    ]);
}
