//! Deliveries and their failures. Executed is not delivered (E10).

use abide_domain::{
    delivery::{DeliveryContent, DeliveryFailure, DeliveryNotice, DeliveryStatus},
    event::RunEvent,
    interaction::DecisionPolicy,
    run::RunStatus,
    settings::ExecutionMode,
};

use crate::teller::{RESUMABLE, RunStory, StorySettings};

const IN_CHAT: StorySettings = StorySettings { conversation: true, ..RESUMABLE };

fn delivered() -> RunStory {
    let mut story = RunStory::working(IN_CHAT);
    story.completes(1, "done");
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Pending);
    story
}

#[test]
fn a_result_is_delivered_after_the_run_has_ended() {
    let mut story = delivered();
    assert_eq!(story.run().status(), RunStatus::Succeeded);
    story.report_delivery(Ok(()));
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Delivered);
    assert_eq!(story.run().turns[0].delivered_at, Some(story.run().updated_at));
}

#[test]
fn without_a_conversation_results_count_as_delivered_in_the_ledger() {
    let mut story = RunStory::working(RESUMABLE);
    story.completes(1, "done");
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Delivered);
    assert_eq!(story.pending_effects(), Vec::<&str>::new());
}

#[test]
fn a_failed_delivery_is_retried_when_the_conversation_is_active() {
    for certainty in [DeliveryFailure::Failed, DeliveryFailure::Unknown] {
        let mut story = delivered();
        let first = story.effect("Deliver");
        story.report_delivery(Err(certainty));
        assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::DeliveryUnavailable);
        assert_eq!(story.pending_effects(), Vec::<&str>::new());
        story.apply(RunEvent::ConversationActive);
        assert_eq!(story.effect("Deliver"), first, "the key is the same");
        story.report_delivery(Ok(()));
        assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Delivered);
    }
}

#[test]
fn only_if_that_fails_too_is_a_notice_sent() {
    let mut story = delivered();
    story
        .report_delivery(Err(DeliveryFailure::Failed))
        .apply(RunEvent::ConversationActive)
        .report_delivery(Err(DeliveryFailure::Failed));
    let notice = story.run().deliveries.last().unwrap();
    assert!(matches!(notice.content, DeliveryContent::Notice(DeliveryNotice::Undelivered(_))));
    story.report_delivery(Err(DeliveryFailure::Failed));
    story.fail_notice_twice();
}

impl RunStory {
    /// A failed notice is retried once and then given up.
    fn fail_notice_twice(&mut self) {
        self.apply(RunEvent::ConversationActive).report_delivery(Err(DeliveryFailure::Failed));
        assert_eq!(self.pending_effects(), Vec::<&str>::new());
        self.apply_ignored(RunEvent::ConversationActive);
    }
}

#[test]
fn a_question_is_retracted_when_it_is_answered_elsewhere() {
    let mut story = RunStory::asking(IN_CHAT, DecisionPolicy::Abort);
    let id = story.question().interaction_id;
    story.report_delivery(Ok(())).replies("red");
    let contents: Vec<_> = story.run().deliveries.iter().map(|it| it.content.clone()).collect();
    assert_eq!(contents, vec![DeliveryContent::QuestionClosed(id)]);
}

#[test]
fn a_question_that_was_answered_before_it_could_be_shown_is_not_shown() {
    let mut story = RunStory::asking(IN_CHAT, DecisionPolicy::Abort);
    story
        .report_delivery(Err(DeliveryFailure::Failed))
        .replies("red")
        .apply_ignored(RunEvent::ConversationActive);
}

#[test]
fn the_text_before_an_undelivered_question_is_delivered() {
    let mut story = RunStory::asking(IN_CHAT, DecisionPolicy::Abort);
    let turn = story.turn();
    story.report_delivery(Err(DeliveryFailure::Failed)).replies("red");
    let pending: Vec<_> =
        story.run().deliveries.iter().filter(|it| it.status == DeliveryStatus::Pending).collect();
    assert_eq!(
        pending.iter().map(|it| &it.content).collect::<Vec<_>>(),
        vec![&DeliveryContent::Result(turn)]
    );
}

#[test]
fn cancelling_keeps_pending_deliveries_of_earlier_turns() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..IN_CHAT });
    story.completes(1, "done").apply(RunEvent::CancelRequested { by: "ada".into() });
    assert_eq!(
        (story.run().turns[0].delivery_status, story.pending_effects()),
        (DeliveryStatus::Pending, vec!["Deliver"])
    );
}

#[test]
fn a_silent_conversation_does_not_make_its_run_grow_for_ever() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..IN_CHAT });
    story.completes(1, "one").report_delivery(Err(DeliveryFailure::Failed));
    for turn in 2..80 {
        story
            .send_message(&format!("m{turn}"), abide_domain::settings::OnBusy::Queue)
            .admitted()
            .started(turn);
        story
            .announces(turn, "session-1")
            .completes(turn, "more")
            .report_delivery(Err(DeliveryFailure::Failed));
    }
    assert!(story.run().turns.len() <= 52, "{}", story.run().turns.len());
}

#[test]
fn a_failed_turn_is_delivered_to_its_conversation() {
    let mut story = RunStory::working(IN_CHAT);
    story.exits(1, abide_domain::process::ExitStatus::Code(1));
    assert_eq!(story.pending_effects(), vec!["Deliver"]);
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Pending);
}

#[test]
fn a_run_that_ends_while_waiting_sends_a_notice() {
    let mut story = RunStory::asking(
        StorySettings { conversation: true, ..crate::teller::STICKY },
        DecisionPolicy::Abort,
    );
    story.report_delivery(Ok(())).expire_deadline();
    assert!(story.pending_effects().contains(&"Deliver"));
}

#[test]
fn a_result_on_its_way_is_kept_while_newer_turns_come_and_go() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..IN_CHAT });
    story.completes(1, "one").report_delivery(Err(DeliveryFailure::Failed));
    story.send_message("m2", abide_domain::settings::OnBusy::Queue).admitted().started(2);
    story.announces(2, "session-1").completes(2, "two").report_delivery(Ok(()));
    story.apply(RunEvent::ConversationActive).report_delivery(Ok(()));
    let first = story.run().turns.iter().find(|turn| turn.turn_index == 1).unwrap();
    assert_eq!((first.delivery_status, first.reply.as_deref()), (DeliveryStatus::Delivered, Some("one")));
}
