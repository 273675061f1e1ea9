//! A running turn that is interrupted or superseded, or answered while its process is still exiting.

use abide_domain::{
    delivery::DeliveryStatus,
    process::ExitStatus,
    run::RunStatus,
    settings::{
        ExecutionMode::{Chat, Interactive},
        OnBusy,
    },
    turn::ExecutionStatus,
};
use abide_testkit::model::{ModelScript, ScriptedAnswer, TestGate};

use crate::{stage::ProgramTestDaemon, stories::asking};

/// A model that begins, waits for the gate when asked to dig, and then rests.
fn digging(gate: &TestGate) -> ModelScript {
    ModelScript::new()
        .once(|heard| heard.asks("begin"), ScriptedAnswer::say("Begun."))
        .once(|heard| heard.asks("dig") && !heard.asks("rest"), ScriptedAnswer::say("Dug.").held(gate))
        .when(|heard| heard.asks("rest"), ScriptedAnswer::say("Resting."))
}

/// Returns the number of requests that asked only for digging.
fn times_dug(stage: &ProgramTestDaemon) -> usize {
    stage.model.turns().iter().filter(|heard| heard.asks("dig") && !heard.asks("rest")).count()
}

/// A person interrupts the turn; the session is kept, and the interrupted work is not repeated (E1).
pub(crate) fn an_interrupted_turn_is_over_and_the_chat_goes_on(engine: &str) {
    let gate = TestGate::new();
    let Some(stage) = ProgramTestDaemon::of(engine, digging(&gate)) else { return };
    let run = stage.start(Chat, "begin");
    stage.wait(run, RunStatus::Idle);
    stage.say(run, "dig");
    gate.reached();
    stage.wait_until(run, "a process", |run| run.live().is_some() && run.owed.is_empty());
    stage.interrupt(run);
    stage.wait_until(run, "rest", |run| run.status() == RunStatus::Idle && run.turn_index == 2);
    let stopped = stage.turns(run).remove(1);
    assert_eq!(stopped.execution_status, ExecutionStatus::Interrupted, "{stopped:?}");
    stage.say(run, "rest");
    let rested = stage.wait_until(run, "an answer", |run| {
        run.status() == RunStatus::Idle && run.turn_index == 3 && run.owed.is_empty()
    });
    assert_eq!(rested.result.as_deref().map(str::trim), Some("Resting."));
    let heard = stage.model.turns();
    let last = heard.last().expect("the model was asked");
    assert!(last.user_texts().iter().any(|text| text.contains("begin")), "{:?}", last.user_texts());
    assert_eq!(times_dug(&stage), 1, "an interrupted turn is not run again by itself");
    every_attempt_has_its_end(&stage, run);
}

/// A newer message ends the running turn, whose answer is never shown (E9).
pub(crate) fn e9_a_newer_message_supersedes_the_turn_at_work(engine: &str) {
    let gate = TestGate::new();
    let Some(stage) = ProgramTestDaemon::of(engine, digging(&gate)) else { return };
    let run = stage.start(Chat, "begin");
    stage.wait(run, RunStatus::Idle);
    stage.say(run, "dig");
    gate.reached();
    stage.wait_until(run, "a process", |run| run.live().is_some() && run.owed.is_empty());
    stage.break_in(run, "rest", OnBusy::Supersede);
    let rested = stage.wait_until(run, "an answer", |run| {
        run.status() == RunStatus::Idle && run.turn_index == 3 && run.owed.is_empty()
    });
    gate.open();
    assert_eq!(rested.result.as_deref().map(str::trim), Some("Resting."));
    let turns = stage.turns(run);
    assert_eq!(turns[1].execution_status, ExecutionStatus::Superseded);
    assert_eq!(turns[1].delivery_status, DeliveryStatus::Suppressed);
    assert_eq!(turns[1].reply, None, "late output of a superseded turn is not kept as its answer");
    let by = turns[1].superseded.as_ref().and_then(|superseded| superseded.by_turn);
    assert_eq!(by, Some(turns[2].turn_id));
    every_attempt_has_its_end(&stage, run);
}

/// The reply is sent as soon as the question is open, while the process that asked is still exiting (E6).
pub(crate) fn e6_an_answer_during_the_end_of_a_process_leaves_no_attempt_without_its_end(engine: &str) {
    let script = ModelScript::new()
        .once(|heard| heard.asks("paint the shed"), asking("Which colour?"))
        .once(|heard| heard.asks("crimson"), ScriptedAnswer::say("All is painted."));
    let Some(stage) = ProgramTestDaemon::of(engine, script) else { return };
    let run = stage.start(Interactive, "paint the shed");
    stage.wait_until(run, "its question", |run| run.status() == RunStatus::WaitingUser);
    stage.reply(run, "crimson");
    stage.wait(run, RunStatus::Succeeded);
    stage.wait_until(run, "the end of all processes", |_| stage.held().is_empty());
    every_attempt_has_its_end(&stage, run);
}

/// Checks that each exited process of a run has an exit code and a time in the ledger. The latest turn of a chat may
/// still have its process.
fn every_attempt_has_its_end(stage: &ProgramTestDaemon, run: abide_domain::id::RunId) {
    let held = stage.wait_until(run, "rest", |_| true).live().map(|live| live.attempt);
    let attempts = stage.turns(run).into_iter().flat_map(|turn| turn.attempts);
    for record in attempts.filter(|record| Some(record.attempt) != held) {
        assert!(matches!(record.exit, Some(ExitStatus::Code(_))) && record.ended_at.is_some(), "{record:?}");
    }
}
