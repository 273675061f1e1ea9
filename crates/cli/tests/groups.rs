//! Real processes in control groups of their own (issue "Trust boundary", item 4): the end of all group members, the
//! kill of their keeper, and the behaviour without groups or limits.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use abide_domain::process::ExitStatus;
use abide_host::{
    isolation::ProgramIsolator,
    processes::{KeeperProcesses, StandbyPolicy, TrackedKeepers},
};
use abide_keeper::{
    client::EndMode,
    control_group::ControlGroupConfig,
    keeper_dir::KeeperDir,
    launch::{KeeperLauncher, clean_up_dead_keeper, kill_keeper},
    protocol::{ChildMode, KeeperOwner, KeeperSpec, LinkPolicy, SpoolOverflow},
};
use abide_os::cgroup::{ControlGroup, ControlGroupLimits, find::own_group};
use abide_ports::{
    engine::{IsolationMode, ProcessSpec, ProcessStdin},
    processes::{OutputOffsets, ProcessOutput, Processes, StartError, StartRequest},
};
use abide_testkit::{daemon::TestHome, skip::skip, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A group below the one of this test. It is removed with all its processes when dropped.
struct DelegatedBase(ControlGroup);

impl DelegatedBase {
    /// Returns `None`, with a recorded skip, if this test cannot create groups.
    fn create(name: &str) -> Option<Self> {
        let group = own_group().and_then(|own| {
            let base = ControlGroup::at(own).child(&format!("test-{name}-{}", std::process::id()));
            let base = base.map_err(|error| error.to_string())?;
            base.create().map_err(|error| error.to_string())?;
            Ok(base)
        });
        match group {
            Ok(base) => Some(Self(base)),
            Err(reason) => {
                skip(&format!("no control group can be made: {reason}"));
                None
            }
        }
    }

    fn groups(&self) -> ControlGroupConfig {
        let path = self.0.path().to_owned();
        ControlGroupConfig {
            base: path.clone(),
            keepers_base: path,
            limits: ControlGroupLimits::default(),
            required: true,
        }
    }

    /// Returns the groups of child processes.
    fn children(&self) -> Vec<ControlGroup> {
        let names = self.0.children().into_iter().filter(|name| name.starts_with("abide-k-"));
        names.map(|name| ControlGroup::at(self.0.path().join(name))).collect()
    }

    /// Returns the processes in the groups of child processes.
    fn members(&self) -> Vec<u32> {
        self.children().iter().flat_map(|group| group.processes().unwrap_or_default()).collect()
    }

    /// Waits for the four `sleep` processes of [`DETACHED`] and returns them. The subshells that started them may still
    /// be among the members, and exit by themselves.
    fn detached_processes(&self) -> Vec<u32> {
        let is_sleep = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\x007100"))
        };
        wait::until_some("the detached processes", || {
            let sleeps: Vec<u32> = self.members().into_iter().filter(is_sleep).collect();
            (sleeps.len() == 4).then_some(sleeps)
        })
    }
}

impl Drop for DelegatedBase {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait_until_empty(END_TIMEOUT);
        self.0.remove(END_TIMEOUT).ok();
    }
}

fn launcher(groups: Option<ControlGroupConfig>) -> KeeperLauncher {
    KeeperLauncher {
        program: env!("CARGO_BIN_EXE_abide").into(),
        arguments: vec!["__keeper".to_owned()],
        groups,
    }
}

struct GroupDaemonFixture {
    folder: TempDir,
    keepers: KeeperProcesses,
}

impl GroupDaemonFixture {
    fn new(
        groups: Option<ControlGroupConfig>,
        isolator: impl FnOnce(&Path) -> Option<ProgramIsolator>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("the test machine allows it");
        for name in ["workspaces/mine", "runs/mine", "keepers"] {
            fs::create_dir_all(folder.path().join(name)).expect("the test machine allows it");
        }
        let keepers = KeeperProcesses {
            directory: folder.path().join("keepers"),
            launcher: launcher(groups),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            isolator: isolator(folder.path()),
            retained_output_bytes: 1 << 20,
            keepers: TrackedKeepers::default(),
            standby: StandbyPolicy::None,
        };
        Self { folder, keepers }
    }

    fn plain(groups: ControlGroupConfig) -> Self {
        Self::new(Some(groups), |_| None)
    }

    fn start(&self, name: &str, isolation: IsolationMode, text: &str) -> Result<u32, StartError> {
        let launch = ProcessSpec {
            argv: ["sh", "-c", text].map(str::to_owned).to_vec(),
            env: vec![],
            removed_env: vec![],
            appended_env: vec![],
            files: vec![],
            stdin: ProcessStdin::Complete(vec![]),
            not_before: None,
            surviving_keepers_dir: None,
        };
        let at = |name: &str| self.folder.path().join(name).to_string_lossy().into_owned();
        let (workspace, private) = (at("workspaces/mine"), at("runs/mine"));
        let start = StartRequest {
            spec: &launch,
            workspace: &workspace,
            private_dir: &private,
            pass_env: &[],
            isolation,
        };
        self.keepers.start(name, &start).map(|process| process.pid)
    }

