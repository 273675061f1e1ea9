//! Sessions that are continued in another process (A2) (A4) (A6) (A9) (A11).

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineInteractiveProfile, ProfileKind, RunAbilities},
    event::{LaunchRetry, RunEvent},
    failure::FailureCode,
    interaction::{DecisionPolicy, InteractionKind},
    process::{Attempt, ExitStatus},
    time::Seconds,
};

use crate::teller::{RESUMABLE, RunStory, handle, question, started};

fn session(story: &RunStory) -> LaunchSession {
    let (_, session, _) = story.pending_launch();
    session
}

fn resolved(kind: ProfileKind, chosen: Option<&str>) -> RunEvent {
    RunEvent::ProfileResolved {
        profile: EngineInteractiveProfile { kind, reason: "because".into(), session_timeout_sec: Seconds(1) },
        abilities: RunAbilities::default(),
        handle: chosen.map(handle),
        command: None,
    }
}

#[test]
fn a2_the_profile_is_resolved_before_the_first_launch_and_never_flipped() {
    let mut story = RunStory::created(RESUMABLE);
    story.admitted();
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("running.probing", vec!["Probe"]));
    story.apply(resolved(ProfileKind::Resumable, None));
    assert_eq!((story.detail().as_str(), story.pending_effects()), ("running.launching", vec!["Launch"]));
    story.apply_ignored(resolved(ProfileKind::StickyProcess, None));
}

#[test]
fn a6_a_session_id_that_we_chose_is_durable_before_the_process_starts() {
    let mut story = RunStory::created(RESUMABLE);
    story.admitted().apply(resolved(ProfileKind::Resumable, Some("ours")));
    assert_eq!(session(&story), LaunchSession::Named(handle("ours")));
    assert_eq!(story.run().handle, Some(handle("ours")));
}

#[test]
fn a11_a_session_that_we_named_and_the_engine_never_did_cannot_wait() {
    let mut story = RunStory::created(RESUMABLE);
    story.admitted().apply(resolved(ProfileKind::Resumable, Some("ours"))).started(1);
    story.asks(1, question(InteractionKind::OpenText, DecisionPolicy::Abort));
    assert_eq!(story.failure(), Some(FailureCode::SessionResumeFailed));
    assert!(story.run().interactions.iter().all(|question| !question.is_open()));
}

#[test]
fn a9_a_reply_resumes_the_session_of_the_first_turn() {
    let mut story = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    story.replies("red").admitted();
    assert_eq!(session(&story), LaunchSession::Resumed(handle("session-1")));
    let (attempt, _, prompt) = story.pending_launch();
    assert_eq!((attempt, prompt.as_str()), (Attempt(2), "red"));
}

#[test]
fn a4_a_silently_new_session_is_caught() {
    let mut story = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    story.replies("red").admitted().started(2).announces(2, "another");
    assert_eq!(story.failure(), Some(FailureCode::SessionResumeFailed));
    assert_eq!(story.pending_effects(), vec!["Terminate"]);
}

#[test]
fn a4_a_resume_that_says_nothing_of_its_session_is_not_believed() {
    let mut story = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    story.replies("red").admitted().started(2).completes(2, "from somewhere else");
    assert_eq!(story.failure(), Some(FailureCode::SessionResumeFailed));
    assert_eq!(story.run().result, None);

    let mut story = RunStory::asking(RESUMABLE, DecisionPolicy::Abort);
    story.replies("red").admitted().started(2).announces(2, "session-1").completes(2, "red it is");
    assert_eq!(story.run().result.as_deref(), Some("red it is"));
}

#[test]
fn a11_a_chat_whose_session_was_never_named_is_answered_and_then_over() {
    let mut story = RunStory::working(crate::teller::StorySettings {
        announces: false,
        mode: abide_domain::settings::ExecutionMode::Chat,
        ..RESUMABLE
    });
    story.completes(1, "done");
    assert_eq!(
        (story.failure(), story.run().result.as_deref()),
        (Some(FailureCode::SessionResumeFailed), Some("done"))
    );
}

#[test]
fn an_unsent_task_is_sent_again_with_the_reply() {
    let mut story = RunStory::working(crate::teller::StorySettings { announces: false, ..RESUMABLE });
    story.exits(1, abide_domain::process::ExitStatus::Unknown).replies("continue").admitted();
    let (_, session, prompt) = story.pending_launch();
    assert_eq!(session, LaunchSession::New);
    assert!(prompt.starts_with("task\n\nContact was lost"), "{prompt}");
}

#[test]
fn a_launch_that_may_work_another_time_is_tried_again_a_bounded_number_of_times() {
    let mut story = RunStory::created(RESUMABLE);
    story.admitted().apply(resolved(ProfileKind::Resumable, None));
    for attempt in 1..=3 {
        assert_eq!(story.run().attempt(), Some(Attempt(attempt)));
        story.fails_to_launch(attempt, FailureCode::EngineFailed, LaunchRetry::Later);
    }
    assert_eq!((story.run().attempt(), story.pending_effects()), (None, vec![]));
    assert_eq!(story.run().turns[0].attempts.len(), 3);
}

#[test]
fn a_missing_program_fails_the_run_at_once() {
    let mut story = RunStory::created(RESUMABLE);
    story.admitted().apply(resolved(ProfileKind::Resumable, None));
    story.fails_to_launch(1, FailureCode::EngineNotFound, LaunchRetry::Never);
    assert_eq!(story.failure(), Some(FailureCode::EngineNotFound));
}

#[test]
fn a_process_of_an_obsolete_launch_is_terminated() {
    let mut story = RunStory::created(RESUMABLE);
    story.admitted().apply(resolved(ProfileKind::Resumable, None));
    story.apply(RunEvent::CancelRequested { by: "ada".into() }).performs("Terminate");
    assert_eq!(story.pending_effects(), Vec::<&str>::new());
    story.apply(started(1));
    assert_eq!(story.pending_effects(), vec!["Terminate"]);
}

#[test]
fn a11_a_session_that_a_lost_process_may_have_begun_under_our_id_is_resumed_and_not_begun_again() {
    let lost: [fn(&mut RunStory); 2] = [
        |story| {
            story.started(1).exits(1, ExitStatus::Unknown);
        },
        |story| {
            story.exits(1, ExitStatus::Unknown);
        },
    ];
    for lose in lost {
        let mut story = RunStory::created(RESUMABLE);
        story.admitted().apply(resolved(ProfileKind::Resumable, Some("ours")));
        lose(&mut story);
        story.replies("continue").admitted();
        assert_eq!(session(&story), LaunchSession::Resumed(handle("ours")));
        let (_, _, prompt) = story.pending_launch();
        assert!(!prompt.contains("task"), "the session has heard its task: {prompt}");
    }
}

#[test]
fn a6_a_session_id_of_ours_that_no_process_used_is_kept_for_the_next_try() {
    let mut story = RunStory::created(RESUMABLE);
    story.admitted().apply(resolved(ProfileKind::Resumable, Some("ours")));
    story.fails_to_launch(1, FailureCode::EngineFailed, LaunchRetry::Later);
    assert_eq!(session(&story), LaunchSession::Named(handle("ours")));
}
