//! Limits how much of an engine's output becomes journal entries. The journal is kept permanently, so it has a bound
//! for each entry, each turn and each process (SECURITY finding 9).
//!
//! Omitted entries are counted, and the count is journalled. The bounds depend only on the output, so a restarted
//! reader produces the same entries. Questions are shortened in `content`.

use abide_domain::{event::TurnOutcome, failure::RunFailure, interaction::Question, process::OutputPosition};
use serde::{Deserialize, Serialize};

/// Maximum length of a progress entry.
pub(crate) const MAX_PROGRESS_BYTES: usize = 2 << 10;
/// Limit of progress entries for one turn.
const TURN: BudgetLimit = BudgetLimit { entries: 2_000, bytes: 1 << 20 };
/// Limit of progress entries for all turns of one process.
const PROCESS: BudgetLimit = BudgetLimit { entries: 20_000, bytes: 16 << 20 };
/// Limit of the requests of one turn that are shown to a person.
const TURN_REQUESTS: BudgetLimit = BudgetLimit { entries: 1_000, bytes: 16 << 20 };
/// Maximum size that is counted for a request. Longer text is not stored in the journal.
const MAX_REQUEST_BYTES: u64 = 80 << 10;
/// Maximum length of the answer of a turn as JSON text, without its quotes. A commit writes an answer several times as
/// JSON, in which a control character takes six bytes.
pub(crate) const MAX_RESULT_BYTES: usize = 2 << 20;
/// Maximum length of a failure message.
const MAX_FAILURE_BYTES: usize = 8 << 10;
/// The number of omitted entries is journalled from this number on, each time that it has doubled.
const FIRST_COUNT: u64 = 1_024;

#[derive(Clone, Copy, Debug)]
struct BudgetLimit {
    entries: u64,
    bytes: u64,
}

/// The used parts of a process's budgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalBudget {
    turn: BudgetUsage,
    process: BudgetUsage,
    requests: BudgetUsage,
    #[serde(alias = "left_out")]
    omitted: BudgetUsage,
    /// The position of the last omitted entry that has not been reported.
    #[serde(alias = "untold")]
    unreported_position: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct BudgetUsage {
    entries: u64,
    bytes: u64,
}

impl BudgetUsage {
    fn add(&mut self, bytes: u64) {
        self.entries = self.entries.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn has_room(&self, bytes: u64, bound: BudgetLimit) -> bool {
        self.entries < bound.entries && self.bytes.saturating_add(bytes) <= bound.bytes
    }
}

impl JournalBudget {
    /// The journal entry for a piece of progress; None if it is omitted.
    pub(crate) fn progress(&mut self, text: String, at: OutputPosition) -> Option<String> {
        let whole = text.len() as u64;
        let text = shortened(text, at);
        let bytes = text.len() as u64;
        if self.omitted.entries == 0
            && self.turn.has_room(bytes, TURN)
            && self.process.has_room(bytes, PROCESS)
        {
            self.turn.add(bytes);
            self.process.add(bytes);
            return Some(text);
        }
        self.omitted.add(whole);
        let count = self.omitted.entries;
        if count == 1 {
            return Some(format!(
                "[from here on, the progress of this turn is only counted: it has reached its bound. The process's \
                 output continues at byte {}]",
                offset(at)
            ));
        }
        if count >= FIRST_COUNT && count.is_power_of_two() {
            self.unreported_position = None;
            return Some(self.count());
        }
        self.unreported_position = Some(at.0);
        None
    }

    /// Whether one more request may be shown to a person.
    pub(crate) fn admits(&mut self, question: &Question) -> bool {
        let context = question.context.as_ref().map_or(0, |context| context.text_bytes() as u64);
        let bytes = (question.prompt.len() as u64 + context).min(MAX_REQUEST_BYTES);
        let admits = self.requests.has_room(bytes, TURN_REQUESTS);
        self.requests.add(bytes);
        admits
    }

    /// Ends the turn. Returns the entry with the number of omitted entries and its position, if it has not been
    /// reported.
    pub(crate) fn end_turn(&mut self) -> Option<(OutputPosition, String)> {
        let told = self.unreported_position.take().map(|at| (OutputPosition(at), self.count()));
        (self.turn, self.requests, self.omitted) = Default::default();
        told
    }

    fn count(&self) -> String {
        let BudgetUsage { entries, bytes } = self.omitted;
        format!("[{entries} entries of progress with {bytes} bytes are left out in this turn so far]")
    }
}

/// Shortens the texts of a turn's outcome to their bounds.
pub(crate) fn bounded(ending: TurnOutcome) -> TurnOutcome {
    match ending {
        TurnOutcome::Completed { text } => TurnOutcome::Completed { text: result(text) },
        TurnOutcome::Asked { text, question } => TurnOutcome::Asked { text: result(text), question },
        TurnOutcome::Failed { failure: RunFailure { code, message } } => {
            let message =
                cut(message, MAX_FAILURE_BYTES, |more| format!(" [{more} more bytes are left out]"));
            TurnOutcome::Failed { failure: RunFailure { code, message } }
        }
        TurnOutcome::Interrupted => TurnOutcome::Interrupted,
    }
}

fn result(text: String) -> String {
    cut_at(text, json_prefix_bytes, |more| {
        format!(
            "\n[{more} more bytes of this answer are left out: an answer has at most {MAX_RESULT_BYTES} bytes as JSON]"
        )
    })
}

/// The length of the longest beginning of a text that has at most [`MAX_RESULT_BYTES`] as JSON.
fn json_prefix_bytes(text: &str) -> usize {
    let mut json_bytes = 0;
    let exceeds = |byte: u8| {
        json_bytes += match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..0x20 => 6,
            _ => 1,
        };
        json_bytes > MAX_RESULT_BYTES
    };
    let end = text.bytes().position(exceeds).unwrap_or(text.len());
    text.floor_char_boundary(end)
}

