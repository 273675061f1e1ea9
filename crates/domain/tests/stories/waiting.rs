//! The two wait modes and their timeouts (A7) (A8) (A10).

use abide_domain::{
    deadline::DeadlineKind,
    engine::ProfileKind,
    failure::FailureCode,
    interaction::{DecisionPolicy, GatePurpose, InteractionKind},
    process::{Attempt, ExitStatus},
    run::{HeldProcess, RunState},
    slots::SlotOccupancy,
    turn::ExecutionStatus,
};

use crate::teller::{RESUMABLE, RunStory, STICKY, question};

#[test]
fn a8_a_resumable_wait_holds_neither_process_nor_slot_and_never_ends_by_itself() {
    let story = RunStory::asking(RESUMABLE, DecisionPolicy::EngineJudgement);
    assert_eq!(story.detail(), "waiting_user.free");
    assert_eq!((story.run().occupancy(), story.run().deadline()), (SlotOccupancy::None, None));
    assert_eq!(story.pending_effects(), Vec::<&str>::new());
}

#[test]
fn a8_a_sticky_wait_keeps_its_process_its_slot_and_its_deadline() {
    let story = RunStory::asking(STICKY, DecisionPolicy::EngineJudgement);
    assert_eq!(story.detail(), "waiting_user.session");
    assert_eq!(story.run().occupancy(), SlotOccupancy::Holding);
    assert_eq!(story.deadline_kind(), Some(DeadlineKind::Answer(story.question().interaction_id)));
}

#[test]
fn a7_session_process_and_deadline_are_stored_before_the_wait() {
    let resumable = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    let run = resumable.run();
    assert_eq!(run.profile.as_ref().unwrap().kind, ProfileKind::Resumable);
    assert_eq!((run.turn_index, run.handle.as_ref().unwrap().handle_value.as_str()), (1, "session-1"));
    assert_eq!(run.pending_interaction_id(), Some(resumable.question().interaction_id));

    let sticky = RunStory::asking(STICKY, DecisionPolicy::Abort);
    let RunState::WaitingUser(waiting) = &sticky.run().state else { panic!() };
    let HeldProcess::Session(live) = &waiting.held_process else { panic!() };
    assert_eq!((live.process.pid, live.process.keeper.as_str()), (101, "k1"));
    assert_eq!(waiting.deadline, sticky.question().deadline_at);
}

#[test]
fn a8_a_reply_resumes_in_a_new_process_or_goes_to_the_living_one() {
    let mut resumable = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    resumable.replies("red");
    assert_eq!(resumable.detail(), "queued");
    resumable.admitted();
    assert_eq!(
        (resumable.detail().as_str(), resumable.pending_effects()),
        ("running.launching", vec!["Launch"])
    );

    let mut sticky = RunStory::asking(STICKY, DecisionPolicy::Abort);
    sticky.replies("red");
    assert_eq!((sticky.detail().as_str(), sticky.pending_effects()), ("running.active", vec!["SendPrompt"]));
    assert_eq!(sticky.run().attempt(), Some(Attempt(1)));
}

#[test]
fn a8_an_approval_inside_a_turn_keeps_its_process_and_has_no_deadline_where_the_engine_resumes() {
    let mut story = RunStory::working(RESUMABLE);
    story.raise_gate(1, "g1", GatePurpose::Approval);
    assert_eq!((story.detail().as_str(), story.run().deadline()), ("waiting_user.turn", None));
    assert_eq!(story.run().occupancy(), SlotOccupancy::Holding);
    assert_eq!(story.run().turns[0].execution_status, ExecutionStatus::WaitingApproval);

    let mut sticky = RunStory::working(STICKY);
    sticky.raise_gate(1, "g1", GatePurpose::Approval);
    assert!(sticky.run().deadline().is_some());
}

#[test]
fn requests_of_one_turn_are_put_to_the_person_one_at_a_time() {
    let mut story = RunStory::working(RESUMABLE);
    story.raise_gate(1, "g1", GatePurpose::Approval).raise_gate(1, "g2", GatePurpose::Input);
    let first = story.question().interaction_id;
    story.replies("yes");
    assert_eq!(story.detail(), "waiting_user.turn");
    assert_ne!(story.question().interaction_id, first);
    story.replies("blue");
    assert_eq!(
        (story.detail().as_str(), story.pending_effects()),
        ("running.active", vec!["Answer", "Answer"])
    );
}

#[test]
fn a10_an_unanswered_strict_sticky_wait_fails() {
    let mut story = RunStory::asking(STICKY, DecisionPolicy::EngineJudgement);
    story.expire_deadline();
    assert_eq!(story.failure(), Some(FailureCode::InteractionWaitTimeout));
    assert_eq!(story.pending_effects(), vec!["Terminate"]);
    assert_eq!(story.run().occupancy(), SlotOccupancy::None);
}

#[test]
fn a10_a_process_that_dies_while_it_waits_fails_the_run() {
    for exit in [ExitStatus::Code(0), ExitStatus::Code(137), ExitStatus::Unknown] {
        let mut story = RunStory::asking(STICKY, DecisionPolicy::EngineJudgement);
        story.exits(1, exit);
        assert_eq!(story.failure(), Some(FailureCode::InteractionProcessLost));
        assert!(story.run().interactions.iter().all(|interaction| !interaction.is_open()));
    }
}

#[test]
fn a11_a_question_without_a_handle_is_never_asked() {
    let mut story = RunStory::working(crate::teller::StorySettings { announces: false, ..RESUMABLE });
    story.asks(1, question(InteractionKind::OpenText, DecisionPolicy::Abort));
    assert_eq!(story.failure(), Some(FailureCode::SessionResumeFailed));
    assert_eq!(story.run().interactions, vec![]);
}

#[test]
fn a_sticky_process_that_ends_with_its_question_cannot_be_answered() {
    let mut story = RunStory::working(STICKY);
    let (turn_id, position) = (story.turn(), story.next_position());
    story.apply(abide_domain::event::RunEvent::TurnEnded {
        attempt: Attempt(1),
        turn_id,
        position,
        outcome: abide_domain::event::TurnOutcome::Asked {
            text: String::new(),
            question: question(InteractionKind::OpenText, DecisionPolicy::Abort),
        },
        process_after: abide_domain::event::ProcessAfterTurn::Exited(ExitStatus::Code(0)),
    });
    assert_eq!(story.failure(), Some(FailureCode::InteractionProcessLost));
}
