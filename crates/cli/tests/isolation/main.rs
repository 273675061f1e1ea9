//! Real programs that are isolated from Abide's own files (issue "Trust boundary", Isolation), and the behaviour if a
//! mechanism is missing.

mod hidden_places;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use abide_domain::process::ExitStatus;
use abide_host::{
    isolation::ProgramIsolator,
    processes::{KeeperProcesses, StandbyPolicy, TrackedKeepers},
};
use abide_keeper::launch::KeeperLauncher;
use abide_ports::{
    engine::{IsolationMode, ProcessSpec, ProcessStdin},
    processes::{OutputOffsets, ProcessOutput, Processes, StartError, StartRequest},
};
use abide_testkit::{daemon::TestHome, skip::skip, user};
use tempfile::TempDir;

/// A home with secrets, and the workspace of a run.
struct IsolationTestHome {
    folder: TempDir,
    keepers: KeeperProcesses,
    _socket: UnixListener,
}

impl IsolationTestHome {
    fn new(path: &str) -> Self {
        let folder = tempfile::tempdir().expect("the test machine allows it");
        let at = |name: &str| folder.path().join(name);
        for name in ["keepers/runs/other", "workspaces/mine", "runs/mine"] {
            fs::create_dir_all(at(name)).expect("the test machine allows it");
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))
            .expect("the test machine allows it");
        for name in ["token", "abide.db", "keepers/runs/other/secret"] {
            fs::write(at(name), "SECRET").expect("the test machine allows it");
        }
        fs::write(at("runs/mine/settings"), "PRIVATE").expect("the test machine allows it");
        let door = UnixListener::bind(at("keepers/runs/other/socket")).expect("the test machine allows it");
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_abide"));
        let keepers = KeeperProcesses {
            directory: at("keepers"),
            launcher: KeeperLauncher {
                program: binary.clone(),
                arguments: vec!["__keeper".to_owned()],
                groups: None,
            },
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            isolator: Some(ProgramIsolator::new(folder.path(), &binary, path)),
            retained_output_bytes: 1 << 20,
            keepers: TrackedKeepers::default(),
            standby: StandbyPolicy::None,
        };
        Self { folder, keepers, _socket: door }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn hide_store(&mut self, folders: Vec<PathBuf>) {
        self.keepers.isolator =
            self.keepers.isolator.take().map(|isolator| isolator.with_store_folders(folders));
    }

    /// Runs a program and returns its output and exit status.
    fn run(&self, isolation: IsolationMode, argv: &[&str]) -> Result<(String, ExitStatus), StartError> {
        let home = self.path().to_string_lossy().into_owned();
        let (workspace, private) = (format!("{home}/workspaces/mine"), format!("{home}/runs/mine"));
        let launch = launch(argv, vec![("HIDDEN".to_owned(), home)]);
        let start = StartRequest {
            spec: &launch,
            workspace: &workspace,
            private_dir: &private,
            pass_env: &[],
            isolation,
        };
        let process = self.keepers.start("run-1", &start)?;
        let mut follow =
            self.keepers.follow("run-1", OutputOffsets::START).expect("the test machine allows it");
        let mut printed = Vec::new();
        let exit = loop {
            match follow.next(Some(Duration::from_secs(60))).expect("the test machine allows it") {
                ProcessOutput::Stdout(bytes) | ProcessOutput::Stderr(bytes) => printed.extend(bytes),
                ProcessOutput::Exited(exit) => break exit,
                other @ (ProcessOutput::Gap(_) | ProcessOutput::TimedOut) => panic!("{other:?}"),
            }
        };
        drop(process);
        self.keepers.terminate("run-1").expect("the test machine allows it");
        Ok((String::from_utf8_lossy(&printed).into_owned(), exit))
    }

    fn script(&self, isolation: IsolationMode, text: &str) -> Result<(String, ExitStatus), StartError> {
        self.run(isolation, &["sh", "-c", text])
    }

