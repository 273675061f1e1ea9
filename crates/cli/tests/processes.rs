//! Held processes on real keepers: what a daemon that died in the middle of a launch leaves, and what becomes of it.

use std::{fs, path::PathBuf, sync::Mutex};

use abide::processes::{Keepers, Readiness};
use abide_keeper::launch::Launcher;
use abide_ports::{
    engine::{Launch, Stdin},
    processes::{Found, Processes, Start, StartError},
};
use rustix::process::Pid;

fn keepers(home: &tempfile::TempDir) -> Keepers {
    Keepers {
        directory: home.path().join("keepers"),
        launcher: Launcher {
            program: PathBuf::from(env!("CARGO_BIN_EXE_abide")),
            arguments: vec!["__keeper".to_owned()],
        },
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        retention: 1 << 20,
        children: Mutex::default(),
        readiness: Readiness::None,
    }
}

fn start(keepers: &Keepers, home: &tempfile::TempDir, name: &str) -> Result<u32, StartError> {
    let launch = Launch {
        argv: ["sh", "-c", "echo here; exec sleep 1000"].map(str::to_owned).to_vec(),
        env: vec![],
        without_env: vec![],
        files: vec![],
        stdin: Stdin::Whole(vec![]),
        not_before: None,
        outliving: None,
    };
    let folder = home.path().to_string_lossy().into_owned();
    let started = keepers.start(name, &Start { launch: &launch, workspace: &folder, private: &folder });
    started.map(|process| process.pid)
}

#[test]
fn a_launch_whose_daemon_died_before_its_keeper_was_told_certainly_never_happens() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keepers(&home);
    let place = keepers.directory.join("run-1");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("secret"), [7; 32]).unwrap();
    assert_eq!(keepers.find("run-1"), Found::Never);
    for _ in 0..2 {
        // Told as something that may be tried again under another name; this one is spent.
        let started = start(&keepers, &home, "run-1");
        assert!(matches!(started, Err(StartError::System(_))), "{started:?}");
    }
    assert!(start(&keepers, &home, "run-2").is_ok());
    for name in ["run-1", "run-2"] {
        keepers.end(name).unwrap();
    }
    assert_eq!(keepers.names(), Vec::<String>::new());
}

#[test]
fn a_process_is_started_once_and_one_whose_keeper_died_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let keepers = keepers(&home);
    let pid = start(&keepers, &home, "run-1").unwrap();
    assert_eq!(start(&keepers, &home, "run-1").unwrap(), pid);
    let Found::Held(process) = keepers.find("run-1") else { panic!("it is held") };
    assert_eq!(process.pid, pid);
    rustix::process::kill_process(parent(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    let started = start(&keepers, &home, "run-1");
    assert!(matches!(started, Err(StartError::Gone)), "{started:?}");
    assert_eq!(keepers.find("run-1"), Found::Gone);
    keepers.end("run-1").unwrap();
    assert_eq!(keepers.find("run-1"), Found::Never);
}

#[test]
fn a_keeper_that_nobody_can_find_any_more_goes_once_its_child_is_over() {
    for child_first in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let keepers = keepers(&home);
        let pid = start(&keepers, &home, "run-1").unwrap();
        let keeper = parent(pid).unwrap();
        let child = Pid::from_raw(pid.cast_signed()).unwrap();
        let kill = || rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        let forget = || fs::remove_dir_all(&keepers.directory).unwrap();
        let place = keepers.directory.join("run-1");
        // What it holds open there must not keep it.
        while fs::metadata(place.join("spool.0")).map_or(0, |spool| spool.len()) == 0 {
            std::thread::yield_now();
        }
        if child_first {
            kill();
            while !watches(keeper) {
                std::thread::yield_now();
            }
            forget();
        } else {
            forget();
            kill();
        }
        // It is our own child. If it stayed, this would not return.
        rustix::process::waitpid(Some(keeper), rustix::process::WaitOptions::empty()).unwrap();
    }
}

/// Who started a process.
fn parent(pid: u32) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Pid::from_raw(stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?)
}

/// Whether a process has asked the system to be told of files.
fn watches(pid: Pid) -> bool {
    let mut open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    open.any(|file| fs::read_link(file.path()).is_ok_and(|name| name.ends_with("anon_inode:inotify")))
}
