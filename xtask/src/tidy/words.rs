//! Checks the words of documents, comments, strings and names against `word_list.rs`, and that a sentence begins with
//! its subject and not with a clause such as "what was written".

use super::TidyFinding;
use super::passages::{TextPassage, passages};
use super::tree::FileTree;
use super::word_list::{AVOIDED_PHRASES, HEADLESS_WORDS};

pub(super) const PHRASE_RULE: &str = "avoided-phrase";
pub(super) const SUBJECT_RULE: &str = "sentence-subject";

/// A shorter sentence that begins with a question word is a label or the name of a field.
const MIN_SENTENCE_WORDS: usize = 3;

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for passage in passages(path, text) {
            findings.extend(avoided_phrases(path, &passage));
            findings.extend(hidden_subjects(path, &passage));
        }
    }
    findings
}

fn avoided_phrases(path: &str, passage: &TextPassage) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for phrase in AVOIDED_PHRASES {
        for window in passage.words.windows(phrase.words.len()) {
            let is_phrase = window.iter().zip(phrase.words).all(|(word, avoided)| word.text == *avoided);
            if is_phrase && window[0].sentence == window[window.len() - 1].sentence {
                let subject = phrase.words.join(" ");
                let wrong = format!("\"{subject}\" is not a term of the field");
                findings.push(
                    TidyFinding::new(path, window[0].line, wrong, phrase.remedy).about(PHRASE_RULE, &subject),
                );
            }
        }
    }
    findings
}

fn hidden_subjects(path: &str, passage: &TextPassage) -> Vec<TidyFinding> {
    let sentences = passage.words.chunk_by(|one, next| one.sentence == next.sentence);
    let hidden = sentences.filter_map(|words| {
        let first = words.first()?;
        let is_headless = HEADLESS_WORDS.contains(&first.text.as_str());
        (is_headless && words.len() >= MIN_SENTENCE_WORDS && !first.in_question).then_some(first)
    });
    hidden
        .map(|first| {
            let wrong = format!("a sentence begins with \"{}\" and hides its subject", first.text);
            let finding = TidyFinding::new(path, first.line, wrong, "begin with the noun that is meant");
            finding.about(SUBJECT_RULE, &first.text)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    /// Returns the problems without their remedies.
    fn problems(path: &str, text: &str) -> Vec<String> {
        let findings = findings_of(check, &[(path, text)]);
        findings
            .iter()
            .filter_map(|finding| finding.rsplit_once("; ").map(|(problem, _)| problem.to_owned()))
            .collect()
    }

    #[test]
    fn plain_sentences_pass() {
        let text = "//! The reader drains the output. What happens next? The client knows what it sent.\n\
                    fn drain_output() { fail(\"cannot parse the response\") }\n";
        assert_eq!(problems("a.rs", text), [""; 0]);
        assert_eq!(problems("a.md", "The run continues. `nobody` is an account.\n"), [""; 0]);
    }

    #[test]
    fn a_person_is_found_in_documents_comments_strings_and_names() {
        let expected = ["a.md:1: \"nobody\" is not a term of the field"];
        assert_eq!(problems("a.md", "It asks nobody.\n"), expected);
        let text = "// Somebody asks.\nlet x = \"tell everybody\";\nfn asks_nobody() {}\nenum Anybody {}\n";
        let lines = ["1: \"somebody\"", "2: \"everybody\"", "3: \"nobody\"", "4: \"anybody\""];
        assert_eq!(
            problems("a.rs", text),
            lines.map(|line| format!("a.rs:{line} is not a term of the field"))
        );
    }

    #[test]
    fn a_phrase_is_found_across_lines_and_not_across_sentences() {
        let expected = ["a.rs:1: \"goes on\" is not a term of the field"];
        assert_eq!(problems("a.rs", "// The run goes\n// on later.\n"), expected);
        assert_eq!(problems("a.rs", "// There it goes. On the next day it ends.\n"), [""; 0]);
    }

    #[test]
    fn a_clause_in_place_of_the_subject_is_found() {
        for text in ["/// What a client sent.\n", "const X: &str = \"what was kept is deleted\";\n"] {
            let expected = ["a.rs:1: a sentence begins with \"what\" and hides its subject"];
            assert_eq!(problems("a.rs", text), expected, "{text}");
        }
        let expected = ["a.md:2: a sentence begins with \"who\" and hides its subject"];
        assert_eq!(problems("a.md", "The store is locked.\nWho writes waits for it.\n"), expected);
        assert_eq!(problems("a.rs", "let what = field(\"what\"); // What is it?\n"), [""; 0]);
    }
}
