//! Sessions over the end of the agent, and what is believed about who lives.

use std::fs;

use abide_agent::tool::{SessionEvent, Setup, Workbench};
use serde_json::json;

use crate::bench::{Bench, agent_of_its_own, parent, running, session, setup};

#[test]
fn the_next_process_goes_on_in_the_sessions_of_the_last() {
    let mut bench = Bench::new();
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
    let mut bench = Bench::new();
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
fn a_session_of_a_living_agent_is_not_taken_from_it() {
    let mut bench = Bench::new();
    let mut agent = agent_of_its_own(bench.folder.path());
    let arguments = json!({"text": "x=taken"}).as_object().cloned().unwrap();
    let refused = bench.workbench.run("act_9", &session("shell", &["bash"]), &arguments);
    assert!(refused.is_err_and(|error| error.to_string().contains("another runtime owns this session")));
    agent.kill().unwrap();
    agent.wait().unwrap();
    let ids: Vec<String> = bench.workbench.sessions().into_iter().map(|open| open.id).collect();
    bench.workbench.end_all(&ids);
}

#[test]
fn a_command_in_a_session_is_stopped_with_the_agent_and_the_session_stays() {
    let mut bench = Bench::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "x=7"}));
    let stop = bench.workbench.setup_mut().stop.clone();
    let begun = bench.folder.path().join("begun");
    let asked = stop.clone();
    let person = std::thread::spawn(move || {
        while !begun.exists() {
            std::thread::yield_now();
        }
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
    let mut bench = Bench::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "x=7"}));
    let id = bench.workbench.sessions()[0].id.clone();
    kill(bench.pid(&id));
    while bench.workbench.is_alive(&id) {
        std::thread::yield_now();
    }
    let seen = bench.call(&shell, json!({"text": "echo $x"}));
    assert!(seen.text.contains(&format!("session {id} is not running any more")), "{}", seen.text);
    assert_eq!((seen.session_event, seen.session_id), (Some(SessionEvent::Ended), Some(id.clone())));
    assert!(!bench.state().join("sessions").join(&id).exists());
    assert!(bench.call(&shell, json!({"text": "echo $x"})).text.starts_with("Session started"));
}

#[test]
fn a_session_whose_keeper_was_killed_is_dead_and_its_program_is_ended() {
    let mut bench = Bench::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "sleep 71921 &"}));
    let id = bench.workbench.sessions()[0].id.clone();
    let shell_pid = bench.pid(&id);
    kill(parent(shell_pid));
    while bench.workbench.is_alive(&id) {
        std::thread::yield_now();
    }
    assert_eq!(bench.workbench.end_all(std::slice::from_ref(&id)), [id]);
    assert!(running("sleep 71921").is_empty());
    assert!(fs::read_to_string(format!("/proc/{shell_pid}/stat")).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn a_recycled_pid_is_not_mistaken_for_the_session() {
    let mut bench = Bench::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "true"}));
    // Somebody who has nothing to do with it, and now has the pid that is written everywhere.
    bench.call(&session("bystander", &["bash"]), json!({"text": "true"}));
    let (mut id, mut innocent) = (String::new(), String::new());
    for open in bench.workbench.sessions() {
        if open.tool == "shell" { id = open.id } else { innocent = open.id }
    }
    let place = bench.state().join("sessions").join(&id);
    let innocent_pid = bench.pid(&innocent);
    // The living session is known by its keeper, whatever the file says.
    fs::write(place.join("pid.txt"), format!("{innocent_pid}\n")).unwrap();
    assert_eq!(bench.call(&shell, json!({"text": "echo me"})).text, "me\n[exit code 0]");
    // Dead, and its records name a process that lives, but started at another time.
    let identity = fs::read(place.join("identity")).unwrap();
    fs::write(place.join("pid.txt"), format!("{innocent_pid}\n")).unwrap();
    let real = bench.workbench.end_session(&id);
    assert_eq!(real.session_event, Some(SessionEvent::Ended));
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("secret"), [7; 32]).unwrap();
    fs::write(place.join("pid.txt"), format!("{innocent_pid}\n")).unwrap();
    fs::write(place.join("identity"), forged(&identity, innocent_pid)).unwrap();
    assert!(!bench.workbench.is_alive(&id));
    assert_eq!(bench.workbench.end_all(std::slice::from_ref(&id)), [id.clone()]);
    assert!(!place.exists());
    assert!(bench.workbench.is_alive(&innocent), "a bystander was ended");
}

/// The record of a dead session whose pids belong to somebody else by now, who started a second later.
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
    let mut bench = Bench::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "x=mine"}));
    let mut other = Workbench::open(Setup { run: "run_2".to_owned(), ..setup(bench.folder.path()) });
    assert_eq!(other.sessions(), []);
    let arguments = json!({"text": "echo ${x-nothing}"}).as_object().cloned().unwrap();
    let seen = other.run("act_20", &shell, &arguments).unwrap();
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
    let mut bench = Bench::new();
    let shell = session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "echo first"}));
    let id = bench.workbench.sessions()[0].id.clone();
    bench.call(&shell, json!({"text": "echo second"}));
    // The call that spoke to it.
    let found = bench.workbench.recover("act_2").unwrap();
    assert_eq!((found.output.as_str(), found.exit_code, found.ended_session), ("second", Some(0), None));
    assert!(bench.workbench.is_alive(&id));
    // The call that started it.
    let found = bench.workbench.recover("act_1").unwrap();
    assert_eq!((found.output.as_str(), found.ended_session.as_ref()), ("first", Some(&id)));
    assert!(!bench.workbench.is_alive(&id) && bench.workbench.sessions().is_empty());
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid is a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
}
