//! Applies every event to every state of a run. The results are written to `transitions.txt`, and the diagrams in
//! `docs/machines.md` are drawn from the same observations.
//!
//! After an intended change of a rule, run `UPDATE_EXPECT=1 cargo test -p abide-domain --test transitions` and read the
//! difference before committing it.

mod battery;
mod drawing;
mod table;

use abide_domain::{
    event::RunEvent,
    id::IdSeed,
    refused::RequestRefused,
    run::{self, Run, RunStep},
    time::{EventStamp, Timestamp},
};
use abide_testkit::history::HistoryGenerator;
use expect_test::expect_file;
use table::TransitionTable;

/// Twice as many seeds find no new outcomes. Four times as many find a few that need three coincidences.
const SEEDS: u64 = 320;
const COMMITS_PER_SEED: usize = 60;

/// Applies an event, with the event that must follow it in the same commit.
fn apply_with_follow_up(
    before: &Run,
    stamp: EventStamp,
    event: &RunEvent,
) -> Result<RunStep, RequestRefused> {
    let step = run::apply(Some(before), &stamp, event)?;
    match &step.follow_up {
        Some(next) => {
            run::apply(Some(&step.run), &EventStamp { id_seed: IdSeed(stamp.id_seed.0 + 8), ..stamp }, next)
        }
        None => Ok(step),
    }
}

/// Follows random histories and applies every event to every state on the way.
fn observe() -> TransitionTable {
    let mut table = TransitionTable::default();
    for seed in 0..SEEDS {
        let mut author = HistoryGenerator::new(seed, 1).with_runs(4);
        for _ in 0..COMMITS_PER_SEED {
            for before in author.commit().changes.iter().map(|change| &change.run) {
                for (place, (label, event)) in battery::events(before).into_iter().enumerate() {
                    let at = battery::event_time(before, &event);
                    let fresh = IdSeed(u128::MAX - 4096 + 16 * place as u128);
                    let stamp = EventStamp { at: Timestamp(at), id_seed: fresh };
                    table.record(before, label, apply_with_follow_up(before, stamp, &event));
                }
            }
        }
    }
    table
}

#[test]
fn every_pair_of_state_and_event_is_known() {
    let table = observe();
    assert_eq!(table.missing(), Vec::<String>::new(), "pairs that no history reached");
    expect_file!["../../transitions.txt"].assert_eq(&table.to_string());
    expect_file!["../../../../docs/machines.md"].assert_eq(&drawing::draw(&table));
}
