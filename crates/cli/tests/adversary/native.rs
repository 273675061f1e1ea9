//! Links, FIFOs and devices in the state folder of the native agent, and forged keeper directories (SECURITY 1, 2).

use std::fs;

use abide_testkit::wait;
use serde_json::json;

use crate::harness::AdversaryDaemon;

const NAMES: [&str; 6] = ["journal.jsonl", "interaction.json", "sessions", "executions", "lock", "id"];

/// The kinds of obstacles in a state folder, and the commands that create them.
const OBSTACLES: [(&str, &str); 3] =
    [("link", "ln -s CANARY/NAME NAME"), ("zero", "ln -s /dev/zero NAME"), ("fifo", "mkfifo NAME")];

fn replace_script(name: &str, command: &str) -> String {
    format!("(cd .abide/native/*/ && rm -rf {name} && {})", command.replace("NAME", name))
}

#[test]
fn security_2_state_that_another_agent_replaces_by_links_fifos_and_devices_is_not_followed() {
    let mut fixture = AdversaryDaemon::new();
    let mut runs = Vec::new();
    for (number, name) in NAMES.iter().enumerate() {
        for (kind, command) in OBSTACLES {
            let workspace = format!("{kind}{number}");
            let run = fixture.create(&workspace, json!({ "engine": "native", "prompt": "<do>true</do>" }));
            fixture.set_program(&workspace, &format!("{} && touch replaced", replace_script(name, command)));
            runs.push((run, workspace, *name));
        }
    }
    for (run, workspace, _) in &runs {
        fixture.wait_for_status(run, &["idle"]);
        let other = fixture.create(workspace, json!({ "execution_mode": "auto" }));
        fixture.wait_for_status(&other, &["succeeded"]);
        let is_replaced = fixture.workspace(workspace).join("replaced").exists();
        assert!(is_replaced, "{workspace}: {}", fixture.stderr_of(workspace));
        fixture.send_message(run, "<all><do>echo again >> again</do>");
    }
    fixture.assert_bystander_works();
    for (run, workspace, name) in &runs {
        let run_view = fixture.wait_for_turn_end(run);
        // Without its journal the agent does nothing. The daemon stores the state's location, so the other files are
        // copies.
        if *name == "journal.jsonl" {
            assert_eq!(run_view["status"], "failed", "{workspace} {name}: {run_view:#}");
            assert!(!fixture.workspace(workspace).join("again").exists(), "{workspace} {name}");
        }
    }
    fixture.assert_unharmed();
}

#[test]
fn security_2_state_that_a_tool_of_the_agent_itself_replaces_during_the_turn_is_not_followed() {
    let mut fixture = AdversaryDaemon::new();
    let mut runs = Vec::new();
    for (number, name) in NAMES.iter().enumerate() {
        for (kind, command) in OBSTACLES {
            let workspace = format!("{kind}{number}");
            let order =
                replace_script(name, command).replace("CANARY", &fixture.canary.path().display().to_string());
            let prompt = format!("<do>{order} && touch replaced</do>");
            let run = fixture.create(&workspace, json!({ "engine": "native", "prompt": prompt }));
            runs.push((run, workspace, *name));
        }
    }
    fixture.assert_bystander_works();
    for (run, workspace, name) in &runs {
        let run_view = fixture.wait_for_turn_end(run);
        assert!(fixture.workspace(workspace).join("replaced").exists(), "{workspace} {name}: {run_view:#}");
        let turns = fixture.get(&format!("/v1/runs/{run}/turns")).body;
        let turn = &turns["items"][0];
        // The record of the call that replaced the file cannot be written either.
        if ["journal.jsonl", "executions"].contains(name) {
            let message = turn["error"]["message"].as_str().unwrap_or_default();
            assert!(
                message.contains(name) && message.contains("was deleted or replaced"),
                "{workspace}: {turn:#}"
            );
        } else {
            assert_eq!(turn["execution_status"], "completed", "{workspace} {name}: {turn:#}");
        }
        if run_view["status"] == "idle" {
            fixture.send_message(run, "<all><do>true</do>");
        }
    }
    for (run, ..) in &runs {
        fixture.wait_for_turn_end(run);
    }
    fixture.assert_unharmed();
}

