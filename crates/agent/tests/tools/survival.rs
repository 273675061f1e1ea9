//! Sessions that outlive the agent, and checks of the identity of processes.

use std::fs;

use abide_agent::tool::{ProgramState, ToolSessionChange, ToolSetup, ToolWorkbench};
use abide_testkit::wait;
use serde_json::json;

use crate::fixture::{
    WorkbenchFixture, parent_pid, pids_running, setup, start_agent_process, stateful_tool, tool,
};

#[test]
fn the_next_process_continues_the_sessions_of_the_last() {
    let mut fixture = WorkbenchFixture::new();
    let (shell, python) =
        (stateful_tool("shell", &["bash"]), stateful_tool("python", &["python3", "-i", "-q"]));
    fixture.call(&shell, json!({"text": "x=7"}));
    fixture.call(&python, json!({"text": "y = 8"}));
    fixture.restart();
    assert_eq!(fixture.workbench.sessions().len(), 2);
    assert_eq!(fixture.call(&shell, json!({"text": "echo $x"})).text, "7\n[exit code 0]");
    assert_eq!(fixture.call(&python, json!({"text": "y"})).text, "8");
}

#[test]
fn the_sessions_of_a_killed_agent_are_adopted_and_what_it_ran_in_them_is_stopped() {
    let mut fixture = WorkbenchFixture::new();
    let mut agent = start_agent_process(fixture.folder.path());
    agent.kill().unwrap();
    agent.wait().unwrap();
    let ids: Vec<String> = fixture.workbench.sessions().into_iter().map(|open| open.id).collect();
    assert!(ids.len() == 2 && ids.iter().all(|id| fixture.workbench.is_alive(id)), "{ids:?}");
    let recovered_call = fixture.workbench.recover("act_3").unwrap();
    assert!(
        recovered_call.was_running
            && recovered_call.output == "so far"
            && recovered_call.ended_session.is_none(),
        "{recovered_call:?}"
    );
    let (shell, python) =
        (stateful_tool("shell", &["bash"]), stateful_tool("python", &["python3", "-i", "-q"]));
    assert_eq!(fixture.call(&shell, json!({"text": "echo $x"})).text, "7\n[exit code 0]");
    assert_eq!(fixture.call(&python, json!({"text": "y"})).text, "8");
    assert_eq!(fixture.workbench.end_existing_sessions(&ids).len(), 2);
    assert_eq!(fixture.workbench.sessions(), []);
}

#[test]
fn b8_a_busy_interpreter_of_a_killed_agent_is_reported_busy_and_continues() {
    let mut fixture = WorkbenchFixture::new();
    fs::write(fixture.folder.path().join("python"), "").unwrap();
    let mut agent = start_agent_process(fixture.folder.path());
    agent.kill().unwrap();
    agent.wait().unwrap();
    let recovered_call = fixture.workbench.recover("act_2").unwrap();
    assert_eq!(
        (recovered_call.program_state, recovered_call.was_running, recovered_call.exit_code),
        (Some(ProgramState::Busy), false, None)
    );
    assert!(
        recovered_call.output.starts_with("so far") && recovered_call.session.is_some(),
        "{recovered_call:?}"
    );
    fs::write(fixture.folder.path().join("go"), "").unwrap();
    let python = stateful_tool("python", &["python3", "-i", "-q"]);
    let done = fixture.folder.path().join("done");
    wait::until("the interpreter has finished", || done.exists());
    let arguments = json!({"text": "print('next')"}).as_object().cloned().unwrap();
    let result = fixture.workbench.run("act_3", &python, &arguments.into()).unwrap();
    let (before, answer) =
        result.text.split_once("[end of the earlier call's output]\n").expect(&result.text);
    assert!(before.contains("(.abide/executions/act_2) printed this") && before.contains("late"), "{before}");
    assert_eq!(answer, "next");
    // At the second look the program has finished.
    assert_eq!(
        fixture.workbench.recover("act_2").unwrap().program_state,
        Some(ProgramState::WaitingForInput)
    );
}

#[test]
fn a_session_of_a_living_agent_is_not_taken_from_it() {
    let mut fixture = WorkbenchFixture::new();
    let mut agent = start_agent_process(fixture.folder.path());
    let arguments = json!({"text": "x=taken"}).as_object().cloned().unwrap();
    let refused = fixture.workbench.run("act_9", &stateful_tool("shell", &["bash"]), &arguments.into());
    assert!(refused.is_err_and(|error| error.to_string().contains("another runtime owns this session")));
    agent.kill().unwrap();
    agent.wait().unwrap();
    let ids: Vec<String> = fixture.workbench.sessions().into_iter().map(|open| open.id).collect();
    fixture.workbench.end_existing_sessions(&ids);
}

