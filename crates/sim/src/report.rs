//! Runs many histories in parallel and reports the results.

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use clap::ValueEnum;

use crate::{
    checks::InvariantViolation,
    faults::RuleFault,
    world::{HistoryCounters, SimWorld, StoryMode},
};

/// Maximum number of histories in which a fault may stay undetected.
const MAX_HISTORIES: u64 = 30_000;

/// Runs histories and reports the first violated invariant.
pub(crate) fn histories(from: u64, seeds: u64, fault: Option<RuleFault>) -> ExitCode {
    match search(from, seeds, fault, |_| true) {
        Ok(tally) => {
            println!(
                "{seeds} histories: {} runs, {} events, {} crashes and restarts, {} replies, {} automatic \
                 decisions, {} things shown; 0 promises broken",
                tally.runs,
                tally.events,
                tally.crashes,
                tally.replies,
                tally.auto_decisions,
                tally.deliveries,
            );
            ExitCode::SUCCESS
        }
        Err((seed, violation)) => {
            println!("seed {seed} breaks a promise: {}\n  {}", violation.check, violation.detail);
            let again = fault.map_or(String::new(), |fault| format!(" --fault {}", name(fault)));
            println!("to see its story: cargo xtask sim --seed {seed}{again}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the events of one history.
pub(crate) fn story(seed: u64, fault: Option<RuleFault>) -> ExitCode {
    let mut world = SimWorld::new(seed, fault, StoryMode::Everything);
    let lived = world.live();
    for line in world.story() {
        println!("{line}");
    }
    match lived {
        Ok(tally) => {
            println!("seed {seed} keeps every promise: {tally:?}");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("seed {seed} breaks a promise: {}\n  {}", violation.check, violation.detail);
            ExitCode::FAILURE
        }
    }
}

/// Runs each fault until the check that was made for it detects it. Other checks may detect it earlier.
pub(crate) fn mutants(from: u64) -> ExitCode {
    let mut unnoticed = 0;
    for fault in RuleFault::value_variants() {
        let check = fault.check();
        match search(from, MAX_HISTORIES, Some(*fault), |violation| violation.check == check) {
            Err((seed, _)) => println!("{:<28} seed {seed:<5} noticed by: {check}", name(*fault)),
            Ok(_) => {
                unnoticed += 1;
                println!("{:<28} NOT NOTICED in {MAX_HISTORIES} histories by: {check}", name(*fault));
            }
        }
    }
    println!("{} passed, {unnoticed} failed", RuleFault::value_variants().len() - unnoticed);
    if unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The lowest seed with a violation that counts, or the totals of all histories.
fn search(
    from: u64,
    seeds: u64,
    fault: Option<RuleFault>,
    counts: impl Fn(&InvariantViolation) -> bool + Sync,
) -> Result<HistoryCounters, (u64, InvariantViolation)> {
    let (next, total) = (AtomicU64::new(from), Mutex::new(HistoryCounters::default()));
    let worst: Mutex<Option<(u64, InvariantViolation)>> = Mutex::new(None);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let found = worst.lock().unwrap_or_else(PoisonError::into_inner).is_some();
                    if seed >= from + seeds || found {
                        break;
                    }
                    match SimWorld::new(seed, fault, StoryMode::Nothing).live() {
                        Ok(tally) => total.lock().unwrap_or_else(PoisonError::into_inner).add(&tally),
                        Err(violation) if !counts(&violation) => {}
                        Err(violation) => {
                            let mut worst = worst.lock().unwrap_or_else(PoisonError::into_inner);
                            if worst.as_ref().is_none_or(|(earlier, _)| seed < *earlier) {
                                *worst = Some((seed, violation));
                            }
                        }
                    }
                }
            });
        }
    });
    match worst.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(found) => Err(found),
        None => Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn name(fault: RuleFault) -> String {
    fault.to_possible_value().map_or_else(|| format!("{fault:?}"), |value| value.get_name().to_owned())
}

impl HistoryCounters {
    fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.crashes += other.crashes;
        self.runs += other.runs;
        self.replies += other.replies;
        self.auto_decisions += other.auto_decisions;
        self.deliveries += other.deliveries;
    }
}
