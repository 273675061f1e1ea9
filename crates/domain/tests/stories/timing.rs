//! The time limit of a turn, and waits that do not count towards it (SPEC section 4).

use abide_domain::{
    deadline::DeadlineKind,
    engine::RunAbilities,
    event::RunEvent,
    failure::FailureCode,
    id::{IdSeed, RunId},
    interaction::{DecisionPolicy, GatePurpose},
    process::{Attempt, ExitStatus},
    run::Run,
    settings::{ExecutionMode, OnBusy, UnansweredPolicy},
    slots::{AdmissionQueue, SlotOccupancy},
    time::{Seconds, Timestamp},
};

use crate::teller::{RESUMABLE, RunStory, STICKY, StorySettings, process};

const TURN_TIMEOUT_SEC: u32 = 60;
const LIMITED: StorySettings = StorySettings { turn_timeout: Some(TURN_TIMEOUT_SEC), ..RESUMABLE };
const LIMITED_STICKY: StorySettings = StorySettings { turn_timeout: Some(TURN_TIMEOUT_SEC), ..STICKY };
const DAY_SEC: u32 = 86_400;

fn restored(attempt: u32) -> RunEvent {
    RunEvent::ContactRestored { attempt: Attempt(attempt), process: process(attempt) }
}

fn lost(attempt: u32) -> RunEvent {
    RunEvent::ContactLost { attempt: Attempt(attempt), search_timeout_sec: None }
}

/// The time at which the running turn exceeds its limit.
fn turn_ends_at(story: &RunStory) -> Timestamp {
    let deadline = story.run().deadline().expect("a turn with a limit waits for its end");
    assert!(matches!(deadline.kind, DeadlineKind::Turn(_)), "{deadline:?}");
    deadline.at
}

/// The run after a restart of the daemon, which knows only the stored state.
fn restarted_run(story: &RunStory) -> Run {
    let written = serde_json::to_string(story.run()).expect("a run can be written");
    serde_json::from_str(&written).expect("the written value can be read")
}

fn times_out(mut story: RunStory) {
    story.expire_deadline();
    assert_eq!(story.failure(), Some(FailureCode::TurnTimeout));
    assert_eq!(story.pending_effects(), vec!["Terminate"], "its process is ended");
    let error = story.run().turns.last().and_then(|turn| turn.error.as_ref());
    assert_eq!(error.map(|failure| failure.code), Some(FailureCode::TurnTimeout));
}

/// A journal is replayed with the texts of the rules that its run followed, so that its tables do not change.
#[test]
fn a_text_depends_on_the_rules_of_the_run() {
    for (rules, expected) in [
        (0, "the turn worked longer than it may"),
        (3, "the turn worked longer than it may"),
        (4, "the turn exceeded its time limit"),
    ] {
        let mut story = RunStory::working(StorySettings { rules, ..LIMITED });
        story.expire_deadline();
        let error = story.run().turns.last().and_then(|turn| turn.error.as_ref());
        assert_eq!(error.map(|failure| failure.message.as_str()), Some(expected), "rules {rules}");
    }
}

#[test]
fn a_turn_works_as_long_as_it_may_in_whatever_way_it_came_to_work() {
    let first = RunStory::working(LIMITED);

    let mut resumed = RunStory::asking(LIMITED, DecisionPolicy::Abort);
    resumed.replies("red").admitted().started(2).announces(2, "session-1");

    let mut held = RunStory::asking(LIMITED_STICKY, DecisionPolicy::Abort);
    held.replies("red");

    let mut answered = RunStory::working(LIMITED);
    answered.raise_gate(1, "g", GatePurpose::Approval).replies("yes");

    let mut withdrawn = RunStory::working(LIMITED);
    withdrawn.raise_gate(1, "g", GatePurpose::Approval);
    let position = withdrawn.next_position();
    withdrawn.apply(RunEvent::GateWithdrawn { attempt: Attempt(1), position, gate: "g".into() });

    let mut found = RunStory::working(LIMITED);
    found.apply(lost(1)).apply(restored(1));

    let mut found_unseen = RunStory::launching(StorySettings {
        abilities: RunAbilities { recover: true, steer: false },
        ..LIMITED
    });
    found_unseen.exits(1, ExitStatus::Unknown).apply(restored(1));

    let mut after_a_rest = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..LIMITED_STICKY });
    after_a_rest.completes(1, "hello").send_message("m2", OnBusy::Queue);

    for story in [first, resumed, held, answered, withdrawn, found, found_unseen, after_a_rest] {
        assert_eq!(story.detail(), "running.active");
        assert!(turn_ends_at(&story).seconds_since(story.run().updated_at) <= Seconds(TURN_TIMEOUT_SEC));
        times_out(story);
    }
}

#[test]
fn each_turn_of_a_held_process_has_its_own_time() {
    let mut story = RunStory::working(LIMITED_STICKY);
    story.advance_clock(TURN_TIMEOUT_SEC - 20).asks(
        1,
        crate::teller::question(abide_domain::interaction::InteractionKind::OpenText, DecisionPolicy::Abort),
    );
    story.advance_clock(300).replies("red");
    assert_eq!(turn_ends_at(&story).seconds_since(story.run().updated_at), Seconds(TURN_TIMEOUT_SEC));
}

