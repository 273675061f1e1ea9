//! Deep, wide, unreadable and oddly named trees at each place where Abide lists, copies or deletes (SECURITY 4).
//!
//! `TREES_COUNT` and `TREES_DEPTH` set larger sizes. They lack the prefix `ABIDE_`, because variables with it are not
//! inherited by tests.

use std::fs;

use abide_testkit::wait;
use serde_json::{Value, json};

use crate::harness::AdversaryDaemon;

const COUNT_VARIABLE: &str = "TREES_COUNT";
const DEFAULT_COUNT: u64 = 20_000;
const DEPTH_VARIABLE: &str = "TREES_DEPTH";
const DEFAULT_DEPTH: u64 = 15_000;

/// Defines functions that create trees (`deep`, `wide`, `odd` and `all`) and runs `BODY`.
const TREES: &str = r#"
python3 - <<'PYTHON'
import os
run = os.path.basename(os.getcwd())
work = os.open(".", os.O_RDONLY)
def enter(path):
    os.chdir(work); os.makedirs(path, exist_ok=True); os.chdir(path)
def deep(path, depth):
    enter(path)
    for _ in range(depth): os.mkdir("d"); os.chdir("d")
    os.chdir(work)
def wide(path, count):
    enter(path)
    for number in range(count): os.mkdir(f"f{number}")
    os.chdir(work)
def odd(path):
    enter(path)
    os.mkdir("new\nline"); os.mkdir(b"\xff\xfe"); open(b"not-\xff-text", "w").close()
    os.mkdir("-rf"); os.mkdir("x" * 255); os.mkfifo("pipe")
    os.symlink("CANARY", "canary"); os.symlink("CANARY/secret", "secret"); os.symlink("loop", "loop")
    os.symlink("/dev/zero", "zero")
    for mode in (0o000, 0o400, 0o100, 0o500):
        name = f"mode{mode}"
        os.makedirs(name + "/inner/most"); open(name + "/inner/file", "w").close()
        os.chmod(name + "/inner", mode); os.chmod(name, mode)
    os.chdir(work)
def all(path, depth, count):
    deep(path + "/deep", depth); wide(path + "/wide", count); odd(path + "/odd")
BODY
open("made", "w").close()
PYTHON
"#;

fn program(body: &str) -> String {
    TREES.replace("BODY", body)
}

pub(crate) fn env_or(name: &str, default: u64) -> u64 {
    let variable = std::env::vars().find(|(variable_name, _)| variable_name == name);
    variable.map_or(default, |(_, value)| value.parse().expect("it is a number"))
}

