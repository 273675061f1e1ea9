//! The counters of a crash test.

use std::{collections::BTreeMap, fmt};

use abide_testkit::daemon::{ScenarioRecord, TestScenario};

/// The counters of a crash test.
#[derive(Clone, Debug, Default)]
pub(crate) struct CrashCounters {
    /// Kills by SIGKILL, by failpoint.
    pub(crate) kills: BTreeMap<String, u64>,
    /// Planned kills whose failpoint was never reached.
    pub(crate) not_reached: u64,
    /// Failpoints at which there was no keeper or child to kill.
    pub(crate) without_victim: u64,
    /// Runs with a killed process.
    pub(crate) affected_runs: u64,
    /// Starts of the daemon.
    pub(crate) starts: u64,
    /// Runs that were played to their end.
    pub(crate) runs: u64,
    /// Lines that had to appear exactly once in a file.
    pub(crate) lines: u64,
    /// Questions whose answers had to be accepted exactly once.
    pub(crate) questions: u64,
    /// Messages that had to be accepted exactly once.
    pub(crate) messages: u64,
    /// Acknowledged requests.
    pub(crate) acknowledged: u64,
    /// Repeated requests.
    pub(crate) retries: u64,
    /// Turns with an unknown outcome, for which the user was asked.
    pub(crate) unknown_turns: u64,
    /// Effects that the last daemon left to the next one.
    pub(crate) leftover_effects: u64,
    /// Journal entries.
    pub(crate) events: u64,
    /// Readers that received each entry exactly once.
    pub(crate) readers: u64,
    /// Reconnections of these readers.
    pub(crate) reconnections: u64,
    /// Violations of the invariants.
    pub(crate) problems: Vec<String>,
}

impl CrashCounters {
    /// Returns the total number of kills.
    pub(crate) fn kills(&self) -> u64 {
        self.kills.values().sum()
    }

    /// Adds a scenario that was played to its end.
    pub(crate) fn add_scenario(&mut self, scenario: &TestScenario, record: &ScenarioRecord) {
        self.runs += 1;
        self.lines += scenario.expected_lines.len() as u64;
        self.questions += record.answers.len() as u64;
        self.messages += scenario.messages.len() as u64;
        self.acknowledged += record.acknowledged;
        self.retries += record.retries;
        self.unknown_turns += record.recovery_questions;
        self.problems.extend(record.problems.iter().cloned());
    }

    /// Adds the figures of another instance.
    pub(crate) fn add(&mut self, other: Self) {
        for (point, count) in other.kills {
            *self.kills.entry(point).or_default() += count;
        }
        self.not_reached += other.not_reached;
        self.without_victim += other.without_victim;
        self.affected_runs += other.affected_runs;
        self.starts += other.starts;
        self.runs += other.runs;
        self.lines += other.lines;
        self.questions += other.questions;
        self.messages += other.messages;
        self.acknowledged += other.acknowledged;
        self.retries += other.retries;
        self.unknown_turns += other.unknown_turns;
        self.leftover_effects += other.leftover_effects;
        self.events += other.events;
        self.readers += other.readers;
        self.reconnections += other.reconnections;
        self.problems.extend(other.problems);
    }

    /// Returns the counters with their descriptions.
    pub(crate) fn figures(&self) -> Vec<(String, u64)> {
        let mut figures: Vec<(String, u64)> = vec![("kills".to_owned(), self.kills())];
        figures.extend(self.kills.iter().map(|(point, count)| (format!("kills, {point}"), *count)));
        let more = [
            ("planned kills whose failpoint was not reached", self.not_reached),
            ("failpoints without a keeper or child to kill", self.without_victim),
            ("daemon starts", self.starts),
            ("runs", self.runs),
            ("runs with a killed keeper or child", self.affected_runs),
            ("lines checked for duplicates and loss", self.lines),
            ("answers checked for exactly one use", self.questions),
            ("messages checked for exactly one use", self.messages),
            ("acknowledged requests", self.acknowledged),
            ("repeated requests", self.retries),
            ("turns with an unknown outcome, reported to a person", self.unknown_turns),
            ("effects completed only after one more restart", self.leftover_effects),
            ("journal entries verified", self.events),
            ("event readers that received each entry exactly once", self.readers),
            ("reconnections of these readers", self.reconnections),
            ("problems", self.problems.len() as u64),
        ];
        figures.extend(more.map(|(name, count)| (name.to_owned(), count)));
        figures
    }
}

impl fmt::Display for CrashCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.figures().iter().map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&lines.join("; "))
    }
}
