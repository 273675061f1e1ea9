//! Sessions and calls that an earlier version left in the state folder, where agents can write. Keepers that the
//! kernel's data verifies are used and ended. Files alone cause no action (SECURITY 1).

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use abide_agent::tool::{FormerSessions, ToolSetup, ToolWorkbench};
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::KeeperLauncher;
use serde_json::{Value, json};

use crate::bench::{WorkbenchFixture, agent_of_its_own, is_there, session, setup};

/// A workbench of an earlier version, with all files in the state folder.
fn earlier(folder: &Path) -> ToolSetup {
    ToolSetup { record: folder.join(".abide"), ..setup(folder) }
}

/// A workbench of this version that uses sessions of an earlier one.
fn present(folder: &Path) -> ToolSetup {
    ToolSetup { former_sessions: FormerSessions::Served { started_before: None }, ..setup(folder) }
}

fn call(workbench: &mut ToolWorkbench, action: &str, text: &str) -> String {
    let arguments: Value = json!({ "text": text });
    let arguments = arguments.as_object().cloned().expect("arguments are an object");
    let seen = workbench.run(action, &session("shell", &["bash"]), &arguments.into());
    seen.expect("the machine does as it is told").text
}

fn ids(workbench: &ToolWorkbench) -> Vec<String> {
    workbench.sessions().into_iter().map(|open| open.id).collect()
}

/// A fixture with a shell of an earlier version, in which `x` is 7, and the id of its session.
fn upgraded() -> (WorkbenchFixture, String) {
    let mut bench = WorkbenchFixture::new();
    let folder = bench.folder.path().to_owned();
    let mut old = ToolWorkbench::open(earlier(&folder));
    call(&mut old, "act_1", "x=7; cd /usr");
    let id = ids(&old).remove(0);
    assert!(folder.join(".abide/sessions").join(&id).join("secret").exists());
    old.leave();
    bench.workbench = ToolWorkbench::open(present(&folder));
    (bench, id)
}

#[test]
fn a_session_of_an_earlier_version_is_served_and_ended_where_it_lies() {
    let (mut bench, id) = upgraded();
    assert_eq!(ids(&bench.workbench), [id.as_str()]);
    assert!(bench.workbench.is_alive(&id));
    assert_eq!(call(&mut bench.workbench, "act_2", "echo $x in $(pwd)"), "7 in /usr\n[exit code 0]");
    let pid = bench.pid(&id);
    assert!(bench.workbench.end_session(&id).text.contains("terminated"));
    assert_eq!(ids(&bench.workbench), [""; 0]);
    assert!(ProcessIdentity::of(pid).is_none(), "the shell was left");
    assert!(!bench.state().join("sessions").join(&id).exists(), "its keeper left its folder");
    // The next session is started in the home.
    assert!(call(&mut bench.workbench, "act_3", "echo $x").starts_with("Session started"));
    let next = ids(&bench.workbench).remove(0);
    assert!(bench.folder.path().join("record/sessions").join(&next).is_dir());
}

#[test]
fn an_interpreter_of_an_earlier_version_is_heard_on_from_where_it_was() {
    let mut bench = WorkbenchFixture::new();
    let folder = bench.folder.path().to_owned();
    let python = session("python", &["python3", "-i", "-q"]);
    let mut old = ToolWorkbench::open(earlier(&folder));
    let said = |text: &str| json!({ "text": text }).as_object().cloned().unwrap().into();
    old.run("act_1", &python, &said("y = 8; print('before')")).unwrap();
    old.leave();
    bench.workbench = ToolWorkbench::open(present(&folder));
    for (action, text, seen) in [("act_2", "y", "8"), ("act_3", "y + 1", "9")] {
        assert_eq!(bench.workbench.run(action, &python, &said(text)).unwrap().text, seen);
    }
}

#[test]
fn a_keeper_is_none_of_an_earlier_version_if_it_began_later_or_is_not_asked_for() {
    let (bench, id) = upgraded();
    let folder = bench.folder.path();
    let long_ago = ProcessIdentity { start_time: 1, ..ProcessIdentity::own() };
    let other_boot = ProcessIdentity { boot_id: "other".to_owned(), ..ProcessIdentity::own() };
    let served = |limit: ProcessIdentity| FormerSessions::Served { started_before: Some(limit) };
    for former_sessions in [FormerSessions::None, served(long_ago), served(other_boot)] {
        let mut other = ToolWorkbench::open(ToolSetup { former_sessions, ..setup(folder) });
        assert_eq!((ids(&other), other.is_alive(&id)), (vec![], false));
        assert_eq!(other.end_all(std::slice::from_ref(&id)), [""; 0]);
    }
    assert!(bench.workbench.is_alive(&id), "it was ended by a workbench that does not serve it");
}

