//! Links, FIFOs and devices at every path that Abide opens in a workspace (SECURITY 6, 17).

use std::{fs, os::unix::fs::FileTypeExt};

use serde_json::json;

use crate::stage::AdversaryDaemon;

/// Paths that a turn with a skill opens, and the required status of the next turn. The message of `failed` names the
/// obstacle.
const PATHS: [(&str, &str); 8] = [
    (".abide", "failed"),
    (".abide/artifacts", "idle"),
    (".abide/skills", "failed"),
    (".parrot", "failed"),
    (".parrot/skills", "failed"),
    (".parrot/skills/heron", "failed"),
    (".parrot/skills/heron/.abide-copy", "failed"),
    (".parrot/skills/heron/SKILL.md", "idle"),
];

/// The kinds of obstacles, and the commands that create them.
const OBSTACLES: [(&str, &str); 4] = [
    ("link", "ln -s CANARY 'PATH'"),
    ("file", "ln -s CANARY/skills/heron/.abide-copy 'PATH'"),
    ("zero", "ln -s /dev/zero 'PATH'"),
    ("fifo", "mkfifo 'PATH'"),
];

#[test]
fn security_6_links_fifos_and_devices_on_the_way_to_a_skill_are_refused_and_not_followed() {
    let mut stage = AdversaryDaemon::new();
    let mut runs = Vec::new();
    for (number, (path, expected)) in PATHS.iter().enumerate() {
        for (kind, command) in OBSTACLES {
            let name = format!("{kind}{number}");
            // A complete copy is not made again. It is deleted first, unless the obstacle is inside it.
            let copy =
                if path.starts_with(".parrot/skills/heron/") { "" } else { "rm -rf .parrot/skills/heron" };
            stage.program(&name, &format!("{copy}\nrm -rf '{path}'\n{}\n", command.replace("PATH", path)));
            runs.push((stage.create(&name, json!({ "skill": stage.skill() })), name, *path, *expected));
        }
    }
    for (run, name, path, _) in &runs {
        stage.wait(run, &["idle"]);
        let placed = fs::symlink_metadata(stage.workspace(name).join(path)).map(|at| at.file_type());
        let is_placed = placed.is_ok_and(|kind| kind.is_symlink() || kind.is_fifo());
        assert!(is_placed, "{name} {path}: {}", stage.complaints_of(name));
        stage.program(name, "true");
        stage.say(run, "again");
    }
    stage.assert_bystander_works();
    for (run, name, path, expected) in &runs {
        let found = stage.settle(run);
        assert_eq!(found["status"], *expected, "{name} {path}: {found:#}");
        if *expected == "failed" {
            let error = &found["error"];
            assert_eq!(error["code"], "WORKSPACE_UNUSABLE", "{name} {path}: {found:#}");
            let named = path.trim_end_matches("/.abide-copy");
            assert!(
                error["message"].as_str().is_some_and(|message| message.contains(named)),
                "{name}: {error}"
            );
        }
        if path.starts_with(".abide") {
            assert_eq!(stage.artifacts(run), [""; 0], "{name} {path}");
        }
    }
    stage.assert_unharmed();
}

#[test]
fn security_17_artifacts_are_neither_listed_nor_read_through_links_fifos_and_sockets() {
    let mut stage = AdversaryDaemon::new();
    stage.program(
        "w",
        r#"
mkdir -p .abide/artifacts/sub; cd .abide/artifacts
echo whole > report.txt; echo deep > sub/deep.txt
ln -s CANARY/secret link; ln -s CANARY folder; ln -s /dev/zero zero; ln -s ../../.. up; ln -s /proc/self/environ environ
mkfifo pipe
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
echo x > "$(printf 'new\nline')"; echo x > "$(printf 'not-\377-text')"
touch closed; chmod 000 closed
"#,
    );
    let run = stage.create("w", json!({}));
    stage.wait(&run, &["idle"]);
    assert_eq!(stage.artifacts(&run), ["closed", "new\nline", "report.txt", "sub/deep.txt"]);
    let read = |path: &str| stage.get(&format!("/v1/runs/{run}/artifacts/{path}"));
    assert_eq!(
        (read("report.txt").status, read("sub/deep.txt").status, read("new%0Aline").status),
        (200, 200, 200)
    );
    let refused = [
        "link",
        "folder",
        "folder/secret",
        "zero",
        "up",
        "up/token",
        "environ",
        "pipe",
        "socket",
        "not-%FF-text",
        "sub/..%2Freport.txt",
        "..%2F..%2F..%2Ftoken",
        "sub",
        "missing",
        "closed",
    ];
    for path in refused {
        let response = read(path);
        assert!([400, 404].contains(&response.status), "{path}: {response:?}");
    }
    stage.assert_unharmed();
}
