//! Sessions that outlive the agent, and checks of the identity of processes.

use std::fs;

use abide_agent::tool::{ProgramState, ToolSessionChange, ToolSetup, ToolWorkbench};
use abide_testkit::wait;
use serde_json::json;

use crate::bench::{WorkbenchFixture, agent_of_its_own, parent, running, session, setup, tool};

#[test]
fn the_next_process_goes_on_in_the_sessions_of_the_last() {
    let mut bench = WorkbenchFixture::new();
    let (shell, python) = (session("shell", &["bash"]), session("python", &["python3", "-i", "-q"]));
    bench.call(&shell, json!({"text": "x=7"}));
    bench.call(&python, json!({"text": "y = 8"}));
    bench.next_process();
    assert_eq!(bench.workbench.sessions().len(), 2);
    assert_eq!(bench.call(&shell, json!({"text": "echo $x"})).text, "7\n[exit code 0]");
    assert_eq!(bench.call(&python, json!({"text": "y"})).text, "8");
}

#[test]
fn the_sessions_of_a_killed_agent_are_adopted_and_what_it_ran_in_them_is_stopped() {
    let mut bench = WorkbenchFixture::new();
    let mut agent = agent_of_its_own(bench.folder.path());
    agent.kill().unwrap();
    agent.wait().unwrap();
    let ids: Vec<String> = bench.workbench.sessions().into_iter().map(|open| open.id).collect();
    assert!(ids.len() == 2 && ids.iter().all(|id| bench.workbench.is_alive(id)), "{ids:?}");
    let found = bench.workbench.recover("act_3").unwrap();
    assert!(found.was_running && found.output == "so far" && found.ended_session.is_none(), "{found:?}");
    let (shell, python) = (session("shell", &["bash"]), session("python", &["python3", "-i", "-q"]));
    assert_eq!(bench.call(&shell, json!({"text": "echo $x"})).text, "7\n[exit code 0]");
    assert_eq!(bench.call(&python, json!({"text": "y"})).text, "8");
    assert_eq!(bench.workbench.end_all(&ids).len(), 2);
    assert_eq!(bench.workbench.sessions(), []);
}

#[test]
fn b8_an_interpreter_at_work_when_the_agent_is_killed_is_said_to_be_at_work_and_goes_on() {
    let mut bench = WorkbenchFixture::new();
    fs::write(bench.folder.path().join("python"), "").unwrap();
    let mut agent = agent_of_its_own(bench.folder.path());
    agent.kill().unwrap();
    agent.wait().unwrap();
    let found = bench.workbench.recover("act_2").unwrap();
    assert_eq!(
        (found.progress, found.was_running, found.exit_code),
        (Some(ProgramState::AtWork), false, None)
    );
    assert!(found.output.starts_with("so far") && found.session.is_some(), "{found:?}");
    fs::write(bench.folder.path().join("go"), "").unwrap();
    let python = session("python", &["python3", "-i", "-q"]);
    let done = bench.folder.path().join("done");
    wait::until("the interpreter has finished", || done.exists());
    let arguments = json!({"text": "print('next')"}).as_object().cloned().unwrap();
    let seen = bench.workbench.run("act_3", &python, &arguments.into()).unwrap();
    let (before, answer) = seen.text.split_once("[end of the earlier call's output]\n").expect(&seen.text);
    assert!(before.contains("(.abide/executions/act_2) printed this") && before.contains("late"), "{before}");
    assert_eq!(answer, "next");
    // At the second look the program has finished.
    assert_eq!(bench.workbench.recover("act_2").unwrap().progress, Some(ProgramState::Finished));
}

