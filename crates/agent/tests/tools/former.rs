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

use crate::fixture::{WorkbenchFixture, is_installed, setup, start_agent_process, stateful_tool};

/// A workbench of an earlier version, with all files in the state folder.
fn earlier_setup(folder: &Path) -> ToolSetup {
    ToolSetup { record_dir: folder.join(".abide"), ..setup(folder) }
}

/// A workbench of this version that uses sessions of an earlier one.
fn current_setup(folder: &Path) -> ToolSetup {
    ToolSetup { former_sessions: FormerSessions::Accepted { started_before: None }, ..setup(folder) }
}

fn call(workbench: &mut ToolWorkbench, action: &str, text: &str) -> String {
    let arguments: Value = json!({ "text": text });
    let arguments = arguments.as_object().cloned().expect("arguments are an object");
    let result = workbench.run(action, &stateful_tool("shell", &["bash"]), &arguments.into());
    result.expect("the machine does as it is told").text
}

fn ids(workbench: &ToolWorkbench) -> Vec<String> {
    workbench.sessions().into_iter().map(|open| open.id).collect()
}

/// A fixture with a shell of an earlier version, in which `x` is 7, and the id of its session.
fn upgraded_fixture() -> (WorkbenchFixture, String) {
    let mut fixture = WorkbenchFixture::new();
    let folder = fixture.folder.path().to_owned();
    let mut old = ToolWorkbench::open(earlier_setup(&folder));
    call(&mut old, "act_1", "x=7; cd /usr");
    let id = ids(&old).remove(0);
    assert!(folder.join(".abide/sessions").join(&id).join("secret").exists());
    old.close();
    fixture.workbench = ToolWorkbench::open(current_setup(&folder));
    (fixture, id)
}

#[test]
fn a_session_of_an_earlier_version_is_used_and_ended_in_place() {
    let (mut fixture, id) = upgraded_fixture();
    assert_eq!(ids(&fixture.workbench), [id.as_str()]);
    assert!(fixture.workbench.is_alive(&id));
    assert_eq!(call(&mut fixture.workbench, "act_2", "echo $x in $(pwd)"), "7 in /usr\n[exit code 0]");
    let pid = fixture.pid(&id);
    assert!(fixture.workbench.end_session(&id).text.contains("terminated"));
    assert_eq!(ids(&fixture.workbench), [""; 0]);
    assert!(ProcessIdentity::of(pid).is_none(), "the shell was left");
    assert!(!fixture.state().join("sessions").join(&id).exists(), "its keeper left its folder");
    // The next session is started in the home.
    assert!(call(&mut fixture.workbench, "act_3", "echo $x").starts_with("Session started"));
    let next = ids(&fixture.workbench).remove(0);
    assert!(fixture.folder.path().join("record/sessions").join(&next).is_dir());
}

#[test]
fn output_of_an_earlier_versions_interpreter_is_continued() {
    let mut fixture = WorkbenchFixture::new();
    let folder = fixture.folder.path().to_owned();
    let python = stateful_tool("python", &["python3", "-i", "-q"]);
    let mut old = ToolWorkbench::open(earlier_setup(&folder));
    let arguments = |text: &str| json!({ "text": text }).as_object().cloned().unwrap().into();
    old.run("act_1", &python, &arguments("y = 8; print('before')")).unwrap();
    let session = folder.join(".abide/sessions").join(ids(&old).remove(0));
    old.close();
    // The name of the file in earlier versions.
    fs::rename(session.join("progress.json"), session.join("heard.json")).unwrap();
    fixture.workbench = ToolWorkbench::open(current_setup(&folder));
    for (action, text, seen) in [("act_2", "y", "8"), ("act_3", "y + 1", "9")] {
        assert_eq!(fixture.workbench.run(action, &python, &arguments(text)).unwrap().text, seen);
    }
}

#[test]
fn a_later_or_unrequested_keeper_is_not_of_an_earlier_version() {
    let (fixture, id) = upgraded_fixture();
    let folder = fixture.folder.path();
    let long_ago = ProcessIdentity { start_time: 1, ..ProcessIdentity::own() };
    let other_boot = ProcessIdentity { boot_id: "other".to_owned(), ..ProcessIdentity::own() };
    let served = |limit: ProcessIdentity| FormerSessions::Accepted { started_before: Some(limit) };
    for former_sessions in [FormerSessions::None, served(long_ago), served(other_boot)] {
        let mut other = ToolWorkbench::open(ToolSetup { former_sessions, ..setup(folder) });
        assert_eq!((ids(&other), other.is_alive(&id)), (vec![], false));
        assert_eq!(other.end_existing_sessions(std::slice::from_ref(&id)), [""; 0]);
    }
    assert!(fixture.workbench.is_alive(&id), "it was ended by a workbench that does not serve it");
}

