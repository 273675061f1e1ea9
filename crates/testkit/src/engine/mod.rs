//! The conformance suite for engine adapters. It uses recorded output of real programs.
//!
//! A test iterates over the registry and passes each engine its [`RecordedProcess`]s. No engine is named here.

mod claims;
mod story;
mod stress;

use std::collections::BTreeSet;

use abide_domain::event::TurnOutcome;
use abide_ports::engine::{Engine, EngineFact, FactKind};

pub use story::{RecordedProcess, format_facts};

/// Checks all requirements of the contract. Panics with a message that names the violated one.
pub fn check(engine: &dyn Engine, recordings: &[RecordedProcess]) {
    claims::check_unclaimed_refused(engine);
    claims::check_claimed_usable(engine, recordings);
    claims::check_settings_on_every_turn(engine);
    claims::check_missing_program(engine);
    claims::check_launch_is_deterministic(engine);
    stress::check_empty_output(engine);
    stress::check_garbage(engine);
    for recording in recordings {
        let facts = recording.replay(engine);
        check_facts(&facts, &recording.name);
        stress::check_chunking(engine, recording, &facts);
        stress::check_restore(engine, recording, &facts);
        stress::check_kill_at_any_byte(engine, recording);
        stress::check_unknown_lines(engine, recording, &facts);
    }
}

/// Checks the rules that hold for the facts of any process.
pub(crate) fn check_facts(facts: &[EngineFact], recording: &str) {
    let mut ended = BTreeSet::new();
    let mut has_session = false;
    let mut last = None;
    for EngineFact { position: at, kind } in facts {
        assert!(last.is_none_or(|last| last < *at), "{recording}: positions grow, at {kind:?}");
        last = Some(*at);
        match kind {
            FactKind::Session { value, .. } => {
                assert!(!value.is_empty(), "{recording}: a session has a name");
                has_session = true;
            }
            FactKind::Gate { .. } => {
                assert!(has_session, "{recording}: a handle is announced before any question")
            }
            FactKind::TurnEnded { turn, outcome: ending } => {
                assert!(
                    !matches!(ending, TurnOutcome::Asked { .. }) || has_session,
                    "{recording}: a handle is announced before any question"
                );
                assert!(
                    ended.iter().all(|earlier| earlier < turn),
                    "{recording}: turn {turn} ends once and in order"
                );
                ended.insert(*turn);
            }
            FactKind::Text(_)
            | FactKind::Progress(_)
            | FactKind::Warning(_)
            | FactKind::GateWithdrawn { .. }
            | FactKind::WriteStdin(_)
            | FactKind::OutputComplete
            | FactKind::UnknownLine(_) => {}
        }
    }
    assert!(!ended.is_empty(), "{recording}: the end is said");
    let about_a_turn = |kind: &FactKind| {
        !matches!(kind, FactKind::UnknownLine(_) | FactKind::Warning(_) | FactKind::WriteStdin(_))
    };
    let after_last_end = facts.iter().skip_while(
        |fact| !matches!(&fact.kind, FactKind::TurnEnded { turn, .. } if ended.last() == Some(turn)),
    );
    assert_eq!(
        after_last_end.filter(|fact| about_a_turn(&fact.kind)).count(),
        1,
        "{recording}: the end is said last, in {}",
        format_facts(facts)
    );
}
