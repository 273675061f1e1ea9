//! Links, FIFOs and devices at every path that Abide opens in a workspace (SECURITY 6, 17).

use std::{
    fs,
    os::unix::fs::{FileTypeExt, symlink},
};

use abide_testkit::daemon::TestHome;
use serde_json::json;

use crate::harness::AdversaryDaemon;

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
    let mut fixture = AdversaryDaemon::new();
    let mut runs = Vec::new();
    for (number, (path, expected)) in PATHS.iter().enumerate() {
        for (kind, command) in OBSTACLES {
            let name = format!("{kind}{number}");
            // A complete copy is not made again. It is deleted first, unless the obstacle is inside it.
            let copy =
                if path.starts_with(".parrot/skills/heron/") { "" } else { "rm -rf .parrot/skills/heron" };
            fixture
                .set_program(&name, &format!("{copy}\nrm -rf '{path}'\n{}\n", command.replace("PATH", path)));
            runs.push((fixture.create(&name, json!({ "skill": fixture.skill() })), name, *path, *expected));
        }
    }
    for (run, name, path, _) in &runs {
        fixture.wait_for_status(run, &["idle"]);
        let placed = fs::symlink_metadata(fixture.workspace(name).join(path)).map(|at| at.file_type());
        let is_placed = placed.is_ok_and(|kind| kind.is_symlink() || kind.is_fifo());
        assert!(is_placed, "{name} {path}: {}", fixture.stderr_of(name));
        fixture.set_program(name, "true");
        fixture.send_message(run, "again");
    }
    fixture.assert_bystander_works();
    for (run, name, path, expected) in &runs {
        let run_view = fixture.wait_for_turn_end(run);
        assert_eq!(run_view["status"], *expected, "{name} {path}: {run_view:#}");
        if *expected == "failed" {
            let error = &run_view["error"];
            assert_eq!(error["code"], "WORKSPACE_UNUSABLE", "{name} {path}: {run_view:#}");
            let named = path.trim_end_matches("/.abide-copy");
            assert!(
                error["message"].as_str().is_some_and(|message| message.contains(named)),
                "{name}: {error}"
            );
        }
        if path.starts_with(".abide") {
            assert_eq!(fixture.artifacts(run), [""; 0], "{name} {path}");
        }
    }
    fixture.assert_unharmed();
}

#[test]
fn security_17_artifacts_are_neither_listed_nor_read_through_links_fifos_and_sockets() {
    let mut fixture = AdversaryDaemon::new();
    fixture.set_program(
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
    let run = fixture.create("w", json!({}));
    fixture.wait_for_status(&run, &["idle"]);
    assert_eq!(fixture.artifacts(&run), ["closed", "new\nline", "report.txt", "sub/deep.txt"]);
    let read = |path: &str| fixture.get(&format!("/v1/runs/{run}/artifacts/{path}"));
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
    fixture.assert_unharmed();
}

/// An agent whose workspace contains the workspace of another run redirects the next turn of that run.
#[test]
fn a_workspace_that_is_replaced_by_a_link_between_turns_is_not_followed() {
    let mut fixture = AdversaryDaemon::new();
    fixture.set_program("inner", "echo seen > seen");
    fixture.set_program("outer", "mv inner aside && ln -s CANARY inner");
    fixture.workspace("outer");
    let victim = fixture.create("outer/inner", json!({ "skill": fixture.skill() }));
    fixture.wait_for_status(&victim, &["idle"]);
    let redirected = fixture.create("outer", json!({}));
    fixture.wait_for_status(&redirected, &["idle"]);
    let link = fixture.home.path().join("work/outer/inner");
    assert!(link.is_symlink(), "{}", fixture.stderr_of("outer"));
    fixture.send_message(&victim, "again");
    let run_view = fixture.wait_for_turn_end(&victim);
    assert_eq!(
        (&run_view["status"], &run_view["error"]["code"]),
        (&json!("failed"), &json!("WORKSPACE_UNUSABLE"))
    );
    let message = run_view["error"]["message"].as_str().expect("it has a message");
    assert!(message.contains(&format!("{} was replaced by a symbolic link", link.display())), "{message}");
    assert_eq!(fixture.artifacts(&victim), [""; 0]);
    fixture.assert_unharmed();
}

#[test]
fn abides_own_folders_are_refused_before_a_run_is_created_and_nothing_is_made_there() {
    let fixture = AdversaryDaemon::new();
    let home = fixture.home.path();
    symlink(home.join("keepers"), fixture.workspace("w").join("link")).expect("it can be made");
    let runs = || fixture.get("/v1/runs").body["items"].as_array().map(Vec::len);
    let before = runs();
    for name in
        ["", "keepers", "keepers/runs", "workspaces", "runs", "work/w/link", "work/..", "work/../keepers"]
    {
        let workspace = home.join(name);
        fs::create_dir_all(&workspace).ok();
        for isolation in ["auto", "off"] {
            let body = json!({ "engine": "parrot", "prompt": "write config.toml x", "workspace": workspace,
                "options": { "isolation": isolation } });
            let refused = fixture.home.try_post("/v1/runs", &body);
            let code = refused.body["code"].as_str();
            assert_eq!((refused.status, code), (400, Some("WORKSPACE_UNUSABLE")), "{name}: {}", refused.body);
        }
        assert!(!workspace.join(".abide").exists(), "{name}");
    }
    assert_eq!(runs(), before);
}

#[test]
fn a_home_behind_a_link_works_and_its_runs_have_resolved_workspaces() {
    let outside = tempfile::tempdir().expect("the test machine allows it");
    let link = outside.path().join("link");
    let home = TestHome::new(env!("CARGO_BIN_EXE_abide"));
    let home = home.with_env("ABIDE_HOME", link.to_str().expect("it is UTF-8"));
    symlink(home.path(), &link).expect("the test machine allows it");
    let _daemon = home.start();
    let body = json!({ "engine": "parrot", "prompt": "write file one", "execution_mode": "chat" });
    let run = home.create_run(&body);
    home.wait_for_status(&run, "idle");
    home.post(&format!("/v1/runs/{run}/messages"), &json!({ "text": "append file two" }));
    let shown = home.wait_for_run(&run, "the second turn ends", |shown| {
        shown["status"] == "idle" && shown["turn_index"] == 2
    });
    let workspace = home.path().canonicalize().expect("it is there").join("workspaces").join(&run);
    assert_eq!(shown["workspace"], json!(workspace));
    assert_eq!(fs::read_to_string(workspace.join("file")).expect("it was written"), "one\ntwo\n");
}
