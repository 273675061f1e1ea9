//! Text that is added to a prompt or a skill: the location of files, and whether and how to ask (D3).
//!
//! The person's words come first and are not changed. The addition is one element at the end, so that [`strip_instructions`] can
//! separate the two. The selection and the location of the skill are not known here.

use std::ops::Range;

use abide_domain::settings::ExecutionMode;
use abide_ports::engine::QuestionStyle;

/// Folder for files for the person, relative to the workspace.
pub const ARTIFACTS_FOLDER: &str = ".abide/artifacts";

/// The info string of a question block.
pub const QUESTION_FENCE: &str = "abide-question";

const OPEN_TAG: &str = "\n\n<abide-runtime>";
const CLOSE_TAG: &str = "</abide-runtime>";

/// The prompt with the instructions for the `turn_index`-th turn of a session, counted from 1. The first turn has the
/// complete contract. Later turns have a reminder of one line if the mode allows questions. `skill` is the folder of
/// the run's copy of its skill. It is named by its path, because engines differ in how they call skills but all can
/// read files. An engine with a built-in way to ask gets later turns unchanged, because they may be secrets.
pub fn build_prompt(
    mode: ExecutionMode,
    question_style: QuestionStyle,
    text: &str,
    turn_index: u32,
    skill: Option<&str>,
) -> String {
    let added = match (turn_index <= 1, mode, question_style) {
        (true, ExecutionMode::Auto | ExecutionMode::Interactive | ExecutionMode::Chat, _) => {
            format!(
                "\n{}{}\n",
                skill.map(skill_instruction).unwrap_or_default(),
                run_rules(mode, question_style)
            )
        }
        (false, ExecutionMode::Interactive | ExecutionMode::Chat, QuestionStyle::InAnswer) => {
            REMINDER.to_owned()
        }
        (false, ExecutionMode::Auto, _)
        | (false, ExecutionMode::Interactive | ExecutionMode::Chat, QuestionStyle::OwnMechanism) => {
            return text.to_owned();
        }
    };
    format!("{text}{OPEN_TAG}{added}{CLOSE_TAG}")
}

/// The text that is appended to a run's copy of a skill, never to the skill itself.
pub fn skill_patch(mode: ExecutionMode) -> String {
    format!("\n\n## How this run works\n\n{}\n", run_rules(mode, QuestionStyle::InAnswer))
}

/// The person's part of a prompt from [`build_prompt`]; any other text is returned unchanged.
pub fn strip_instructions(prompt: &str) -> &str {
    match prompt.strip_suffix(CLOSE_TAG).and_then(|open| open.rfind(OPEN_TAG)) {
        Some(end) => prompt.get(..end).unwrap_or(prompt),
        None => prompt,
    }
}

/// The ranges of a text that repeat an addition of [`build_prompt`].
pub(super) fn repeated_instructions(text: &str) -> Vec<Range<usize>> {
    let mut repeated = vec![];
    let mut from = 0;
    while let Some(start) =
        text.get(from..).and_then(|rest| rest.find(OPEN_TAG.trim_start())).map(|at| from + at)
    {
        let Some(end) = text.get(start..).and_then(|rest| rest.find(CLOSE_TAG)) else { break };
        from = start + end + CLOSE_TAG.len();
        repeated.push(start..from);
    }
    repeated
}

fn skill_instruction(folder: &str) -> String {
    let name = folder.rsplit('/').next().unwrap_or(folder);
    format!("Use the skill `{name}` for this work: follow `{folder}/SKILL.md` in the workspace.\n\n")
}

fn run_rules(mode: ExecutionMode, question_style: QuestionStyle) -> String {
    let question_style = match (mode, question_style) {
        (ExecutionMode::Auto, _) => AUTO_RULES,
        (ExecutionMode::Interactive | ExecutionMode::Chat, QuestionStyle::InAnswer) => QUESTION_RULES,
        (ExecutionMode::Interactive | ExecutionMode::Chat, QuestionStyle::OwnMechanism) => "",
    };
    let rules = format!(
        "Files that are meant for the person (reports, images, exports) go to the folder `{ARTIFACTS_FOLDER}` of the \
         workspace; create it if it is missing. Files that belong to the work itself stay where they belong.\n\n\
         {question_style}"
    );
    rules.trim_end().to_owned()
}

const AUTO_RULES: &str = "\
No person is available to answer questions. Decide yourself and continue; where something is unclear, choose the option \
that changes the least and can be undone, and say in your answer what you decided and why. Stop only at an error that \
makes it impossible to continue, and then report the error.";

