//! Exits of processes while a request inside a turn is open (A10), and shutdowns of the daemon.

use abide_domain::{
    effect::LaunchSession,
    event::{ProcessAfterTurn, RunEvent, TurnOutcome},
    failure::{FailureCode, RunFailure},
    interaction::{
        CloseReason, DecisionPolicy, GatePurpose, InteractionOrigin, InteractionState, RuntimeQuestion,
    },
    process::{Attempt, ExitStatus},
    run::RunStatus,
    settings::{ExecutionMode, OnBusy},
    slots::SlotOccupancy,
    turn::ExecutionStatus,
};

use crate::teller::{RESUMABLE, RunStory, STICKY, StorySettings};

const CHAT: StorySettings = StorySettings { mode: ExecutionMode::Chat, ..RESUMABLE };
const STICKY_CHAT: StorySettings = StorySettings { mode: ExecutionMode::Chat, ..STICKY };
const AUTO: StorySettings = StorySettings { mode: ExecutionMode::Auto, ..RESUMABLE };
const STICKY_AUTO: StorySettings = StorySettings { mode: ExecutionMode::Auto, ..STICKY };

/// All events by which a daemon learns that the process of a request is gone.
fn process_loss_events() -> [fn(&mut RunStory); 4] {
    fn turn_failed_with_exit(story: &mut RunStory) {
        let (turn_id, position) = (story.turn(), story.next_position());
        let failure = RunFailure::new(FailureCode::EngineFailed, "killed by signal 9");
        let ending = TurnOutcome::Failed { failure };
        let aftermath = ProcessAfterTurn::Exited(ExitStatus::Code(137));
        story.apply(RunEvent::TurnEnded {
            attempt: Attempt(1),
            turn_id,
            position,
            outcome: ending,
            process_after: aftermath,
        });
        story.exits(1, ExitStatus::Code(137));
    }
    fn exited(story: &mut RunStory) {
        story.exits(1, ExitStatus::Code(0));
    }
    fn unseen(story: &mut RunStory) {
        story.exits(1, ExitStatus::Unknown);
    }
    fn unreachable(story: &mut RunStory) {
        story.apply(RunEvent::ContactLost { attempt: Attempt(1), search_timeout_sec: None });
        story.apply(RunEvent::RecoveryFailed { attempt: Attempt(1), reason: "gone".into() });
    }
    [turn_failed_with_exit, exited, unseen, unreachable]
}

fn at_gate(story_settings: StorySettings) -> RunStory {
    let mut story = RunStory::working(story_settings);
    story.raise_gate(1, "g1", GatePurpose::Approval).raise_gate(1, "g2", GatePurpose::Input);
    story
}

/// The reason for which the previously open request was closed.
fn close_reason(story: &RunStory) -> Option<CloseReason> {
    story.run().interactions.iter().find_map(|interaction| match interaction.state {
        InteractionState::Closed { reason: because, .. } => Some(because),
        InteractionState::Open | InteractionState::Answered(_) => None,
    })
}

#[test]
fn a10_a_process_that_dies_at_a_request_makes_it_void_and_the_person_is_asked() {
    for story_settings in [RESUMABLE, CHAT] {
        for dies in process_loss_events() {
            let mut story = at_gate(story_settings);
            let request = story.question().interaction_id;
            let turn = story.turn();
            dies(&mut story);
            assert_eq!(story.detail(), "waiting_user.free");
            assert_ne!(story.question().interaction_id, request);
            assert_eq!(story.question().origin, InteractionOrigin::Abide(RuntimeQuestion::RequestVoid));
            assert_eq!(story.run().occupancy(), SlotOccupancy::None);
            assert_eq!(story.run().waiting_gates, vec![], "later requests are void too");
            let ended = story.run().turns.iter().find(|it| it.turn_id == turn).expect("it is the latest");
            assert_eq!(ended.execution_status, ExecutionStatus::Interrupted);
            story.replies("continue").admitted();
            let (_, session, prompt) = story.pending_launch();
            assert!(matches!(session, LaunchSession::Resumed(_)), "{session:?}");
            assert!(prompt.contains("nothing was approved"), "{prompt}");
            assert_eq!(story.run().turn_index, 2);
        }
    }
}

#[test]
fn a10_the_request_of_a_dead_process_is_closed_as_void() {
    let mut story = at_gate(RESUMABLE);
    story.exits(1, ExitStatus::Code(137));
    assert_eq!(close_reason(&story), Some(CloseReason::Void));
}

#[test]
fn a10_a_person_may_stop_after_a_void_request() {
    let mut story = at_gate(RESUMABLE);
    story.exits(1, ExitStatus::Unknown).replies("stop");
    assert_eq!(
        (story.run().status(), story.failure()),
        (RunStatus::Canceled, Some(FailureCode::CanceledByUser))
    );
    let mut chat = at_gate(CHAT);
    chat.exits(1, ExitStatus::Unknown).replies("stop");
    assert_eq!(chat.detail(), "idle.free");
}

#[test]
fn a10_a_sticky_process_that_dies_at_a_request_fails_the_run() {
    for story_settings in [STICKY, STICKY_CHAT] {
        for dies in process_loss_events() {
            let mut story = at_gate(story_settings);
            dies(&mut story);
            assert_eq!(story.failure(), Some(FailureCode::InteractionProcessLost));
            assert!(story.run().interactions.iter().all(|interaction| !interaction.is_open()));
        }
    }
}