#[test]
fn a_session_of_a_living_agent_is_not_taken_from_it() {
    let mut bench = WorkbenchFixture::new();
    let mut agent = agent_of_its_own(bench.folder.path());
    let arguments = json!({"text": "x=taken"}).as_object().cloned().unwrap();
    let refused = bench.workbench.run("act_9", &session("shell", &["bash"]), &arguments.into());
    assert!(refused.is_err_and(|error| error.to_string().contains("another runtime owns this session")));
    agent.kill().unwrap();
    agent.wait().unwrap();
    let ids: Vec<String> = bench.workbench.sessions().into_iter().map(|open| open.id).collect();
    bench.workbench.end_all(&ids);
}

#[test]
fn a_command_in_a_session_is_stopped_with_the_agent_and_the_session_stays() {
    let mut bench = WorkbenchFixture::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "x=7"}));
    let stop = bench.workbench.setup_mut().stop.clone();
    let begun = bench.folder.path().join("begun");
    let asked = stop.clone();
    let person = std::thread::spawn(move || {
        wait::until("the command has begun", || begun.exists());
        asked.0.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let seen = bench.call(&shell, json!({"text": "touch begun; sleep 71922"}));
    person.join().unwrap();
    assert!(seen.interrupted && running("sleep 71922").is_empty(), "{}", seen.text);
    stop.0.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(bench.call(&shell, json!({"text": "echo $x"})).text, "7\n[exit code 0]");
}

#[test]
fn a_session_that_died_meanwhile_is_told_once_and_never_replaced_in_silence() {
    let mut bench = WorkbenchFixture::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "x=7"}));
    let id = bench.workbench.sessions()[0].id.clone();
    kill(bench.pid(&id));
    wait::until("the session is dead", || !bench.workbench.is_alive(&id));
    let seen = bench.call(&shell, json!({"text": "echo $x"}));
    assert!(seen.text.contains(&format!("session {id} is not running any more")), "{}", seen.text);
    assert_eq!((seen.session_event, seen.session_id), (Some(ToolSessionChange::Ended), Some(id.clone())));
    assert!(!bench.state().join("sessions").join(&id).exists());
    assert!(bench.call(&shell, json!({"text": "echo $x"})).text.starts_with("Session started"));
}

#[test]
fn a_session_whose_keeper_was_killed_is_dead_and_its_program_is_ended() {
    let mut bench = WorkbenchFixture::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "sleep 71921 &"}));
    let id = bench.workbench.sessions()[0].id.clone();
    let shell_pid = bench.pid(&id);
    kill(parent(shell_pid));
    wait::until("the session is dead", || !bench.workbench.is_alive(&id));
    assert_eq!(bench.workbench.end_all(std::slice::from_ref(&id)), [id]);
    assert!(running("sleep 71921").is_empty());
    assert!(fs::read_to_string(format!("/proc/{shell_pid}/stat")).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn a_tool_that_kills_its_keeper_leaves_nothing_running_and_no_path_is_told() {
    let mut bench = WorkbenchFixture::new();
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
        let seen = if stateful {
            let shell = ["sh", "-c", &format!("{leave}; cat")];
            bench.call(&session("session", &shell), json!({"session_id": "new", "text": "x"}))
        } else {
            bench.call(&tool("killer", &["sh", "-c", leave]), json!({}))
        };
        assert!(seen.text.contains("was killed"), "{leave}: {}", seen.text);
        assert!(!seen.text.contains(&*bench.folder.path().to_string_lossy()), "{}", seen.text);
        assert_eq!(running("sleep 71931"), [0_u32; 0], "{leave}");
    }
    assert_eq!(bench.workbench.sessions(), []);
}

