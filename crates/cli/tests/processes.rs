//! Kept processes with real keepers: the state after a daemon died during a launch, and its recovery.

use std::{fs, path::PathBuf};

use abide_domain::process::ExitStatus;
use abide_host::processes::{KeeperProcesses, StandbyPolicy, TrackedKeepers};
use abide_keeper::{
    keeper_dir::KeeperDir,
    launch::KeeperLauncher,
    protocol::{ChildMode, KeeperOwner, KeeperSpec, LinkPolicy, SpoolOverflow},
};
use abide_ports::{
    engine::{IsolationMode, ProcessSpec, ProcessStdin},
    processes::{
        OutputFollower, OutputOffsets, ProcessLookup, ProcessOutput, Processes, StartError, StartRequest,
        StdinWrite,
    },
};
use abide_testkit::wait;
use rustix::process::Pid;

fn keeper_processes(home: &tempfile::TempDir) -> KeeperProcesses {
    KeeperProcesses {
        directory: home.path().join("keepers"),
        launcher: KeeperLauncher {
            program: PathBuf::from(env!("CARGO_BIN_EXE_abide")),
            arguments: vec!["__keeper".to_owned()],
            groups: None,
        },
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        isolator: None,
        retained_output_bytes: 1 << 20,
        keepers: TrackedKeepers::default(),
        standby: StandbyPolicy::None,
    }
}

fn script(text: &str) -> ProcessSpec {
    ProcessSpec {
        argv: ["sh", "-c", text].map(str::to_owned).to_vec(),
        env: vec![],
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: ProcessStdin::Complete(vec![]),
        not_before: None,
        surviving_keepers_dir: None,
    }
}

fn start(keepers: &KeeperProcesses, home: &tempfile::TempDir, name: &str) -> Result<u32, StartError> {
    start_script(keepers, home, name, "echo here; exec sleep 1000")
}

fn start_script(
    keepers: &KeeperProcesses,
    home: &tempfile::TempDir,
    name: &str,
    text: &str,
) -> Result<u32, StartError> {
    let launch = script(text);
    let folder = home.path().to_string_lossy().into_owned();
    let started = keepers.start(
        name,
        &StartRequest {
            spec: &launch,
            workspace: &folder,
            private_dir: &folder,
            pass_env: &[],
            isolation: IsolationMode::Off,
        },
    );
    started.map(|process| process.pid)
}

#[test]
fn a_launch_whose_daemon_died_before_the_start_request_never_happens() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let place = keepers.directory.join("runs/run-1");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("secret"), [7; 32]).unwrap();
    assert_eq!(keepers.find("run-1"), ProcessLookup::NotStarted);
    for _ in 0..2 {
        // The error allows a retry under another name; this name must not be used again.
        let started = start(&keepers, &home, "run-1");
        assert!(matches!(started, Err(StartError::SystemError(_))), "{started:?}");
    }
    assert!(start(&keepers, &home, "run-2").is_ok());
    for name in ["run-1", "run-2"] {
        keepers.terminate(name).unwrap();
    }
    assert_eq!(keepers.names(), Vec::<String>::new());
}

/// Without the socket, no further connection to the keeper is possible.
#[test]
fn a_turn_needs_one_connection_for_its_start_output_input_and_end() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let text = "trap 'echo interrupted' INT; while read -r line; do echo \"got $line\"; done; exit 5";
    let launch = ProcessSpec { stdin: ProcessStdin::KeptOpen(b"first\n".to_vec()), ..script(text) };
    let folder = home.path().to_string_lossy().into_owned();
    let request = StartRequest {
        spec: &launch,
        workspace: &folder,
        private_dir: &folder,
        pass_env: &[],
        isolation: IsolationMode::Off,
    };
    let binding = keepers.start("run-1", &request).unwrap();
    fs::remove_file(keepers.directory.join("runs/run-1/socket")).unwrap();
    assert_eq!(keepers.find("run-1"), ProcessLookup::Found(binding));
    let mut follow = keepers.follow("run-1", OutputOffsets::START).unwrap();
    let write = |key, bytes: &[u8]| {
        keepers.write("run-1", &StdinWrite { key, bytes, close_after: false }).unwrap();
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut output = Vec::new();
            loop {
                match follow.next(Some(std::time::Duration::from_secs(60))).unwrap() {
                    ProcessOutput::Stdout(bytes) => output.extend(bytes),
                    ProcessOutput::Stderr(_) => {}
                    ProcessOutput::Exited(status) => break (output, status),
                    other @ (ProcessOutput::Gap(_) | ProcessOutput::TimedOut) => panic!("{other:?}"),
                }
            }
        });
        for key in 1..=100 {
            write(key, format!("line {key}\n").as_bytes());
        }
        write(7, b"a repeated key\n");
        keepers.write("run-1", &StdinWrite { key: 101, bytes: b"", close_after: true }).unwrap();
        let (output, status) = reader.join().unwrap();
        let lines = (1..=100).map(|key| format!("got line {key}\n"));
        let expected: String = std::iter::once("got first\n".to_owned()).chain(lines).collect();
        assert_eq!((String::from_utf8_lossy(&output).into_owned(), status), (expected, ExitStatus::Code(5)));
    });
    drop(follow);
    assert_eq!(keepers.terminate("run-1"), Ok(ExitStatus::Code(5)));
    assert_eq!(keepers.names(), Vec::<String>::new());
}

