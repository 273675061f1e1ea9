//! Lost contact, dead processes, late events and stopped turns (A12) (E8).

use abide_domain::{
    effect::Effect,
    engine::RunAbilities,
    event::{ProcessAfterTurn, RunEvent, TurnOutcome},
    failure::FailureCode,
    interaction::{DecisionPolicy, GatePurpose, InteractionOrigin, RuntimeQuestion},
    process::{Attempt, ExitStatus, OutputPosition},
    refused::RequestRefused,
    run::RunStatus,
    settings::{ExecutionMode, OnBusy},
    time::{Seconds, TimeSpan},
    turn::ExecutionStatus,
};

use crate::teller::{RESUMABLE, RunStory, STICKY, StorySettings, process};

const RECOVERABLE: StorySettings =
    StorySettings { abilities: RunAbilities { recover: true, steer: false }, ..RESUMABLE };

fn lost(attempt: u32) -> RunEvent {
    RunEvent::ContactLost { attempt: Attempt(attempt), search_timeout_sec: None }
}

#[test]
fn e8_a_lost_turn_is_searched_for_and_ends_normally_when_it_is_found() {
    let mut story = RunStory::working(RESUMABLE);
    story.apply(lost(1));
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("running.recovering", vec!["Recover"]));
    assert_eq!(story.run().turns[0].execution_status, ExecutionStatus::PendingRecovery);
    story.apply_ignored(lost(1));
    story.apply(RunEvent::ContactRestored { attempt: Attempt(1), process: process(1) });
    assert_eq!(story.detail(), "running.active");
    story.completes(1, "done");
    assert_eq!(story.run().status(), RunStatus::Succeeded);
}

#[test]
fn e8_contact_that_is_lost_again_and_again_is_searched_for_with_pauses_and_not_for_ever() {
    let mut story = RunStory::working(RESUMABLE);
    let (mut rounds, mut pauses) = (0, vec![]);
    while story.run().status() == RunStatus::Running {
        story.apply(lost(1));
        rounds += 1;
        assert!(rounds < 40, "it goes round for ever");
        let Some(recover) = story
            .run()
            .pending_effects
            .iter()
            .find(|owed| matches!(owed.effect, Effect::Recover { .. }))
            .cloned()
        else {
            break;
        };
        pauses.push(story.now().span_until(recover.due_at).0 / 1_000_000);
        story.apply(RunEvent::ContactRestored { attempt: Attempt(1), process: process(1) });
    }
    assert_eq!(pauses[..6], [0, 1, 2, 4, 8, 16], "{pauses:?}");
    assert!(rounds <= 17, "{rounds} rounds");
    assert_eq!(story.run().turns[0].execution_status, ExecutionStatus::RecoveryRequired);
    assert_eq!(story.question().origin, InteractionOrigin::Abide(RuntimeQuestion::OutcomeUnknown));
}

#[test]
fn e8_the_time_of_all_searches_counts() {
    let mut story = RunStory::working(RESUMABLE);
    for _ in 0..2 {
        story.apply(RunEvent::ContactLost { attempt: Attempt(1), search_timeout_sec: Some(Seconds(100)) });
        story.advance_clock(39);
        story.apply(RunEvent::ContactRestored { attempt: Attempt(1), process: process(1) });
        story.advance_clock(1_000);
    }
    story.apply(RunEvent::ContactLost { attempt: Attempt(1), search_timeout_sec: Some(Seconds(100)) });
    let deadline = story.run().deadline().expect("the search ends");
    assert_eq!(story.now().span_until(deadline.at), TimeSpan::from(Seconds(20)));
    story.expire_deadline();
    assert_eq!(story.run().turns[0].execution_status, ExecutionStatus::RecoveryRequired);
}

