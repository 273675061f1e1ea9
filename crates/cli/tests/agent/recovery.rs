//! What a run finds that was killed, and whose sessions were.

use std::os::unix::process::ExitStatusExt;

use abide_testkit::model::{Answer, Gate, Script};
use serde_json::json;

use super::stage::{Stage, kill, results, runs, script, shell};

fn ask() -> Answer {
    Answer::call("ask_human", json!({ "question": "Go on?" }))
}

#[test]
fn a_session_that_was_killed_meanwhile_is_told_to_the_model_which_starts_a_new_one() {
    let told =
        |heard: &abide_testkit::model::Heard| heard.last_user().contains("Recovery notice: session 'shell_");
    let stage = Stage::new(script([shell("x=1"), ask()]));
    stage.run(&["--message", "go"]).expect(101);
    let before = stage.sessions();
    kill(before[0].1);
    stage.model.follow(
        script([Answer::say("the shell is new")]).once(told, shell("echo x is ${x:-unset}")).demand_order(),
    );
    assert_eq!(stage.run(&["--answer", "yes"]).expect(0).stdout, "the shell is new\n");
    let last = stage.model.heard().pop().unwrap();
    let seen = results(&last);
    assert!(seen[2].contains("x is unset") && seen[2].contains("Session started"), "{seen:#?}");
    let notices = stage.events("SYSTEM_MESSAGE");
    let warnings: Vec<_> = notices.iter().filter(|notice| notice["level"] == "WARN").collect();
    assert_eq!(warnings.len(), 1, "{notices:#?}");
    assert_eq!(warnings[0]["session_id"], before[0].0.as_str());
    stage.assert_in_order();
}

#[test]
fn a_session_that_lives_goes_on_and_nothing_is_said() {
    let stage =
        Stage::new(script([shell("x=1"), ask(), shell("echo x is ${x:-unset}"), Answer::say("done")]));
    stage.run(&["--message", "go"]).expect(101);
    stage.run(&["--answer", "yes"]).expect(0);
    let last = stage.model.heard().pop().unwrap();
    assert!(results(&last)[2].contains("x is 1"), "{:#?}", results(&last));
    assert!(!last.mentions("Recovery notice"));
}

#[test]
fn a_recycled_pid_is_not_taken_for_the_session() {
    let stage = Stage::new(script([shell("x=1"), ask()]));
    stage.run(&["--message", "go"]).expect(101);
    let (id, pid) = stage.sessions().remove(0);
    kill(pid);
    // Somebody else lives under the pid that is written down, and must be left alone.
    #[expect(clippy::disallowed_methods, reason = "a process that is not ours to find")]
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(stage.state().join("sessions").join(&id).join("pid.txt"), format!("{}\n", stranger.id()))
        .unwrap();
    stage.model.follow(Script::new().otherwise(Answer::say("done")));
    stage.run(&["--answer", "yes"]).expect(0);
    assert!(stage.model.heard().pop().unwrap().mentions("Recovery notice: session 'shell_"));
    assert!(runs(stranger.id()));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_call_under_way_when_we_are_killed_is_ended_and_told_to_be_unknown() {
    let stage =
        Stage::new(script([Answer::call("linger", json!({})).then_call("note", json!({ "text": "after" }))]));
    let mut child = stage.start(&["--message", "go"]);
    let lingering = stage.work().join("lingering.txt");
    wait_for(|| lingering.exists());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    stage.model.follow(Script::new().otherwise(Answer::say("I see")).demand_order());
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "I see\n");
    let seen = results(&stage.model.heard().pop().unwrap());
    assert!(
        seen[0].contains("The outcome of this call is unknown") && seen[0].contains("begun"),
        "{seen:#?}"
    );
    assert!(seen[1].contains("The outcome of this call is unknown"), "{seen:#?}");
    assert!(!stage.work().join("notes.txt").exists());
    let statuses: Vec<_> = stage.events("ACTION_RESULT").iter().map(|r| r["status"].clone()).collect();
    assert_eq!(statuses, ["unknown", "unknown"]);
    assert_eq!(processes_in(&stage.work()), [0_u32; 0]);
    stage.assert_in_order();
}

#[test]
fn a_person_who_presses_ctrl_c_ends_the_tool_and_keeps_the_session() {
    let stage = Stage::new(script([
        shell("x=1"),
        Answer::call("linger", json!({})).then_call("note", json!({ "text": "after" })),
        shell("echo x is ${x:-unset}"),
        Answer::say("done"),
    ]));
    let mut child = stage.start(&["--message", "go"]);
    let lingering = stage.work().join("lingering.txt");
    wait_for(|| lingering.exists());
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(stage.sessions().len(), 1);
    stage.run(&["--message", "go"]).expect(0);
    let seen = results(&stage.model.heard().pop().unwrap());
    assert!(seen[1].contains("interrupted"), "{seen:#?}");
    assert!(seen[2].contains("not carried out"), "{seen:#?}");
    assert!(seen[3].contains("x is 1"), "{seen:#?}");
    assert!(!stage.work().join("notes.txt").exists());
    stage.assert_in_order();
}

#[test]
fn ctrl_c_while_the_model_thinks_leaves_nothing_behind() {
    let gate = Gate::new();
    let stage = Stage::new(script([Answer::say("late").held(&gate), Answer::say("in time")]));
    let mut child = stage.start(&["--message", "go"]);
    gate.reached();
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    gate.open();
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "in time\n");
}

#[test]
fn two_processes_in_one_directory_are_refused() {
    let gate = Gate::new();
    let stage = Stage::new(script([Answer::say("done").held(&gate)]));
    let first = stage.start(&["--message", "go"]);
    gate.reached();
    let second = stage.run(&["--message", "go"]);
    second.expect(1);
    let expected = format!("another process (pid {}) works in", first.id());
    assert!(second.stderr.contains(&expected), "{}", second.stderr);
    gate.open();
    let first = first.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&first.stdout), "done\n");
}

/// Looks again and again until it is so.
fn wait_for(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

/// The processes that work below a directory.
pub(crate) fn processes_in(directory: &std::path::Path) -> Vec<u32> {
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let there = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(directory))
            && runs(*pid)
    };
    all.filter_map(|name| name.parse().ok()).filter(there).collect()
}
