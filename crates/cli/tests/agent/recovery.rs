//! Recovery of a killed run, with and without its sessions.

use std::os::unix::process::ExitStatusExt;

use abide_testkit::{
    daemon::TestCommandOutput,
    environment,
    model::{ModelScript, ScriptedAnswer, TestGate},
    proc::is_running,
    wait,
};
use serde_json::json;

use super::harness::{AgentTestHome, kill, results, script, shell};

fn ask() -> ScriptedAnswer {
    ScriptedAnswer::call("ask_human", json!({ "question": "Continue?" }))
}

#[test]
fn a_session_that_was_killed_meanwhile_is_told_to_the_model_which_starts_a_new_one() {
    let has_notice = |request: &abide_testkit::model::ReceivedRequest| {
        request.last_user_text().contains("Recovery notice: session 'shell_")
    };
    let home = AgentTestHome::new(script([shell("x=1"), ask()]));
    home.run(&["--message", "go"]).expect(101);
    let before = home.sessions();
    kill(before[0].1);
    home.model.set_script(
        script([ScriptedAnswer::say("the shell is new")])
            .when_once(has_notice, shell("echo x is ${x:-unset}"))
            .require_message_order(),
    );
    assert_eq!(home.run(&["--answer", "yes"]).expect(0).stdout, "the shell is new\n");
    let last = home.model.requests().pop().unwrap();
    let seen = results(&last);
    assert!(seen[2].contains("x is unset") && seen[2].contains("Session started"), "{seen:#?}");
    let notices = home.events("SYSTEM_MESSAGE");
    let warnings: Vec<_> = notices.iter().filter(|notice| notice["level"] == "WARN").collect();
    assert_eq!(warnings.len(), 1, "{notices:#?}");
    assert_eq!(warnings[0]["session_id"], before[0].0.as_str());
    home.assert_message_order();
}

#[test]
fn a_live_session_continues_without_a_notice() {
    let home = AgentTestHome::new(script([
        shell("x=1"),
        ask(),
        shell("echo x is ${x:-unset}"),
        ScriptedAnswer::say("done"),
    ]));
    home.run(&["--message", "go"]).expect(101);
    home.run(&["--answer", "yes"]).expect(0);
    let last = home.model.requests().pop().unwrap();
    assert!(results(&last)[2].contains("x is 1"), "{:#?}", results(&last));
    assert!(!last.contains("Recovery notice"));
}

#[test]
fn a_recycled_pid_is_not_taken_for_the_session() {
    let home = AgentTestHome::new(script([shell("x=1"), ask()]));
    home.run(&["--message", "go"]).expect(101);
    let (id, pid) = home.sessions().remove(0);
    kill(pid);
    // Another process has the recorded pid and must not be touched.
    #[expect(clippy::disallowed_methods, reason = "a process that is not ours to find")]
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(home.state().join("sessions").join(&id).join("pid.txt"), format!("{}\n", stranger.id()))
        .unwrap();
    home.model.set_script(ModelScript::new().with_default(ScriptedAnswer::say("done")));
    home.run(&["--answer", "yes"]).expect(0);
    assert!(home.model.requests().pop().unwrap().contains("Recovery notice: session 'shell_"));
    assert!(is_running(stranger.id()));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_call_in_progress_at_a_kill_is_ended_and_reported_as_unknown() {
    let home = AgentTestHome::new(script([
        ScriptedAnswer::call("linger", json!({})).then_call("note", json!({ "text": "after" }))
    ]));
    let mut child = home.start(&["--message", "go"]);
    let lingering = home.workdir().join("lingering.txt");
    wait::until("the tool lingers", || lingering.exists());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    home.model
        .set_script(ModelScript::new().with_default(ScriptedAnswer::say("I see")).require_message_order());
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "I see\n");
    let seen = results(&home.model.requests().pop().unwrap());
    assert!(
        seen[0].contains("The outcome of this call is unknown") && seen[0].contains("begun"),
        "{seen:#?}"
    );
    assert!(seen[1].contains("The outcome of this call is unknown"), "{seen:#?}");
    assert!(!home.workdir().join("notes.txt").exists());
    let statuses: Vec<_> = home.events("ACTION_RESULT").iter().map(|r| r["status"].clone()).collect();
    assert_eq!(statuses, ["unknown", "unknown"]);
    // A call that was begun has a folder with its record; a call that was not begun has none (B4).
    let places: Vec<_> = home.events("ACTION_RESULT").iter().map(|r| r["execution_ref"].clone()).collect();
    let place = places[0].as_str().expect("a result names its folder");
    assert!(home.state().join(place).join("call.json").exists() && places[1].is_null(), "{places:?}");
    assert_eq!(processes_in(&home.workdir()), [0_u32; 0]);
    home.assert_message_order();
}

