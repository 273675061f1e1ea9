//! The exceptions from the rules about names and words, each with its reason. An exception that matches nothing is an
//! error, so the list does not outlive its causes.

use super::TidyFinding;
use super::{type_names, words};

/// Findings of a rule that are accepted.
pub(super) struct TidyException {
    pub(super) rule: &'static str,
    /// The name, word or phrase; `*` stands for all.
    pub(super) subject: &'static str,
    /// The path of a file, or the beginning of the paths of several.
    pub(super) path: &'static str,
    pub(super) reason: &'static str,
}

const fn one_word(subject: &'static str, path: &'static str, reason: &'static str) -> TidyException {
    TidyException { rule: type_names::TWO_WORDS_RULE, subject, path, reason }
}

const fn phrase(subject: &'static str, path: &'static str, reason: &'static str) -> TidyException {
    TidyException { rule: words::PHRASE_RULE, subject, path, reason }
}

const fn clause(subject: &'static str, path: &'static str, reason: &'static str) -> TidyException {
    TidyException { rule: words::SUBJECT_RULE, subject, path, reason }
}

pub(super) const EXCEPTIONS: &[TidyException] = &[
    one_word("Clock", "crates/ports/src/clock.rs", "a contract is named by the thing that it stands for"),
    one_word(
        "Processes",
        "crates/ports/src/processes.rs",
        "a contract is named by the thing that it stands for",
    ),
    one_word("Store", "crates/ports/src/store/", "a contract is named by the thing that it stands for"),
    one_word(
        "Workspaces",
        "crates/ports/src/workspace.rs",
        "a contract is named by the thing that it stands for",
    ),
    one_word("Daemon", "crates/daemon/src/service.rs", "the handle of the whole crate"),
    one_word("Deadline", "crates/domain/src/deadline.rs", "an established term with one meaning"),
    one_word(
        "Question",
        "crates/domain/src/interaction.rs",
        "the text of an interaction, in the words of the API",
    ),
    one_word("Seconds", "crates/domain/src/time.rs", "a unit needs no noun"),
    one_word("Timestamp", "crates/domain/src/time.rs", "an established term with one meaning"),
    one_word(
        "Confinement",
        "crates/keeper/src/confine.rs",
        "the subject of its module and of the mechanism in os",
    ),
    one_word("Directory", "crates/os/src/beneath/", "an open directory, as in the system's own terms"),
    one_word(
        "Durability",
        "crates/os/src/atomic_file.rs",
        "read as a property at the call: Durability::PowerFailure",
    ),
    one_word("Permission", "crates/wire/src/access.rs", "the word of the API for a right of a token"),
    one_word("Principal", "crates/api/src/access/", "the established term of access control"),
    one_word("Stopwatch", "xtask/src/stopwatch.rs", "an established term with one meaning"),
    phrase("*", "docs/style.md", "the page shows sentences to avoid"),
    clause("*", "docs/style.md", "the page shows sentences to avoid"),
    phrase("*", "xtask/src/tidy/word", "the rule and its list name the words"),
    clause("*", "xtask/src/tidy/word", "the tests of the rule show bad sentences"),
    phrase("*", "xtask/src/tidy/exceptions.rs", "this table names the words"),
    clause("what", "docs/decisions/", "a fixed heading of every decision, which is not edited later"),
    phrase("nobody", "xtask/src/postgres.rs", "the name of a Unix account"),
    phrase("wish", "crates/agent/src/tool/script.rs", "the name of the Tk shell"),
    phrase("go on", "crates/store/fixtures/", "data that an earlier version wrote"),
    phrase(
        "whoever",
        "crates/store/src/postgres/migrations/0001_",
        "an applied migration is checked by its checksum",
    ),
    clause(
        "what",
        "crates/store/src/postgres/migrations/0002_",
        "an applied migration is checked by its checksum",
    ),
    phrase("nobody", "crates/domain/src/texts.rs", STORED_TEXT),
    phrase("go on", "crates/domain/src/texts.rs", STORED_TEXT),
    clause("what", "crates/domain/src/texts.rs", STORED_TEXT),
];

const STORED_TEXT: &str = "a journal of an earlier version is replayed with the texts of that version";

/// Removes the accepted findings and adds one for each exception that accepts none.
pub(super) fn apply(exceptions: &[TidyException], findings: Vec<TidyFinding>) -> Vec<TidyFinding> {
    let accepts = |exception: &TidyException, finding: &TidyFinding| {
        finding.subject.as_ref().is_some_and(|(rule, subject)| {
            *rule == exception.rule
                && (exception.subject == "*" || subject == exception.subject)
                && finding.path.starts_with(exception.path)
        })
    };
    let unused =
        exceptions.iter().filter(|exception| !findings.iter().any(|finding| accepts(exception, finding)));
    let unused: Vec<TidyFinding> = unused
        .map(|exception| {
            let wrong = format!(
                "the exception from {} for {} in {} ({}) matches nothing",
                exception.rule, exception.subject, exception.path, exception.reason
            );
            TidyFinding::new(TABLE_FILE, 1, wrong, "delete it")
        })
        .collect();
    let remaining = findings
        .into_iter()
        .filter(|finding| !exceptions.iter().any(|exception| accepts(exception, finding)));
    remaining.chain(unused).collect()
}

const TABLE_FILE: &str = "xtask/src/tidy/exceptions.rs";

#[cfg(test)]
mod tests {
    use super::super::TidyFinding;
    use super::{EXCEPTIONS, apply, one_word, phrase};

    fn finding(path: &str, rule: &'static str, subject: &str) -> TidyFinding {
        TidyFinding::new(path, 1, "wrong", "remedy").about(rule, subject)
    }

    #[test]
    fn an_exception_accepts_its_rule_subject_and_path_only() {
        let rule = one_word("Clock", "crates/ports/", "a reason").rule;
        let exceptions = [one_word("Clock", "crates/ports/", "a reason")];
        let accepted = finding("crates/ports/src/clock.rs", rule, "Clock");
        let others = [
            finding("crates/agent/src/clock.rs", rule, "Clock"),
            finding("crates/ports/src/clock.rs", rule, "Watch"),
            finding("crates/ports/src/clock.rs", "another-rule", "Clock"),
        ];
        let mut all = others.to_vec();
        all.push(accepted);
        assert_eq!(apply(&exceptions, all), others);
    }

    #[test]
    fn a_star_accepts_every_subject_of_a_file() {
        let exception = phrase("*", "docs/style.md", "a reason");
        let rule = exception.rule;
        assert_eq!(apply(&[exception], vec![finding("docs/style.md", rule, "in vain")]), []);
    }

    #[test]
    fn an_exception_that_matches_nothing_is_found() {
        let findings = apply(&[one_word("Clock", "crates/ports/", "a reason")], Vec::new());
        let expected = "xtask/src/tidy/exceptions.rs:1: the exception from two-word-type-name for Clock in \
                        crates/ports/ (a reason) matches nothing; delete it";
        assert_eq!(findings.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn every_exception_has_a_reason() {
        assert!(EXCEPTIONS.iter().all(|exception| exception.reason.split_whitespace().count() >= 3));
    }
}