fn shortened(text: String, at: OutputPosition) -> String {
    cut(text, MAX_PROGRESS_BYTES, |more| {
        format!("… [{more} more bytes are in the process's output before byte {}]", offset(at))
    })
}

/// The offset in standard output of the line at this position.
fn offset(at: OutputPosition) -> u64 {
    abide_ports::engine::EngineFact::offset(at)
}

/// Truncates a text to `most` bytes and appends a note about the rest.
fn cut(text: String, most: usize, note: impl FnOnce(usize) -> String) -> String {
    cut_at(text, |text| text.floor_char_boundary(most), note)
}

/// Truncates a text to the length that `prefix_bytes` returns and appends a note about the rest.
fn cut_at(
    mut text: String,
    prefix_bytes: impl FnOnce(&str) -> usize,
    note: impl FnOnce(usize) -> String,
) -> String {
    let kept = prefix_bytes(&text);
    if kept >= text.len() {
        return text;
    }
    let note = note(text.len() - kept);
    text.truncate(kept);
    text.push_str(&note);
    text.shrink_to_fit();
    text
}

#[cfg(test)]
mod tests {
    use abide_domain::failure::FailureCode;

    use super::*;

    fn at(number: u64) -> OutputPosition {
        abide_ports::engine::EngineFact::position(number, 0)
    }

    /// SECURITY finding 9
    #[test]
    fn a_million_entries_become_a_bounded_number_and_their_count_is_told() {
        let mut budget = JournalBudget::default();
        let entries: Vec<String> =
            (1..=1_000_000).filter_map(|number| budget.progress("works".to_owned(), at(number))).collect();
        assert!(entries.len() <= 2_000 + 1 + 20, "{}", entries.len());
        let (place, total) = budget.end_turn().expect("the rest is told");
        assert_eq!(place, at(1_000_000));
        assert!(total.starts_with("[998000 entries"), "{total}");
        assert_eq!(
            budget.progress("again".to_owned(), at(1_000_001)).as_deref(),
            Some("again"),
            "the next turn"
        );
    }

    /// SECURITY finding 9
    #[test]
    fn large_entries_are_cut_and_use_the_budget_up_by_their_bytes() {
        let mut budget = JournalBudget::default();
        let bytes: usize = (1..=10_000)
            .filter_map(|number| budget.progress("é".repeat(1 << 20), at(number)))
            .map(|entry| {
                assert!(entry.len() <= MAX_PROGRESS_BYTES + 100, "{}", entry.len());
                entry.len()
            })
            .sum();
        assert!(bytes <= (1 << 20) + 2_000, "{bytes}");
        let mut fresh = JournalBudget::default();
        let entry = fresh.progress("x".repeat(5_000), at(77)).expect("the first is told");
        assert!(entry.ends_with("[2952 more bytes are in the process's output before byte 77]"), "{entry}");
    }

    #[test]
    fn all_turns_of_a_process_together_have_a_bound() {
        let mut budget = JournalBudget::default();
        let mut entries = 0;
        for turn in 0..1_000 {
            for number in 1..=5_000 {
                entries += u64::from(budget.progress("x".to_owned(), at(turn * 10_000 + number)).is_some());
            }
            entries += u64::from(budget.end_turn().is_some());
        }
        // Beyond the bound, each turn has the note, two intermediate counts and a final one.
        assert!(entries <= 20_000 + 1_000 * 5, "{entries}");
    }

    #[test]
    fn answers_and_failures_are_bounded() {
        let TurnOutcome::Completed { text } = bounded(TurnOutcome::Completed { text: "é".repeat(4 << 20) })
        else {
            panic!("another ending")
        };
        assert!(text.len() < MAX_RESULT_BYTES + 200 && text.ends_with("bytes as JSON]"), "{}", text.len());
        let whole = "x".repeat(MAX_RESULT_BYTES);
        assert_eq!(
            bounded(TurnOutcome::Completed { text: whole.clone() }),
            TurnOutcome::Completed { text: whole }
        );
        for (piece, json_bytes) in [("\u{1}", 6), ("\u{1f}", 6), ("\n", 2), ("\"", 2), ("\u{7f}", 1)] {
            let TurnOutcome::Completed { text } =
                bounded(TurnOutcome::Completed { text: piece.repeat(MAX_RESULT_BYTES) })
            else {
                panic!("another ending")
            };
            let kept = text.chars().filter(|character| piece.starts_with(*character)).count();
            assert!(kept >= MAX_RESULT_BYTES / json_bytes, "{kept} of {piece:?}");
            let encoded = serde_json::to_string(&text).unwrap().len();
            assert!(encoded < MAX_RESULT_BYTES + 200, "{encoded} bytes of JSON");
        }
        let failure = RunFailure::new(FailureCode::EngineFailed, "x".repeat(1 << 20));
        let TurnOutcome::Failed { failure } = bounded(TurnOutcome::Failed { failure }) else {
            panic!("another ending")
        };
        assert!(failure.message.len() < MAX_FAILURE_BYTES + 100);
    }
}