const QUESTION_RULES: &str = "\
If you need a decision, information or consent from the person before you can continue, ask and end your turn: write \
your findings so far, and as the very last thing one fenced block like this.

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
- `default_decision_policy`: the decision if no answer comes: `engine_judgement` (you decide), `safe_default` (the \
safe option, or no), or `abort` (give up rather than guess; the choice for risks).

Ask one question in a turn, and only if you cannot find the answer yourself. The reply comes as free text in the next \
message: never demand JSON or any other form. If you have nothing to ask, write no such block.";

const REMINDER: &str =
    "To ask the person something, end your turn with one ```abide-question block as described before.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asking::recognise;
    use QuestionStyle::{InAnswer, OwnMechanism};
    use abide_domain::event::TurnOutcome;

    const MODES: [ExecutionMode; 3] = [ExecutionMode::Auto, ExecutionMode::Interactive, ExecutionMode::Chat];

    #[test]
    fn the_persons_words_come_first_and_can_be_taken_out_again() {
        for words in
            ["", "fix it", "/init\r\n  \n", "a\n\n<abide-runtime>b", "x\n\n<abide-runtime>y</abide-runtime>"]
        {
            for mode in MODES {
                for (turn, skill) in [(1, None), (1, Some(".agents/skills/review")), (2, None), (7, None)] {
                    let prompted = build_prompt(mode, InAnswer, words, turn, skill);
                    assert!(prompted.starts_with(words), "{prompted}");
                    // A later turn in auto mode has no addition that could be removed.
                    if prompted != words {
                        assert_eq!(strip_instructions(&prompted), words);
                    }
                }
            }
        }
        assert_eq!(strip_instructions("plain"), "plain");
    }

    #[test]
    fn repeated_instructions_are_not_a_question() {
        for mode in MODES {
            let echo =
                format!("You said: {} And I say: fine.", build_prompt(mode, InAnswer, "do it", 1, None));
            assert!(matches!(recognise(&echo).outcome, TurnOutcome::Completed { .. }), "{echo}");
            let asks = format!("{echo}\n```abide-question\n{{\"prompt\": \"Really?\"}}\n```");
            assert!(matches!(recognise(&asks).outcome, TurnOutcome::Asked { .. }), "{asks}");
        }
    }

    #[test]
    fn every_mode_mentions_artifacts_and_only_some_questions() {
        for mode in MODES {
            for prompted in [build_prompt(mode, InAnswer, "do it", 1, None), skill_patch(mode)] {
                assert!(prompted.contains(ARTIFACTS_FOLDER));
                assert_eq!(prompted.contains(QUESTION_FENCE), mode != ExecutionMode::Auto);
                assert_eq!(prompted.contains("Decide yourself"), mode == ExecutionMode::Auto);
            }
        }
    }

    #[test]
    fn the_first_prompt_names_the_skill_and_its_folder() {
        for mode in MODES {
            let prompted = build_prompt(mode, InAnswer, "do it", 1, Some(".agents/skills/review"));
            assert!(prompted.contains("the skill `review`"), "{prompted}");
            assert!(prompted.contains("`.agents/skills/review/SKILL.md`"), "{prompted}");
            assert!(!build_prompt(mode, InAnswer, "do it", 1, None).contains("skill"));
        }
    }

    #[test]
    fn later_turns_get_one_line_at_most() {
        assert_eq!(build_prompt(ExecutionMode::Auto, InAnswer, "continue", 2, Some("s/review")), "continue");
        let prompted = build_prompt(ExecutionMode::Chat, InAnswer, "continue", 2, Some("s/review"));
        assert_eq!(prompted.lines().count(), 3, "the words, a blank line, the reminder: {prompted}");
    }

    #[test]
    fn engines_with_their_own_questions_get_no_instructions() {
        for mode in MODES {
            let prompted = build_prompt(mode, OwnMechanism, "do it", 1, None);
            assert!(prompted.contains(ARTIFACTS_FOLDER) && !prompted.contains(QUESTION_FENCE), "{prompted}");
            assert_eq!(prompted.contains("Decide yourself"), mode == ExecutionMode::Auto);
            assert_eq!(build_prompt(mode, OwnMechanism, "hunter2", 2, None), "hunter2");
        }
    }

    #[test]
    fn the_example_that_engines_are_shown_is_understood() {
        let recognized = recognise(QUESTION_RULES);
        assert_eq!(recognized.warning, None);
        assert!(
            matches!(recognized.outcome, TurnOutcome::Asked { question, .. } if question.options.len() == 2)
        );
    }
}