/// The files of a keeper directory, in forms that block or never end when they are read.
const FORGED_DIRS_SCRIPT: &str = r#"
forge() {
  mkdir -p "$1/fifo" "$1/zero" "$1/link"
  for file in identity claim secret socket lock exit.json spool.0 meta; do
    mkfifo "$1/fifo/$file"; ln -s /dev/zero "$1/zero/$file"; ln -s CANARY/sessions/x/identity "$1/link/$file"
  done
  ln -s CANARY "$1/outside"; ln -s CANARY/sessions/x "$1/x"
}
for state in .abide/native/*/; do forge "$state/sessions"; forge "$state/executions"; done
forge .abide/keepers/runs; forge .abide/sessions; forge keepers
touch forged
"#;

#[test]
fn security_1_forged_folders_of_keepers_are_neither_read_nor_swept_when_a_native_run_ends() {
    let mut fixture = AdversaryDaemon::new();
    fixture.set_program("w", FORGED_DIRS_SCRIPT);
    let run = fixture.create("w", json!({ "engine": "native", "prompt": "<all><do>true</do>" }));
    let waiting = fixture.wait_for_status(&run, &["waiting_user"]);
    let session = waiting["engine_session"].as_str().expect("it has one").to_owned();
    let record = fixture.home.path().join("agents").join(session);
    assert!(record.exists());
    let other = fixture.create("w", json!({ "execution_mode": "auto" }));
    fixture.wait_for_status(&other, &["succeeded"]);
    assert!(fixture.workspace("w").join("forged").exists(), "{}", fixture.stderr_of("w"));
    fixture.cancel(&run);
    wait::until("the record of the run's state is gone", || !record.exists());
    assert!(
        fixture.workspace("w").join("keepers/fifo/identity").exists(),
        "a folder of the workspace was deleted"
    );
    fixture.assert_unharmed();
}

/// Searches the home and the keeper of the session for keeper files, and damages each one that it finds.
const SEARCH: &str = r#"
for root in HOME "/proc/$PPID/root/HOME" "/proc/$PPID/cwd" .; do
  find "$root" \( -name secret -o -name identity -o -name claim -o -name socket -o -name 'spool*' \) 2>/dev/null
done | tee -a found | while read -r file; do rm -rf "$(dirname "$file")"; ln -s CANARY "$(dirname "$file")"; done
ls -A HOME/agents HOME/keepers HOME/sessions >> listed 2>/dev/null
echo searched >> searches
"#;

#[test]
fn tools_of_a_native_run_find_no_keeper_directory_also_not_their_own() {
    for sandbox in [None, Some("workspace-write")] {
        let mut fixture = AdversaryDaemon::new();
        let search = SEARCH
            .replace("HOME", &fixture.home.path().display().to_string())
            .replace("CANARY", &fixture.canary.path().display().to_string());
        let prompt = format!("<all><do>{search}</do>");
        let run = json!({ "engine": "native", "prompt": prompt, "options": { "sandbox": sandbox } });
        let run = fixture.create("w", run);
        let waiting = fixture.wait_for_status(&run, &["waiting_user"]);
        let written = |name: &str| fs::read_to_string(fixture.workspace("w").join(name)).unwrap_or_default();
        assert_eq!(written("searches"), "searched\nsearched\n", "the tool and the session searched");
        assert_eq!((written("found"), written("listed")), (String::new(), String::new()), "{sandbox:?}");
        let session = waiting["engine_session"].as_str().expect("it has one").to_owned();
        let record = fixture.home.path().join("agents").join(session);
        assert!(record.exists());
        fixture.cancel(&run);
        wait::until("the record of the run's state is gone", || !record.exists());
        fixture.assert_unharmed();
    }
}

/// Forged keeper directories that name the bystander's process and keeper, at the location used by an earlier version.
/// `leaked` contains the secret of the bystander's keeper; the secret alone must not make another directory valid.
const FORGED_KEEPERS_SCRIPT: &str = r#"
python3 - <<'PYTHON'
import os
def varint(number):
    low, rest = number & 0x7f, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])
boot = open("/proc/sys/kernel/random/boot_id").read().strip().encode()
def identity(pid, start): return varint(pid) + varint(start) + varint(len(boot)) + boot
def process(pid): return identity(pid, int(open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()[19]))
dead, secret = identity(4194303, 1), open("leaked", "rb").read()
def forge(name, files):
    path = "SESSIONS/" + name
    os.makedirs(path, 0o700)
    for file, content in files.items():
        with open(path + "/" + file, "wb") as out: out.write(content)
        os.chmod(path + "/" + file, 0o600)
    return path
forge("victim", {"identity": dead + process(AGENT) + b"\0", "claim": b"\1" + dead, "secret": secret})
known = {"identity": process(KEEPER) + process(AGENT) + b"\0", "claim": b"\1" + process(KEEPER), "secret": secret}
os.symlink("PLACE/socket", forge("socket", known) + "/socket")
os.utime(forge("aged", {"letter": b"precious"}), (0, 0))
os.symlink("PLACE", "SESSIONS/link")
os.symlink("CANARY", "SESSIONS/canary")
open("forged", "w").close()
PYTHON
"#;

#[test]
fn security_1_convincing_keepers_where_an_earlier_version_had_them_are_neither_ended_nor_deleted() {
    let mut fixture = AdversaryDaemon::new();
    let run = fixture.create("w", json!({ "engine": "native", "prompt": "<all><do>true</do>" }));
    let waiting = fixture.wait_for_status(&run, &["waiting_user"]);
    let session = waiting["engine_session"].as_str().expect("it has one");
    let record = fixture.home.path().join("agents").join(session);
    let sessions = fixture.workspace("w").join(".abide/native").join(session).join("sessions");
    let bystander = fixture.bystander();
    let secret = fs::read(bystander.keeper_dir.join("secret")).expect("the bystander has a keeper");
    fs::write(fixture.workspace("w").join("leaked"), secret).expect("the test machine allows it");
    let program = FORGED_KEEPERS_SCRIPT
        .replace("SESSIONS", &sessions.display().to_string())
        .replace("PLACE", &bystander.keeper_dir.display().to_string())
        .replace("KEEPER", &bystander.keeper.to_string())
        .replace("AGENT", &bystander.agent.to_string());
    fixture.set_program("w", &program);
    let forging = fixture.create("w", json!({ "execution_mode": "auto" }));
    fixture.wait_for_status(&forging, &["succeeded"]);
    assert!(fixture.workspace("w").join("forged").exists(), "{}", fixture.stderr_of("w"));
    // Simulates a run begun by an earlier version: the daemon looks at this location when the run ends.
    let note = fixture.home.path().join("surviving-keepers").join(&run);
    let lines = fs::read_to_string(&note).expect("a native run leaves a note");
    fs::write(&note, format!("{}\n{}", lines.trim_end(), sessions.display())).expect("it is ours");
    fixture.cancel(&run);
    wait::until("the record and the note of the run are gone", || !record.exists() && !note.exists());
    for name in ["victim/identity", "socket/secret", "aged/letter", "link/secret", "canary/secret"] {
        assert!(sessions.join(name).exists(), "{name} was deleted");
    }
    fixture.assert_unharmed();
}
