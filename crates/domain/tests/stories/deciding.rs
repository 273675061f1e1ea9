//! Answers by people and by policies (D4)-(D8).

use abide_domain::{
    approval::ApprovalVerdict,
    effect::Effect,
    event::RunEvent,
    failure::FailureCode,
    interaction::{
        DecisionPolicy, GatePurpose, InteractionKind, InteractionResolution, InteractionState, ResolutionMode,
    },
    policy::{AutoDecideReason, MAX_CONSECUTIVE_AUTO_DECISIONS},
    refused::RequestRefused,
    reply::{self, ReplyAcceptance, ReplyAuthor},
    run::RunStatus,
    settings::{ExecutionMode, UnansweredPolicy},
};

use crate::teller::{RESUMABLE, RunStory, STICKY, StorySettings, question, reply};

const UNATTENDED: StorySettings = StorySettings { unanswered: UnansweredPolicy::AutoDecide, ..RESUMABLE };
const UNATTENDED_STICKY: StorySettings = StorySettings { unanswered: UnansweredPolicy::AutoDecide, ..STICKY };

fn resolution(story: &RunStory) -> InteractionResolution {
    let answered = story.run().interactions.iter().find_map(|interaction| match &interaction.state {
        InteractionState::Answered(resolution) => Some(resolution.clone()),
        InteractionState::Open | InteractionState::Closed { .. } => None,
    });
    answered.expect("a question was just answered")
}

#[test]
fn d5_unattended_and_resumable_the_deadline_resumes_the_run() {
    let mut story = RunStory::asking(UNATTENDED, DecisionPolicy::EngineJudgement);
    story.expire_deadline();
    assert_eq!(story.run().status(), RunStatus::Queued);
    let resolution = resolution(&story);
    assert_eq!(resolution.resolution_mode, ResolutionMode::AutoDecideTimeout);
    assert_eq!(resolution.auto_decide_reason, Some(AutoDecideReason::UserNoReply));
    assert_eq!(resolution.resolved_by, "policy");
    assert_eq!(story.run().auto_decision_count, 1);
    assert_eq!(story.run().last_auto_decision_at, Some(story.run().updated_at));
}

#[test]
fn d5_unattended_and_sticky_the_automatic_reply_goes_to_the_living_process() {
    let mut story = RunStory::asking(UNATTENDED_STICKY, DecisionPolicy::SafeDefault);
    story.expire_deadline();
    assert_eq!(story.detail(), "running.active");
    let Effect::SendPrompt { prompt, .. } = story.effect("SendPrompt") else { unreachable!() };
    assert_eq!(prompt, "green", "the option marked safe");
}

#[test]
fn d6_an_automatic_reply_is_an_event_that_says_all_of_it() {
    let auto = StorySettings { mode: ExecutionMode::Auto, ..RESUMABLE };
    let mut timed_out = RunStory::asking(UNATTENDED, DecisionPolicy::SafeDefault);
    let asked = timed_out.question().interaction_id;
    timed_out.expire_deadline();
    let never_asks = RunStory::asking(auto, DecisionPolicy::SafeDefault);
    for (story, reason) in
        [(timed_out, AutoDecideReason::UserNoReply), (never_asks, AutoDecideReason::AutoMode)]
    {
        let [RunEvent::ReplyArrived { reply }] = &story.follow_up_events[..] else {
            panic!("{:?}", story.follow_up_events)
        };
        assert_eq!(
            (reply.text.as_str(), &reply.by),
            ("green", &ReplyAuthor::Policy { reason, policy: DecisionPolicy::SafeDefault })
        );
        assert!(reason == AutoDecideReason::AutoMode || reply.interaction_id == asked);
        assert_eq!(story.run().status(), RunStatus::Queued);
    }
}

#[test]
fn d6_the_first_reply_wins_and_is_consumed_once() {
    let mut story = RunStory::asking(UNATTENDED, DecisionPolicy::EngineJudgement);
    let id = story.question().interaction_id;
    story.apply(RunEvent::ReplyArrived { reply: reply(id, "red", Some("k")) });
    assert_eq!(story.detail(), "queued");
    // A repetition with the same key is not a second answer; any other reply is refused as late. The run has dropped
    // the question by then, so the ledger's record is used.
    let record = story.run().interactions[0].clone();
    let late = |text, key| reply::accept(&record, &reply(id, text, key), story.run().updated_at);
    assert_eq!(late("red", Some("k")), Ok(ReplyAcceptance::Duplicate));
    assert_eq!(late("blue", Some("k")), Err(RequestRefused::IdempotencyConflict { interaction_id: id }));
    assert_eq!(late("red", None), Err(RequestRefused::StaleInteraction { interaction_id: id }));
    assert_eq!(late("red", Some("other")), Err(RequestRefused::StaleInteraction { interaction_id: id }));
    let stale = story.expect_refusal(RunEvent::ReplyArrived { reply: reply(id, "red", Some("k")) });
    assert_eq!(stale, RequestRefused::StaleInteraction { interaction_id: id });
    story.apply_ignored(RunEvent::DeadlinePassed {
        deadline: abide_domain::deadline::DeadlineKind::Answer(id),
    });
    assert_eq!(story.run().auto_decision_count, 0);
}