#[test]
fn a12_a_wait_whose_process_is_out_of_reach_stays_answerable_however_often_it_is_lost() {
    let mut story = RunStory::asking(STICKY, DecisionPolicy::Abort);
    for _ in 0..40 {
        story.apply(lost(1));
        assert_eq!(story.run().status(), RunStatus::WaitingUser);
        let recover =
            story.run().pending_effects.iter().find(|owed| matches!(owed.effect, Effect::Recover { .. }));
        assert!(
            story.now().span_until(recover.expect("it is looked for").due_at) <= TimeSpan::from(Seconds(60))
        );
        story.apply(RunEvent::ContactRestored { attempt: Attempt(1), process: process(1) });
    }
}

#[test]
fn e8_a_result_that_was_read_back_is_the_normal_end() {
    let mut story = RunStory::working(RECOVERABLE);
    story.exits(1, ExitStatus::Unknown);
    assert_eq!(story.detail(), "running.recovering");
    story.completes(1, "done");
    assert_eq!((story.run().status(), story.run().result.as_deref()), (RunStatus::Succeeded, Some("done")));
}

#[test]
fn e8_a_turn_that_is_not_found_in_time_is_put_to_the_person_once() {
    let mut story = RunStory::working(RECOVERABLE);
    story.exits(1, ExitStatus::Unknown).expire_deadline();
    assert_eq!(story.detail(), "waiting_user.free");
    assert_eq!(story.question().origin, InteractionOrigin::Abide(RuntimeQuestion::OutcomeUnknown));
    assert_eq!(story.run().turns[0].execution_status, ExecutionStatus::RecoveryRequired);
    assert_eq!(story.pending_effects(), vec!["Terminate"], "it is never simply run again");
    story.replies("continue");
    assert_eq!(story.run().status(), RunStatus::Queued);
}

#[test]
fn e8_a_person_may_give_a_lost_turn_up() {
    let mut story = RunStory::working(RESUMABLE);
    story.exits(1, ExitStatus::Unknown).replies("Stop");
    assert_eq!(
        (story.run().status(), story.failure()),
        (RunStatus::Canceled, Some(FailureCode::CanceledByUser))
    );
}

#[test]
fn e8_an_unattended_run_whose_turn_is_lost_fails() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Auto, ..RESUMABLE });
    story.exits(1, ExitStatus::Unknown);
    assert_eq!(story.failure(), Some(FailureCode::RecoveryFailed));
}

#[test]
fn an_exit_without_a_turn_end_fails_the_turn() {
    let mut story = RunStory::working(RESUMABLE);
    story.exits(1, ExitStatus::Code(0));
    assert_eq!(story.failure(), Some(FailureCode::EngineFailed), "exit code 0 is not a result");
}

#[test]
fn e11_lost_contact_does_not_touch_an_open_question() {
    let mut story = RunStory::asking(STICKY, DecisionPolicy::Abort);
    let question = story.question().clone();
    story.apply(lost(1));
    assert_eq!((story.question(), story.pending_effects()), (&question, vec!["Recover"]));
    story.apply(RunEvent::ContactRestored { attempt: Attempt(1), process: process(1) });
    assert_eq!((story.question(), story.pending_effects()), (&question, vec![]));
}

#[test]
fn a12_only_a_process_that_is_really_gone_is_lost() {
    let mut story = RunStory::asking(STICKY, DecisionPolicy::Abort);
    story.apply(lost(1)).apply(RunEvent::RecoveryFailed { attempt: Attempt(1), reason: "gone".into() });
    assert_eq!(story.failure(), Some(FailureCode::InteractionProcessLost));
}

#[test]
fn facts_of_an_old_attempt_are_ignored() {
    let mut story = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    story.replies("red").admitted().started(2);
    let attempt = Attempt(1);
    let ending = TurnOutcome::Completed { text: "late".into() };
    let aftermath = ProcessAfterTurn::Exited(ExitStatus::Code(0));
    let turn_id = story.turn();
    story.apply_ignored(RunEvent::TurnEnded {
        attempt,
        turn_id,
        position: OutputPosition(99),
        outcome: ending,
        process_after: aftermath,
    });
    story.apply_ignored(RunEvent::ProcessExited { attempt, exit: ExitStatus::Code(1) });
    story.apply_ignored(lost(1));
    story.apply_ignored(RunEvent::Progressed { attempt, position: OutputPosition(98), text: String::new() });
}