#[test]
fn security_4_trees_in_the_way_of_a_skill_are_replaced_by_its_copy() {
    let (count, depth) = (env_or(COUNT_VARIABLE, DEFAULT_COUNT), env_or(DEPTH_VARIABLE, DEFAULT_DEPTH));
    let mut fixture = AdversaryDaemon::new();
    let workspace = fixture.fast_workspace();
    let body = format!(
        r#"
run = open("run").read()
all(".abide/skills/" + run, {depth}, 100)
wide(".abide/skills/" + run + ".old", {count} // 4)
all(".parrot/skills/heron", {depth}, {count})
open(".parrot/skills/heron/.abide-copy", "w").write("run_of_another\n")
"#
    );
    // The agent can learn the run's id only from the copy's mark file.
    let body = format!("tr -d '\\n' < .parrot/skills/heron/.abide-copy > run\n{}", program(&body));
    fixture.set_program("any", &body);
    let run = fixture.create("unused", json!({ "workspace": workspace.path(), "skill": fixture.skill() }));
    fixture.wait_for_status(&run, &["idle"]);
    assert!(workspace.path().join("made").exists(), "{}", fixture.stderr_of("any"));
    assert!(workspace.path().join(".abide/skills").join(&run).join("deep/d/d").is_dir());
    fixture.set_program("any", "true");
    fixture.send_message(&run, "again");
    fixture.assert_bystander_works();
    fixture.wait_for_status(&run, &["idle"]);
    let copy = workspace.path().join(".parrot/skills/heron");
    let mark = fs::read_to_string(copy.join(".abide-copy")).expect("the copy has a mark");
    assert_eq!(mark.trim(), run);
    assert!(!copy.join("deep").exists() && copy.join("SKILL.md").is_file());
    let staging = fs::read_dir(workspace.path().join(".abide/skills")).expect("it is there").count();
    assert_eq!(staging, 0, "something is left in the folder in which copies are made");
    fixture.cancel(&run);
    fixture.assert_unharmed();
}

/// Smaller by default than the test above, because it uses the disk of the home.
#[test]
fn security_4_expired_workspaces_with_deep_wide_closed_and_oddly_named_folders_are_deleted() {
    let (count, depth) =
        (env_or(COUNT_VARIABLE, DEFAULT_COUNT / 10), env_or(DEPTH_VARIABLE, DEFAULT_DEPTH / 5));
    let mut fixture = AdversaryDaemon::with_env(&[("ABIDE_RETENTION_EVERY_SEC", "1")]);
    fixture.set_program("any", &program(&format!("all(\"top\", {depth}, {count})")));
    let run = fixture.create("unused", json!({ "workspace": Value::Null }));
    fixture.wait_for_status(&run, &["idle"]);
    let workspace = fixture.home.path().join("workspaces").join(&run);
    assert!(workspace.join("made").exists(), "{}", fixture.stderr_of("any"));
    fixture.cancel(&run);
    let expired = fixture.expire_workspace(&run);
    fixture.assert_bystander_works();
    wait::until("the expired workspace is deleted", || fs::symlink_metadata(&expired).is_err());
    fixture.assert_unharmed();
}

#[test]
fn listings_of_artifacts_in_deep_wide_closed_and_oddly_named_folders_are_bounded() {
    let (count, depth) = (env_or(COUNT_VARIABLE, DEFAULT_COUNT), env_or(DEPTH_VARIABLE, DEFAULT_DEPTH));
    let mut fixture = AdversaryDaemon::new();
    let workspace = fixture.fast_workspace();
    let body = format!(
        "all(\".abide/artifacts\", {depth}, {count})\nopen(\".abide/artifacts/report.txt\", \"w\").write(\"whole\")"
    );
    fixture.set_program("any", &program(&body));
    let run = fixture.create("unused", json!({ "workspace": workspace.path() }));
    fixture.wait_for_status(&run, &["idle"]);
    assert!(workspace.path().join("made").exists(), "{}", fixture.stderr_of("any"));
    let listed = fixture.get(&format!("/v1/runs/{run}/artifacts"));
    assert_eq!((listed.status, &listed.body["truncated"]), (200, &json!(true)), "{}", listed.body);
    let read = |path: &str| fixture.get(&format!("/v1/runs/{run}/artifacts/{path}")).status;
    assert_eq!(read("report.txt"), 200);
    let refused = [
        "odd/secret",
        "odd/canary/secret",
        "odd/pipe",
        "odd/zero",
        "odd/loop",
        "odd/mode0/inner/file",
        "deep",
    ];
    for path in refused {
        assert_eq!(read(path), 404, "{path}");
    }
    // A path longer than the system's limit.
    assert_eq!(read(&format!("deep/{}", "d/".repeat(4_000) + "d")), 404);
    fixture.set_program("any", "true");
    fixture.send_message(&run, "again");
    fixture.wait_for_status(&run, &["idle"]);
    fixture.cancel(&run);
    fixture.assert_unharmed();
}

/// Skills that an agent prepares for the next run: each name and the code that creates its content.
const SKILLS: [(&str, &str); 6] = [
    ("deep", "deep(path + \"/deep\", DEPTH)"),
    ("wide", "wide(path + \"/wide\", COUNT)"),
    ("link", "os.symlink(\"CANARY/secret\", path + \"/leak\")"),
    ("folder", "os.symlink(\"CANARY\", path + \"/leak\")"),
    ("fifo", "os.mkfifo(path + \"/pipe\")"),
    ("closed", "os.mkdir(path + \"/closed\", 0)"),
];

#[test]
fn skills_that_an_agent_made_deep_wide_closed_or_full_of_links_are_refused() {
    let (count, depth) = (env_or(COUNT_VARIABLE, DEFAULT_COUNT), env_or(DEPTH_VARIABLE, DEFAULT_DEPTH));
    let mut fixture = AdversaryDaemon::new();
    let workspace = fixture.fast_workspace();
    let mut body = "skill = \"---\\nname: s\\ndescription: d\\n---\\nwords\\n\"\n".to_owned();
    for (name, contents) in SKILLS {
        body += &format!(
            "path = \"made-{name}\"; os.mkdir(path); open(path + \"/SKILL.md\", \"w\").write(skill)\n"
        );
        body += &format!(
            "{}\n",
            contents.replace("DEPTH", &depth.to_string()).replace("COUNT", &count.to_string())
        );
    }
    fixture.set_program("any", &program(&body));
    let options = json!({ "workspace": workspace.path(), "execution_mode": "auto" });
    let run = fixture.create("unused", options.clone());
    fixture.wait_for_status(&run, &["succeeded"]);
    assert!(workspace.path().join("made").exists(), "{}", fixture.stderr_of("any"));
    fixture.set_program("any", "touch started");
    let runs = SKILLS.map(|(name, _)| {
        let mut options = options.clone();
        options["skill"] = json!(workspace.path().join(format!("made-{name}")));
        (name, fixture.create("unused", options))
    });
    for (name, run) in runs {
        let run_view = fixture.wait_for_turn_end(&run);
        assert_eq!(run_view["error"]["code"], "WORKSPACE_UNUSABLE", "{name}: {run_view:#}");
        let message = run_view["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(&format!("made-{name}")) && message.len() < 10_000, "{name}: {message}");
    }
    assert!(!workspace.path().join("started").exists(), "an agent was started with such a skill");
    fixture.assert_unharmed();
}
