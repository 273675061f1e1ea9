//! Turns that cannot be started after all retries (decision 0011).

use abide_domain::{
    delivery::{DeliveryContent, DeliveryStatus},
    effect::LaunchSession,
    event::{LaunchRetry, RunEvent},
    failure::FailureCode,
    inbound::InboundStatus,
    interaction::{DecisionPolicy, InteractionKind, InteractionOrigin, RuntimeQuestion},
    run::{MAX_LAUNCHES_PER_TURN, RunStatus},
    settings::{ExecutionMode, OnBusy, UnansweredPolicy},
    slots::SlotOccupancy,
    turn::{ExecutionStatus, RuntimeStatus},
};

use crate::teller::{RESUMABLE, RunStory, STICKY, StorySettings, handle};

const CHAT: StorySettings = StorySettings { mode: ExecutionMode::Chat, ..RESUMABLE };

/// Lets every try to start the current turn fail, beginning with this attempt.
fn fail_all_launches(story: &mut RunStory, first: u32) {
    for attempt in first..first + MAX_LAUNCHES_PER_TURN {
        story.fails_to_launch(attempt, FailureCode::EngineFailed, LaunchRetry::Later);
    }
}

/// A run whose first turn could not be started.
fn run_with_unstarted_turn(story_settings: StorySettings) -> RunStory {
    let mut story = RunStory::launching(story_settings);
    fail_all_launches(&mut story, 1);
    story
}

/// A run whose answer to a question could not be passed to its session.
fn run_with_unsent_answer(story_settings: StorySettings) -> RunStory {
    let mut story = RunStory::asking(story_settings, DecisionPolicy::Abort);
    story.replies("red").admitted();
    fail_all_launches(&mut story, 2);
    story
}

fn launch(story: &RunStory) -> (LaunchSession, String) {
    let (_, session, prompt) = story.pending_launch();
    (session, prompt)
}

#[test]
fn a_turn_that_cannot_be_started_is_put_to_the_person_and_holds_nothing_meanwhile() {
    for story_settings in [RESUMABLE, STICKY, CHAT] {
        let story = run_with_unstarted_turn(story_settings);
        assert_eq!((story.detail().as_str(), story.pending_effects()), ("waiting_user.free", vec![]));
        assert_eq!((story.run().occupancy(), story.run().deadline()), (SlotOccupancy::None, None));
        let turn = &story.run().turns[0];
        assert_eq!(turn.execution_status, ExecutionStatus::Failed);
        assert_eq!(turn.runtime_status, RuntimeStatus::Ended);
        assert_eq!(turn.error.as_ref().map(|failure| failure.code), Some(FailureCode::EngineFailed));
        assert_eq!(turn.attempts.len(), 3);
        assert_eq!(story.run().inbox[0].execution_status, InboundStatus::Failed);
    }
}

#[test]
fn the_question_contains_the_error_and_the_number_of_launches() {
    let story = run_with_unstarted_turn(RESUMABLE);
    let asked = story.question();
    assert_eq!(asked.origin, InteractionOrigin::Abide(RuntimeQuestion::FailedRepeatedly));
    let question = &asked.question;
    let options: Vec<_> = question.options.iter().map(|it| (it.label.as_str(), it.safe)).collect();
    assert_eq!(options, [("try again", false), ("stop", true)]);
    assert_eq!(
        (question.kind, question.default_decision_policy),
        (InteractionKind::ChooseOne, DecisionPolicy::Abort)
    );
    assert_eq!(
        question.prompt,
        "The engine could not be started for this turn. It was tried 3 times, the last time with: no\nNothing of \
         the turn was done. Try again, or stop here? Any other text is passed on to the engine, together with the \
         prompt of this turn."
    );
}

#[test]
fn a_person_may_have_the_same_turn_tried_again() {
    let mut story = run_with_unstarted_turn(RESUMABLE);
    story.replies(" Try again ").admitted();
    assert_eq!(launch(&story), (LaunchSession::New, "task".to_owned()));
    story.started(4).announces(4, "session-1").completes(4, "done");
    assert_eq!((story.run().status(), story.run().result.as_deref()), (RunStatus::Succeeded, Some("done")));

    let mut story = run_with_unsent_answer(RESUMABLE);
    story.replies("try again").admitted();
    assert_eq!(launch(&story), (LaunchSession::Resumed(handle("session-1")), "red".to_owned()));
}

#[test]
fn an_unstarted_sticky_engine_can_be_retried() {
    let mut story = run_with_unstarted_turn(STICKY);
    story.replies("try again").admitted();
    assert_eq!(launch(&story), (LaunchSession::New, "task".to_owned()));
}

#[test]
fn a_turn_that_fails_again_is_put_to_the_person_again() {
    let mut story = run_with_unstarted_turn(RESUMABLE);
    let first = story.question().interaction_id;
    story.replies("try again").admitted();
    fail_all_launches(&mut story, 4);
    assert_eq!(story.detail(), "waiting_user.free");
    assert_ne!(story.question().interaction_id, first);
}