#[test]
fn d6_a_reply_after_the_deadline_is_refused() {
    let mut story = RunStory::asking(UNATTENDED, DecisionPolicy::EngineJudgement);
    let id = story.question().interaction_id;
    story.expire_deadline();
    let stale = story.expect_refusal(RunEvent::ReplyArrived { reply: reply(id, "red", None) });
    assert_eq!(stale, RequestRefused::StaleInteraction { interaction_id: id });
}

#[test]
fn d7_abort_ends_the_run_instead_of_inventing_an_answer() {
    for about in [UNATTENDED, UNATTENDED_STICKY] {
        let mut story = RunStory::asking(about, DecisionPolicy::Abort);
        story.expire_deadline();
        assert_eq!(story.run().status(), RunStatus::Canceled);
        assert_eq!(story.failure(), Some(FailureCode::InteractionAborted));
    }
}

#[test]
fn d7_a_timeout_never_acknowledges_a_risk_nor_approves() {
    for policy in [DecisionPolicy::EngineJudgement, DecisionPolicy::SafeDefault] {
        let mut story = RunStory::working(UNATTENDED);
        story.asks(1, question(InteractionKind::RiskAck, policy)).expire_deadline();
        assert!(resolution(&story).text.starts_with("No."), "{policy:?}");

        let mut story = RunStory::working(UNATTENDED);
        story.raise_gate(1, "g", GatePurpose::Approval).expire_deadline();
        let Effect::Answer { verdict, .. } = story.effect("Answer") else { unreachable!() };
        assert_eq!(verdict, Some(ApprovalVerdict::Declined));
    }
}

#[test]
fn the_reply_of_a_person_decides_an_approval() {
    for (text, expected) in
        [("yes", ApprovalVerdict::Approved), ("no, use the other file", ApprovalVerdict::Declined)]
    {
        let mut story = RunStory::working(RESUMABLE);
        story.raise_gate(1, "g", GatePurpose::Approval).replies(text);
        let Effect::Answer { verdict, text: passed_on, .. } = story.effect("Answer") else { unreachable!() };
        assert_eq!((verdict, passed_on.as_str()), (Some(expected), text));
        assert_eq!(resolution(&story).verdict, Some(expected));
    }
}

/// I42, I43
#[test]
fn an_approval_stays_open_after_an_unclear_answer() {
    let mut approval = RunStory::working(RESUMABLE);
    approval.raise_gate(1, "g", GatePurpose::Approval);
    let mut risk = RunStory::working(RESUMABLE);
    risk.asks(1, question(InteractionKind::RiskAck, DecisionPolicy::SafeDefault));
    for mut story in [approval, risk] {
        let interaction_id = story.run().pending_interaction_id().expect("it asks");
        let unclear = reply(interaction_id, "yes, but only the first", None);
        let refused = story.expect_refusal(RunEvent::ReplyArrived { reply: unclear });
        assert_eq!(refused, RequestRefused::ApprovalUnclear { interaction_id });
        assert_eq!(story.run().pending_interaction_id(), Some(interaction_id));
        story.replies("no: only the first");
        assert_eq!(resolution(&story).verdict, Some(ApprovalVerdict::Declined));
    }
}

#[test]
fn an_auto_run_never_waits() {
    let auto = StorySettings { mode: ExecutionMode::Auto, ..RESUMABLE };
    let mut story = RunStory::working(auto);
    story.asks(1, question(InteractionKind::OpenText, DecisionPolicy::EngineJudgement));
    assert_eq!(story.run().status(), RunStatus::Queued);
    assert_eq!(resolution(&story).auto_decide_reason, Some(AutoDecideReason::AutoMode));

    let mut story = RunStory::working(auto);
    story.raise_gate(1, "g", GatePurpose::Approval);
    assert_eq!(story.detail(), "running.active");
    let Effect::Answer { verdict, .. } = story.effect("Answer") else { unreachable!() };
    assert_eq!(verdict, Some(ApprovalVerdict::Declined));
}

#[test]
fn a_run_ends_after_too_many_consecutive_auto_decisions() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Auto, ..RESUMABLE });
    for turn in 1.. {
        story.asks(turn, question(InteractionKind::OpenText, DecisionPolicy::EngineJudgement));
        if story.run().status() == RunStatus::Canceled {
            break;
        }
        story.admitted().started(turn + 1).announces(turn + 1, "session-1");
    }
    assert_eq!(story.failure(), Some(FailureCode::InteractionAborted));
    assert_eq!(story.run().auto_decision_count, MAX_CONSECUTIVE_AUTO_DECISIONS);
}