/// A reader that leaves before the end closes the connection, because its output would fill the memory.
#[test]
fn input_is_written_when_the_reader_does_not_read_and_when_it_has_left() {
    let home = tempfile::tempdir().unwrap();
    let keepers = KeeperProcesses { retained_output_bytes: 64 << 20, ..keeper_processes(&home) };
    let text = "head -c 20000000 /dev/zero; while read -r line; do echo \"$line\" >> written; done";
    let launch = ProcessSpec { stdin: ProcessStdin::KeptOpen(vec![]), ..script(text) };
    let folder = home.path().to_string_lossy().into_owned();
    let request = StartRequest {
        spec: &launch,
        workspace: &folder,
        private_dir: &folder,
        pass_env: &[],
        isolation: IsolationMode::Off,
    };
    keepers.start("run-1", &request).unwrap();
    let follow = keepers.follow("run-1", OutputOffsets::START).unwrap();
    let write = |key| {
        keepers.write("run-1", &StdinWrite { key, bytes: format!("{key}\n").as_bytes(), close_after: false })
    };
    // More output than is kept in memory arrives meanwhile.
    (1..=40).for_each(|key| write(key).unwrap());
    drop(follow);
    (41..=50).for_each(|key| write(key).unwrap());
    let expected: String = (1..=50).map(|key| format!("{key}\n")).collect();
    wait::until("all input is read", || {
        fs::read_to_string(home.path().join("written")).is_ok_and(|text| text == expected)
    });
    keepers.terminate("run-1").unwrap();
}

#[test]
fn an_appended_variable_keeps_the_configured_value() {
    let home = tempfile::tempdir().unwrap();
    let mut keepers = keeper_processes(&home);
    keepers.env.push(("INHERITED".to_owned(), "--one".to_owned()));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let launch = ProcessSpec {
        env: vec![pair("SET", "--two")],
        appended_env: vec![pair("INHERITED", "--more"), pair("SET", "--more"), pair("NEW", "--more")],
        ..script("echo \"$INHERITED, $SET, $NEW\"; exit 7")
    };
    let folder = home.path().to_string_lossy().into_owned();
    keepers
        .start(
            "run-1",
            &StartRequest {
                spec: &launch,
                workspace: &folder,
                private_dir: &folder,
                pass_env: &["INHERITED".to_owned()],
                isolation: IsolationMode::Off,
            },
        )
        .unwrap();
    let mut follow = keepers.follow("run-1", OutputOffsets::START).unwrap();
    let mut output = Vec::new();
    loop {
        match follow.next(Some(std::time::Duration::from_secs(60))).unwrap() {
            ProcessOutput::Stdout(bytes) => output.extend(bytes),
            ProcessOutput::Stderr(_) => {}
            ProcessOutput::Exited(_) => break,
            ProcessOutput::Gap(reason) => panic!("{reason}"),
            ProcessOutput::TimedOut => panic!("it does not end"),
        }
    }
    assert_eq!(String::from_utf8_lossy(&output), "--one --more, --two --more, --more\n");
    // `end` returns the exit status, also after the exit was read.
    assert_eq!(keepers.terminate("run-1"), Ok(ExitStatus::Code(7)));
    assert_eq!(keepers.terminate("run-1"), Ok(ExitStatus::Unknown), "nothing of it is left");
}

