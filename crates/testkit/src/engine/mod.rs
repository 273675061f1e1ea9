//! The conformance suite for engine adapters. It uses recorded output of real programs.
//!
//! A test iterates over the registry and passes each engine its [`RecordedProcess`]s. No engine is named here.

mod claims;
mod story;
mod stress;

use std::collections::BTreeSet;

use abide_domain::event::TurnOutcome;
use abide_ports::engine::{Engine, EngineFact, FactKind};

pub use story::{RecordedProcess, told};

/// Checks all requirements of the contract. Panics with a message that names the violated one.
pub fn check(engine: &dyn Engine, stories: &[RecordedProcess]) {
    claims::what_is_not_claimed_is_refused(engine);
    claims::what_is_claimed_can_be_used(engine, stories);
    claims::settings_hold_on_every_turn(engine);
    claims::a_missing_program_is_explained(engine);
    claims::the_same_order_gives_the_same_launch(engine);
    stress::empty_output_is_no_success(engine);
    stress::garbage_is_survived_and_is_no_success(engine);
    for story in stories {
        let facts = story.play(engine);
        sound(&facts, &story.name);
        stress::cutting_elsewhere_changes_nothing(engine, story, &facts);
        stress::a_restored_reader_goes_on_as_if_it_had_read_everything(engine, story, &facts);
        stress::death_at_any_byte_is_one_end(engine, story);
        stress::unknown_lines_are_kept_whole(engine, story, &facts);
    }
}

/// Checks the rules that hold for the facts of any process.
pub(crate) fn sound(facts: &[EngineFact], story: &str) {
    let mut ended = BTreeSet::new();
    let mut has_session = false;
    let mut last = None;
    for EngineFact { at, what } in facts {
        assert!(last.is_none_or(|last| last < *at), "{story}: positions grow, at {what:?}");
        last = Some(*at);
        match what {
            FactKind::Session { value, .. } => {
                assert!(!value.is_empty(), "{story}: a session has a name");
                has_session = true;
            }
            FactKind::Gate { .. } => {
                assert!(has_session, "{story}: a handle is announced before any question")
            }
            FactKind::Ended { turn, ending } => {
                assert!(
                    !matches!(ending, TurnOutcome::Asked { .. }) || has_session,
                    "{story}: a handle is announced before any question"
                );
                assert!(
                    ended.iter().all(|earlier| earlier < turn),
                    "{story}: turn {turn} ends once and in order"
                );
                ended.insert(*turn);
            }
            FactKind::Text(_)
            | FactKind::Progress(_)
            | FactKind::Warning(_)
            | FactKind::Withdrawn { .. }
            | FactKind::Write(_)
            | FactKind::Finishing
            | FactKind::Unknown(_) => {}
        }
    }
    assert!(!ended.is_empty(), "{story}: the end is said");
    let about_a_turn =
        |what: &FactKind| !matches!(what, FactKind::Unknown(_) | FactKind::Warning(_) | FactKind::Write(_));
    let after_last_end = facts
        .iter()
        .skip_while(|said| !matches!(&said.what, FactKind::Ended { turn, .. } if ended.last() == Some(turn)));
    assert_eq!(
        after_last_end.filter(|said| about_a_turn(&said.what)).count(),
        1,
        "{story}: the end is said last, in {}",
        told(facts)
    );
}
