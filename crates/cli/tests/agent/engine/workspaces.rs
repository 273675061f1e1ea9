//! Workspaces with forged state: processes and files named in it are neither ended, deleted, read nor executed
//! (SECURITY 1 and 2).

use std::{fs, os::unix::fs::symlink, path::Path};

use abide_keeper::detached::DetachedCommand;
use abide_testkit::{model::ScriptedAnswer, wait};
use serde_json::json;

use super::{AgentEngineDaemon, ask};
use crate::{
    clones::forged_journal,
    harness::{script, sessions, shell},
};

#[test]
fn the_end_of_a_run_neither_deletes_nor_kills_what_a_workspace_names() {
    let (harness, _daemon) = AgentEngineDaemon::new(script([shell("x=1"), ask("Shall I?")]));
    let run = harness.create_native_run("interactive", "count");
    harness.wait_for_status(&run, "waiting_user");
    let state = harness.state_dir(&run);
    let record = harness.path().join("agents").join(state.file_name().unwrap());
    let ours = sessions(&state);
    assert!(record.join("sessions").join(&ours[0].0).join("socket").exists(), "its keeper is in the home");
    // In a folder of keepers, entries without an identity that are older than a minute would be deleted.
    let victim = harness.path().join("victim");
    let document = victim.join("Documents/letter.txt");
    fs::create_dir_all(victim.join("Documents")).unwrap();
    fs::write(&document, "precious").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    fs::File::open(victim.join("Documents")).unwrap().set_modified(long_ago).unwrap();
    fs::remove_dir_all(state.join("sessions")).unwrap();
    std::os::unix::fs::symlink(&victim, state.join("sessions")).unwrap();
    harness.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    harness.wait_for_status(&run, "canceled");
    harness.wait_for_exit(&ours);
    wait::until("the record goes with the run", || !record.exists());
    assert_eq!(fs::read_to_string(document).unwrap(), "precious");
}

/// `git clean -fdx` in the workspace of a waiting run: the daemon ends its sessions and the run, and so does an answer.
#[test]
fn state_that_is_deleted_while_a_run_waits_ends_the_run_and_leaves_no_process() {
    for (deleted, is_answered) in [("", false), ("journal.jsonl", false), ("", true)] {
        let (harness, _daemon) = AgentEngineDaemon::new(script([shell("x=1"), ask("Shall I?")]));
        let run = harness.create_native_run("interactive", "count");
        harness.wait_for_status(&run, "waiting_user");
        let state = harness.state_dir(&run);
        let ours = sessions(&state);
        assert_eq!(ours.len(), 1);
        match deleted {
            "" => fs::remove_dir_all(&state).unwrap(),
            name => fs::remove_file(state.join(name)).unwrap(),
        }
        if is_answered {
            harness.reply(&run, "yes");
        } else {
            // Any change makes the daemon check; without one it checks every 30 seconds.
            harness.post("/v1/runs", &json!({ "engine": "parrot", "prompt": "say done" }));
        }
        let failed = harness.wait_for_status(&run, "failed");
        assert_eq!(failed["error"]["code"], "SESSION_RESUME_FAILED", "{deleted:?}: {failed}");
        harness.wait_for_exit(&ours);
    }
}

/// A workspace that was moved or is not mounted may come back.
#[test]
fn a_workspace_that_is_gone_for_a_moment_costs_a_waiting_run_nothing() {
    let (harness, _daemon) =
        AgentEngineDaemon::new(script([shell("x=1"), ask("Shall I?"), ScriptedAnswer::say("done")]));
    let run = harness.create_native_run("interactive", "count");
    harness.wait_for_status(&run, "waiting_user");
    let workspace = harness.get_run(&run)["workspace"].as_str().unwrap().to_owned();
    let aside = format!("{workspace}.aside");
    fs::rename(&workspace, &aside).unwrap();
    let other = json!({ "engine": "parrot", "prompt": "say done", "execution_mode": "auto" });
    let other = harness.create_run(&other);
    harness.wait_for_status(&other, "succeeded");
    fs::rename(&aside, &workspace).unwrap();
    harness.reply(&run, "yes");
    harness.wait_for_status(&run, "succeeded");
}