#[test]
fn security_24_a_process_gets_the_variables_of_a_list_and_no_others() {
    let home = tempfile::tempdir().unwrap();
    let mut keepers = keeper_processes(&home);
    for name in [
        "HOME",
        "LC_ALL",
        "https_proxy",
        "XDG_CONFIG_HOME",
        "GITHUB_TOKEN",
        "MY_KEY",
        "MY_OTHER",
        "OURS",
        "OURSELVES",
    ] {
        keepers.env.push((name.to_owned(), "x".to_owned()));
    }
    let launch =
        ProcessSpec { env: vec![("SET".to_owned(), "y".to_owned())], ..script("env | cut -d= -f1 | sort") };
    let folder = home.path().to_string_lossy().into_owned();
    let pass_env = ["MY_*", "OURS"].map(str::to_owned);
    let start = StartRequest {
        spec: &launch,
        workspace: &folder,
        private_dir: &folder,
        pass_env: &pass_env,
        isolation: IsolationMode::Off,
    };
    keepers.start("run-1", &start).unwrap();
    let mut follow = keepers.follow("run-1", OutputOffsets::START).unwrap();
    let mut printed = Vec::new();
    while let ProcessOutput::Stdout(bytes) = follow.next(Some(std::time::Duration::from_secs(60))).unwrap() {
        printed.extend(bytes);
    }
    let printed = String::from_utf8_lossy(&printed);
    // The shell adds these variables.
    let names: Vec<&str> =
        printed.lines().filter(|name| !["PWD", "SHLVL", "_", "OLDPWD"].contains(name)).collect();
    assert_eq!(
        names,
        ["HOME", "LC_ALL", "MY_KEY", "MY_OTHER", "OURS", "PATH", "SET", "XDG_CONFIG_HOME", "https_proxy"]
    );
    keepers.terminate("run-1").unwrap();
}

#[test]
fn a_process_is_started_once_and_one_whose_keeper_died_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let pid = start(&keepers, &home, "run-1").unwrap();
    assert_eq!(start(&keepers, &home, "run-1").unwrap(), pid);
    let ProcessLookup::Found(process) = keepers.find("run-1") else { panic!("it is held") };
    assert_eq!(process.pid, pid);
    rustix::process::kill_process(parent(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    // Its output can be read, so it counts as started.
    assert_eq!(start(&keepers, &home, "run-1"), Ok(pid), "it is not started again");
    assert_eq!(keepers.find("run-1"), ProcessLookup::Lost);
    let mut follow = keepers.follow("run-1", OutputOffsets::START).unwrap();
    let last = std::iter::repeat_with(|| follow.next(None).unwrap())
        .find(|output| matches!(output, ProcessOutput::Exited(_) | ProcessOutput::Gap(_)));
    assert_eq!(last, Some(ProcessOutput::Exited(ExitStatus::Unknown)), "how it ended is not known");
    keepers.terminate("run-1").unwrap();
    assert_eq!(keepers.find("run-1"), ProcessLookup::NotStarted);
}

/// The next daemon asks for them, because a process that has received input must not get it again.
#[test]
fn e5_keys_of_accepted_input_are_known_while_the_keeper_lives_and_from_its_exit_record() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let launch = ProcessSpec {
        stdin: ProcessStdin::KeptOpen(vec![]),
        ..script("read -r first; read -r second; exit 3")
    };
    let folder = home.path().to_string_lossy().into_owned();
    let request = StartRequest {
        spec: &launch,
        workspace: &folder,
        private_dir: &folder,
        pass_env: &[],
        isolation: IsolationMode::Off,
    };
    let pid = keepers.start("run-1", &request).unwrap().pid;
    let write = |key, bytes: &[u8]| {
        keepers.write("run-1", &StdinWrite { key, bytes, close_after: false }).unwrap();
    };
    let (first, second, other) = (1 << 63 | 1, 1 << 63 | 2, 1 << 63 | 3);
    let received = || keepers.received_keys("run-1", &[first, second, other]);
    write(first, b"one\n");
    assert_eq!(received(), Ok(vec![first]));
    // Longer than one request to the keeper. Its last part has the key.
    write(second, &[vec![b'x'; 5 << 20], vec![b'\n']].concat());
    assert_eq!(received(), Ok(vec![first, second]));
    let place = keepers.directory.join("runs/run-1");
    let keeper = parent(pid);
    wait::until("the end is recorded", || place.join("exit.json").exists());
    assert_eq!(received(), Ok(vec![first, second]));
    kill(keeper.unwrap_or_else(|| keeper_in(&place)), rustix::process::Signal::KILL);
    assert_eq!(received(), Ok(vec![first, second]));
    keepers.terminate("run-1").unwrap();
    assert_eq!(received(), Ok(vec![]));
}

