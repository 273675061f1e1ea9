//! Messages to a busy, idle or finished run (E5) (E9).

use abide_domain::{
    delivery::DeliveryStatus,
    engine::RunAbilities,
    event::{RunEvent, TurnOutcome},
    failure::{FailureCode, RunFailure},
    inbound::InboundStatus,
    interaction::DecisionPolicy,
    process::Attempt,
    process::ExitStatus,
    refused::RequestRefused,
    run::{INBOX_LIMIT, RunStatus},
    settings::{ExecutionMode, OnBusy},
    turn::ExecutionStatus,
};

use crate::teller::{RESUMABLE, RunStory, STICKY, StorySettings, message};

const CHAT: StorySettings = StorySettings { mode: ExecutionMode::Chat, ..RESUMABLE };
const STICKY_CHAT: StorySettings = StorySettings { mode: ExecutionMode::Chat, ..STICKY };
const STEERABLE: StorySettings =
    StorySettings { abilities: RunAbilities { steer: true, recover: false }, ..RESUMABLE };

fn statuses(story: &RunStory) -> Vec<(&str, InboundStatus)> {
    let inbox = story.run().inbox.iter();
    inbox.map(|it| (it.message.key.message_id.as_str(), it.execution_status)).collect()
}

#[test]
fn a_message_for_a_busy_run_waits_for_its_own_turn() {
    let mut story = RunStory::working(RESUMABLE);
    story.send_message("m2", OnBusy::Queue);
    assert_eq!(statuses(&story), [("m1", InboundStatus::Accepted), ("m2", InboundStatus::Received)]);
    story.completes(1, "first").admitted();
    assert_eq!(story.run().turns.last().unwrap().prompt, "m2");
    assert_eq!(statuses(&story), [("m2", InboundStatus::Accepted)]);
}

#[test]
fn a_chat_is_idle_between_turns_and_continues_with_the_next_message() {
    let mut story = RunStory::working(CHAT);
    story.completes(1, "hello");
    assert_eq!(story.detail(), "idle.free");
    story
        .send_message("m2", OnBusy::Queue)
        .admitted()
        .started(2)
        .announces(2, "session-1")
        .completes(2, "again");
    assert_eq!((story.detail().as_str(), story.run().result.as_deref()), ("idle.free", Some("again")));
}

#[test]
fn a_chat_that_can_be_resumed_continues_after_a_turn_that_failed() {
    let failure = RunFailure::new(FailureCode::EngineFailed, "the model said no");
    let mut story = RunStory::working(CHAT);
    story
        .completes(1, "hello")
        .send_message("m2", OnBusy::Queue)
        .admitted()
        .started(2)
        .announces(2, "session-1");
    story.ends(2, TurnOutcome::Failed { failure: failure.clone() });
    assert_eq!(story.detail(), "idle.free");
    assert_eq!(story.run().turns.last().unwrap().error, Some(failure));
    story.send_message("m3", OnBusy::Queue).admitted().started(3).exits(3, ExitStatus::Code(137));
    assert_eq!(story.detail(), "idle.free");
    story
        .send_message("m4", OnBusy::Queue)
        .admitted()
        .started(4)
        .announces(4, "session-1")
        .completes(4, "again");
    assert_eq!((story.detail().as_str(), story.run().result.as_deref()), ("idle.free", Some("again")));
}

#[test]
fn a_chat_whose_session_is_lost_is_over() {
    let failure = RunFailure::new(FailureCode::SessionResumeFailed, "no such session");
    let mut story = RunStory::working(CHAT);
    story.completes(1, "hello").send_message("m2", OnBusy::Queue).admitted().started(2);
    story.ends(2, TurnOutcome::Failed { failure });
    assert_eq!(story.failure(), Some(FailureCode::SessionResumeFailed));
}

#[test]
fn a_sticky_chat_ends_after_its_idle_timeout() {
    let mut story = RunStory::working(STICKY_CHAT);
    story.completes(1, "hello").send_message("m2", OnBusy::Queue);
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("running.active", vec!["SendPrompt"]));
    story.completes(1, "again");
    assert_eq!(story.detail(), "idle.session");
    story.expire_deadline();
    assert_eq!((story.run().status(), story.pending_effects()), (RunStatus::Succeeded, vec!["Terminate"]));
}

#[test]
fn a_message_steers_the_running_turn_where_the_engine_can_and_waits_where_it_cannot() {
    let mut story = RunStory::working(STEERABLE);
    story.send_message("m2", OnBusy::Steer);
    assert_eq!(statuses(&story)[1], ("m2", InboundStatus::Received), "not taken before it was given");
    story.performs("Steer");
    assert_eq!(statuses(&story)[1], ("m2", InboundStatus::Accepted));
    story.completes(1, "both");
    assert_eq!(story.run().status(), RunStatus::Succeeded);

    let mut story = RunStory::working(RESUMABLE);
    story.send_message("m2", OnBusy::Steer).completes(1, "one");
    assert_eq!(story.run().status(), RunStatus::Queued);
}

#[test]
fn a_message_that_came_too_late_to_steer_gets_its_own_turn() {
    let mut story = RunStory::working(STEERABLE);
    story.send_message("m2", OnBusy::Steer).completes(1, "one");
    assert_eq!((story.run().status(), story.pending_effects()), (RunStatus::Queued, vec![]));

    let mut story = RunStory::working(STEERABLE);
    story.send_message("m2", OnBusy::Steer);
    let effect = story.effect_number("Steer");
    story.apply(RunEvent::EffectObsolete { effect }).completes(1, "one");
    assert_eq!(story.run().status(), RunStatus::Queued);
}

