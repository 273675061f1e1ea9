//! A process dies while a request of its turn is open (A10): the child, the keeper or both, with and without a daemon.

use abide_testkit::daemon::HomeProcess;
use serde_json::{Value, json};

use crate::harness::{DaemonEnding, DaemonTestHome, ReplyPath};

const SCRIPT: &str = "append log before\ngate May I?\nappend log after $reply\nsay done";

/// The processes that are killed.
#[derive(Clone, Copy, Debug)]
enum CrashVictims {
    Child,
    Keeper,
    Both,
}

fn kill_victims(home: &DaemonTestHome, victims: CrashVictims) {
    let processes = home.processes();
    let is_keeper = |process: &&HomeProcess| process.command.contains("__keeper");
    let is_child = |process: &&HomeProcess| process.command.contains("__parrot") && !is_keeper(process);
    let mut chosen: Vec<&HomeProcess> = Vec::new();
    if let CrashVictims::Keeper | CrashVictims::Both = victims {
        chosen.extend(processes.iter().filter(is_keeper));
    }
    if let CrashVictims::Child | CrashVictims::Both = victims {
        chosen.extend(processes.iter().filter(is_child));
    }
    assert!(!chosen.is_empty(), "{victims:?}: {processes:?}");
    for victim in chosen {
        home.kill(victim);
    }
}

/// Starts a run, waits for its approval request, and kills the victims.
fn run_and_kill(
    mode: &str,
    engine: &str,
    victims: CrashVictims,
    down: Option<DaemonEnding>,
) -> (DaemonTestHome, String) {
    let mut home = DaemonTestHome::new();
    let run = home.create_in(mode, engine, SCRIPT);
    home.wait_for_status(&run, "waiting_user");
    match down {
        Some(ending) => {
            home.down(ending);
            kill_victims(&home, victims);
            home.up();
        }
        None => kill_victims(&home, victims),
    }
    (home, run)
}

const CRASH_CASES: [(CrashVictims, Option<DaemonEnding>); 6] = [
    (CrashVictims::Child, None),
    (CrashVictims::Keeper, None),
    (CrashVictims::Both, None),
    (CrashVictims::Child, Some(DaemonEnding::Killed)),
    (CrashVictims::Keeper, Some(DaemonEnding::Terminated)),
    (CrashVictims::Both, Some(DaemonEnding::Killed)),
];

#[test]
fn a10_a_request_is_void_when_its_process_dies_and_the_person_is_asked() {
    for (number, (victims, down)) in CRASH_CASES.into_iter().enumerate() {
        let mode = if number % 2 == 0 { "interactive" } else { "chat" };
        let (home, run) = run_and_kill(mode, "parrot", victims, down);
        let waiting = home.wait_for_question(&run, "abide");
        let questions = home.questions(&run);
        assert_eq!(questions.len(), 2, "{victims:?} {down:?}: {questions:?}");
        assert_eq!(
            (&questions[0]["state"], &questions[0]["closed_because"]),
            (&json!("closed"), &json!("void"))
        );
        assert_eq!(questions[1]["options"][0]["label"], "continue");
        assert_eq!(waiting["error"], Value::Null);
        home.reply(&waiting, "continue", ReplyPath::Http);
        let done = home.wait_for_status(&run, if mode == "chat" { "idle" } else { "succeeded" });
        assert_eq!(done["turn_index"], 2, "continuing is a new turn");
        assert_eq!(home.log_lines(), ["before"], "{victims:?} {down:?}: nothing was approved");
        home.wait_for_no_keeper();
    }
}

#[test]
fn a10_a_sticky_run_fails_when_its_process_dies_at_a_request() {
    for (victims, down) in CRASH_CASES {
        let (home, run) = run_and_kill("interactive", "parrot-sticky", victims, down);
        let failed = home.wait_for_status(&run, "failed");
        assert_eq!(failed["error"]["code"], "INTERACTION_PROCESS_LOST", "{victims:?} {down:?}: {failed}");
        assert!(home.questions(&run).iter().all(|question| question["state"] == "closed"));
        assert_eq!(home.log_lines(), ["before"]);
        home.wait_for_no_keeper();
    }
}
