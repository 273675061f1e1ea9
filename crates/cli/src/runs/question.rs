//! Prints questions on a terminal and parses typed answers.
//!
//! Any text is an answer. For questions with options, a number or an empty line is replaced by the text of the option
//! before it is sent.

use abide_wire::interaction::{InteractionKindValue, InteractionView};

use crate::{
    table::{ColourMode, TextStyle},
    terminal_text,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TypedAnswer {
    Answer(String),
    /// An option number that does not exist.
    NoOption(u64),
    /// An empty line without a default.
    Empty,
}

/// Parses a typed text: the number or text of an option, or free text.
pub(super) fn parse_answer(question: &InteractionView, typed: &str) -> TypedAnswer {
    let word = typed.trim();
    if word.is_empty() {
        return TypedAnswer::Empty;
    }
    let options = &question.options;
    if let Some(option) = options.iter().find(|option| option.label.trim().eq_ignore_ascii_case(word)) {
        return TypedAnswer::Answer(option.label.clone());
    }
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
    if let Some(literal) = word.strip_prefix('=')
        && is_number(literal)
    {
        return TypedAnswer::Answer(literal.to_owned());
    }
    if options.is_empty() || !is_number(word) {
        return TypedAnswer::Answer(typed.to_owned());
    }
    let number: u64 = word.parse().unwrap_or(u64::MAX);
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    match index.and_then(|index| options.get(index)) {
        Some(option) => TypedAnswer::Answer(option.label.clone()),
        None => TypedAnswer::NoOption(number),
    }
}

/// Returns the message for an option number that does not exist.
pub(super) fn no_option_message(question: &InteractionView, number: u64) -> String {
    format!(
        "there is no option {number}: there are {}; any text is an answer too, and ={number} is the text {number}",
        question.options.len()
    )
}

/// Returns the answer for an empty line: the only option marked as safe.
pub(super) fn default_answer(question: &InteractionView) -> Option<&str> {
    let mut safe = question.options.iter().filter(|option| option.safe);
    match (safe.next(), safe.next()) {
        (Some(option), None) => Some(&option.label),
        (Some(_), Some(_)) | (None, _) => None,
    }
}

/// Formats the question and its options, with control characters escaped.
pub(super) fn lines(question: &InteractionView, colour: ColourMode) -> Vec<String> {
    let prompt = terminal_text::escape_control_chars(question.prompt.trim());
    let mut lines: Vec<String> = prompt.lines().map(|line| colour.text(TextStyle::Heading, line)).collect();
    if let Some(first) = lines.first_mut() {
        *first = format!("{} {first}", colour.text(TextStyle::Warning, "?"));
    }
    let default = default_answer(question);
    for (index, option) in question.options.iter().enumerate() {
        let mark = match (option.safe, default == Some(option.label.as_str())) {
            (true, true) => colour.text(TextStyle::Dim, "  (safe, default)"),
            (true, false) => colour.text(TextStyle::Dim, "  (safe)"),
            (false, _) => String::new(),
        };
        lines.push(format!("  {}) {}{mark}", index + 1, terminal_text::one_line(&option.label)));
    }
    lines
}

/// Returns how to answer at this terminal.
pub(super) fn answer_hint(question: &InteractionView) -> String {
    if let Some(hidden) = &question.hidden
        && is_approval(question)
    {
        return format!(
            "not all of it is shown: `abide inbox --full` shows it and the words that approve it; no, or no, … to decline \
             ({} bytes are hidden); ctrl-d to leave it open",
            hidden.bytes
        );
    }
    if is_approval(question) {
        return "yes, no, a number, or no, … with an instruction; enter takes the default; ctrl-d to leave it open".to_owned();
    }
    let instruction = match (question.options.is_empty(), question.kind, default_answer(question)) {
        (false, _, Some(_)) => "a number or any text; enter takes the default",
        (false, _, None) => "a number or any text",
        (true, InteractionKindValue::Confirm | InteractionKindValue::RiskAck, _) => "yes, no, or any text",
        (
            true,
            InteractionKindValue::ChooseOne
            | InteractionKindValue::FillFields
            | InteractionKindValue::OpenText,
            _,
        ) => "any text",
    };
    format!("{instruction}; \\ at the end of a line for one more; ctrl-d to leave it open")
}

/// Returns the command that answers the question from another terminal.
pub(super) fn reply_command(question: &InteractionView) -> String {
    if question.hidden.is_some() && is_approval(question) {
        return "abide inbox --full".to_owned();
    }
    let answer = if question.options.is_empty() { "'…'" } else { "1" };
    format!("abide reply {} {answer}", question.interaction_id)
}

/// Returns how to answer after the full content was shown.
pub(super) fn full_reply_command(question: &InteractionView) -> String {
    match &question.hidden {
        Some(hidden) if is_approval(question) => {
            let (id, digits) = (&question.interaction_id, hidden.sha256.get(..8).unwrap_or_default());
            format!("abide reply {id} 'yes {digits}', or abide reply {id} no")
        }
        Some(_) | None => reply_command(question),
    }
}

/// Returns whether the question accepts only approval or denial.
pub(super) fn is_approval(question: &InteractionView) -> bool {
    question.asked_by == "approval" || question.kind == InteractionKindValue::RiskAck
}

#[cfg(test)]
mod tests {
    use abide_wire::interaction::{DecisionPolicyValue, InteractionOptionView, InteractionStateValue};

    use super::*;

    fn question(options: &[(&str, bool)]) -> InteractionView {
        let options = options.iter().map(|(label, safe)| InteractionOptionView {
            label: (*label).to_owned(),
            safe: *safe,
            approves: None,
        });
        let options = options.collect();
        InteractionView {
            interaction_id: "int_1".to_owned(),
            run_id: "run_1".to_owned(),
            turn_id: "turn_1".to_owned(),
            kind: InteractionKindValue::ChooseOne,
            prompt: "Which\x1b[2J one?\nReally?".to_owned(),
            options,
            ui_hints: None,
            context: None,
            hidden: None,
            default_decision_policy: DecisionPolicyValue::SafeDefault,
            asked_by: "turn_end".to_owned(),
            state: InteractionStateValue::Open,
            opened_at: String::new(),
            deadline_at: None,
            resolution_mode: None,
            resolved_at: None,
            resolved_by: None,
            auto_decide_reason: None,
            reply: None,
            closed_because: None,
            verdict: None,
        }
    }

    #[test]
    fn an_option_is_meant_by_its_number_or_its_text_and_any_other_text_by_itself() {
        let interaction = question(&[("Postgres", false), ("SQLite", true)]);
        let answer = |text: &str| TypedAnswer::Answer(text.to_owned());
        assert_eq!(parse_answer(&interaction, "1"), answer("Postgres"));
        assert_eq!(parse_answer(&interaction, " 2 "), answer("SQLite"));
        assert_eq!(parse_answer(&interaction, "sqlite"), answer("SQLite"));
        assert_eq!(parse_answer(&interaction, "neither, use files"), answer("neither, use files"));
        assert_eq!(parse_answer(&interaction, "3"), TypedAnswer::NoOption(3));
        assert_eq!(parse_answer(&interaction, "0"), TypedAnswer::NoOption(0));
        assert_eq!(parse_answer(&interaction, "99999999999999999999999"), TypedAnswer::NoOption(u64::MAX));
        assert_eq!(parse_answer(&interaction, "=3"), answer("3"));
        assert_eq!(parse_answer(&interaction, "=x"), answer("=x"));
        assert_eq!(parse_answer(&interaction, " \n"), TypedAnswer::Empty);
    }

    #[test]
    fn a_number_is_only_a_number_where_there_are_no_options_and_a_label_counts_before_its_place() {
        assert_eq!(parse_answer(&question(&[]), "7"), TypedAnswer::Answer("7".to_owned()));
        assert_eq!(
            parse_answer(&question(&[("2", false), ("1", false)]), "1"),
            TypedAnswer::Answer("1".to_owned())
        );
    }

    #[test]
    fn the_only_safe_option_is_the_default_and_nothing_in_the_text_reaches_the_terminal() {
        let interaction = question(&[("Postgres", false), ("SQLite", true)]);
        assert_eq!(default_answer(&interaction), Some("SQLite"));
        assert_eq!(
            lines(&interaction, ColourMode::Off),
            ["? Which␛[2J one?", "Really?", "  1) Postgres", "  2) SQLite  (safe, default)"]
        );
        assert_eq!(default_answer(&question(&[("a", true), ("b", true)])), None);
        assert_eq!(default_answer(&question(&[])), None);
    }
}