/// The process may have received the message, so it is not sent again in a turn of its own.
#[test]
fn e5_a_message_that_is_being_added_to_a_turn_ends_with_a_turn_that_is_superseded_or_stopped() {
    let mut story = RunStory::working(STEERABLE);
    story.send_message("m2", OnBusy::Steer).send_message("m3", OnBusy::Supersede);
    assert_eq!(story.pending_effects(), ["Terminate", "Launch"]);
    let superseded = ("m2", InboundStatus::Superseded);
    assert!(statuses(&story).contains(&superseded), "{:?}", statuses(&story));

    let mut story = RunStory::working(STEERABLE);
    story.send_message("m2", OnBusy::Steer);
    story.apply(RunEvent::InterruptRequested { by: "ada".into() }).expire_deadline();
    assert_eq!(statuses(&story)[1], ("m2", InboundStatus::Canceled));
}

/// It was not accepted, and the person learns that the outcome of the turn is unknown.
#[test]
fn e5_a_message_that_is_being_added_to_a_turn_with_an_unknown_outcome_waits_for_its_own_turn() {
    let mut story = RunStory::working(STEERABLE);
    story.send_message("m2", OnBusy::Steer);
    story.apply(RunEvent::ContactLost { attempt: Attempt(1), search_timeout_sec: None }).expire_deadline();
    assert_eq!(statuses(&story)[1], ("m2", InboundStatus::Received));
}

#[test]
fn e9_a_superseded_turn_is_ended_and_its_output_suppressed() {
    let mut story = RunStory::working(StorySettings { conversation: true, ..RESUMABLE });
    story.send_message("m2", OnBusy::Supersede);
    assert_eq!(
        (story.detail().as_str(), story.pending_effects()),
        ("running.launching", vec!["Terminate", "Launch"])
    );
    let (old, new) = (&story.run().turns[0], &story.run().turns[1]);
    assert_eq!(old.execution_status, ExecutionStatus::Superseded);
    assert_eq!(old.delivery_status, DeliveryStatus::Suppressed);
    let superseded = old.superseded.as_ref().unwrap();
    assert_eq!((superseded.by_turn, superseded.by_message.message_id.as_str()), (Some(new.turn_id), "m2"));
    assert!(!story.requested_effects.contains(&"Deliver"));
}

#[test]
fn e9_a_sticky_turn_is_stopped_before_the_newer_message_takes_over() {
    let mut story = RunStory::working(STICKY);
    story.send_message("m2", OnBusy::Supersede);
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("running.stopping", vec!["Interrupt"]));
    story.send_message("m3", OnBusy::Supersede);
    story.ends(1, TurnOutcome::Completed { text: "late".into() });
    assert_eq!((story.detail().as_str(), story.run().result.as_deref()), ("running.active", None));
    assert_eq!(story.run().turns.last().unwrap().prompt, "m3");
}

#[test]
fn e9_a_question_is_closed_by_the_message_that_supersedes_it() {
    let mut story = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    story.send_message("m2", OnBusy::Supersede);
    assert_eq!(story.run().status(), RunStatus::Queued);
    assert!(story.run().interactions.iter().all(|interaction| !interaction.is_open()));
}

#[test]
fn a_message_is_never_taken_for_the_answer_to_an_open_question() {
    let mut story = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    story.send_message("m2", OnBusy::Queue);
    assert_eq!(story.detail(), "waiting_user.free");
    story.replies("red").admitted();
    assert_eq!(story.run().turns.last().unwrap().prompt, "red", "the answer goes first");
}

#[test]
fn an_answer_is_never_overtaken_by_a_message() {
    let mut story = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    story.replies("red").send_message("m2", OnBusy::Supersede).admitted();
    assert_eq!(story.run().turns.last().unwrap().prompt, "red");
}

#[test]
fn a_queued_message_can_be_replaced_before_it_was_ever_taken() {
    let mut story = RunStory::created(RESUMABLE);
    story.send_message("m2", OnBusy::Supersede);
    assert_eq!(statuses(&story), [("m2", InboundStatus::Received), ("m1", InboundStatus::Superseded)]);
    story.admitted();
    assert_eq!(story.run().turns[0].prompt, "m2");
}

#[test]
fn the_inbox_has_a_bound_and_says_so() {
    let mut story = RunStory::working(RESUMABLE);
    for n in 0..INBOX_LIMIT {
        story.send_message(&format!("q{n}"), OnBusy::Queue);
    }
    let refused =
        story.expect_refusal(RunEvent::MessageArrived { message: message("q", "q"), on_busy: None });
    assert_eq!(refused, RequestRefused::InboxFull { limit: INBOX_LIMIT });
}

#[test]
fn a_run_of_many_turns_stays_as_small_as_one_of_two() {
    let mut story = RunStory::working(CHAT);
    story.completes(1, "hello");
    for turn in 2..50 {
        story.send_message(&format!("m{turn}"), OnBusy::Queue).admitted().started(turn);
        story.announces(turn, "session-1").completes(turn, "again");
    }
    assert_eq!((story.run().turn_index, story.run().turns.len()), (49, 1));
}