#[test]
fn a_restart_neither_lengthens_nor_forgets_the_time_of_a_turn() {
    let mut story = RunStory::working(LIMITED);
    let before = story.run().deadline();
    assert_eq!(restarted_run(&story).deadline(), before);
    // The events of a restarted daemon do not change it.
    story.apply_ignored(crate::teller::started(1));
    story.apply_ignored(restored(1));
    let (attempt, position) = (Attempt(1), story.next_position());
    story.apply(RunEvent::Progressed { attempt, position, text: String::new() });
    assert_eq!(story.run().deadline(), before);
    times_out(story);
}

#[test]
fn the_time_that_a_person_takes_does_not_count_even_across_a_restart() {
    for about in [LIMITED, LIMITED_STICKY] {
        let mut story = RunStory::working(StorySettings { unanswered: UnansweredPolicy::Strict, ..about });
        story.advance_clock(20).raise_gate(1, "g1", GatePurpose::Approval).raise_gate(
            1,
            "g2",
            GatePurpose::Input,
        );
        assert_eq!(restarted_run(&story).deadline(), story.run().deadline());
        story.advance_clock(500).replies("yes").advance_clock(500);
        assert_eq!(story.detail(), "waiting_user.turn", "the second request waits now");
        story.replies("blue");
        let left = turn_ends_at(&story).seconds_since(story.run().updated_at);
        assert!(
            (TURN_TIMEOUT_SEC - 25..TURN_TIMEOUT_SEC - 20).contains(&left.0),
            "{left:?} are left after 20 s of work"
        );
        times_out(story);
    }
}

#[test]
fn a_turn_that_was_found_again_has_the_time_that_it_had_left() {
    let mut story = RunStory::working(LIMITED);
    story.advance_clock(20).apply(lost(1));
    assert_eq!(
        story.deadline_kind(),
        Some(DeadlineKind::Recovery(Attempt(1))),
        "the search has its own bound"
    );
    story.advance_clock(100).apply(restored(1));
    let left = turn_ends_at(&story).seconds_since(story.run().updated_at);
    assert!((TURN_TIMEOUT_SEC - 25..TURN_TIMEOUT_SEC - 20).contains(&left.0), "{left:?}");

    let mut story = RunStory::working(LIMITED);
    story
        .advance_clock(20)
        .apply(lost(1))
        .advance_clock(100)
        .raise_gate(1, "g", GatePurpose::Approval)
        .advance_clock(100)
        .replies("yes");
    let left = turn_ends_at(&story).seconds_since(story.run().updated_at);
    assert!((TURN_TIMEOUT_SEC - 25..TURN_TIMEOUT_SEC - 20).contains(&left.0), "{left:?}");
}

#[test]
fn a_silent_turn_without_a_limit_is_never_ended() {
    let mut gate = RunStory::working(RESUMABLE);
    gate.raise_gate(1, "g", GatePurpose::Approval);
    let mut probing = RunStory::created(RESUMABLE);
    probing.admitted();
    let stories = [
        RunStory::created(RESUMABLE),
        probing,
        RunStory::launching(RESUMABLE),
        RunStory::working(RESUMABLE),
        RunStory::working(STICKY),
        RunStory::working(StorySettings { unanswered: UnansweredPolicy::AutoDecide, ..RESUMABLE }),
        RunStory::working(StorySettings { mode: ExecutionMode::Auto, ..RESUMABLE }),
        RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..STICKY }),
        gate,
    ];
    for mut story in stories {
        assert_eq!(story.run().deadline(), None, "{}", story.detail());
        story.advance_clock(365 * DAY_SEC);
        let attempt = Attempt(1);
        for deadline in [
            DeadlineKind::Turn(attempt),
            DeadlineKind::Stop(attempt),
            DeadlineKind::Recovery(attempt),
            DeadlineKind::Idle(attempt),
        ] {
            story.apply_ignored(RunEvent::DeadlinePassed { deadline });
        }
    }
}

#[test]
fn a8_a_wait_with_a_process_holds_its_slot() {
    let other = RunId(IdSeed(9));
    let next = |story: &RunStory| {
        let mut slots = AdmissionQueue::new(1);
        slots.observe(other, SlotOccupancy::Queued(Timestamp(0)));
        slots.observe(story.run().run_id, story.run().occupancy());
        slots.next()
    };
    let mut gate = RunStory::working(RESUMABLE);
    gate.raise_gate(1, "g", GatePurpose::Approval);
    let mut idle = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..STICKY });
    idle.completes(1, "hello");
    for story in [RunStory::asking(STICKY, DecisionPolicy::Abort), gate, idle] {
        assert_eq!(next(&story), None, "{}", story.detail());
    }
    assert_eq!(next(&RunStory::asking(RESUMABLE, DecisionPolicy::Abort)), Some(other));
}