    fn warning(&self, isolation: IsolationMode) -> Option<String> {
        let home = self.path().to_string_lossy().into_owned();
        let workspace = format!("{home}/workspaces/mine");
        let launch = launch(&["true"], vec![]);
        let start = StartRequest {
            spec: &launch,
            workspace: &workspace,
            private_dir: &workspace,
            pass_env: &[],
            isolation,
        };
        self.keepers.warning(&start)
    }
}

/// Returns the launch of a program without input.
fn launch(argv: &[&str], env: Vec<(String, String)>) -> ProcessSpec {
    ProcessSpec {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env,
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: ProcessStdin::Complete(vec![]),
        not_before: None,
        surviving_keepers_dir: None,
    }
}

/// Tries all ways to the secrets that a program of the same user has.
const SEARCH: &str = r#"
cat "$HIDDEN/token" "$HIDDEN/abide.db" "$HIDDEN/keepers/runs/other/secret" 2>/dev/null
cat ../../token ../../keepers/runs/other/secret 2>/dev/null
cat "/proc/$PPID/root$HIDDEN/token" "/proc/$PPID/cwd/../other/secret" "/proc/1/root$HIDDEN/token" 2>/dev/null
cat /proc/$PPID/environ 2>/dev/null | tr '\0' '\n' | grep SECRET
for fd in /proc/$PPID/fd/*; do readlink "$fd"; done 2>/dev/null | grep -c "$HIDDEN" | grep -v '^0$'
umount "$HIDDEN" 2>/dev/null; umount -l "$HIDDEN" 2>/dev/null
unshare --user --map-root-user --mount sh -c 'umount "$HIDDEN"; umount -l "$HIDDEN"; cat "$HIDDEN/token"' 2>/dev/null
nsenter --target $PPID --mount cat "$HIDDEN/token" 2>/dev/null
cat "$HIDDEN/token" 2>/dev/null
find "$HIDDEN" -name secret -o -name token -o -name abide.db -o -name socket
true
"#;

/// Runs the test below as a separate program, and returns whether it could connect.
fn can_connect(home: &IsolationTestHome, isolation: IsolationMode) -> bool {
    let own = std::env::current_exe().expect("the test machine allows it").to_string_lossy().into_owned();
    let argv = [own.as_str(), "--exact", "a_program_that_connects", "--ignored", "--nocapture"];
    let (printed, _) = home.run(isolation, &argv).expect("the test machine allows it");
    assert!(printed.contains("CONNECTED") != printed.contains("REFUSED"), "{printed}");
    printed.contains("CONNECTED")
}

#[test]
#[ignore = "the program of other tests"]
fn a_program_that_connects() {
    let home = std::env::vars()
        .find(|(name, _)| name == "HIDDEN")
        .map(|(_, home)| home)
        .expect("the test machine allows it");
    let socket = Path::new(&home).join("keepers/runs/other/socket");
    match std::os::unix::net::UnixStream::connect(socket) {
        Ok(_) => println!("CONNECTED"),
        Err(error) => println!("REFUSED {error}"),
    }
}

#[test]
fn an_isolated_program_finds_no_token_no_database_no_secret_and_no_socket() {
    let home = IsolationTestHome::new("/usr/bin:/bin");
    let (output, _) = home.script(IsolationMode::Off, SEARCH).expect("the test machine allows it");
    assert!(output.contains("SECRET"), "without isolation all of it is there: {output}");
    assert!(can_connect(&home, IsolationMode::Off));
    for isolation in [IsolationMode::Namespace, IsolationMode::Auto] {
        let (output, exit) = home.script(isolation, SEARCH).expect("the test machine allows it");
        assert_eq!((output.as_str(), exit), ("", ExitStatus::Code(0)), "{isolation:?}");
        assert!(!can_connect(&home, isolation));
        assert_eq!(home.warning(isolation), None);
    }
}

#[test]
fn an_isolated_program_works_in_its_workspace_as_itself() {
    let home = IsolationTestHome::new("/usr/bin:/bin");
    let work = "id -u; id -g; cat ../../runs/mine/settings; echo; echo kept > made; pwd; kill -0 $PPID && echo seen; \
                touch \"$HIDDEN/made\" 2>/dev/null || echo refused; exit 7";
    let (printed, exit) = home.script(IsolationMode::Namespace, work).expect("the test machine allows it");
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let workspace = home.path().join("workspaces/mine");
    let expected = format!("{user}\n{group}\nPRIVATE\n{}\nseen\nrefused\n", workspace.display());
    assert_eq!((printed, exit), (expected, ExitStatus::Code(7)));
    assert_eq!(fs::read_to_string(workspace.join("made")).expect("the test machine allows it"), "kept\n");
}

#[test]
fn an_isolated_program_gains_no_privileges_and_a_missing_one_is_named() {
    let home = IsolationTestHome::new("/usr/bin:/bin");
    let (printed, _) = home
        .script(IsolationMode::Namespace, "grep NoNewPrivs /proc/self/status")
        .expect("the test machine allows it");
    assert_eq!(printed.split_ascii_whitespace().last(), Some("1"), "{printed}");
    let missing = home.run(IsolationMode::Namespace, &["no-such-program"]);
    assert!(matches!(missing, Err(StartError::ProgramUnusable(_))), "{missing:?}");
}

#[test]
fn with_landlock_alone_secrets_cannot_be_read_and_the_workspace_can_be_written() {
    let home = IsolationTestHome::new("/usr/bin:/bin");
    let text = "cat \"$HIDDEN/token\" \"$HIDDEN/abide.db\" \"$HIDDEN/keepers/runs/other/secret\" ../../token 2>/dev/null; \
                cat ../../runs/mine/settings; echo kept > made && cat made";
    let (printed, _) = home.script(IsolationMode::Landlock, text).expect("the test machine allows it");
    assert_eq!(printed, "PRIVATEkept\n");
}

#[test]
fn a_workspace_that_shows_the_home_is_refused() {
    let home = IsolationTestHome::new("/usr/bin:/bin");
    for workspace in [home.path().to_owned(), home.path().join("keepers"), home.path().join("workspaces")] {
        let workspace = workspace.to_string_lossy().into_owned();
        let launch = launch(&["true"], vec![]);
        let isolation = IsolationMode::Auto;
        let start = StartRequest {
            spec: &launch,
            workspace: &workspace,
            private_dir: &workspace,
            pass_env: &[],
            isolation,
        };
        let refused = home.keepers.start("run-1", &start);
        assert!(
            matches!(&refused, Err(StartError::IsolationUnavailable(reason)) if reason.contains("home")),
            "{refused:?}"
        );
    }
}

/// An agent that can write the parent of a workspace replaces it while the run waits.
#[test]
fn a_process_is_not_started_in_a_workspace_that_became_a_link() {
    let home = IsolationTestHome::new("/usr/bin:/bin");
    let [mine, other] = ["workspaces/mine", "workspaces/other"].map(|name| home.path().join(name));
    fs::create_dir(&other).expect("the test machine allows it");
    fs::write(other.join("secret"), "SECRET").expect("the test machine allows it");
    fs::rename(&mine, home.path().join("workspaces/aside")).expect("the test machine allows it");
    symlink(&other, &mine).expect("the test machine allows it");
    for isolation in
        [IsolationMode::Off, IsolationMode::Auto, IsolationMode::Namespace, IsolationMode::Landlock]
    {
        let refused = home.script(isolation, "cat secret");
        assert!(matches!(&refused, Err(StartError::DirectoryUnusable(_))), "{isolation:?}: {refused:?}");
        home.keepers.terminate("run-1").expect("the test machine allows it");
    }
}

/// A directory on the way to a shown path is replaced after the path was chosen.
#[test]
fn the_exec_helper_shows_nothing_through_a_link() {
    let home = IsolationTestHome::new("/usr/bin:/bin");
    let shown = home.path().join("work/other");
    symlink(home.path().join("keepers/runs"), home.path().join("work")).expect("the test machine allows it");
    for method in ["namespace", "landlock"] {
        let output = abide_testkit::environment::abide(env!("CARGO_BIN_EXE_abide"))
            .args(["__confine", "--hide"])
            .arg(home.path())
            .args(["--by", method, "--show"])
            .arg(&shown)
            .args(["--", "cat"])
            .arg(shown.join("secret"))
            .current_dir("/")
            .output()
            .expect("the test machine allows it");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(126), "{method}: {output:?}");
        assert!(text.contains("work is a symbolic link"), "{method}: {text}");
    }
}

/// Calls `what` on a thread where these system calls fail, also for the programs that it starts.
fn without_syscalls<T: Send>(calls: &[i64], action: impl FnOnce() -> T + Send) -> T {
    let rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
        calls.iter().map(|call| (*call, vec![])).collect();
    const NO_SUCH_CALL: u32 = 38;
    let filter = seccompiler::SeccompFilter::new(
        rules,
        seccompiler::SeccompAction::Allow,
        seccompiler::SeccompAction::Errno(NO_SUCH_CALL),
        std::env::consts::ARCH.try_into().expect("the test machine allows it"),
    );
    let program: seccompiler::BpfProgram =
        filter.expect("the test machine allows it").try_into().expect("the test machine allows it");
    std::thread::scope(|scope| {
        let filtered = scope.spawn(move || {
            seccompiler::apply_filter(&program).expect("the test machine allows it");
            action()
        });
        filtered.join().expect("the test machine allows it")
    })
}

const LANDLOCK_CREATE_RULESET: i64 = 444;
const UNSHARE: i64 = if cfg!(target_arch = "x86_64") { 272 } else { 97 };

#[test]
fn without_namespaces_auto_runs_with_a_warning_and_a_named_mechanism_refuses() {
    without_syscalls(&[UNSHARE], || {
        let home = IsolationTestHome::new("");
        let warning = home.warning(IsolationMode::Auto).expect("the test machine allows it");
        assert!(warning.contains("not isolated") && warning.contains("namespace"), "{warning}");
        assert_eq!(
            home.script(IsolationMode::Auto, "echo here").expect("the test machine allows it").0,
            "here\n"
        );
        let refused = home.script(IsolationMode::Namespace, "echo here");
        assert!(
            matches!(&refused, Err(StartError::IsolationUnavailable(reason)) if reason.contains("namespace")),
            "{refused:?}"
        );
        let (printed, _) = home
            .script(IsolationMode::Landlock, "cat \"$HIDDEN/token\" 2>/dev/null; echo here")
            .expect("the test machine allows it");
        assert_eq!(printed, "here\n");
    });
}

#[test]
fn without_landlock_namespaces_still_hide_and_landlock_refuses() {
    without_syscalls(&[LANDLOCK_CREATE_RULESET], || {
        let home = IsolationTestHome::new("/usr/bin:/bin");
        assert_eq!(home.script(IsolationMode::Auto, SEARCH).expect("the test machine allows it").0, "");
        let refused = home.script(IsolationMode::Landlock, "echo here");
        assert!(
            matches!(&refused, Err(StartError::IsolationUnavailable(reason)) if reason.contains("andlock")),
            "{refused:?}"
        );
    });
}

#[test]
fn without_bubblewrap_the_helper_makes_the_namespace() {
    let home = IsolationTestHome::new("");
    assert_eq!(home.script(IsolationMode::Namespace, SEARCH).expect("the test machine allows it").0, "");
}

#[test]
fn where_the_helper_may_not_make_namespaces_bubblewrap_does() {
    let Some(folder) = bubblewrap() else { return skip("no bubblewrap is installed") };
    without_syscalls(&[UNSHARE], || {
        let home = IsolationTestHome::new(&folder.to_string_lossy());
        assert_eq!(home.warning(IsolationMode::Auto), None);
        let text = "cat \"$HIDDEN/token\" ../../token 2>/dev/null; cat ../../runs/mine/settings; echo kept > made; exit 7";
        assert_eq!(
            home.script(IsolationMode::Namespace, text).expect("the test machine allows it"),
            ("PRIVATE".to_owned(), ExitStatus::Code(7))
        );
        assert_eq!(
            fs::read_to_string(home.path().join("workspaces/mine/made")).expect("the test machine allows it"),
            "kept\n"
        );
    });
}

/// An agent that speaks ACP, using only shell builtins.
const AGENT: &str = r#"#!/bin/sh
read -r greeting; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{}}}'
read -r opening; echo '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}'
read -r prompt
echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"done"}}}}'
echo '{"jsonrpc":"2.0","id":1001,"result":{"stopReason":"end_turn"}}'
read -r end
"#;

/// Returns the warnings in the events of a run with isolation `auto`, and the output of `abide doctor`, on a machine
/// without these system calls and with the programs on `path`.
fn warnings_without(calls: &[i64], path: &str) -> (Vec<String>, String) {
    let programs = tempfile::tempdir().expect("the test machine allows it");
    let agent = programs.path().join("agent");
    fs::write(&agent, AGENT).expect("the test machine allows it");
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("the test machine allows it");
    without_syscalls(calls, || {
        let home = TestHome::new(env!("CARGO_BIN_EXE_abide")).with_env("PATH", path);
        let home = home.with_config(&format!("[engines.mine]\ncommand = [{agent:?}]\nprotocol = \"acp\"\n"));
        let _daemon = home.start();
        let new = serde_json::json!({ "engine": "mine", "prompt": "go", "execution_mode": "auto",
            "workspace": home.workspace("w") });
        let run = home.create_run(&new);
        home.wait_for_status(&run, "succeeded");
        let events = home.items(&format!("/v1/runs/{run}/events?limit=500"));
        let texts = events.iter().filter_map(|event| event["data"]["text"].as_str());
        let warnings = texts.filter(|text| text.contains("isolated")).map(str::to_owned).collect();
        // The exit code depends on the engines that are installed.
        let doctor = home.run(&["doctor", "--json"]).stdout;
        let checks: serde_json::Value = serde_json::from_str(&doctor).expect("it is JSON");
        let all = checks["machine"].as_array().into_iter().flatten();
        let isolation = all.into_iter().find(|check| check["check"] == "isolation");
        (warnings, isolation.expect("it is checked").to_string())
    })
}

/// Issue 14, isolation: `auto` falls back with a warning in the run and in `abide doctor`.
#[test]
fn a_run_that_is_not_isolated_says_so_in_its_events_and_doctor_says_it_too() {
    let (warnings, doctor) = warnings_without(&[UNSHARE], "");
    let [warning] = warnings.as_slice() else { panic!("one warning is told: {warnings:?}") };
    assert!(warning.contains("not isolated") && warning.contains("namespace"), "{warning}");
    assert!(doctor.contains("agents can read the token") && doctor.contains("bubblewrap"), "{doctor}");
}

#[test]
fn a_run_that_is_isolated_without_bubblewrap_or_landlock_is_not_warned_about() {
    let (warnings, doctor) = warnings_without(&[], "");
    assert_eq!(warnings, [""; 0], "the helper makes the namespace without bubblewrap");
    assert!(doctor.contains("namespace") && !doctor.contains("can read"), "{doctor}");
    // This run does not need Landlock. A run that needs it is refused (below), and doctor reports it.
    let (warnings, doctor) = warnings_without(&[LANDLOCK_CREATE_RULESET], "/usr/bin:/bin");
    assert_eq!(warnings, [""; 0]);
    assert!(doctor.contains("no Landlock"), "{doctor}");
}

/// The sandbox of Codex is its own command; that of Claude Code is bubblewrap with these arguments. Claude Code itself
/// is tested in `tests/engines/special.rs`.
#[test]
fn the_sandboxes_of_codex_and_claude_work_inside() {
    let try_to_write =
        "echo inside; touch made; touch /var/tmp/abide-outside && echo WROTE; cat \"$HIDDEN/token\"; true";
    let expected = ("inside\n".to_owned(), ExitStatus::Code(0));
    let home = IsolationTestHome::new("/usr/bin:/bin");
    let workspace = home.path().join("workspaces/mine");
    let folder = workspace.to_string_lossy().into_owned();
    match codex() {
        Some(codex) => {
            let state = format!("CODEX_HOME={folder}/codex");
            // If bubblewrap is installed, Codex starts its helper from its own folder. It refuses a folder below the
            // one for temporary files, which contains the home of this test.
            let temporary = format!("TMPDIR={folder}/codex-tmp");
            for folder in ["codex", "codex-tmp"] {
                fs::create_dir_all(workspace.join(folder)).expect("the test machine allows it");
            }
            let text = format!("{try_to_write} 2>/dev/null");
            let argv = [
                "env",
                &state,
                &temporary,
                &codex,
                "sandbox",
                "--",
                "sh",
                "-c",
                &format!("({text}) 2>/dev/null"),
            ];
            let (printed, exit) =
                home.run(IsolationMode::Namespace, &argv).expect("the test machine allows it");
            let text =
                printed.lines().filter(|line| !line.starts_with("WARNING")).map(|line| format!("{line}\n"));
            assert_eq!((text.collect::<String>(), exit), expected);
            assert!(!workspace.join("made").exists(), "its sandbox is read-only unless told otherwise");
        }
        None => skip("no Codex is installed"),
    }
    match bubblewrap() {
        Some(bubblewrap) => {
            let program = bubblewrap.join("bwrap").to_string_lossy().into_owned();
            let mut argv = vec![program.as_str(), "--new-session", "--die-with-parent", "--unshare-user"];
            argv.extend(["--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--dev", "/dev"]);
            argv.extend(["--proc", "/proc", "--bind", &folder, &folder, "--", "sh", "-c"]);
            let text = format!("({try_to_write}) 2>/dev/null");
            argv.push(&text);
            assert_eq!(
                home.run(IsolationMode::Namespace, &argv).expect("the test machine allows it"),
                expected
            );
            assert!(workspace.join("made").exists());
        }
        None => skip("no bubblewrap is installed"),
    }
}

/// Returns the path of the installed Codex.
fn codex() -> Option<String> {
    let programs = installed_engines();
    programs.into_iter().find(|program| program.ends_with("/codex"))
}

/// Returns the paths of the installed engines.
fn installed_engines() -> Vec<String> {
    let list = std::env::vars().find(|(name, _)| name == "ABIDE_TEST_ENGINES").map(|(_, path)| path);
    let list = list.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let engines: serde_json::Value = serde_json::from_str(&list).unwrap_or_default();
    let commands = engines.as_array().into_iter().flatten();
    commands.filter_map(|engine| Some(engine["command"][0].as_str()?.to_owned())).collect()
}

/// Returns the folder of bubblewrap: the system's, or the one of the installed Codex.
fn bubblewrap() -> Option<PathBuf> {
    let installed = ["/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    let programs = installed_engines().into_iter().map(PathBuf::from);
    let vendored = programs.filter_map(|program| Some(program.parent()?.parent()?.join("codex-resources")));
    installed.into_iter().chain(vendored).find(|folder| folder.join("bwrap").is_file())
}

#[test]
fn an_unprivileged_user_is_isolated_too() {
    user::rerun_unprivileged(&[
        "an_isolated_program_finds_no_token_no_database_no_secret_and_no_socket",
        "an_isolated_program_works_in_its_workspace_as_itself",
    ]);
}
