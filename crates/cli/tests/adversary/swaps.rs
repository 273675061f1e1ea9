//! Directories that are replaced by links while Abide uses them.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
};

use abide_testkit::wait;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use crate::harness::AdversaryDaemon;

/// Replaces each path by a link into the canary tree and back, in turn, until it is killed. A path whose parent is
/// currently a link is skipped, because the swap would change the canary tree.
const SWAP_SCRIPT: &str = r#"
case $PROMPT in *race*) ;; *) exit;; esac
exec python3 - <<'PYTHON'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def exchange(one, other): return libc.renameat2(-100, one.encode(), -100, other.encode(), 2) == 0
paths = [".abide", ".abide/artifacts", ".abide/skills", ".parrot", ".parrot/skills", ".parrot/skills/heron"]
os.mkdir("decoys")
for number, path in enumerate(paths):
    target = {".abide": "", ".parrot": ""}.get(path, path.split("/", 1)[-1])
    os.symlink("CANARY/" + target, f"decoys/{number}")
open("racing", "w").close()
swaps = 0
while True:
    for number, path in enumerate(paths):
        if exchange(path, f"decoys/{number}"):
            for _ in range(200): os.path.lexists(path)
            while not exchange(path, f"decoys/{number}"): pass
            swaps += 1
            if swaps == 50: open("swapped", "w").close()
PYTHON
"#;

const ROUNDS: usize = 10;

#[test]
fn folders_that_are_swapped_for_links_while_turns_begin_and_artifacts_are_listed_lead_nowhere() {
    let mut fixture = AdversaryDaemon::new();
    fixture.set_program("w", SWAP_SCRIPT);
    let racer = fixture.create("w", json!({ "prompt": "race" }));
    fixture.wait_for_file("w", "racing");
    let skills = [fixture.skill(), fixture.other_skill()];
    let mut statuses = Vec::new();
    for round in 0..ROUNDS {
        // Successive runs use different skills of the same name, so that the copy is replaced each time.
        let options = json!({ "execution_mode": "auto", "skill": skills[round % 2] });
        let run = fixture.create("w", options);
        loop {
            let listed = fixture.get(&format!("/v1/runs/{run}/artifacts"));
            assert_eq!((listed.status, &listed.body["items"]), (200, &json!([])), "{}", listed.body);
            assert_eq!(fixture.get(&format!("/v1/runs/{run}/artifacts/report.txt")).status, 404);
            let run_view = fixture.get(&format!("/v1/runs/{run}")).body;
            if ["succeeded", "failed"].iter().any(|status| run_view["status"] == *status) {
                let error = &run_view["error"]["code"];
                assert!(error.is_null() || error == "WORKSPACE_UNUSABLE", "{run_view:#}");
                statuses.push(run_view["status"].clone());
                break;
            }
        }
    }
    fixture.wait_for_file("w", "swapped");
    fixture.assert_bystander_works();
    fixture.cancel(&racer);
    wait::until("the racer is gone", || fixture.hostile_processes().is_empty());
    fixture.assert_unharmed();
    assert_eq!(statuses.len(), ROUNDS, "{statuses:?}");
}

const FOLDERS: usize = 64;

#[test]
fn security_4_folders_that_are_swapped_for_links_while_a_workspace_is_deleted_are_not_followed() {
    let mut fixture = AdversaryDaemon::with_env(&[("ABIDE_RETENTION_EVERY_SEC", "1")]);
    fixture.set_program("any", "for i in $(seq 0 63); do mkdir -p $i; (cd $i; mkdir $(seq 1 150)); done");
    let run = fixture.create("unused", json!({ "workspace": Value::Null }));
    fixture.wait_for_status(&run, &["idle"]);
    fixture.cancel(&run);
    let workspace = fixture.home.path().join("workspaces").join(&run);
    assert!(workspace.join("63/150").is_dir(), "{}", fixture.stderr_of("any"));
    for number in 0..FOLDERS {
        symlink(fixture.canary.path(), workspace.join(format!("link{number}"))).unwrap();
    }
    let expired = fixture.expire_workspace(&run);
    let (swapped, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for number in 0..FOLDERS {
                    let (folder, link) =
                        (expired.join(number.to_string()), expired.join(format!("link{number}")));
                    let done = renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE);
                    if done.is_ok() {
                        swapped.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        wait::until("the workspace is deleted", || fs::symlink_metadata(&expired).is_err());
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(swapped.load(Ordering::Relaxed), "nothing was swapped");
    fixture.assert_unharmed();
}