/// SECURITY 1, a to c, for a run of an earlier version: the note in the home names a folder in the workspace.
#[test]
fn the_end_of_a_run_of_an_earlier_version_ends_its_keepers_and_nothing_that_files_name() {
    let (harness, daemon) = AgentEngineDaemon::new(script([ask("Shall I?")]));
    let run = harness.create_native_run("interactive", "count");
    harness.wait_for_status(&run, "waiting_user");
    let state = harness.state_dir(&run);
    daemon.kill();
    // Simulates an earlier version: the note names the folder in the workspace, and the keepers are there.
    fs::remove_dir_all(harness.path().join("agents")).unwrap();
    let former = state.join("sessions");
    fs::rename(harness.path().join("surviving-keepers"), harness.path().join("outliving")).unwrap();
    fs::write(harness.path().join("outliving").join(&run), former.to_str().unwrap()).unwrap();
    let ours = [("shell_former".to_owned(), start_sleep_keeper(&former.join("shell_former")))];
    let bystander = DetachedCommand {
        program: "sleep".as_ref(),
        arguments: &["71954".into()],
        env: &[],
        directory: Path::new("/"),
        input: None,
        output: None,
        errors: None,
    };
    let mut bystander = bystander.start().unwrap();
    // A folder that looks like that of a dead keeper whose child is the bystander, and one that is only old.
    let forged = former.join("shell_forged");
    fs::create_dir(&forged).unwrap();
    for file in ["secret", "claim"] {
        fs::copy(former.join(&ours[0].0).join(file), forged.join(file)).unwrap();
    }
    fs::write(forged.join("identity"), identity_of(bystander.id())).unwrap();
    let old = former.join("old");
    fs::create_dir(&old).unwrap();
    fs::File::open(&old).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let _daemon = harness.start();
    harness.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    harness.wait_for_status(&run, "canceled");
    harness.wait_for_exit(&ours);
    let note = harness.path().join("surviving-keepers").join(&run);
    wait::until("the note is settled", || !note.exists());
    assert!(!harness.path().join("outliving").exists(), "the folder of the earlier version was not moved");
    assert!(bystander.try_wait().unwrap().is_none(), "a bystander was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    assert!(old.exists() && forged.exists(), "a folder was deleted that a keeper did not leave");
}

/// Starts a keeper in this directory, and returns the pid of its child.
fn start_sleep_keeper(place: &Path) -> u32 {
    use abide_keeper::{
        keeper_dir::KeeperDir,
        launch::KeeperLauncher,
        protocol::{ChildMode, KeeperOwner, KeeperSpec, LinkPolicy, SpoolOverflow},
    };
    let launcher = KeeperLauncher {
        program: env!("CARGO_BIN_EXE_abide").into(),
        arguments: vec!["__keeper".to_owned()],
        groups: None,
    };
    let spec = KeeperSpec {
        argv: vec!["sleep".to_owned(), "71955".to_owned()],
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: "/".into(),
        shape: ChildMode::Pipes,
        retention: 1 << 20,
        meta: Vec::new(),
        owner: KeeperOwner::Home,
        overflow: SpoolOverflow::DropOldest,
        confinement: Vec::new(),
        group: None,
        cwd_links: LinkPolicy::Refuse,
    };
    let mut keeper = launcher.start(KeeperDir::at(place.to_owned()), spec, None).unwrap();
    let pid = keeper.status(20_000).unwrap().child.pid;
    let mut process = keeper.take_process().unwrap();
    std::thread::spawn(move || process.wait());
    pid
}

/// Returns the identity record of a dead keeper with this child, in the keeper's format.
fn identity_of(pid: u32) -> Vec<u8> {
    use abide_keeper::identity::ProcessIdentity;
    let child = ProcessIdentity::of(pid).unwrap();
    let keeper = ProcessIdentity { start_time: child.start_time + 1, ..child.clone() };
    postcard::to_stdvec(&(keeper, child)).unwrap()
}

/// Creates the state of a cloned repository: a journal with an open call, a question, a secret, and links to a file and
/// a folder outside.
fn write_forged_state(workspace: &Path, outside: &Path) {
    let state = workspace.join(".abide");
    fs::create_dir_all(state.join("secrets")).unwrap();
    fs::write(state.join("journal.jsonl"), forged_journal()).unwrap();
    fs::write(
        state.join("interaction.json"),
        r#"{"interaction_id":"act_5","kind":"open_text","prompt":"May I?"}"#,
    )
    .unwrap();
    fs::write(state.join("secrets/x"), "private key").unwrap();
    fs::create_dir_all(outside.join("folder")).unwrap();
    fs::write(outside.join("file"), "precious").unwrap();
    symlink(outside.join("file"), state.join("lock")).unwrap();
    symlink(outside.join("folder"), state.join("sessions")).unwrap();
    symlink(outside.join("folder"), state.join("executions")).unwrap();
}

fn assert_untouched(outside: &Path) {
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "precious");
    assert_eq!(fs::read_dir(outside.join("folder")).unwrap().count(), 0, "something was written outside");
    assert_eq!(fs::read_dir(outside).unwrap().count(), 2, "something was written outside");
}