#[test]
fn b8_an_interpreter_that_works_on_while_we_are_killed_is_told_to_be_at_work() {
    let python = |code: &str| ScriptedAnswer::call("python", json!({ "code": code }));
    let work = "open('begun', 'w').close()\nimport os, time\n\
                while not os.path.exists('go'): time.sleep(0.01)\n\nprint('the work is done')\n";
    let home = AgentTestHome::new(script([python("x = 6"), python(work)]));
    let mut child = home.start(&["--message", "go"]);
    let begun = home.workdir().join("begun");
    wait::until("the interpreter is at work", || begun.exists());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let (id, pid) = home.sessions().remove(0);
    home.model.set_script(
        script([
            ScriptedAnswer::call("note", json!({ "text": "x" })),
            ScriptedAnswer::call("note", json!({ "text": "y" })),
            python("print('x is', x)"),
            ScriptedAnswer::say("I see"),
        ])
        .require_message_order(),
    );
    std::fs::write(home.workdir().join("go"), "").unwrap();
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "I see\n");
    let seen = results(&home.model.requests().pop().unwrap());
    assert!(seen[1].contains("The outcome of this call is unknown"), "{seen:#?}");
    assert!(!seen[1].contains("nothing of it runs any more"), "{seen:#?}");
    assert!(seen[1].contains(&format!("Session {id} is alive")), "{seen:#?}");
    // The interpreter keeps its state, and its output for the earlier call is not the answer to this one.
    let (_, answer) = seen[4].rsplit_once("output]\n").unwrap_or(("", &seen[4]));
    assert_eq!(answer, "x is 6", "{seen:#?}");
    assert_eq!(seen.iter().filter(|text| text.contains("the work is done")).count(), 1, "{seen:#?}");
    let result = &home.events("ACTION_RESULT")[1];
    assert_eq!((&result["status"], &result["session_id"]), (&json!("unknown"), &json!(id)));
    let call = home.state().join(result["execution_ref"].as_str().unwrap()).join("call.json");
    let call: serde_json::Value = serde_json::from_slice(&std::fs::read(call).unwrap()).unwrap();
    assert_eq!(call["session"], id.as_str());
    assert!(!is_running(pid), "the run is over");
    home.assert_message_order();
}

#[test]
fn a_run_that_continues_after_its_end_is_told_that_its_sessions_were_ended() {
    let look = || shell("pwd; echo x is ${x:-unset}");
    let home = AgentTestHome::new(script([
        shell("cd / && x=1"),
        ScriptedAnswer::status(500, "no"),
        ScriptedAnswer::status(500, "no"),
        look(),
        ScriptedAnswer::say("first"),
        look(),
        ScriptedAnswer::say("second"),
    ]));
    home.run(&["--message", "go"]).expect(1);
    assert_eq!(home.sessions(), []);
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "first\n");
    assert_eq!(home.run(&["--message", "and then?"]).expect(0).stdout, "second\n");
    let last = home.model.requests().pop().unwrap();
    let notices: Vec<String> = last
        .user_texts()
        .into_iter()
        .filter(|text| text.contains("was ended when the run stopped"))
        .collect();
    assert_eq!(notices.len(), 2, "{notices:#?}");
    let directory = home.workdir().canonicalize().unwrap();
    let seen = results(&last);
    for (notice, result) in notices.iter().zip(&seen[1..]) {
        assert!(
            notice.contains(&format!("starts a new session in {}.", home.workdir().display())),
            "{notice}"
        );
        assert!(result.contains("Session started") && result.contains("x is unset"), "{result}");
        assert!(result.contains(&*directory.to_string_lossy()), "{result}");
    }
    home.assert_message_order();
}

