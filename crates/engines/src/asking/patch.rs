//! Text that is added to a prompt or a skill: the location of files, and whether and how to ask (D3).
//!
//! The person's words come first and are not changed. The addition is one element at the end, so that [`own_words`] can
//! separate the two. The selection and the location of the skill are not known here.

use std::ops::Range;

use abide_domain::settings::ExecutionMode;
use abide_ports::engine::QuestionStyle;

/// Folder for files for the person, relative to the workspace.
pub const ARTIFACTS: &str = ".abide/artifacts";

/// The info string of a question block.
pub const FENCE: &str = "abide-question";

const OPEN: &str = "\n\n<abide-runtime>";
const CLOSE: &str = "</abide-runtime>";

/// The prompt with the instructions for the `turn_index`-th turn of a session, counted from 1. The first turn has the
/// complete contract. Later turns have a reminder of one line if the mode allows questions. `skill` is the folder of
/// the run's copy of its skill. It is named by its path, because engines differ in how they call skills but all can
/// read files. An engine with a built-in way to ask gets later turns unchanged, because they may be secrets.
pub fn prompt(
    mode: ExecutionMode,
    asking: QuestionStyle,
    text: &str,
    turn_index: u32,
    skill: Option<&str>,
) -> String {
    let added = match (turn_index <= 1, mode, asking) {
        (true, ExecutionMode::Auto | ExecutionMode::Interactive | ExecutionMode::Chat, _) => {
            format!("\n{}{}\n", skill.map(use_skill).unwrap_or_default(), rules(mode, asking))
        }
        (false, ExecutionMode::Interactive | ExecutionMode::Chat, QuestionStyle::InText) => {
            REMINDER.to_owned()
        }
        (false, ExecutionMode::Auto, _)
        | (false, ExecutionMode::Interactive | ExecutionMode::Chat, QuestionStyle::ByItself) => {
            return text.to_owned();
        }
    };
    format!("{text}{OPEN}{added}{CLOSE}")
}

/// The text that is appended to a run's copy of a skill, never to the skill itself.
pub fn skill_patch(mode: ExecutionMode) -> String {
    format!("\n\n## How this run works\n\n{}\n", rules(mode, QuestionStyle::InText))
}

/// The person's part of a prompt that [`prompt`] made; any other text is returned unchanged.
pub fn own_words(prompt: &str) -> &str {
    match prompt.strip_suffix(CLOSE).and_then(|open| open.rfind(OPEN)) {
        Some(end) => prompt.get(..end).unwrap_or(prompt),
        None => prompt,
    }
}

/// The ranges of a text that repeat an addition of [`prompt`].
pub(super) fn repeated(text: &str) -> Vec<Range<usize>> {
    let mut repeated = vec![];
    let mut from = 0;
    while let Some(start) = text.get(from..).and_then(|rest| rest.find(OPEN.trim_start())).map(|at| from + at)
    {
        let Some(end) = text.get(start..).and_then(|rest| rest.find(CLOSE)) else { break };
        from = start + end + CLOSE.len();
        repeated.push(start..from);
    }
    repeated
}

fn use_skill(folder: &str) -> String {
    let name = folder.rsplit('/').next().unwrap_or(folder);
    format!("Use the skill `{name}` for this work: follow `{folder}/SKILL.md` in the workspace.\n\n")
}

fn rules(mode: ExecutionMode, asking: QuestionStyle) -> String {
    let asking = match (mode, asking) {
        (ExecutionMode::Auto, _) => DECIDE,
        (ExecutionMode::Interactive | ExecutionMode::Chat, QuestionStyle::InText) => ASK,
        (ExecutionMode::Interactive | ExecutionMode::Chat, QuestionStyle::ByItself) => "",
    };
    let rules = format!(
        "Files that are meant for the person (reports, images, exports) go to the folder `{ARTIFACTS}` of the \
         workspace; create it if it is missing. Files that belong to the work itself stay where they belong.\n\n\
         {asking}"
    );
    rules.trim_end().to_owned()
}

const DECIDE: &str = "\
Nobody is there to answer questions. Decide for yourself and go on; where something is unclear, choose what changes the \
least and can be undone, and say in your answer what you decided and why. Stop only at an error that makes it \
impossible to go on, and then say what it is.";

const ASK: &str = "\
If you need a decision, information or consent from the person before you can go on, ask and end your turn: write what \
you have found so far, and as the very last thing one fenced block like this.

```abide-question
{\"kind\": \"choose_one\", \"prompt\": \"Which database shall I use?\", \"options\": [{\"label\": \"SQLite\", \"safe\": true}, {\"label\": \"Postgres\"}], \"default_decision_policy\": \"safe_default\"}
```