#[test]
fn a10_a_sticky_run_never_fails_with_a_code_of_the_resumable_path() {
    // The process exits with its answer while a message waits.
    let mut story = RunStory::working(STICKY_CHAT);
    story.send_message("m2", OnBusy::Queue);
    let (turn_id, position) = (story.turn(), story.next_position());
    let ending = TurnOutcome::Completed { text: "done".into() };
    let aftermath = ProcessAfterTurn::Exited(ExitStatus::Code(0));
    story
        .apply(RunEvent::TurnEnded {
            attempt: Attempt(1),
            turn_id,
            position,
            outcome: ending,
            process_after: aftermath,
        })
        .admitted();
    assert_eq!(story.failure(), Some(FailureCode::InteractionProcessLost));
    // The process announces another session.
    let mut story = RunStory::working(STICKY);
    story.announces(1, "session-2");
    assert_eq!(story.failure(), Some(FailureCode::EngineFailed));
}

/// The daemon shuts down and the engine obeys.
fn shut_down(story: &mut RunStory) {
    story.apply(RunEvent::ShutdownRequested);
    if story.detail() == "running.stopping" {
        assert_eq!(story.pending_effects(), vec!["Interrupt"]);
        story.ends(1, TurnOutcome::Interrupted);
        story.apply(RunEvent::ShutdownRequested);
    }
    assert_eq!(story.run().live(), None, "nothing is held");
}

#[test]
fn a_shutdown_interrupts_the_turn_at_work_and_asks_in_an_interactive_run() {
    for story_settings in [RESUMABLE, STICKY] {
        let mut story = RunStory::working(story_settings);
        shut_down(&mut story);
        assert_eq!(story.detail(), "waiting_user.free");
        assert_eq!(story.question().origin, InteractionOrigin::Abide(RuntimeQuestion::StoppedByShutdown));
        assert_eq!(story.run().turns[0].execution_status, ExecutionStatus::Interrupted);
        story.replies("continue").admitted();
        let (_, session, prompt) = story.pending_launch();
        let resumed = matches!(session, LaunchSession::Resumed(_));
        // A session that existed only in its process has not received the task.
        assert_eq!(
            (resumed, prompt.starts_with("task")),
            (story_settings.kind == RESUMABLE.kind, !resumed),
            "{prompt}"
        );
    }
}

#[test]
fn after_a_shutdown_a_chat_is_idle_and_an_auto_run_has_failed() {
    for story_settings in [CHAT, STICKY_CHAT] {
        let mut story = RunStory::working(story_settings);
        shut_down(&mut story);
        assert_eq!(story.detail(), "idle.free");
    }
    for story_settings in [AUTO, STICKY_AUTO] {
        let mut story = RunStory::working(story_settings);
        shut_down(&mut story);
        assert_eq!(story.failure(), Some(FailureCode::StoppedByShutdown));
        assert_eq!(story.run().status(), RunStatus::Failed);
        assert_eq!(story.run().turns[0].execution_status, ExecutionStatus::Interrupted);
    }
}

#[test]
fn a_shutdown_voids_the_request_of_a_turn_and_fails_a_sticky_run() {
    for story_settings in [RESUMABLE, CHAT] {
        let mut story = at_gate(story_settings);
        story.apply(RunEvent::ShutdownRequested);
        assert_eq!(
            (story.detail().as_str(), close_reason(&story)),
            ("waiting_user.free", Some(CloseReason::Void))
        );
        assert_eq!(story.pending_effects(), vec!["Terminate"]);
        story.performs("Terminate").replies("continue").admitted();
        let (_, session, _) = story.pending_launch();
        assert!(matches!(session, LaunchSession::Resumed(_)), "{session:?}");
    }
    let mut asking = RunStory::asking(STICKY, DecisionPolicy::EngineJudgement);
    asking.apply(RunEvent::ShutdownRequested);
    let mut gate = at_gate(STICKY);
    gate.apply(RunEvent::ShutdownRequested);
    let mut resting = RunStory::working(STICKY_CHAT);
    resting.completes(1, "done").apply(RunEvent::ShutdownRequested);
    for story in [asking, gate, resting] {
        assert_eq!(story.failure(), Some(FailureCode::StoppedByShutdown));
        assert_eq!(story.pending_effects(), vec!["Terminate"]);
        assert!(story.run().interactions.iter().all(|interaction| !interaction.is_open()));
    }
}

#[test]
fn a_shutdown_leaves_runs_alone_that_hold_no_process() {
    let mut idle = RunStory::working(CHAT);
    idle.completes(1, "done");
    for mut story in [
        RunStory::created(RESUMABLE),
        RunStory::launching(RESUMABLE),
        RunStory::asking(RESUMABLE, DecisionPolicy::Abort),
        idle,
    ] {
        story.apply_ignored(RunEvent::ShutdownRequested);
    }
}

#[test]
fn a_shutdown_while_a_message_takes_over_leaves_the_message_queued() {
    let mut story = RunStory::working(STICKY);
    story.send_message("m2", OnBusy::Supersede);
    assert_eq!(story.detail(), "running.stopping");
    story.apply(RunEvent::ShutdownRequested);
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("queued", vec!["Terminate"]));
}

#[test]
fn a_turn_that_ends_in_the_middle_of_a_shutdown_keeps_its_ending() {
    let mut story = RunStory::working(RESUMABLE);
    story.apply(RunEvent::ShutdownRequested).completes(1, "done");
    assert_eq!((story.run().status(), story.run().result.as_deref()), (RunStatus::Succeeded, Some("done")));
}

#[test]
fn an_engine_that_does_not_stop_for_a_shutdown_is_ended() {
    let mut story = RunStory::working(RESUMABLE);
    story.apply(RunEvent::ShutdownRequested).expire_deadline();
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("waiting_user.free", vec!["Terminate"]));
}