#[test]
fn e7_records_of_a_dead_keeper_are_read_and_a_torn_end_is_detected() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let pid = start_script(&keepers, &home, "run-1", "echo out; echo err >&2; read x; exit 3").unwrap();
    let place = keepers.directory.join("runs/run-1");
    let keeper = parent(pid);
    wait::until("the end is recorded", || place.join("exit.json").exists());
    kill(keeper.unwrap_or_else(|| keeper_in(&place)), rustix::process::Signal::KILL);
    let read_to_end = |from| {
        let mut follow = keepers.follow("run-1", from).unwrap();
        let mut outputs = vec![];
        loop {
            outputs.push(follow.next(None).unwrap());
            if matches!(outputs.last(), Some(ProcessOutput::Exited(_) | ProcessOutput::Gap(_))) {
                return outputs;
            }
        }
    };
    assert!(matches!(keepers.find("run-1"), ProcessLookup::Found(process) if process.pid == pid));
    assert_eq!(start(&keepers, &home, "run-1"), Ok(pid), "it is not started again");
    let all = read_to_end(OutputOffsets::START);
    assert!(
        all.contains(&ProcessOutput::Stdout(b"out\n".to_vec()))
            && all.contains(&ProcessOutput::Stderr(b"err\n".to_vec()))
    );
    assert_eq!(all.last(), Some(&ProcessOutput::Exited(ExitStatus::Code(3))));
    assert_eq!(
        read_to_end(OutputOffsets { stdout: 2, stderr: 4 }),
        [ProcessOutput::Stdout(b"t\n".to_vec()), ProcessOutput::Exited(ExitStatus::Code(3))]
    );
    let spool = fs::File::options().write(true).open(place.join("spool.0")).unwrap();
    spool.set_len(spool.metadata().unwrap().len() - 1).unwrap();
    assert!(matches!(read_to_end(OutputOffsets::START).last(), Some(ProcessOutput::Gap(_))));
    fs::remove_file(place.join("exit.json")).unwrap();
    assert_eq!(keepers.find("run-1"), ProcessLookup::Lost);
    keepers.terminate("run-1").unwrap();
    assert_eq!(keepers.find("run-1"), ProcessLookup::NotStarted);
}

#[test]
fn a_keeper_that_does_not_answer_is_neither_gone_nor_started_again_and_can_be_ended() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let pid = start(&keepers, &home, "run-1").unwrap();
    let keeper = parent(pid).unwrap();
    kill(keeper, rustix::process::Signal::STOP);
    assert_eq!(keepers.find("run-1"), ProcessLookup::Unresponsive);
    assert_eq!(start(&keepers, &home, "run-1"), Err(StartError::Unresponsive));
    assert!(keepers.follow("run-1", OutputOffsets::START).is_err());
    kill(keeper, rustix::process::Signal::CONT);
    assert!(matches!(keepers.find("run-1"), ProcessLookup::Found(_)));
    kill(keeper, rustix::process::Signal::STOP);
    keepers.terminate("run-1").unwrap();
    assert_eq!(keepers.find("run-1"), ProcessLookup::NotStarted);
    assert!(
        !fs::exists(format!("/proc/{pid}/exe")).unwrap()
            || fs::read_link(format!("/proc/{pid}/exe")).is_err()
    );
}

/// Reads the standard output of a process until it contains a text.
fn read_output_until(follow: &mut dyn OutputFollower, text: &str) {
    let mut printed = String::new();
    while !printed.contains(text) {
        match follow.next(Some(std::time::Duration::from_secs(60))) {
            Ok(ProcessOutput::Stdout(bytes)) => printed.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {printed:?}"),
        }
    }
}

