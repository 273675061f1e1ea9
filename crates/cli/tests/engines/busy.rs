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

use crate::{harness::ProgramTestDaemon, stories::question_answer};

/// A model that begins, waits for the gate when asked to dig, and then rests.
fn digging_script(gate: &TestGate) -> ModelScript {
    ModelScript::new()
        .when_once(|request| request.prompt_contains("begin"), ScriptedAnswer::say("Begun."))
        .when_once(
            |request| request.prompt_contains("dig") && !request.prompt_contains("rest"),
            ScriptedAnswer::say("Dug.").held_by(gate),
        )
        .when(|request| request.prompt_contains("rest"), ScriptedAnswer::say("Resting."))
}

/// Returns the number of requests that asked only for digging.
fn count_dig_requests(daemon: &ProgramTestDaemon) -> usize {
    daemon
        .model
        .turns()
        .iter()
        .filter(|request| request.prompt_contains("dig") && !request.prompt_contains("rest"))
        .count()
}

/// A person interrupts the turn; the session is kept, and the interrupted work is not repeated (E1).
pub(crate) fn an_interrupted_turn_is_over_and_the_chat_continues(engine: &str) {
    let gate = TestGate::new();
    let Some(daemon) = ProgramTestDaemon::new(engine, digging_script(&gate)) else { return };
    let run = daemon.start(Chat, "begin");
    daemon.wait_for_status(run, RunStatus::Idle);
    daemon.send_message(run, "dig");
    gate.wait_reached();
    daemon.wait_until(run, "a process", |run| run.live().is_some() && run.pending_effects.is_empty());
    daemon.interrupt(run);
    daemon.wait_until(run, "rest", |run| run.status() == RunStatus::Idle && run.turn_index == 2);
    let stopped = daemon.turns(run).remove(1);
    assert_eq!(stopped.execution_status, ExecutionStatus::Interrupted, "{stopped:?}");
    daemon.send_message(run, "rest");
    let rested = daemon.wait_until(run, "an answer", |run| {
        run.status() == RunStatus::Idle && run.turn_index == 3 && run.pending_effects.is_empty()
    });
    assert_eq!(rested.result.as_deref().map(str::trim), Some("Resting."));
    let request = daemon.model.turns();
    let last = request.last().expect("the model was asked");
    assert!(last.user_texts().iter().any(|text| text.contains("begin")), "{:?}", last.user_texts());
    assert_eq!(count_dig_requests(&daemon), 1, "an interrupted turn is not run again by itself");
    assert_attempts_ended(&daemon, run);
}

/// A newer message ends the running turn, whose answer is never shown (E9).
pub(crate) fn e9_a_newer_message_supersedes_the_turn_at_work(engine: &str) {
    let gate = TestGate::new();
    let Some(daemon) = ProgramTestDaemon::new(engine, digging_script(&gate)) else { return };
    let run = daemon.start(Chat, "begin");
    daemon.wait_for_status(run, RunStatus::Idle);
    daemon.send_message(run, "dig");
    gate.wait_reached();
    daemon.wait_until(run, "a process", |run| run.live().is_some() && run.pending_effects.is_empty());
    daemon.send_while_busy(run, "rest", OnBusy::Supersede);
    let rested = daemon.wait_until(run, "an answer", |run| {
        run.status() == RunStatus::Idle && run.turn_index == 3 && run.pending_effects.is_empty()
    });
    gate.open();
    assert_eq!(rested.result.as_deref().map(str::trim), Some("Resting."));
    let turns = daemon.turns(run);
    assert_eq!(turns[1].execution_status, ExecutionStatus::Superseded);
    assert_eq!(turns[1].delivery_status, DeliveryStatus::Suppressed);
    assert_eq!(turns[1].reply, None, "late output of a superseded turn is not kept as its answer");
    let by = turns[1].superseded.as_ref().and_then(|superseded| superseded.by_turn);
    assert_eq!(by, Some(turns[2].turn_id));
    assert_attempts_ended(&daemon, run);
}

/// The reply is sent as soon as the question is open, while the process that asked is still exiting (E6).
pub(crate) fn e6_an_answer_during_the_end_of_a_process_leaves_no_attempt_without_its_end(engine: &str) {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("paint the shed"), question_answer("Which colour?"))
        .when_once(|request| request.prompt_contains("crimson"), ScriptedAnswer::say("All is painted."));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start(Interactive, "paint the shed");
    daemon.wait_until(run, "its question", |run| run.status() == RunStatus::WaitingUser);
    daemon.reply(run, "crimson");
    daemon.wait_for_status(run, RunStatus::Succeeded);
    daemon.wait_until(run, "the end of all processes", |_| daemon.process_names().is_empty());
    assert_attempts_ended(&daemon, run);
}

/// Checks that each exited process of a run has an exit code and a time in the ledger. The latest turn of a chat may
/// still have its process.
fn assert_attempts_ended(daemon: &ProgramTestDaemon, run: abide_domain::id::RunId) {
    let held = daemon.wait_until(run, "rest", |_| true).live().map(|live| live.attempt);
    let attempts = daemon.turns(run).into_iter().flat_map(|turn| turn.attempts);
    for record in attempts.filter(|record| Some(record.attempt) != held) {
        assert!(matches!(record.exit, Some(ExitStatus::Code(_))) && record.ended_at.is_some(), "{record:?}");
    }
}