It holds one JSON object:
- `kind` (required): `choose_one` (one of the options), `confirm` (yes or no), `fill_fields` (several values), \
`open_text` (anything), or `risk_ack` (consent to something dangerous or irreversible).
- `prompt` (required): the whole question in the person's language; it must make sense without the rest of your answer.
- `options`: suggested answers, each `{\"label\": \"…\", \"safe\": true|false}`; mark at most one as safe: the one that \
does no harm.
- `ui_hints`: anything that helps to show the question, for instance the names of the fields.
- `default_decision_policy`: what is right if nobody ever answers: `engine_judgement` (you decide), `safe_default` (the \
safe option, or no), or `abort` (give up rather than guess; the choice for risks).

Ask one question in a turn, and only if you cannot find the answer yourself. The reply comes as free text in the next \
message: never demand JSON or any other form. If you have nothing to ask, write no such block.";

const REMINDER: &str =
    "To ask the person something, end your turn with one ```abide-question block as described before.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asking::recognise;
    use QuestionStyle::{ByItself, InText};
    use abide_domain::event::TurnOutcome;

    const MODES: [ExecutionMode; 3] = [ExecutionMode::Auto, ExecutionMode::Interactive, ExecutionMode::Chat];

    #[test]
    fn the_persons_words_come_first_and_can_be_taken_out_again() {
        for words in
            ["", "fix it", "/init\r\n  \n", "a\n\n<abide-runtime>b", "x\n\n<abide-runtime>y</abide-runtime>"]
        {
            for mode in MODES {
                for (turn, skill) in [(1, None), (1, Some(".agents/skills/review")), (2, None), (7, None)] {
                    let told = prompt(mode, InText, words, turn, skill);
                    assert!(told.starts_with(words), "{told}");
                    // A later turn in auto mode has no addition that could be removed.
                    if told != words {
                        assert_eq!(own_words(&told), words);
                    }
                }
            }
        }
        assert_eq!(own_words("plain"), "plain");
    }

    #[test]
    fn an_engine_that_repeats_what_it_was_told_does_not_ask() {
        for mode in MODES {
            let echo = format!("You said: {} And I say: fine.", prompt(mode, InText, "do it", 1, None));
            assert!(matches!(recognise(&echo).ending, TurnOutcome::Completed { .. }), "{echo}");
            let asks = format!("{echo}\n```abide-question\n{{\"prompt\": \"Really?\"}}\n```");
            assert!(matches!(recognise(&asks).ending, TurnOutcome::Asked { .. }), "{asks}");
        }
    }

    #[test]
    fn every_mode_is_told_about_artifacts_and_only_some_about_asking() {
        for mode in MODES {
            for told in [prompt(mode, InText, "do it", 1, None), skill_patch(mode)] {
                assert!(told.contains(ARTIFACTS));
                assert_eq!(told.contains(FENCE), mode != ExecutionMode::Auto);
                assert_eq!(told.contains("Decide for yourself"), mode == ExecutionMode::Auto);
            }
        }
    }

    #[test]
    fn the_first_turn_is_told_which_skill_to_use_and_where_it_lies() {
        for mode in MODES {
            let told = prompt(mode, InText, "do it", 1, Some(".agents/skills/review"));
            assert!(told.contains("the skill `review`"), "{told}");
            assert!(told.contains("`.agents/skills/review/SKILL.md`"), "{told}");
            assert!(!prompt(mode, InText, "do it", 1, None).contains("skill"));
        }
    }

    #[test]
    fn later_turns_get_one_line_at_most() {
        assert_eq!(prompt(ExecutionMode::Auto, InText, "go on", 2, Some("s/review")), "go on");
        let told = prompt(ExecutionMode::Chat, InText, "go on", 2, Some("s/review"));
        assert_eq!(told.lines().count(), 3, "the words, a blank line, the reminder: {told}");
    }

    #[test]
    fn who_knows_how_to_ask_is_not_told_and_hears_later_turns_word_for_word() {
        for mode in MODES {
            let told = prompt(mode, ByItself, "do it", 1, None);
            assert!(told.contains(ARTIFACTS) && !told.contains(FENCE), "{told}");
            assert_eq!(told.contains("Decide for yourself"), mode == ExecutionMode::Auto);
            assert_eq!(prompt(mode, ByItself, "hunter2", 2, None), "hunter2");
        }
    }

    #[test]
    fn the_example_that_engines_are_shown_is_understood() {
        let heard = recognise(ASK);
        assert_eq!(heard.warning, None);
        assert!(matches!(heard.ending, TurnOutcome::Asked { question, .. } if question.options.len() == 2));
    }
}