#[test]
fn a_tool_that_kills_its_keeper_leaves_nothing_running() {
    let leave = "(env -i setsid sleep 71951 &) ; sleep 71951 & kill -9 $PPID; sleep 71951";
    let more = format!(
        "  - name: killer\n    description: Kills its keeper.\n    command: [sh, -c, '{leave}']\n\
         \x20 - name: killing_session\n    description: The same.\n    stateful: true\n\
         \x20   command: [sh, -c, '{leave}']\n    parameters:\n\
         \x20     - {{ name: text, type: string, description: Text., inject_as: stdin, required: false }}\n"
    );
    let call = |tool: &str| ScriptedAnswer::call(tool, json!({}));
    let killers = std::iter::repeat_with(|| [call("killer"), call("killing_session")]).take(5).flatten();
    let home = AgentTestHome::with(script(killers.chain([ScriptedAnswer::say("done")])), &more);
    home.run(&["--message", "go"]).expect(0);
    assert_eq!(processes_in(&home.workdir()), [0_u32; 0]);
    for seen in results(&home.model.requests().pop().unwrap()) {
        assert!(seen.contains("was killed") && !seen.contains(&*home.workdir().to_string_lossy()), "{seen}");
    }
}

#[test]
fn a_background_job_of_the_shell_that_became_the_agent_is_left_alone() {
    let more =
        "  - name: killer\n    description: Kills its keeper.\n    command: [sh, -c, 'kill -9 $PPID']\n";
    let killer = || ScriptedAnswer::call("killer", json!({}));
    let home = AgentTestHome::with(script([shell("true"), killer(), ScriptedAnswer::say("done")]), more);
    let agent = home.command(&["--message", "go"]);
    let mut command = environment::abide("sh");
    command.args(["-c", "sleep 71952 >/dev/null 2>&1 & echo $! > job.txt; exec \"$@\"", "sh"]);
    command.arg(agent.get_program()).args(agent.get_args()).current_dir(home.workdir());
    command.env("ABIDE_HOME", home.home());
    TestCommandOutput::of(command).expect(0);
    let job: u32 = std::fs::read_to_string(home.workdir().join("job.txt")).unwrap().trim().parse().unwrap();
    assert!(is_running(job), "a process that is not the agent's was ended");
    kill(job);
}

#[test]
fn a_person_who_presses_ctrl_c_ends_the_tool_and_keeps_the_session() {
    let home = AgentTestHome::new(script([
        shell("x=1"),
        ScriptedAnswer::call("linger", json!({})).then_call("note", json!({ "text": "after" })),
        shell("echo x is ${x:-unset}"),
        ScriptedAnswer::say("done"),
    ]));
    let mut child = home.start(&["--message", "go"]);
    let lingering = home.workdir().join("lingering.txt");
    wait::until("the tool lingers", || lingering.exists());
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(home.sessions().len(), 1);
    home.run(&["--message", "go"]).expect(0);
    let seen = results(&home.model.requests().pop().unwrap());
    assert!(seen[1].contains("interrupted"), "{seen:#?}");
    assert!(seen[2].contains("not carried out"), "{seen:#?}");
    assert!(seen[3].contains("x is 1"), "{seen:#?}");
    assert!(!home.workdir().join("notes.txt").exists());
    home.assert_message_order();
}

#[test]
fn ctrl_c_while_the_model_thinks_leaves_nothing_behind() {
    let gate = TestGate::new();
    let home = AgentTestHome::new(script([
        ScriptedAnswer::say("late").held_by(&gate),
        ScriptedAnswer::say("in time"),
    ]));
    let mut child = home.start(&["--message", "go"]);
    gate.wait_reached();
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    gate.open();
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "in time\n");
}

#[test]
fn two_processes_in_one_directory_are_refused() {
    let gate = TestGate::new();
    let home = AgentTestHome::new(script([ScriptedAnswer::say("done").held_by(&gate)]));
    let first = home.start(&["--message", "go"]);
    gate.wait_reached();
    let second = home.run(&["--message", "go"]);
    second.expect(1);
    let expected = format!("another process (pid {}) uses", first.id());
    assert!(second.stderr.contains(&expected), "{}", second.stderr);
    gate.open();
    let first = first.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&first.stdout), "done\n");
}

/// Returns the processes whose working directory is below a directory.
pub(crate) fn processes_in(directory: &std::path::Path) -> Vec<u32> {
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let there = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(directory))
            && is_running(*pid)
    };
    all.filter_map(|name| name.parse().ok()).filter(there).collect()
}
