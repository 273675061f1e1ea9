//! Skills and artifacts with the real programs: a copied skill is found by the engine (D3).
//!
//! The proof is the skill's description, which is in its `SKILL.md` and in none of our prompts.

use std::fs;

use abide_domain::{
    failure::FailureCode,
    run::RunStatus,
    settings::ExecutionMode::{Chat, Interactive},
};
use abide_testkit::model::{ModelScript, ScriptedAnswer};

use crate::harness::ProgramTestDaemon;

const DESCRIPTION: &str = "counts the herons on every pond before anything else";

/// Defines the tests of an engine that finds skills by itself.
macro_rules! finds_skills {
    ($module:ident, $name:literal) => {
        mod $module {
            #[test]
            fn a_skill_is_found_by_the_engine_and_its_original_stays_as_it_was() {
                super::a_skill_is_found_by_the_engine_and_its_original_stays_as_it_was($name);
            }
        }
    };
}

finds_skills!(codex, "codex");
finds_skills!(claude, "claude");
finds_skills!(gemini, "gemini");
finds_skills!(qwen, "qwen");
finds_skills!(opencode, "opencode");
finds_skills!(codex_acp, "codex-acp");
finds_skills!(gemini_acp, "gemini-acp");

fn a_skill_is_found_by_the_engine_and_its_original_stays_as_it_was(engine: &str) {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("survey the marsh"), ScriptedAnswer::say("Surveyed."))
        .when_once(|request| request.prompt_contains("and the lake"), ScriptedAnswer::say("The lake too."));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let (source, words) = skill(&daemon);
    let run = daemon.start_with(Chat, "survey the marsh", |settings| {
        settings.skill = Some(source.to_string_lossy().into_owned());
    });
    daemon.wait_for_status(run, RunStatus::Idle);
    let request = daemon.model.turns();
    let first = request.first().expect("the model was asked");
    assert!(first.contains("the skill `heron-count`"), "the prompt names the skill");
    let raw = first.raw.to_string();
    assert!(raw.contains(DESCRIPTION), "{engine} has found the skill: {raw}");
    assert_eq!(raw.matches(DESCRIPTION).count(), 1, "and only one of that name");
    assert!(daemon.workspace.join(".abide/artifacts").is_dir());
    // The second turn uses the same copy, also if the original is gone by then.
    assert_eq!(fs::read_to_string(source.join("SKILL.md")).expect("the original is there"), words);
    fs::remove_dir_all(&source).expect("the original can go");
    daemon.send_message(run, "and the lake");
    let done = daemon.wait_until(run, "its second answer", |run| {
        run.status() == RunStatus::Idle && run.turn_index == 2 && run.pending_effects.is_empty()
    });
    assert_eq!(done.result.as_deref().map(str::trim), Some("The lake too."));
}

/// An agent over ACP may be any program, so its skill is copied to the location that most of them use. This agent looks
/// only in `.claude/skills`, and reads the file that its prompt names.
#[test]
fn an_agent_that_looks_for_skills_elsewhere_is_told_which_file_to_follow() {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("survey the marsh"), ScriptedAnswer::say("Surveyed."));
    let Some(daemon) = ProgramTestDaemon::new("claude-acp", script) else { return };
    let (source, words) = skill(&daemon);
    let run = daemon.start_with(Chat, "survey the marsh", |settings| {
        settings.skill = Some(source.to_string_lossy().into_owned());
    });
    daemon.wait_for_status(run, RunStatus::Idle);
    let request = daemon.model.turns();
    let first = request.first().expect("the model was asked");
    let file = ".agents/skills/heron-count/SKILL.md";
    assert!(first.contains(&format!("follow `{file}`")), "the prompt names the file");
    let copied = fs::read_to_string(daemon.workspace.join(file)).expect("the copy is there");
    assert!(copied.starts_with(&words) && copied.len() > words.len(), "it is patched: {copied}");
    assert!(!first.raw.to_string().contains(DESCRIPTION), "it looks there now: say so in the list above");
}

#[test]
fn a_skill_that_cannot_be_used_fails_the_run_before_any_process() {
    let Some(daemon) = ProgramTestDaemon::new("codex", ModelScript::new()) else { return };
    for (skill, words) in [("/no/such/skill", "cannot be found"), ("/usr/.hidden", "a name of its own")] {
        let run = daemon.start_with(Interactive, "hello", |settings| settings.skill = Some(skill.to_owned()));
        let failed = daemon.wait_for_status(run, RunStatus::Failed);
        let failure = failed.error().expect("it says why").clone();
        assert_eq!(failure.code, FailureCode::WorkspaceUnusable, "{}", failure.message);
        assert!(failure.message.contains(words), "{}", failure.message);
    }
    assert!(daemon.model.exchanges().is_empty());
}

/// Creates a skill outside the workspace, and returns its path and the text of its file.
fn skill(daemon: &ProgramTestDaemon) -> (std::path::PathBuf, String) {
    let source = daemon.home.path().join("given/heron-count");
    fs::create_dir_all(&source).expect("the home can be written");
    let words =
        format!("---\nname: heron-count\ndescription: {DESCRIPTION}\n---\n\nCount all herons twice.\n");
    fs::write(source.join("SKILL.md"), &words).expect("the home can be written");
    (source, words)
}