#[test]
fn security_10_an_agent_that_a_tool_stops_is_continued_by_its_keeper() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let script = "for round in 1 2 3; do sh -c \"kill -STOP $$\"; echo round $round; done; exec sleep 1000";
    start_script(&keepers, &home, "run-1", script).unwrap();
    let mut follow = keepers.follow("run-1", OutputOffsets::START).expect("its keeper answers");
    read_output_until(&mut *follow, "round 3\n");
    keepers.terminate("run-1").unwrap();
}

#[test]
fn security_10_a_keeper_that_its_agent_stops_during_a_turn_is_continued() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let script = "while [ ! -e go ]; do sleep 0.01; done; kill -STOP $PPID; echo later; exec sleep 1000";
    let pid = start_script(&keepers, &home, "run-1", script).unwrap();
    // The reader is connected before the agent stops its keeper.
    let mut follow = keepers.follow("run-1", OutputOffsets::START).expect("its keeper answers");
    fs::write(home.path().join("go"), "").unwrap();
    read_output_until(&mut *follow, "later\n");
    assert!(parent(pid).is_some());
    keepers.terminate("run-1").unwrap();
}

/// Returns all processes with this entry in their environment.
fn pids_with_env(entry: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("processes are listed").flatten();
    let pids = all.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|line| line == entry.as_bytes())
    };
    pids.filter(is_marked).collect()
}

fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test asserts a duration")]
fn security_10_an_agent_that_stops_its_keeper_is_ended_with_everything_below_it() {
    // Background processes: one in its own session, one without a parent, and one that forks for ever.
    let offspring = "setsid sleep 1001 & (sleep 1002 & sleep 1003 &); (while :; do (:) ; done) & ";
    let scripts = [
        // Stops the keeper once, after the daemon has seen the start.
        format!("{offspring} while [ ! -e go ]; do sleep 0.01; done; kill -STOP $PPID; exec sleep 1000"),
        // Stops the keeper again whenever it is continued.
        format!("{offspring} while [ ! -e go ]; do sleep 0.01; done; while :; do kill -STOP $PPID; done"),
        // Stops the keeper before it can record its child.
        format!("kill -STOP $PPID; {offspring} exec sleep 1000"),
    ];
    for (number, script) in scripts.iter().enumerate() {
        let home = tempfile::tempdir().unwrap();
        let mut keepers = keeper_processes(&home);
        let entry = format!("LC_HOSTILE={}", home.path().display());
        keepers.env.push(("LC_HOSTILE".to_owned(), home.path().display().to_string()));
        let bystander = start(&keepers, &home, "run-2").unwrap();
        // The last script may have stopped its keeper before it could respond.
        let started = start_script(&keepers, &home, "run-1", script);
        assert!(started.is_ok() || (number == 2 && started == Err(StartError::Unresponsive)), "{started:?}");
        let keeper = keeper_in(&keepers.directory.join("runs/run-1"));
        fs::write(home.path().join("go"), "").unwrap();
        wait::until("the keeper is stopped", || state(keeper) == Some('T'));
        let began = std::time::Instant::now();
        keepers.terminate("run-1").unwrap();
        // A keeper that stays stopped gets no more time than its own sequence of signals takes.
        assert!(began.elapsed() < std::time::Duration::from_secs(16), "{script}: {:?}", began.elapsed());
        assert_eq!(keepers.find("run-1"), ProcessLookup::NotStarted);
        wait::until("only the other run is left", || pids_with_env(&entry) == [bystander]);
        assert!(matches!(keepers.find("run-2"), ProcessLookup::Found(_)), "another run is unaffected");
        keepers.terminate("run-2").unwrap();
        assert_eq!(pids_with_env(&entry), Vec::<u32>::new());
    }
}

#[test]
fn security_11_a_keeper_signals_no_process_that_has_the_pid_of_its_reaped_child() {
    const INNER: &str = "security_11_in_a_pid_namespace";
    let own = std::env::current_exe().expect("this test has a program");
    let outcome = abide_testkit::environment::abide("unshare")
        .args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(own)
        .args(["--exact", INNER, "--ignored", "--nocapture"])
        .output();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return abide_testkit::skip::skip(&format!("there is no unshare: {error}")),
    };
    let text = String::from_utf8_lossy(&outcome.stderr);
    if text.starts_with("unshare:") {
        return abide_testkit::skip::skip(&format!("no pid namespace can be made: {text}"));
    }
    assert!(outcome.status.success(), "{}{text}", String::from_utf8_lossy(&outcome.stdout));
}