#[test]
fn interrupting_the_agent_stops_the_command_and_keeps_the_session() {
    let mut fixture = WorkbenchFixture::new();
    let shell = stateful_tool("shell", &["bash"]);
    fixture.call(&shell, json!({"text": "x=7"}));
    let stop = fixture.workbench.setup_mut().stop_flag.clone();
    let begun = fixture.folder.path().join("begun");
    let stop_flag = stop.clone();
    let person = std::thread::spawn(move || {
        wait::until("the command has begun", || begun.exists());
        stop_flag.0.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let result = fixture.call(&shell, json!({"text": "touch begun; sleep 71922"}));
    person.join().unwrap();
    assert!(result.interrupted && pids_running("sleep 71922").is_empty(), "{}", result.text);
    stop.0.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(fixture.call(&shell, json!({"text": "echo $x"})).text, "7\n[exit code 0]");
}

#[test]
fn a_dead_session_is_reported_once_and_never_replaced_silently() {
    let mut fixture = WorkbenchFixture::new();
    let shell = stateful_tool("shell", &["bash"]);
    fixture.call(&shell, json!({"text": "x=7"}));
    let id = fixture.workbench.sessions()[0].id.clone();
    kill(fixture.pid(&id));
    wait::until("the session is dead", || !fixture.workbench.is_alive(&id));
    let result = fixture.call(&shell, json!({"text": "echo $x"}));
    assert!(result.text.contains(&format!("session {id} is not running any more")), "{}", result.text);
    assert_eq!((result.session_event, result.session_id), (Some(ToolSessionChange::Ended), Some(id.clone())));
    assert!(!fixture.state().join("sessions").join(&id).exists());
    assert!(fixture.call(&shell, json!({"text": "echo $x"})).text.starts_with("Session started"));
}

#[test]
fn a_session_whose_keeper_was_killed_is_dead_and_its_program_is_ended() {
    let mut fixture = WorkbenchFixture::new();
    let shell = stateful_tool("shell", &["bash"]);
    fixture.call(&shell, json!({"text": "sleep 71921 &"}));
    let id = fixture.workbench.sessions()[0].id.clone();
    let shell_pid = fixture.pid(&id);
    kill(parent_pid(shell_pid));
    wait::until("the session is dead", || !fixture.workbench.is_alive(&id));
    assert_eq!(fixture.workbench.end_existing_sessions(std::slice::from_ref(&id)), [id]);
    assert!(pids_running("sleep 71921").is_empty());
    assert!(fs::read_to_string(format!("/proc/{shell_pid}/stat")).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn a_tool_that_kills_its_keeper_leaves_no_process_and_no_path_is_shown() {
    let mut fixture = WorkbenchFixture::new();
    for (number, leave) in [
        "sleep 71931 & (setsid sleep 71931 &) ; kill -9 $PPID; sleep 71931",
        "(setsid sh -c 'sleep 71931; :' &) ; kill -9 $PPID",
        "kill -9 $PPID; setsid sleep 71931 & exit 0",
    ]
    .into_iter()
    .cycle()
    .take(12)
    .enumerate()
    {
        let stateful = number % 4 == 3;
        let result = if stateful {
            let shell = ["sh", "-c", &format!("{leave}; cat")];
            fixture.call(&stateful_tool("session", &shell), json!({"session_id": "new", "text": "x"}))
        } else {
            fixture.call(&tool("killer", &["sh", "-c", leave]), json!({}))
        };
        assert!(result.text.contains("was killed"), "{leave}: {}", result.text);
        assert!(!result.text.contains(&*fixture.folder.path().to_string_lossy()), "{}", result.text);
        assert_eq!(pids_running("sleep 71931"), [0_u32; 0], "{leave}");
    }
    assert_eq!(fixture.workbench.sessions(), []);
}

#[test]
fn stubborn_sessions_are_ended_together() {
    let mut fixture = WorkbenchFixture::new();
    let stubborn = stateful_tool(
        "stubborn",
        &["sh", "-c", "trap '' TERM HUP INT; while :; do read -r line || sleep 0.1; done"],
    );
    for _ in 0..6 {
        fixture.call(&stubborn, json!({"session_id": "new"}));
    }
    let ids: Vec<String> = fixture.workbench.sessions().into_iter().map(|open| open.id).collect();
    let pids: Vec<u32> = ids.iter().map(|id| fixture.pid(id)).collect();
    assert_eq!(ids.len(), 6);
    #[expect(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
    let began = std::time::Instant::now();
    fixture.workbench.end_existing_sessions(&ids);
    // Ending one session takes 5 s, because it ignores SIGTERM.
    assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
    assert!(pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
}

#[test]
fn a_recycled_pid_is_not_mistaken_for_the_session() {
    let mut fixture = WorkbenchFixture::new();
    let shell = stateful_tool("shell", &["bash"]);
    fixture.call(&shell, json!({"text": "true"}));
    // An unrelated process whose pid is written into all files of the session.
    fixture.call(&stateful_tool("bystander", &["bash"]), json!({"text": "true"}));
    let (mut id, mut innocent) = (String::new(), String::new());
    for open in fixture.workbench.sessions() {
        if open.tool == "shell" { id = open.id } else { innocent = open.id }
    }
    let place = fixture.folder.path().join("record/sessions").join(&id);
    let copies = fixture.state().join("sessions").join(&id);
    let innocent_pid = fixture.pid(&innocent);
    // The running session is identified by its keeper; the pid file is ignored.
    fs::write(copies.join("pid.txt"), format!("{innocent_pid}\n")).unwrap();
    assert_eq!(fixture.call(&shell, json!({"text": "echo me"})).text, "me\n[exit code 0]");
    // The session is dead, and its records name a process that runs but started at another time.
    let identity = fs::read(place.join("identity")).unwrap();
    fs::write(copies.join("pid.txt"), format!("{innocent_pid}\n")).unwrap();
    let real = fixture.workbench.end_session(&id);
    assert_eq!(real.session_event, Some(ToolSessionChange::Ended));
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("secret"), [7; 32]).unwrap();
    fs::write(place.join("identity"), forged(&identity, innocent_pid)).unwrap();
    assert!(!fixture.workbench.is_alive(&id));
    assert_eq!(fixture.workbench.end_existing_sessions(std::slice::from_ref(&id)), [id.clone()]);
    assert!(!place.exists());
    assert!(fixture.workbench.is_alive(&innocent), "a bystander was ended");
}

/// The record of a dead session, with the pid of an unrelated process that started one second later.
fn forged(identity: &[u8], pid: u32) -> Vec<u8> {
    use abide_keeper::identity::ProcessIdentity;
    let (mut keeper, mut child): (ProcessIdentity, ProcessIdentity) =
        postcard::from_bytes(identity).expect("a record is two identities");
    for identity in [&mut keeper, &mut child] {
        (identity.pid, identity.start_time) = (pid, identity.start_time - 100);
    }
    postcard::to_stdvec(&(keeper, child)).expect("two identities are a record")
}

#[test]
fn only_this_runs_sessions_are_seen_and_ended() {
    let mut fixture = WorkbenchFixture::new();
    let shell = stateful_tool("shell", &["bash"]);
    fixture.call(&shell, json!({"text": "x=mine"}));
    let mut other =
        ToolWorkbench::open(ToolSetup { run_id: "run_2".to_owned(), ..setup(fixture.folder.path()) });
    assert_eq!(other.sessions(), []);
    let arguments = json!({"text": "echo ${x-nothing}"}).as_object().cloned().unwrap();
    let result = other.run("act_20", &shell, &arguments.into()).unwrap();
    assert!(
        result.text.starts_with("Session started") && result.text.contains("\nnothing\n"),
        "{}",
        result.text
    );
    let ours: Vec<String> = fixture.workbench.sessions().into_iter().map(|open| open.id).collect();
    assert!(other.end_session(&ours[0]).text.contains("there is no session"));
    fixture.workbench.end_existing_sessions(&ours);
    let theirs: Vec<String> = other.sessions().into_iter().map(|open| open.id).collect();
    assert!(theirs.len() == 1 && other.is_alive(&theirs[0]));
    other.end_existing_sessions(&theirs);
}

#[test]
fn a_session_started_by_a_lost_call_is_ended_and_an_earlier_one_stays() {
    let mut fixture = WorkbenchFixture::new();
    let shell = stateful_tool("shell", &["bash"]);
    fixture.call(&shell, json!({"text": "echo first"}));
    let id = fixture.workbench.sessions()[0].id.clone();
    fixture.call(&shell, json!({"text": "echo second"}));
    // The call that sent input to the session.
    let recovered_call = fixture.workbench.recover("act_2").unwrap();
    assert_eq!(
        (recovered_call.output.as_str(), recovered_call.exit_code, recovered_call.ended_session),
        ("second", Some(0), None)
    );
    assert!(fixture.workbench.is_alive(&id));
    // The call that started the session.
    let recovered_call = fixture.workbench.recover("act_1").unwrap();
    assert_eq!((recovered_call.output.as_str(), recovered_call.ended_session.as_ref()), ("first", Some(&id)));
    assert!(!fixture.workbench.is_alive(&id) && fixture.workbench.sessions().is_empty());
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid is a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
}