#[test]
fn facts_before_a_restart_are_not_applied_again() {
    let mut story = RunStory::working(RESUMABLE);
    story.raise_gate(1, "g1", GatePurpose::Input).replies("blue");
    // The next daemon feeds the spool from its start.
    let turn_id = story.turn();
    let again = |position| RunEvent::GateRaised {
        attempt: Attempt(1),
        turn_id,
        position: OutputPosition(position),
        gate: "g1".into(),
        purpose: GatePurpose::Input,
        question: crate::teller::question(
            abide_domain::interaction::InteractionKind::OpenText,
            DecisionPolicy::Abort,
        ),
    };
    story.apply_ignored(again(1));
    story.apply_ignored(again(2));
    assert_eq!(story.detail(), "running.active");
}

#[test]
fn e7_a_process_that_repeats_the_end_of_a_turn_does_not_end_the_next_one() {
    let mut story = RunStory::asking(STICKY, DecisionPolicy::Abort);
    let first = story.turn();
    story.replies("red");
    let ending = TurnOutcome::Completed { text: "of the first".into() };
    let (attempt, position, aftermath) = (Attempt(1), OutputPosition(99), ProcessAfterTurn::Alive);
    story.apply_ignored(RunEvent::TurnEnded {
        attempt,
        turn_id: first,
        position,
        outcome: ending,
        process_after: aftermath,
    });
}

#[test]
fn a_search_that_finds_nothing_ends_the_process_all_the_same() {
    let gone = || RunEvent::RecoveryFailed { attempt: Attempt(1), reason: "nothing found".into() };
    let mut story = RunStory::asking(STICKY, DecisionPolicy::Abort);
    story.apply(lost(1)).replies("red").apply(gone());
    assert_eq!((story.run().status(), story.pending_effects()), (RunStatus::Failed, vec!["Terminate"]));

    let mut story = RunStory::working(RESUMABLE);
    story.raise_gate(1, "g", GatePurpose::Approval).apply(lost(1));
    story.apply(RunEvent::InterruptRequested { by: "ada".into() }).apply(gone());
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("waiting_user.free", vec!["Terminate"]));
}

#[test]
fn e11_a_gate_during_recovery_is_asked() {
    let mut story = RunStory::working(RESUMABLE);
    story.apply(lost(1)).raise_gate(1, "g1", GatePurpose::Approval);
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("waiting_user.turn", vec![]));
}

#[test]
fn a_request_that_is_said_again_after_a_reconnect_is_the_same_question() {
    let mut story = RunStory::working(RESUMABLE);
    story.raise_gate(1, "g1", GatePurpose::Approval);
    let question = story.question().clone();
    story.apply(lost(1)).apply(RunEvent::ContactRestored { attempt: Attempt(1), process: process(1) });
    story.raise_gate(1, "g1", GatePurpose::Approval);
    assert_eq!(story.question(), &question);
    story.replies("yes").raise_gate(1, "g1", GatePurpose::Approval);
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("running.active", vec!["Answer"]));
    let answer = story.effect("Answer");
    story.performs("Answer").raise_gate(1, "g1", GatePurpose::Approval);
    assert_eq!((story.detail().as_str(), story.effect("Answer")), ("running.active", answer));
}

#[test]
fn many_short_waits_do_not_eat_the_time_of_a_turn() {
    let auto = StorySettings { mode: ExecutionMode::Auto, turn_timeout: Some(60), ..RESUMABLE };
    let mut story = RunStory::working(auto);
    let before = story.run().deadline().unwrap().at;
    for gate in 0..20 {
        story.raise_gate(1, &format!("g{gate}"), GatePurpose::Input);
    }
    assert_eq!(
        story.run().deadline().unwrap().at,
        before,
        "no time was spent waiting, so nothing is added or lost"
    );
}

