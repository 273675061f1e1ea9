//! The words that are not written in documents, comments, messages and names, with their replacements.
//!
//! Each is a private expression for something that has an established term, or a person where a program is meant. A
//! word belongs here if a search for it finds more misuses than correct uses; exceptions are in `exceptions.rs`.

/// A word or phrase in lower case, and the replacement that a finding suggests.
pub(super) struct AvoidedPhrase {
    pub(super) words: &'static [&'static str],
    pub(super) remedy: &'static str,
}

const fn avoid(words: &'static [&'static str], remedy: &'static str) -> AvoidedPhrase {
    AvoidedPhrase { words, remedy }
}

const PERSON: &str = "name the program, the role or the person: client, caller, process, user";
const CONTINUE: &str = "write `continue`";
const AGAIN: &str = "write `again`, or name the retry";
const INVALID: &str = "write `invalid`, or say what is missing";

pub(super) const AVOIDED_PHRASES: &[AvoidedPhrase] = &[
    avoid(&["somebody"], PERSON),
    avoid(&["nobody"], PERSON),
    avoid(&["whoever"], PERSON),
    avoid(&["everybody"], PERSON),
    avoid(&["anybody"], PERSON),
    avoid(&["those", "who"], PERSON),
    avoid(&["the", "one", "who"], PERSON),
    avoid(&["patience"], "name the timeout and its unit"),
    avoid(&["wish"], "name the option or the request"),
    avoid(&["wishes"], "name the options or the preferences"),
    avoid(&["doubt"], "name the state: unknown, dirty, pending"),
    avoid(&["affair"], "name the matter"),
    avoid(&["errand"], "write `request`"),
    avoid(&["foresee"], "name the cache or the prediction"),
    avoid(&["forgive"], "write `cancel` or `tolerate`"),
    avoid(&["overlook"], "write `ignore`"),
    avoid(&["astir"], "write `active`"),
    avoid(&["in", "vain"], "write `without success`"),
    avoid(&["anew"], AGAIN),
    avoid(&["strange"], "write `unexpected`"),
    avoid(&["ended", "badly"], "write `failed`"),
    avoid(&["bad", "end"], "write `failed`"),
    avoid(&["that", "is", "none"], INVALID),
    avoid(&["that", "are", "none"], INVALID),
    avoid(&["be", "had"], "write `is not available`"),
    avoid(&["goes", "on"], CONTINUE),
    avoid(&["go", "on"], CONTINUE),
    avoid(&["going", "on"], CONTINUE),
    avoid(&["went", "on"], CONTINUE),
    avoid(&["gone", "on"], CONTINUE),
];

/// Words that begin a clause without a noun. A sentence that begins with one is a question, or hides its subject.
pub(super) const HEADLESS_WORDS: &[&str] = &["what", "who", "whose"];