#[test]
fn s1_a_keeper_that_a_sandboxed_agent_started_is_none_of_an_earlier_version() {
    if !is_there("setpriv") {
        return;
    }
    let bench = WorkbenchFixture::new();
    let folder = bench.folder.path();
    // The keeper's command line is correct. `no_new_privs`, which a process cannot clear, reveals the forgery.
    let KeeperLauncher { program, arguments, .. } = setup(folder).launcher;
    let sandboxed = ["--no-new-privs".to_owned(), program.to_str().unwrap().to_owned()];
    let arguments = sandboxed.into_iter().chain(arguments).collect();
    let launcher = KeeperLauncher { program: "/usr/bin/setpriv".into(), arguments, groups: None };
    let mut agent = ToolWorkbench::open(ToolSetup { launcher, ..earlier(folder) });
    call(&mut agent, "act_1", "x=7");
    let id = ids(&agent).remove(0);
    let mut present = ToolWorkbench::open(present(folder));
    assert_eq!((ids(&present), present.is_alive(&id)), (vec![], false));
    assert_eq!(present.end_all(std::slice::from_ref(&id)), [""; 0]);
    assert!(agent.is_alive(&id));
    agent.end_all(&[id]);
}

#[test]
fn s1_a_forged_folder_of_a_session_neither_reaches_another_keeper_nor_ends_a_process() {
    let mut bench = WorkbenchFixture::new();
    let folder = bench.folder.path().to_owned();
    call(&mut bench.workbench, "act_1", "true");
    let victim = ids(&bench.workbench).remove(0);
    let place = folder.join("record/sessions").join(&victim);
    let sessions = bench.state().join("sessions");
    // The secret is a copy of another keeper's, and the socket is a symbolic or hard link to its socket.
    for (name, link) in [("linked_1", true), ("linked_2", false)] {
        let forged = sessions.join(name);
        fs::create_dir_all(&forged).unwrap();
        for file in ["secret", "identity", "claim"] {
            fs::copy(place.join(file), forged.join(file)).unwrap();
        }
        if link {
            symlink(place.join("socket"), forged.join("socket")).unwrap();
        } else {
            fs::hard_link(place.join("socket"), forged.join("socket")).unwrap();
        }
    }
    symlink(&place, sessions.join("linked_3")).unwrap();
    // A process of the agent listens on the socket, and a file names a victim.
    let own = sessions.join("listening_1");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("secret"), [7; 32]).unwrap();
    fs::copy(place.join("identity"), own.join("identity")).unwrap();
    let _listener = UnixListener::bind(own.join("socket")).unwrap();
    let mut forged = ToolWorkbench::open(ToolSetup { record: folder.join("other"), ..present(&folder) });
    assert_eq!(ids(&forged), [""; 0]);
    for name in ["linked_1", "linked_2", "linked_3", "listening_1"] {
        assert!(!forged.is_alive(name), "{name}");
        assert_eq!(forged.end_all(&[name.to_owned()]), [""; 0], "{name}");
        assert!(fs::symlink_metadata(sessions.join(name)).is_ok(), "{name} was deleted");
    }
    assert!(bench.workbench.is_alive(&victim), "another keeper was ended");
}

#[test]
fn a_call_of_an_earlier_version_that_still_runs_is_ended_and_a_forged_one_ends_nothing() {
    let mut bench = WorkbenchFixture::new();
    let folder = bench.folder.path().to_owned();
    for name in ["earlier", "once"] {
        fs::write(folder.join(name), "").unwrap();
    }
    // An earlier version had one folder per call, with its record and its keeper.
    fs::create_dir(bench.state().join("executions")).unwrap();
    symlink("executions", bench.state().join("calls")).unwrap();
    let mut agent = agent_of_its_own(&folder);
    agent.kill().unwrap();
    agent.wait().unwrap();
    let held = bench.state().join("executions/act_9/held");
    assert!(held.join("identity").exists());
    // The same records in the folder of another call, without a keeper.
    let forged = bench.state().join("executions/act_2/held");
    fs::create_dir_all(&forged).unwrap();
    fs::copy(bench.state().join("executions/act_9/call.json"), forged.with_file_name("call.json")).unwrap();
    for file in ["secret", "identity", "claim"] {
        fs::copy(held.join(file), forged.join(file)).unwrap();
    }
    bench.workbench = ToolWorkbench::open(present(&folder));
    let pid = fs::read_to_string(folder.join("pid")).unwrap().trim().parse().unwrap();
    let found = bench.workbench.recover("act_2").unwrap();
    assert!(found.begun && !found.was_running, "{found:?}");
    assert!(ProcessIdentity::of(pid).is_some() && forged.exists(), "a forged record was acted on");
    let found = bench.workbench.recover("act_9").unwrap();
    assert!(found.was_running && found.output == "so far", "{found:?}");
    assert!(ProcessIdentity::of(pid).is_none(), "the program was left");
    assert!(!held.exists());
}