    /// Runs a program and returns its output and exit status.
    fn run(&self, isolation: IsolationMode, text: &str) -> (String, ExitStatus) {
        self.start("run-1", isolation, text).expect("it starts");
        let mut follow = self.keepers.follow("run-1", OutputOffsets::START).expect("it is there");
        let mut printed = Vec::new();
        let exit = loop {
            match follow.next(Some(END_TIMEOUT)).expect("it is there") {
                ProcessOutput::Stdout(bytes) | ProcessOutput::Stderr(bytes) => printed.extend(bytes),
                ProcessOutput::Exited(exit) => break exit,
                other @ (ProcessOutput::Gap(_) | ProcessOutput::TimedOut) => panic!("{other:?}"),
            }
        };
        self.keepers.terminate("run-1").expect("it ends");
        (String::from_utf8_lossy(&printed).into_owned(), exit)
    }
}

fn is_alive(pid: u32) -> bool {
    abide_os::process::ProcessStat::read(pid).is_some_and(|stat| !stat.is_zombie())
}

fn parent(pid: u32) -> u32 {
    abide_os::process::ProcessStat::read(pid).expect("it is there").parent
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("it is a pid");
    kill_process(pid, signal).expect("it is there");
}

/// Starts processes that leave the session, the process group and the parent, and stops all of them.
const DETACHED_SCRIPT: &str = "(setsid sh -c '(setsid sleep 71001 &) ; sleep 71002 & kill -STOP $$' &) ; \
    (trap '' TERM HUP; exec setsid sleep 71003) & sleep 71004";

#[test]
fn everything_that_a_run_started_is_in_its_group_and_ends_with_it() {
    let Some(base) = DelegatedBase::create("ends") else { return };
    let fixture = GroupDaemonFixture::plain(base.groups());
    let pid = fixture.start("run-1", IsolationMode::Off, DETACHED_SCRIPT).expect("it starts");
    let keeper = parent(pid);
    base.detached_processes();
    let members = base.members();
    assert!(members.contains(&pid) && !members.contains(&keeper), "{members:?} {keeper}");
    for member in &members {
        signal(*member, Signal::STOP);
    }
    fixture.keepers.terminate("run-1").expect("it ends");
    assert!(!members.iter().any(|pid| is_alive(*pid)));
    assert_eq!(base.children(), []);
}

/// SECURITY 10, with the keeper killed too: no process supervises the processes that the agent left.
#[test]
fn processes_of_a_killed_keeper_end_with_its_group() {
    let Some(base) = DelegatedBase::create("killed") else { return };
    let fixture = GroupDaemonFixture::plain(base.groups());
    let pid = fixture.start("run-1", IsolationMode::Off, DETACHED_SCRIPT).expect("it starts");
    let members = base.detached_processes();
    let keeper = parent(pid);
    signal(keeper, Signal::KILL);
    wait::until("the keeper is dead", || !is_alive(keeper));
    assert!(members.iter().all(|pid| is_alive(*pid)), "nothing ends with the keeper");
    fixture.keepers.terminate("run-1").expect("it ends");
    wait::until("all are dead", || !members.iter().any(|pid| is_alive(*pid)));
    assert_eq!(base.children(), []);
}

#[test]
fn a_stopped_keeper_that_does_not_answer_is_killed_with_the_group_of_its_child() {
    let Some(base) = DelegatedBase::create("silent") else { return };
    let fixture = GroupDaemonFixture::plain(base.groups());
    let pid = fixture.start("run-1", IsolationMode::Off, DETACHED_SCRIPT).expect("it starts");
    base.detached_processes();
    let (members, keeper) = (base.members(), parent(pid));
    signal(keeper, Signal::STOP);
    let place = KeeperDir::new(&fixture.keepers.directory.join("runs"), "run-1");
    kill_keeper(&place, None);
    assert!(!members.iter().chain([&keeper]).any(|pid| is_alive(*pid)));
    assert!(clean_up_dead_keeper(&place));
    assert_eq!(base.children(), []);
}