#[test]
fn stubborn_sessions_are_ended_together() {
    let mut bench = WorkbenchFixture::new();
    let stubborn = session(
        "stubborn",
        &["sh", "-c", "trap '' TERM HUP INT; while :; do read -r line || sleep 0.1; done"],
    );
    for _ in 0..6 {
        bench.call(&stubborn, json!({"session_id": "new"}));
    }
    let ids: Vec<String> = bench.workbench.sessions().into_iter().map(|open| open.id).collect();
    let pids: Vec<u32> = ids.iter().map(|id| bench.pid(id)).collect();
    assert_eq!(ids.len(), 6);
    #[expect(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
    let began = std::time::Instant::now();
    bench.workbench.end_all(&ids);
    // Ending one session takes 5 s, because it ignores SIGTERM.
    assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
    assert!(pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
}

#[test]
fn a_recycled_pid_is_not_mistaken_for_the_session() {
    let mut bench = WorkbenchFixture::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "true"}));
    // An unrelated process whose pid is written into all files of the session.
    bench.call(&session("bystander", &["bash"]), json!({"text": "true"}));
    let (mut id, mut innocent) = (String::new(), String::new());
    for open in bench.workbench.sessions() {
        if open.tool == "shell" { id = open.id } else { innocent = open.id }
    }
    let place = bench.folder.path().join("record/sessions").join(&id);
    let copies = bench.state().join("sessions").join(&id);
    let innocent_pid = bench.pid(&innocent);
    // The running session is identified by its keeper; the pid file is ignored.
    fs::write(copies.join("pid.txt"), format!("{innocent_pid}\n")).unwrap();
    assert_eq!(bench.call(&shell, json!({"text": "echo me"})).text, "me\n[exit code 0]");
    // The session is dead, and its records name a process that runs but started at another time.
    let identity = fs::read(place.join("identity")).unwrap();
    fs::write(copies.join("pid.txt"), format!("{innocent_pid}\n")).unwrap();
    let real = bench.workbench.end_session(&id);
    assert_eq!(real.session_event, Some(ToolSessionChange::Ended));
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("secret"), [7; 32]).unwrap();
    fs::write(place.join("identity"), forged(&identity, innocent_pid)).unwrap();
    assert!(!bench.workbench.is_alive(&id));
    assert_eq!(bench.workbench.end_all(std::slice::from_ref(&id)), [id.clone()]);
    assert!(!place.exists());
    assert!(bench.workbench.is_alive(&innocent), "a bystander was ended");
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
    let mut bench = WorkbenchFixture::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "x=mine"}));
    let mut other = ToolWorkbench::open(ToolSetup { run: "run_2".to_owned(), ..setup(bench.folder.path()) });
    assert_eq!(other.sessions(), []);
    let arguments = json!({"text": "echo ${x-nothing}"}).as_object().cloned().unwrap();
    let seen = other.run("act_20", &shell, &arguments.into()).unwrap();
    assert!(seen.text.starts_with("Session started") && seen.text.contains("\nnothing\n"), "{}", seen.text);
    let ours: Vec<String> = bench.workbench.sessions().into_iter().map(|open| open.id).collect();
    assert!(other.end_session(&ours[0]).text.contains("there is no session"));
    bench.workbench.end_all(&ours);
    let theirs: Vec<String> = other.sessions().into_iter().map(|open| open.id).collect();
    assert!(theirs.len() == 1 && other.is_alive(&theirs[0]));
    other.end_all(&theirs);
}

#[test]
fn a_session_that_a_lost_call_had_started_is_ended_and_one_that_it_spoke_to_stays() {
    let mut bench = WorkbenchFixture::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "echo first"}));
    let id = bench.workbench.sessions()[0].id.clone();
    bench.call(&shell, json!({"text": "echo second"}));
    // The call that sent input to the session.
    let found = bench.workbench.recover("act_2").unwrap();
    assert_eq!((found.output.as_str(), found.exit_code, found.ended_session), ("second", Some(0), None));
    assert!(bench.workbench.is_alive(&id));
    // The call that started the session.
    let found = bench.workbench.recover("act_1").unwrap();
    assert_eq!((found.output.as_str(), found.ended_session.as_ref()), ("first", Some(&id)));
    assert!(!bench.workbench.is_alive(&id) && bench.workbench.sessions().is_empty());
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid is a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
}
