//! The scripted engine with the real daemon and real keepers, on which demos and other tests rely (E3).

use abide_domain::{
    engine::ProfileKind,
    failure::FailureCode,
    interaction::{InteractionKind, InteractionOrigin},
    run::{RunState, RunStatus, RunningPhase},
    settings::{
        ExecutionMode::{Chat, Interactive},
        OnBusy,
    },
};
use abide_testkit::model::ModelScript;

use crate::harness::ProgramTestDaemon;

fn new_daemon(engine: &str) -> ProgramTestDaemon {
    ProgramTestDaemon::new(engine, ModelScript::new()).expect("the parrot is a part of this program")
}

#[test]
fn a_parrot_asks_and_continues_where_it_stopped() {
    for (engine, kind) in [("parrot", ProfileKind::Resumable), ("parrot-sticky", ProfileKind::StickyProcess)]
    {
        let daemon = new_daemon(engine);
        let script = "say Hello.\nask choose_one Which colour? | red | blue (safe)\nappend log.txt $reply\nsay It is $reply.";
        let run = daemon.start(Interactive, script);
        let waiting = daemon.wait_for_status(run, RunStatus::WaitingUser);
        assert_eq!(waiting.profile.as_ref().map(|profile| profile.kind), Some(kind));
        let question = daemon.question(run).question;
        assert_eq!((question.kind, question.prompt.as_str()), (InteractionKind::ChooseOne, "Which colour?"));
        assert_eq!(waiting.live().is_some(), kind == ProfileKind::StickyProcess, "{engine}");
        daemon.reply(run, "crimson");
        let done = daemon.wait_for_status(run, RunStatus::Succeeded);
        assert_eq!(done.result.as_deref().map(str::trim), Some("It is crimson."), "{engine}");
        let log = std::fs::read_to_string(daemon.workspace.join("log.txt")).expect("it was written");
        assert_eq!(log, "crimson\n", "carried out once");
    }
}

#[test]
fn a_gate_keeps_the_process_of_either_parrot() {
    for engine in ["parrot", "parrot-sticky"] {
        let daemon = new_daemon(engine);
        let run = daemon.start(Interactive, "gate May I?\nsay I was told: $reply");
        let waiting = daemon.wait_until(run, "a gate", |run| run.status() == RunStatus::WaitingUser);
        assert!(
            waiting.live().is_some() && matches!(daemon.question(run).origin, InteractionOrigin::Gate { .. })
        );
        daemon.reply(run, "yes");
        let done = daemon.wait_for_status(run, RunStatus::Succeeded);
        assert_eq!(done.result.as_deref().map(str::trim), Some("I was told: yes"), "{engine}");
    }
}

#[test]
fn a_parrot_without_a_session_or_with_a_lost_one_is_reported() {
    let daemon = new_daemon("parrot");
    let mute = daemon.start(Interactive, "mute-session\nask open_text What now?");
    let failed = daemon.wait_for_status(mute, RunStatus::Failed);
    assert_eq!(failed.error().map(|failure| failure.code), Some(FailureCode::SessionResumeFailed));
    let lost = daemon.start(Interactive, "lose-session\nask open_text What now?");
    daemon.wait_for_status(lost, RunStatus::WaitingUser);
    daemon.reply(lost, "continue");
    let failed = daemon.wait_for_status(lost, RunStatus::Failed);
    assert_eq!(failed.error().map(|failure| failure.code), Some(FailureCode::SessionResumeFailed));
    assert_eq!(daemon.open_questions(), 0);
}

#[test]
fn a_parrot_that_fails_crashes_or_hangs_is_no_success() {
    let daemon = new_daemon("parrot");
    for script in ["fail It broke.", "crash"] {
        let run = daemon.start(Interactive, script);
        let failed = daemon.wait_for_status(run, RunStatus::Failed);
        assert_eq!(failed.error().map(|failure| failure.code), Some(FailureCode::EngineFailed), "{script}");
    }
    let run = daemon.start(Interactive, "progress Soon.\nhang");
    daemon.wait_until(run, "a process", |run| run.live().is_some());
    daemon.cancel(run);
    daemon.wait_for_status(run, RunStatus::Canceled);
    daemon.wait_until(run, "the end of all processes", |_| daemon.process_names().is_empty());
}

/// The message is delivered to the running turn: it has no turn of its own, and its text is in that turn's answer.
#[test]
fn a_message_steers_a_parrot_at_work() {
    for engine in ["parrot", "parrot-sticky"] {
        let daemon = new_daemon(engine);
        let run = daemon.start(Chat, "say First.\nprogress Busy.\nsleep 5\nsay Last.");
        daemon.wait_until(run, "work", |run| {
            // The session is reported first, so the process is reading its input by then.
            matches!(run.state, RunState::Running(RunningPhase::Active(_))) && run.handle.is_some()
        });
        daemon.send_while_busy(run, "say Second.", OnBusy::Steer);
        let done = daemon.wait_for_status(run, RunStatus::Idle);
        assert_eq!(done.turn_index, 1, "{engine}: the message started no turn");
        let answer = done.result.unwrap_or_default();
        assert!(answer.contains("First.") && answer.contains("Second."), "{engine}: {answer:?}");
    }
}