#[test]
fn an_interrupt_also_stops_the_message_that_was_to_take_over() {
    let mut story = RunStory::working(STICKY);
    story.send_message("m2", OnBusy::Supersede).apply(RunEvent::InterruptRequested { by: "ada".into() });
    story.completes(1, "late");
    assert_eq!(story.run().result, None);
    assert_eq!(story.question().origin, InteractionOrigin::Abide(RuntimeQuestion::Interrupted));
}

#[test]
fn an_idle_chat_whose_engine_exits_succeeds() {
    let mut story = RunStory::working(StorySettings { mode: ExecutionMode::Chat, ..STICKY });
    story.completes(1, "hello").exits(1, ExitStatus::Code(0));
    assert_eq!(story.run().status(), RunStatus::Succeeded);
}

#[test]
fn a_stopped_turn_waits_for_the_person_who_stopped_it() {
    let mut story = RunStory::working(RESUMABLE);
    story.apply(RunEvent::InterruptRequested { by: "ada".into() });
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("running.stopping", vec!["Interrupt"]));
    story.ends(1, TurnOutcome::Interrupted);
    assert_eq!(story.question().origin, InteractionOrigin::Abide(RuntimeQuestion::Interrupted));
    story.replies("try the other way").admitted();
    assert_eq!(story.run().turns.last().unwrap().prompt, "try the other way");
}

#[test]
fn an_engine_that_ignores_an_interrupt_is_terminated() {
    let mut story = RunStory::working(RESUMABLE);
    story.apply(RunEvent::InterruptRequested { by: "ada".into() }).expire_deadline();
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("waiting_user.free", vec!["Terminate"]));
}

#[test]
fn a_turn_that_works_too_long_has_failed_even_if_it_then_exits_well() {
    let mut story = RunStory::working(StorySettings { turn_timeout: Some(60), ..RESUMABLE });
    story.expire_deadline();
    assert_eq!(story.failure(), Some(FailureCode::TurnTimeout));
    story.exits(1, ExitStatus::Code(0));
    assert_eq!(story.failure(), Some(FailureCode::TurnTimeout));
}

#[test]
fn waiting_for_a_person_does_not_count_as_work() {
    let mut story = RunStory::working(StorySettings { turn_timeout: Some(60), ..RESUMABLE });
    story.raise_gate(1, "g", GatePurpose::Approval);
    assert_eq!(story.run().deadline(), None);
    for _ in 0..100 {
        story.apply_ignored(lost(9));
    }
    story.replies("yes");
    let left = story.run().deadline().unwrap().at.seconds_since(story.run().updated_at);
    assert!(left.0 > 50, "{left:?} of 60 s are left");
}

#[test]
fn a_finished_run_is_never_left() {
    let mut story = RunStory::working(RESUMABLE);
    story.completes(1, "done");
    for request in [
        RunEvent::MessageArrived {
            message: crate::teller::message("m9", "more"),
            on_busy: Some(OnBusy::Supersede),
        },
        RunEvent::CancelRequested { by: "ada".into() },
        RunEvent::InterruptRequested { by: "ada".into() },
    ] {
        assert_eq!(
            story.expect_refusal(request),
            RequestRefused::RunFinished { status: RunStatus::Succeeded }
        );
    }
    story.apply_ignored(RunEvent::ProcessExited { attempt: Attempt(1), exit: ExitStatus::Code(0) });
}

#[test]
fn cancelling_ends_running_and_waiting_runs() {
    for mut story in [
        RunStory::created(RESUMABLE),
        RunStory::working(RESUMABLE),
        RunStory::asking(RESUMABLE, DecisionPolicy::Abort),
        RunStory::asking(STICKY, DecisionPolicy::Abort),
    ] {
        let had_process = story.run().attempt().is_some();
        story.apply(RunEvent::CancelRequested { by: "ada".into() });
        assert_eq!(story.run().status(), RunStatus::Canceled);
        assert_eq!(story.pending_effects(), if had_process { vec!["Terminate"] } else { vec![] });
        assert!(story.run().interactions.iter().all(|interaction| !interaction.is_open()));
    }
}
