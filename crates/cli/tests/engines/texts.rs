//! Unusual prompts and answers: very long, similar to an option, or repetitive.

use abide_domain::{
    run::RunStatus,
    settings::ExecutionMode::{Chat, Interactive},
};
use abide_testkit::model::{ModelScript, ScriptedAnswer};

use crate::harness::ProgramTestDaemon;

/// An answer of 20,000 words with multi-byte characters arrives completely.
pub(crate) fn a_very_long_answer_arrives_whole(engine: &str) {
    let words: Vec<String> = (0..20_000).map(|number| format!("w\u{f6}rd{number}\u{2192}\u{65e5}")).collect();
    let long = words.join(" ");
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("tell me everything"), ScriptedAnswer::say(&long));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start(Interactive, "tell me everything");
    let done = daemon.wait_for_status(run, RunStatus::Succeeded);
    let text = done.result.unwrap_or_default();
    let arrived: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(arrived.len(), words.len());
    assert!(arrived.iter().zip(&words).all(|(arrived, expected)| arrived == expected));
}

/// A prompt that begins with a dash is passed as a prompt, on the first turn and on the next.
pub(crate) fn a_prompt_that_looks_like_an_option_is_a_prompt(engine: &str) {
    let Some(daemon) = ProgramTestDaemon::new(engine, ModelScript::new()) else { return };
    let run = daemon.start(Chat, "--help me with the shed");
    daemon.wait_for_status(run, RunStatus::Idle);
    daemon.send_message(run, "-5 sheds are too few");
    daemon.wait_until(run, "turn 2", |run| {
        run.status() == RunStatus::Idle && run.turn_index == 2 && run.pending_effects.is_empty()
    });
    let request = daemon.model.turns();
    let last = request.last().expect("the model was asked");
    for prompt in ["--help me with the shed", "-5 sheds are too few"] {
        let times = last.user_texts().iter().filter(|text| text.contains(prompt)).count();
        assert_eq!(times, 1, "{prompt:?} in {:?}", last.user_texts());
    }
}

/// Some programs stop a model that repeats itself. A failure is then allowed, but not a success without an answer.
pub(crate) fn a_model_that_repeats_itself_is_no_success_without_an_answer(engine: &str) {
    let same = "the same sentence again and again and more of it. ".repeat(400);
    let script =
        ModelScript::new().when(|request| request.prompt_contains("repeat"), ScriptedAnswer::say(same));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start(Interactive, "repeat yourself");
    let over = [RunStatus::Succeeded, RunStatus::Failed];
    let ended = daemon
        .wait_until(run, "an end", |run| over.contains(&run.status()) && run.pending_effects.is_empty());
    let (is_empty, failed) =
        (ended.result.as_deref().unwrap_or_default().trim().is_empty(), ended.status() == RunStatus::Failed);
    assert_eq!(is_empty, failed, "{:?} with {:?}", ended.status(), ended.result);
    if STOPS_REPETITION.contains(&engine) {
        let failure = ended.error().expect("it was stopped");
        assert!(failure.message.to_lowercase().contains("loop"), "{}", failure.message);
    }
}

/// Programs that stop a model which repeats itself, as measured.
const STOPS_REPETITION: [&str; 1] = ["gemini"];
