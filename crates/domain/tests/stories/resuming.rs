//! Sessions that go on in another process (A2) (A4) (A6) (A9) (A11).

use abide_domain::{
    effect::{Effect, Session},
    engine::{Abilities, Profile, ProfileKind},
    event::{Event, Retry},
    failure::FailureCode,
    interaction::Policy,
    process::Attempt,
    time::Seconds,
};

use crate::teller::{RESUMABLE, Story, handle, message, started};

fn session(story: &Story) -> Session {
    let Effect::Launch { session, .. } = story.effect("Launch") else { unreachable!() };
    session
}

fn resolved(kind: ProfileKind, chosen: Option<&str>) -> Event {
    Event::ProfileResolved {
        profile: Profile { kind, reason: "because".into(), session_timeout_sec: Seconds(1) },
        abilities: Abilities::default(),
        handle: chosen.map(handle),
    }
}

#[test]
fn a2_the_profile_is_resolved_before_the_first_launch_and_never_flipped() {
    let mut story = Story::created(RESUMABLE);
    story.admitted();
    assert_eq!((story.detail().as_str(), story.owed()), ("running.probing", vec!["Probe"]));
    story.tell(resolved(ProfileKind::Resumable, None));
    assert_eq!((story.detail().as_str(), story.owed()), ("running.launching", vec!["Launch"]));
    story.tell_in_vain(resolved(ProfileKind::StickyProcess, None));
}

#[test]
fn a6_a_session_id_that_we_chose_is_durable_before_the_process_starts() {
    let mut story = Story::created(RESUMABLE);
    story.admitted().tell(resolved(ProfileKind::Resumable, Some("ours")));
    assert_eq!(session(&story), Session::Named(handle("ours")));
    assert_eq!(story.run().handle, Some(handle("ours")));
}

#[test]
fn a9_a_reply_resumes_the_session_of_the_first_turn() {
    let mut story = Story::asking(RESUMABLE, Policy::Abort);
    story.replies("red").admitted();
    assert_eq!(session(&story), Session::Resumed(handle("session-1")));
    let Effect::Launch { attempt, prompt, .. } = story.effect("Launch") else { unreachable!() };
    assert_eq!((attempt, prompt.as_str()), (Attempt(2), "red"));
}

#[test]
fn a4_a_silently_new_session_is_caught() {
    let mut story = Story::asking(RESUMABLE, Policy::Abort);
    story.replies("red").admitted().started(2).announces(2, "another");
    assert_eq!(story.failure(), Some(FailureCode::SessionResumeFailed));
    assert_eq!(story.owed(), vec!["Terminate"]);
}

#[test]
fn a11_a_session_that_was_never_named_cannot_be_gone_on_with() {
    let mut story = Story::working(crate::teller::About {
        announces: false,
        mode: abide_domain::settings::ExecutionMode::Chat,
        ..RESUMABLE
    });
    story.completes(1, "done");
    assert_eq!(story.detail(), "idle.free");
    story.tell(Event::MessageArrived { message: message("m2", "more"), on_busy: None }).admitted();
    assert_eq!(story.failure(), Some(FailureCode::SessionResumeFailed));
}

#[test]
fn a_launch_that_may_work_another_time_is_tried_again_a_bounded_number_of_times() {
    let mut story = Story::created(RESUMABLE);
    story.admitted().tell(resolved(ProfileKind::Resumable, None));
    for attempt in 1..=3 {
        assert_eq!(story.run().attempt(), Some(Attempt(attempt)));
        story.fails_to_launch(attempt, FailureCode::EngineFailed, Retry::Later);
    }
    assert_eq!(story.failure(), Some(FailureCode::EngineFailed));
    assert_eq!(story.run().turns[0].attempts.len(), 3);
    assert_eq!(story.owed(), Vec::<&str>::new());
}

#[test]
fn a_missing_program_fails_the_run_at_once() {
    let mut story = Story::created(RESUMABLE);
    story.admitted().tell(resolved(ProfileKind::Resumable, None));
    story.fails_to_launch(1, FailureCode::EngineNotFound, Retry::Never);
    assert_eq!(story.failure(), Some(FailureCode::EngineNotFound));
}

#[test]
fn a_process_that_nobody_waits_for_any_more_is_ended() {
    let mut story = Story::created(RESUMABLE);
    story.admitted().tell(resolved(ProfileKind::Resumable, None));
    story.tell(Event::CancelRequested { by: "ada".into() }).performs("Terminate");
    assert_eq!(story.owed(), Vec::<&str>::new());
    story.tell(started(1));
    assert_eq!(story.owed(), vec!["Terminate"]);
}