#[test]
fn an_unsent_prompt_is_sent_with_the_reply() {
    let mut story = run_with_unstarted_turn(RESUMABLE);
    story.replies("but hurry").admitted();
    assert_eq!(launch(&story).1, "task\n\nbut hurry");

    let mut story = run_with_unsent_answer(RESUMABLE);
    story.replies("or blue").admitted();
    assert_eq!(launch(&story).1, "red\n\nor blue", "the session has not heard the first answer");
}

#[test]
fn a_person_may_give_a_turn_up_that_cannot_be_started() {
    let mut story = run_with_unstarted_turn(RESUMABLE);
    story.replies("Stop");
    let ended = (story.run().status(), story.failure());
    assert_eq!(ended, (RunStatus::Canceled, Some(FailureCode::CanceledByUser)));
}

#[test]
fn a_chat_outlives_a_turn_that_cannot_be_started() {
    let mut story = run_with_unstarted_turn(CHAT);
    story.replies("stop");
    assert_eq!(story.detail(), "idle.free");
    story.send_message("m2", OnBusy::Queue).admitted();
    assert_eq!(launch(&story), (LaunchSession::New, "m2".to_owned()));
}

#[test]
fn messages_of_a_chat_are_not_used_up_one_after_the_other_by_an_engine_that_cannot_be_started() {
    let mut story = RunStory::launching(CHAT);
    story.send_message("m2", OnBusy::Queue).send_message("m3", OnBusy::Queue);
    fail_all_launches(&mut story, 1);
    let waiting = |story: &RunStory| {
        let received = |it: &&std::sync::Arc<abide_domain::inbound::Inbound>| {
            it.execution_status == InboundStatus::Received
        };
        story.run().inbox.iter().filter(received).count()
    };
    assert_eq!((story.detail().as_str(), waiting(&story)), ("waiting_user.free", 2));
    story.replies("stop").admitted();
    assert_eq!((launch(&story).1.as_str(), waiting(&story)), ("m2", 1));
}

#[test]
fn e9_a_newer_message_may_take_the_place_of_a_turn_that_cannot_be_started() {
    let mut story = run_with_unstarted_turn(CHAT);
    story.send_message("m2", OnBusy::Supersede).admitted();
    assert_eq!(launch(&story).1, "m2");
    assert!(story.run().interactions.iter().all(|question| !question.is_open()));
}

#[test]
fn d7_a_timeout_never_has_a_failed_turn_tried_again() {
    for mode in [ExecutionMode::Interactive, ExecutionMode::Chat] {
        let mut story = run_with_unstarted_turn(StorySettings {
            mode,
            unanswered: UnansweredPolicy::AutoDecide,
            ..RESUMABLE
        });
        story.expire_deadline();
        assert_eq!((story.run().status(), story.pending_effects()), (RunStatus::Canceled, vec![]));
        assert_eq!(story.failure(), Some(FailureCode::InteractionAborted));
        assert_eq!(story.run().auto_decision_count, 0);
    }
}

#[test]
fn an_unattended_run_whose_turn_cannot_be_started_fails() {
    let story = run_with_unstarted_turn(StorySettings { mode: ExecutionMode::Auto, ..RESUMABLE });
    assert_eq!(story.failure(), Some(FailureCode::EngineFailed));
    assert_eq!(story.run().turns[0].attempts.len(), 3);
    assert_eq!(story.pending_effects(), Vec::<&str>::new());
}

#[test]
fn a_permanent_launch_failure_fails_the_run() {
    let mut story = RunStory::launching(RESUMABLE);
    story.fails_to_launch(1, FailureCode::EngineFailed, LaunchRetry::Later);
    story.fails_to_launch(2, FailureCode::EngineNotFound, LaunchRetry::Never);
    assert_eq!(story.failure(), Some(FailureCode::EngineNotFound));
}

#[test]
fn e10_the_question_brings_the_failure_to_the_conversation() {
    let mut story = run_with_unstarted_turn(StorySettings { conversation: true, ..RESUMABLE });
    let (turn, question) = (story.turn(), story.question().interaction_id);
    assert_eq!((story.pending_effects(), story.run().deliveries.len()), (vec!["Deliver"], 1));
    let delivery = &story.run().deliveries[0];
    assert_eq!(
        (&delivery.content, delivery.outcome_turn_id),
        (&DeliveryContent::Question(question), Some(turn))
    );
    story.report_delivery(Ok(()));
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Delivered);
    story.replies("stop");
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Delivered);
}

#[test]
fn a_launch_that_is_reported_late_changes_nothing_about_the_question() {
    let mut story = run_with_unstarted_turn(RESUMABLE);
    let failure = abide_domain::failure::RunFailure::new(FailureCode::EngineFailed, "no");
    let attempt = abide_domain::process::Attempt(3);
    story.apply_ignored(RunEvent::LaunchFailed { attempt, failure, retry: LaunchRetry::Later });
}