#[test]
fn s1_a_keeper_of_a_sandboxed_agent_is_not_of_an_earlier_version() {
    if !is_installed("setpriv") {
        return;
    }
    let fixture = WorkbenchFixture::new();
    let folder = fixture.folder.path();
    // The keeper's command line is correct. `no_new_privs`, which a process cannot clear, reveals the forgery.
    let KeeperLauncher { program, arguments, .. } = setup(folder).launcher;
    let sandboxed = ["--no-new-privs".to_owned(), program.to_str().unwrap().to_owned()];
    let arguments = sandboxed.into_iter().chain(arguments).collect();
    let launcher = KeeperLauncher { program: "/usr/bin/setpriv".into(), arguments, groups: None };
    let mut agent = ToolWorkbench::open(ToolSetup { launcher, ..earlier_setup(folder) });
    call(&mut agent, "act_1", "x=7");
    let id = ids(&agent).remove(0);
    let mut present = ToolWorkbench::open(current_setup(folder));
    assert_eq!((ids(&present), present.is_alive(&id)), (vec![], false));
    assert_eq!(present.end_existing_sessions(std::slice::from_ref(&id)), [""; 0]);
    assert!(agent.is_alive(&id));
    agent.end_existing_sessions(&[id]);
}

#[test]
fn s1_a_forged_folder_of_a_session_neither_reaches_another_keeper_nor_ends_a_process() {
    let mut fixture = WorkbenchFixture::new();
    let folder = fixture.folder.path().to_owned();
    call(&mut fixture.workbench, "act_1", "true");
    let victim = ids(&fixture.workbench).remove(0);
    let place = folder.join("record/sessions").join(&victim);
    let sessions = fixture.state().join("sessions");
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
    let mut forged =
        ToolWorkbench::open(ToolSetup { record_dir: folder.join("other"), ..current_setup(&folder) });
    assert_eq!(ids(&forged), [""; 0]);
    for name in ["linked_1", "linked_2", "linked_3", "listening_1"] {
        assert!(!forged.is_alive(name), "{name}");
        assert_eq!(forged.end_existing_sessions(&[name.to_owned()]), [""; 0], "{name}");
        assert!(fs::symlink_metadata(sessions.join(name)).is_ok(), "{name} was deleted");
    }
    assert!(fixture.workbench.is_alive(&victim), "another keeper was ended");
}

#[test]
fn a_call_of_an_earlier_version_that_still_runs_is_ended_and_a_forged_one_ends_nothing() {
    let mut fixture = WorkbenchFixture::new();
    let folder = fixture.folder.path().to_owned();
    for name in ["earlier", "once"] {
        fs::write(folder.join(name), "").unwrap();
    }
    // An earlier version had one folder per call, with its record and its keeper.
    fs::create_dir(fixture.state().join("executions")).unwrap();
    symlink("executions", fixture.state().join("calls")).unwrap();
    let mut agent = start_agent_process(&folder);
    agent.kill().unwrap();
    agent.wait().unwrap();
    let held = fixture.state().join("executions/act_9/held");
    assert!(held.join("identity").exists());
    // The same records in the folder of another call, without a keeper.
    let forged = fixture.state().join("executions/act_2/held");
    fs::create_dir_all(&forged).unwrap();
    fs::copy(fixture.state().join("executions/act_9/call.json"), forged.with_file_name("call.json")).unwrap();
    for file in ["secret", "identity", "claim"] {
        fs::copy(held.join(file), forged.join(file)).unwrap();
    }
    fixture.workbench = ToolWorkbench::open(current_setup(&folder));
    let pid = fs::read_to_string(folder.join("pid")).unwrap().trim().parse().unwrap();
    let recovered_call = fixture.workbench.recover("act_2").unwrap();
    assert!(recovered_call.was_started && !recovered_call.was_running, "{recovered_call:?}");
    assert!(ProcessIdentity::of(pid).is_some() && forged.exists(), "a forged record was acted on");
    let recovered_call = fixture.workbench.recover("act_9").unwrap();
    assert!(recovered_call.was_running && recovered_call.output == "so far", "{recovered_call:?}");
    assert!(ProcessIdentity::of(pid).is_none(), "the program was left");
    assert!(!held.exists());
}
