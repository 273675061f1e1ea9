//! Processes that stop their keeper, leave its process group, ignore signals or fork repeatedly. A cancelled run leaves
//! no process behind.
//!
//! Keepers that are stopped repeatedly, or before they record their child, are tested in `tests/processes.rs`.

use std::fs;

use abide_testkit::wait;
use serde_json::json;

use crate::harness::AdversaryDaemon;

/// Stops each keeper among the ancestors of the program.
const STOP_KEEPER: &str = r#"
process=$$
while [ "$process" -gt 1 ]; do
  if tr '\0' ' ' < /proc/$process/cmdline | grep -q __keeper; then kill -STOP $process && touch stopped; fi
  process=$(sed 's/.*) . //; s/ .*//' /proc/$process/stat)
done
exec sleep 71956
"#;

#[test]
fn security_10_an_agent_that_stops_its_keeper_is_canceled_over_http() {
    let mut fixture = AdversaryDaemon::new();
    fixture.set_program("w", STOP_KEEPER);
    let run = fixture.create("w", json!({}));
    fixture.wait_for_file("w", "stopped");
    let keeper = fixture.home.keeper_of(&run, 1).expect("the run has a keeper");
    wait::until("the keeper is stopped", || state(keeper.pid) == Some('T'));
    assert!(!fixture.hostile_processes().is_empty());
    fixture.assert_bystander_works();
    fixture.cancel(&run);
    assert_nothing_left(&fixture, &run);
    wait::until("the keeper is gone", || !is_alive(keeper.pid));
    fixture.assert_unharmed();
}

/// Each process has a session of its own, ignores all signals that can be ignored, and reports its pid.
const UNKILLABLE_SCRIPT: &str = r#"
rest='trap "" TERM HUP INT QUIT USR1 USR2 ALRM PIPE; echo $$ >> pids; while :; do sleep 71957; done'
setsid bash -c "$rest" &
setsid env -i PATH="$PATH" bash -c "$rest" </dev/null >/dev/null 2>&1 &
(setsid bash -c "(setsid bash -c '$rest' &) & exit" &)
python3 - <<'PYTHON' &
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if os.fork(): os._exit(0)
    os.setsid()
with open("pids", "a") as pids: pids.write(f"{os.getpid()}\n")
os.chdir("/")
os.closerange(0, 64)
while True: time.sleep(1000)
PYTHON
trap '' TERM
while [ "$(wc -l < pids)" -lt 4 ]; do sleep 0.01; done
touch ready
while :; do sleep 71958; done
"#;

#[test]
fn processes_in_sessions_of_their_own_that_ignore_every_signal_end_with_the_run() {
    let mut fixture = AdversaryDaemon::new();
    fixture.set_program("w", UNKILLABLE_SCRIPT);
    let run = fixture.create("w", json!({}));
    fixture.wait_for_file("w", "ready");
    let pids = fs::read_to_string(fixture.workspace("w").join("pids")).expect("they told it");
    let pids: Vec<u32> = pids.lines().map(|pid| pid.parse().expect("it is a pid")).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    fixture.assert_bystander_works();
    fixture.cancel(&run);
    assert_nothing_left(&fixture, &run);
    wait::until("no stubborn process is left", || !pids.iter().any(|pid| is_alive(*pid)));
    fixture.assert_unharmed();
}

/// Each process forks as long as the limit allows, and ignores all signals that can be ignored. The second bound
/// protects the machine if the limit has no effect.
const FORK_BOMB: &str = r#"
exec python3 - <<'PYTHON'
import os, resource, signal, time
def threads(process):
    try: return len(os.listdir(f"/proc/{process}/task")) if os.stat(f"/proc/{process}").st_uid == os.getuid() else 0
    except OSError: return 0
limit = 150 + sum(threads(process) for process in os.listdir("/proc") if process.isdigit())
resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
most = len(os.listdir("/proc")) + 400
while True:
    try:
        if len(os.listdir("/proc")) > most: time.sleep(0.05)
        elif os.fork() == 0: os.setsid()
    except OSError: time.sleep(0.05)
PYTHON
"#;

#[test]
fn a_fork_bomb_within_limits_ends_with_its_run_and_others_continue() {
    let mut fixture = AdversaryDaemon::new();
    fixture.set_program("w", FORK_BOMB);
    let run = fixture.create("w", json!({}));
    wait::until("the bomb has gone off", || fixture.hostile_processes().len() > 80);
    fixture.assert_bystander_works();
    fixture.cancel(&run);
    assert_nothing_left(&fixture, &run);
    fixture.assert_unharmed();
}

/// Waits until neither the run's keeper nor any process of a hostile program exists.
fn assert_nothing_left(fixture: &AdversaryDaemon, run: &str) {
    wait::until("no hostile process is left", || fixture.hostile_processes().is_empty());
    wait::until("the keeper's folder is gone", || !fixture.home.keeper_dir(run, 1).exists());
    assert_eq!(fixture.home.keeper_of(run, 1), None);
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}