#[test]
#[ignore = "the test above starts it in a pid namespace, where the next pid can be chosen"]
fn security_11_in_a_pid_namespace() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let pid = start_script(&keepers, &home, "run-1", "exit 0").unwrap();
    wait::until("the child is reaped", || !fs::exists(format!("/proc/{pid}")).unwrap());
    let mut innocent = wait::until_some("a process has the pid", || {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let mut child = abide_testkit::environment::abide("sleep").arg("1000").spawn().unwrap();
        if child.id() == pid {
            return Some(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        None
    });
    keepers.terminate("run-1").unwrap();
    assert!(innocent.try_wait().unwrap().is_none(), "it was signalled");
    innocent.kill().unwrap();
    innocent.wait().unwrap();
}

#[test]
fn a_process_of_an_earlier_version_is_found_by_its_name() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keeper_processes(&home);
    let name = "run_00000000000000000000000001-1";
    let spec = KeeperSpec {
        argv: ["sh", "-c", "echo here; exec sleep 1000"].map(str::to_owned).to_vec(),
        env: keepers.env.clone(),
        cwd: "/".into(),
        shape: ChildMode::Pipes,
        retention: 1 << 20,
        meta: vec![],
        owner: KeeperOwner::Home,
        overflow: SpoolOverflow::DropOldest,
        confinement: vec![],
        group: None,
        cwd_links: LinkPolicy::Refuse,
    };
    // The location before there was a separate folder for runs.
    let mut keeper = keepers.launcher.start(KeeperDir::new(&keepers.directory, name), spec, None).unwrap();
    let pid = keeper.status(10_000).unwrap().child.pid;
    let mut process = keeper.take_process().unwrap();
    fs::create_dir(keepers.directory.join("s-abcdef")).unwrap();
    assert_eq!(keepers.names(), [name]);
    assert!(matches!(keepers.find(name), ProcessLookup::Found(process) if process.pid == pid));
    assert_eq!(start(&keepers, &home, name), Ok(pid));
    assert_eq!(
        keepers.follow(name, OutputOffsets::START).unwrap().next(None),
        Ok(ProcessOutput::Stdout(b"here\n".to_vec()))
    );
    keepers.terminate(name).unwrap();
    process.wait().unwrap();
    assert_eq!(keepers.find(name), ProcessLookup::NotStarted);
    assert!(keepers.directory.join("s-abcdef").exists());
}

#[test]
fn a_keeper_without_its_directory_exits_after_its_child() {
    for child_first in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let keepers = keeper_processes(&home);
        let pid = start(&keepers, &home, "run-1").unwrap();
        let keeper = parent(pid).unwrap();
        let child = Pid::from_raw(pid.cast_signed()).unwrap();
        let kill = || rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        let forget = || fs::remove_dir_all(&keepers.directory).unwrap();
        let place = keepers.directory.join("runs/run-1");
        // Open files in the directory must not keep the keeper running.
        wait::until("the output is in the spool", || {
            fs::metadata(place.join("spool.0")).is_ok_and(|spool| spool.len() > 0)
        });
        if child_first {
            kill();
            wait::until("the keeper watches its folder", || uses_inotify(keeper));
            forget();
        } else {
            forget();
            kill();
        }
        // The keeper is a child of this process.
        wait::until("the keeper ends", || {
            rustix::process::waitpid(Some(keeper), rustix::process::WaitOptions::NOHANG).unwrap().is_some()
        });
    }
}

fn kill(process: Pid, signal: rustix::process::Signal) {
    rustix::process::kill_process(process, signal).expect("the process is there");
}

/// Returns the keeper whose working directory is `place`.
fn keeper_in(place: &std::path::Path) -> Pid {
    let mut all = fs::read_dir("/proc").expect("processes are listed").flatten();
    let here = |process: &fs::DirEntry| fs::read_link(process.path().join("cwd")).is_ok_and(|at| at == place);
    let pid = all.find(here).and_then(|process| process.file_name().to_str()?.parse().ok());
    pid.and_then(Pid::from_raw).expect("a keeper works there")
}

fn parent(pid: u32) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Pid::from_raw(stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?)
}

/// Whether a process uses inotify.
fn uses_inotify(pid: Pid) -> bool {
    let mut open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    open.any(|file| fs::read_link(file.path()).is_ok_and(|name| name.ends_with("anon_inode:inotify")))
}