#[test]
fn s2_a_run_in_a_clone_that_brings_state_along_carries_out_and_reads_nothing_of_it() {
    let (harness, _daemon) = AgentEngineDaemon::new(script([ScriptedAnswer::say("done")]));
    let outside = harness.path().join("outside");
    write_forged_state(&harness.workspace("one"), &outside);
    let run = harness.create_native_run("auto", "look: [secret x]");
    harness.wait_for_status(&run, "succeeded");
    let requests = harness.model.requests();
    assert_eq!(requests.len(), 1);
    let raw = requests[0].raw.to_string();
    assert!(!raw.contains("forged") && !raw.contains("private key"), "{raw}");
    assert!(!harness.workspace("one").join("notes.txt").exists());
    assert_untouched(&outside);
}

#[test]
fn s2_a_run_in_a_clone_whose_folder_of_states_is_a_link_is_refused() {
    for name in [".abide", ".abide/native"] {
        let (harness, _daemon) = AgentEngineDaemon::new(script([ScriptedAnswer::say("done")]));
        let outside = harness.path().join("outside");
        fs::create_dir_all(outside.join("folder")).unwrap();
        fs::write(outside.join("file"), "precious").unwrap();
        let link = harness.workspace("one").join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&outside, &link).unwrap();
        let run = harness.create_native_run("auto", "go");
        let run_view = harness.wait_for_run(&run, "its end", |run_view| run_view["status"] == "failed");
        assert!(run_view.to_string().contains(&format!("{name} is a link")), "{name}: {run_view:#}");
        assert!(harness.model.requests().is_empty());
        assert_untouched(&outside);
    }
}

#[test]
fn s2_a_skill_in_a_clone_is_neither_read_nor_copied_through_links() {
    let (harness, _daemon) = AgentEngineDaemon::new(script([]));
    let outside = harness.path().join("outside");
    let workspace = harness.workspace("two");
    write_forged_state(&workspace, &outside);
    let skill = workspace.join("skill");
    fs::create_dir_all(&skill).unwrap();
    fs::write(skill.join("SKILL.md"), "---\nname: skill\ndescription: d\n---\nwords\n").unwrap();
    symlink(outside.join("file"), skill.join("leak.txt")).unwrap();
    let attempt = |skill: &Path| {
        let body = json!({
            "engine": "parrot", "workspace": workspace, "execution_mode": "auto", "prompt": "append a\nsay done",
            "skill": skill,
        });
        let run = harness.create_run(&body);
        harness.wait_for_run(&run, "its end", |run_view| {
            run_view["status"] == "failed" || run_view["status"] == "succeeded"
        })
    };
    // A link in the skill that leads out of it.
    let run_view = attempt(&skill);
    assert!(run_view["status"] == "failed" && run_view.to_string().contains("leak.txt"), "{run_view:#}");
    // A link in place of the folder in which copies are made.
    fs::remove_file(skill.join("leak.txt")).unwrap();
    fs::remove_dir_all(workspace.join(".abide/skills")).unwrap();
    symlink(outside.join("folder"), workspace.join(".abide/skills")).unwrap();
    let run_view = attempt(&skill);
    assert!(run_view["status"] == "failed" && run_view.to_string().contains(".abide/skills"), "{run_view:#}");
    assert_untouched(&outside);
    // A link in place of the skill.
    fs::remove_file(workspace.join(".abide/skills")).unwrap();
    symlink(&skill, workspace.join("linked")).unwrap();
    let run_view = attempt(&workspace.join("linked"));
    assert!(run_view["status"] == "failed" && run_view.to_string().contains("linked"), "{run_view:#}");
    assert_untouched(&outside);
    // Without the links the skill is used.
    let run_view = attempt(&skill);
    assert_eq!(run_view["status"], "succeeded", "{run_view:#}");
    assert_untouched(&outside);
}
