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
    story.delivery(Ok(()));
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Delivered);
    assert_eq!(story.run().turns[0].delivered_at, Some(story.run().updated_at));
}

#[test]
fn where_there_is_no_conversation_the_ledger_is_where_results_go() {
    let mut story = RunStory::working(RESUMABLE);
    story.completes(1, "done");
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Delivered);
    assert_eq!(story.owed(), Vec::<&str>::new());
}

#[test]
fn a_result_that_could_not_be_delivered_is_sent_again_when_the_conversation_speaks() {
    for certainty in [DeliveryFailure::Failed, DeliveryFailure::Unknown] {
        let mut story = delivered();
        let first = story.effect("Deliver");
        story.delivery(Err(certainty));
        assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::DeliveryUnavailable);
        assert_eq!(story.owed(), Vec::<&str>::new());
        story.tell(RunEvent::ConversationSpoke);
        assert_eq!(story.effect("Deliver"), first, "the key is the same");
        story.delivery(Ok(()));
        assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Delivered);
    }
}

#[test]
fn only_if_that_fails_too_is_a_notice_sent() {
    let mut story = delivered();
    story
        .delivery(Err(DeliveryFailure::Failed))
        .tell(RunEvent::ConversationSpoke)
        .delivery(Err(DeliveryFailure::Failed));
    let notice = story.run().deliveries.last().unwrap();
    assert!(matches!(notice.content, DeliveryContent::Notice(DeliveryNotice::Undelivered(_))));
    story.delivery(Err(DeliveryFailure::Failed));
    story.tell_in_vain_after_notice();
}

impl RunStory {
    /// A failed notice is retried once and then given up.
    fn tell_in_vain_after_notice(&mut self) {
        self.tell(RunEvent::ConversationSpoke).delivery(Err(DeliveryFailure::Failed));
        assert_eq!(self.owed(), Vec::<&str>::new());
        self.tell_in_vain(RunEvent::ConversationSpoke);
    }
}

#[test]
fn a_question_is_shown_in_its_conversation_and_taken_down_when_it_is_answered_elsewhere() {
    let mut story = RunStory::asking(IN_CHAT, DecisionPolicy::Abort);
    let id = story.question().interaction_id;
    story.delivery(Ok(())).replies("red");
    let contents: Vec<_> = story.run().deliveries.iter().map(|it| it.content.clone()).collect();
    assert_eq!(contents, vec![DeliveryContent::QuestionClosed(id)]);
}

#[test]
fn a_question_that_was_answered_before_it_could_be_shown_is_not_shown() {
    let mut story = RunStory::asking(IN_CHAT, DecisionPolicy::Abort);
    story.delivery(Err(DeliveryFailure::Failed)).replies("red").tell_in_vain(RunEvent::ConversationSpoke);
}

#[test]
fn what_was_said_before_a_question_reaches_the_conversation_even_if_the_question_did_not() {
    let mut story = RunStory::asking(IN_CHAT, DecisionPolicy::Abort);
    let turn = story.turn();
    story.delivery(Err(DeliveryFailure::Failed)).replies("red");
    let pending: Vec<_> =
        story.run().deliveries.iter().filter(|it| it.status == DeliveryStatus::Pending).collect();
    assert_eq!(
        pending.iter().map(|it| &it.content).collect::<Vec<_>>(),
        vec![&DeliveryContent::Result(turn)]
    );
}

#[test]
fn cancelling_does_not_take_back_what_an_earlier_turn_had_to_say() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..IN_CHAT });
    story.completes(1, "done").tell(RunEvent::CancelRequested { by: "ada".into() });
    assert_eq!(
        (story.run().turns[0].delivery_status, story.owed()),
        (DeliveryStatus::Pending, vec!["Deliver"])
    );
}

#[test]
fn a_silent_conversation_does_not_make_its_run_grow_for_ever() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..IN_CHAT });
    story.completes(1, "one").delivery(Err(DeliveryFailure::Failed));
    for turn in 2..80 {
        story.says(&format!("m{turn}"), abide_domain::settings::OnBusy::Queue).admitted().started(turn);
        story.announces(turn, "session-1").completes(turn, "more").delivery(Err(DeliveryFailure::Failed));
    }
    assert!(story.run().turns.len() <= 52, "{}", story.run().turns.len());
}

#[test]
fn a_failed_turn_is_told_to_its_conversation() {
    let mut story = RunStory::working(IN_CHAT);
    story.exits(1, abide_domain::process::ExitStatus::Code(1));
    assert_eq!(story.owed(), vec!["Deliver"]);
    assert_eq!(story.run().turns[0].delivery_status, DeliveryStatus::Pending);
}

#[test]
fn a_run_that_ends_while_it_waits_says_so() {
    let mut story = RunStory::asking(
        StorySettings { conversation: true, ..crate::teller::STICKY },
        DecisionPolicy::Abort,
    );
    story.delivery(Ok(())).deadline_passes();
    assert!(story.owed().contains(&"Deliver"));
}

#[test]
fn a_result_on_its_way_is_kept_while_newer_turns_come_and_go() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..IN_CHAT });
    story.completes(1, "one").delivery(Err(DeliveryFailure::Failed));
    story.says("m2", abide_domain::settings::OnBusy::Queue).admitted().started(2);
    story.announces(2, "session-1").completes(2, "two").delivery(Ok(()));
    story.tell(RunEvent::ConversationSpoke).delivery(Ok(()));
    let first = story.run().turns.iter().find(|turn| turn.turn_index == 1).unwrap();
    assert_eq!((first.delivery_status, first.reply.as_deref()), (DeliveryStatus::Delivered, Some("one")));
}
