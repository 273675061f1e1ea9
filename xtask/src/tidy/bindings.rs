//! Checks that a binding is a noun and not a sentence. A discarded result is marked with `.ok()` and a comment, which
//! can be wrapped and spell-checked.

use super::TidyFinding;
use super::source::{RustSource, is_name};
use super::tree::FileTree;

pub(super) const RULE: &str = "sentence-binding";

/// Names of local variables with more words than this are sentences.
const MAX_WORDS: usize = 4;
const REMEDY: &str =
    "name the value with a noun, or discard a result with `.ok()` and a comment that gives the reason";

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let source = RustSource::split(text);
        for (index, line) in source.code.lines().enumerate() {
            for name in bound_names(line).filter(|name| is_sentence(name)) {
                let wrong = format!("the binding {name} is a sentence");
                findings.push(TidyFinding::new(path, index + 1, wrong, REMEDY).about(RULE, name));
            }
        }
    }
    findings
}

/// Returns the names directly after `let` and `let mut`.
fn bound_names(line: &str) -> impl Iterator<Item = &str> {
    let words: Vec<&str> = line.split(|c: char| !is_name(c)).filter(|word| !word.is_empty()).collect();
    let mut names = Vec::new();
    for (index, _) in words.iter().enumerate().filter(|(_, word)| **word == "let") {
        names.extend(words[index + 1..].iter().find(|word| **word != "mut"));
    }
    names.into_iter()
}

/// Whether the name is an unused binding of two words or more, or has more words than a noun needs.
fn is_sentence(name: &str) -> bool {
    let words = name.split('_').filter(|word| !word.is_empty()).count();
    if name.starts_with('_') { words > 1 } else { words > MAX_WORDS }
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    #[test]
    fn nouns_and_unused_values_of_one_word_pass() {
        let text = "let exit_status = wait();\nlet _guard = lock();\nlet _ = x; // let _the_lock_is_held = 1\n\
                    let mut first_open_question_id = 1;\nfn f(_server_name: &str) {}\n";
        assert_eq!(findings_of(check, &[("a.rs", text)]), [""; 0]);
    }

    #[test]
    fn a_sentence_is_found() {
        let text = "if x { let _it_is_gone = end(); }\nlet mut there_is_nothing_to_do = true;\n";
        let findings = findings_of(check, &[("a.rs", text)]);
        let heads: Vec<_> = findings.iter().filter_map(|finding| finding.split(';').next()).collect();
        let expected = [
            "a.rs:1: the binding _it_is_gone is a sentence",
            "a.rs:2: the binding there_is_nothing_to_do is a sentence",
        ];
        assert_eq!(heads, expected);
    }
}