/// A keeper may be killed before it records its child, so the group must be found without a record.
#[test]
fn a_sweep_ends_processes_of_dead_keepers_only() {
    let Some(base) = DelegatedBase::create("sweep") else { return };
    let fixture = GroupDaemonFixture::plain(base.groups());
    let dead = fixture.start("run-1", IsolationMode::Off, DETACHED_SCRIPT).expect("it starts");
    base.detached_processes();
    let remaining = base.members();
    signal(parent(dead), Signal::KILL);
    wait::until("the first is on its own", || !base.members().is_empty() && base.children().len() == 1);
    let living = fixture.start("run-2", IsolationMode::Off, "exec sleep 71005").expect("it starts");
    fs::remove_dir_all(fixture.keepers.directory.join("runs/run-1")).expect("it is there");
    wait::until("a sweep has ended the first", || {
        base.groups().remove_dead_groups();
        base.children().len() == 1
    });
    assert!(!remaining.iter().any(|pid| is_alive(*pid)));
    assert!(is_alive(living));
    fixture.keepers.terminate("run-2").expect("it ends");
    // A keeper reports its end before it exits.
    wait::until("not even the group of keepers is left", || {
        base.groups().remove_dead_groups();
        base.0.children().is_empty()
    });
}

#[test]
fn without_a_usable_base_a_required_group_refuses_the_start_and_another_does_not() {
    let folder = tempfile::tempdir().expect("the test machine allows it");
    let missing_base = folder.path().join("gone");
    let groups = |required| ControlGroupConfig {
        base: missing_base.clone(),
        keepers_base: missing_base.clone(),
        limits: ControlGroupLimits::default(),
        required,
    };
    let fixture = GroupDaemonFixture::plain(groups(true));
    let refused = fixture.start("run-1", IsolationMode::Off, "exit 3");
    assert!(
        matches!(&refused, Err(StartError::SystemError(reason)) if reason.contains("control group") && reason.contains("sandbox.cgroup")),
        "{refused:?}"
    );
    let fixture = GroupDaemonFixture::plain(groups(false));
    assert_eq!(fixture.run(IsolationMode::Off, "exit 3").1, ExitStatus::Code(3));
}

#[test]
fn an_isolated_program_sees_its_group_and_cannot_leave_it() {
    let Some(base) = DelegatedBase::create("leave") else { return };
    let isolator = |home: &Path| {
        Some(ProgramIsolator::new(home, Path::new(env!("CARGO_BIN_EXE_abide")), "/usr/bin:/bin"))
    };
    let fixture = GroupDaemonFixture::new(Some(base.groups()), isolator);
    let path = base.0.path().display();
    let text = format!(
        "grep ^0:: /proc/self/cgroup; cat {path}/cgroup.procs >/dev/null && echo READ; \
         echo 0 >{path}/cgroup.procs && echo LEFT; \
         echo 1 >{path}/abide-keepers/cgroup.kill && echo KILLED; mkdir {path}/own && echo MADE; \
         unshare --user --map-root-user --mount sh -c 'mount -o remount,rw,bind {path} && echo REMOUNTED'; true"
    );
    let (printed, exit) = fixture.run(IsolationMode::Namespace, &text);
    assert_eq!(exit, ExitStatus::Code(0), "{printed}");
    assert!(printed.contains("/abide-k-") && printed.contains("READ"), "{printed}");
    for word in ["LEFT\n", "KILLED\n", "MADE\n", "REMOUNTED\n"] {
        assert!(!printed.contains(word), "{printed}");
    }
    assert_eq!(base.children(), []);
}

/// A session of the native agent: the shell is confined, and its keeper stays outside.
#[test]
fn a_confined_shell_is_in_a_group_without_its_keeper() {
    let Some(base) = DelegatedBase::create("shell") else { return };
    let folder = tempfile::tempdir().expect("the test machine allows it");
    let launcher = launcher(Some(base.groups()));
    let hide = folder.path().join("hidden");
    fs::create_dir(&hide).expect("the test machine allows it");
    let words = ["--hide", hide.to_str().unwrap_or_default(), "--by", "namespace"];
    let shell = abide_terminal::ShellProgram::find("sh", &[("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
    let (argv, shape) = shell.expect("there is a shell").launch_spec(None);
    assert!(matches!(shape, ChildMode::Shell(_)));
    let spec = || KeeperSpec {
        argv: argv.clone(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: "/".into(),
        shape: abide_terminal::ShellProgram::find("sh", &[("PATH".to_owned(), "/usr/bin:/bin".to_owned())])
            .expect("there is a shell")
            .launch_spec(None)
            .1,
        retention: 1 << 20,
        meta: vec![],
        owner: KeeperOwner::Home,
        overflow: SpoolOverflow::DropOldest,
        confinement: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
        group: Some(base.groups().child_spec("x")),
        cwd_links: LinkPolicy::Refuse,
    };
    let start = |name: &str| {
        let place = KeeperDir::new(&folder.path().join("keepers"), name);
        let mut keeper = launcher.start(place, spec(), None).expect("it starts");
        let status = keeper.status(20_000).expect("it answers");
        (keeper, status)
    };
    let (mut keeper, status) = start("s-1");
    let members = base.members();
    assert!(members.contains(&status.child.pid) && !members.contains(&status.keeper.pid), "{members:?}");
    keeper.end(EndMode::Graceful).expect("it ends");
    assert_eq!(base.children(), [], "an orderly end");

    let (mut keeper, status) = start("s-2");
    kill_keeper(&keeper.keeper_dir, None);
    assert!(!is_alive(status.child.pid) && !is_alive(status.keeper.pid));
    keeper.take_process().expect("it is ours").wait().expect("it ends");
    assert!(clean_up_dead_keeper(&keeper.keeper_dir));
    assert_eq!(base.children(), [], "killed");
}

fn home() -> TestHome {
    TestHome::new(env!("CARGO_BIN_EXE_abide"))
}

/// The controllers for memory and pids are missing or disabled on this machine; the run reports that.
#[test]
fn unenforced_limits_are_reported_in_the_run_and_by_doctor() {
    let home = home().with_env("ABIDE_SANDBOX_CGROUP", "off").with_env("ABIDE_LIMITS_PIDS_MAX", "100");
    let _daemon = home.start();
    let workspace = home.workspace("w");
    let body = json!({ "engine": "parrot", "prompt": "say hello", "workspace": workspace });
    let id = home.create_run(&body);
    home.wait_for_status(&id, "succeeded");
    let events = home.get_text(&format!("/v1/runs/{id}/events?limit=100"));
    let warning = "limits.pids_max is not enforced for the agent: sandbox.cgroup is";
    assert!(events.contains(warning), "{events}");
    let doctor = home.run(&["doctor", "--set", "sandbox.cgroup=off", "--set", "limits.pids_max=100"]);
    assert!(doctor.stdout.contains(warning), "{doctor:?}");
}

#[test]
fn a_named_group_that_cannot_be_used_refuses_the_start_of_the_daemon() {
    let folder = tempfile::tempdir().expect("the test machine allows it");
    let named = folder.path().display().to_string();
    let home = home().with_env("ABIDE_SANDBOX_CGROUP", &named);
    let daemon = home.try_start(&[]);
    assert!(!daemon.is_ready());
    let report = home.stderr_tail();
    assert!(
        report.contains("sandbox.cgroup") && report.contains("cgroup v2") && report.contains("auto"),
        "{report}"
    );
}

/// The daemon is killed too; the next one ends the remaining processes.
#[test]
fn a_terminal_session_of_the_daemon_is_in_a_group_which_ends_with_it() {
    let Some(base) = DelegatedBase::create("session") else { return };
    let home = home().with_env("ABIDE_SANDBOX_CGROUP", &base.0.path().display().to_string());
    let _daemon = home.start();
    let session = home.run_json(&["sessions", "new"]);
    let id = session["session_id"].as_str().or(session["id"].as_str()).expect("it has an id").to_owned();
    wait::until("its shell is in a group", || base.members().len() == 1);
    let shell = base.members();
    let keeper = parent(shell[0]);
    let keepers: PathBuf = base.0.path().join("abide-keepers");
    assert!(ControlGroup::at(keepers).processes().expect("it is there").contains(&keeper));
    home.run_ok(&["sessions", "rm", &id]);
    assert!(!is_alive(shell[0]));
    assert_eq!(base.children(), []);
}

/// As systemd starts it with `Delegate=yes` and `DelegateSubgroup=daemon`: the delegation is marked on the parent
/// group.
#[test]
fn auto_uses_the_group_that_was_delegated_and_no_other() {
    let Some(base) = DelegatedBase::create("auto") else { return };
    let part = base.0.child("daemon").expect("it is a name");
    part.create().expect("the base is ours");
    let home = tempfile::tempdir().expect("the test machine allows it");
    let doctor = || {
        let mut command = abide_testkit::environment::abide("sh");
        let script = "echo 0 >\"$PART/cgroup.procs\" && exec \"$ABIDE\" doctor parrot";
        command.args(["-c", script]).env("PART", part.path()).env("ABIDE", env!("CARGO_BIN_EXE_abide"));
        command.env("ABIDE_HOME", home.path());
        String::from_utf8_lossy(&command.output().expect("there is a shell").stdout).into_owned()
    };
    let report = doctor();
    assert!(report.contains("is not delegated"), "{report}");
    let marked = rustix::fs::setxattr(base.0.path(), "user.delegate", b"1", rustix::fs::XattrFlags::empty());
    if let Err(error) = marked {
        return skip(&format!("a control group cannot be marked: {error}"));
    }
    let report = doctor();
    let expected = format!("each run and session gets one below {}", base.0.path().display());
    assert!(report.contains(&expected), "{report}");
}
