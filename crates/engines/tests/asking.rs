//! The recognition of questions: a table of model outputs, and properties of arbitrary texts.

use std::fmt::Write as _;

use abide_domain::{
    event::TurnOutcome,
    interaction::{DecisionPolicy, InteractionKind, Question},
};
use abide_engines::asking::recognise;
use proptest::prelude::*;

/// The prose and the question of a text, and the warning.
fn recognise_question(text: &str) -> (String, Question, Option<String>) {
    let recognized = recognise(text);
    match recognized.outcome {
        TurnOutcome::Asked { text, question } => (text, question, recognized.warning),
        other @ (TurnOutcome::Completed { .. } | TurnOutcome::Failed { .. } | TurnOutcome::Interrupted) => {
            panic!("no question in {text}: {other:?}")
        }
    }
}

/// A question in one line: kind, policy, prompt, options.
fn describe(question: &Question) -> String {
    let mut description =
        format!("{:?}/{:?} {}", question.kind, question.default_decision_policy, question.prompt);
    for option in &question.options {
        let mark = if option.safe { " (safe)" } else { "" };
        write!(description, " | {}{mark}", option.label).expect("a string takes everything");
    }
    description
}

fn check(text: &str, prose: &str, question: &str) {
    let (text_before, parsed_question, _) = recognise_question(text);
    assert_eq!((text_before.as_str(), describe(&parsed_question).as_str()), (prose, question), "in {text}");
}

const DB_QUESTION: &str = "ChooseOne/SafeDefault Which db? | SQLite (safe) | Postgres";
const DB_JSON: &str = r#"{"kind":"choose_one","prompt":"Which db?","options":[{"label":"SQLite","safe":true},{"label":"Postgres"}],"default_decision_policy":"safe_default"}"#;

#[test]
fn a_fenced_block_is_a_question_however_it_is_fenced() {
    for (text, prose) in [
        (format!("```abide-question\n{DB_JSON}\n```"), ""),
        (format!("I looked.\n\n```abide-question\n{DB_JSON}\n```\n"), "I looked."),
        (format!("I looked.\r\n\r\n```abide-question\r\n{DB_JSON}\r\n```\r\n"), "I looked."),
        (format!("Before.\n```abide-question\n{DB_JSON}\n```\nAfter."), "Before.\n\nAfter."),
        (format!("~~~abide-question\n{DB_JSON}\n~~~"), ""),
        (format!("~~~~ abide-question\n{DB_JSON}\n~~~~"), ""),
        (format!("````abide-question\n{DB_JSON}\n````"), ""),
        (format!("1. Look\n   ```abide-question\n   {DB_JSON}\n   ```"), "1. Look"),
        (format!("\t```abide-question\n\t{DB_JSON}\n\t```"), ""),
        (format!("I looked.\n```abide-question\n{DB_JSON}"), "I looked."),
        (format!("```abide-question\n{DB_JSON}\n\nThat is all I need."), "That is all I need."),
        (format!("```abide-question\n{DB_JSON}```\nThanks."), "Thanks."),
        (format!("```abide-question\n{DB_JSON}\n````"), ""),
        (format!("``` Abide-Question \n{DB_JSON}\n``` "), ""),
        (format!("```abide_question\n{DB_JSON}\n```"), ""),
        (format!("```json abide-question\n{DB_JSON}\n```"), ""),
        (format!("```abide-question json\n{DB_JSON}\n```"), ""),
        (format!("```{{.abide-question}}\n{DB_JSON}\n```"), ""),
        (format!("```abide-question {DB_JSON}```"), ""),
        (format!("```abide-question {DB_JSON}\n```"), ""),
        (format!("- ```abide-question\n  {DB_JSON}\n  ```"), "-"),
        (format!("My question: ```abide-question\n{DB_JSON}\n```"), "My question:"),
        (format!("```sh\nls\n\n```abide-question\n{DB_JSON}\n```"), "```sh\nls"),
        (format!("````sh\nls\n\n```abide-question\n{DB_JSON}\n```"), "````sh\nls"),
        (format!("```sh\nls\n```\nok\n```abide-question\n{DB_JSON}\n```"), "```sh\nls\n```\nok"),
    ] {
        check(&text, prose, DB_QUESTION);
    }
}

#[test]
fn other_envelopes_are_questions_too() {
    let envelope = format!("{{\"outcome\":\"pending_user\",\"interaction\":{DB_JSON}}}");
    let asks = format!("{{\"outcome\":\"ask_user\",\"interaction\":{DB_JSON}}}");
    for (text, prose) in [
        (envelope.clone(), ""),
        (format!("\n  {asks}\n"), ""),
        (format!("Done so far.\n\n{envelope}\n"), "Done so far."),
        (format!("Done so far.\n```json\n{envelope}\n```\nOver to you."), "Done so far.\n\nOver to you."),
        (format!("```\n{asks}\n```"), ""),
        (format!("```json\n{asks}"), ""),
        (DB_JSON.to_owned(), ""),
        (format!("Done so far.\n```json\n{DB_JSON}\n```\n"), "Done so far."),
        (format!("{{\"ask_user\":{DB_JSON}}}"), ""),
        (format!("{{\"type\":\"abide-question\",{}", DB_JSON.get(1..).unwrap_or_default()), ""),
        (format!("{{\"interaction\":{DB_JSON}}}"), ""),
        (format!("Hm.\n<ASK_USER>\n{DB_JSON}\n</ASK_USER>\nBye."), "Hm.\n\nBye."),
        (format!("Hm. <ask-user>{envelope}</ask-user>"), "Hm."),
        (format!("<ask_user>{DB_JSON}"), ""),
        (format!("<abide-question>{DB_JSON}</abide-question>"), ""),
        (format!("```abide-question\n{envelope}\n```"), ""),
    ] {
        check(&text, prose, DB_QUESTION);
    }
}

#[test]
fn deviating_question_objects_are_accepted() {
    for (body, question) in [
        (r#"{"kind":"confirm","prompt":"Go?"}"#, "Confirm/EngineJudgement Go?"),
        (
            r#"{"kind":"Choose-One","prompt":"Which?","options":["a","b (safe)"]}"#,
            "ChooseOne/EngineJudgement Which? | a | b (safe)",
        ),
        (
            r#"{"prompt":"Which?","choices":[{"value":"a","default":true},{"text":"b"},{"id":3}]}"#,
            "OpenText/EngineJudgement Which? | a (safe) | b | 3",
        ),
        (
            r#"{"kind":"confirm","prompt":"Go?","options":[true,false]}"#,
            "Confirm/EngineJudgement Go? | yes | no",
        ),
        (
            r#"{"kind":"confirm","prompt":"Go?","options":{"1":"one","2":"two"}}"#,
            "Confirm/EngineJudgement Go? | one | two",
        ),
        (r#"{"kind":"riddle","prompt":"Why?"}"#, "OpenText/EngineJudgement Why?"),
        (r#"{"kind":7,"question":"Why?"}"#, "OpenText/EngineJudgement Why?"),
        (r#"{"kind":"risk_ack","prompt":"Drop it?"}"#, "RiskAck/Abort Drop it?"),
        (
            r#"{"kind":"risk_ack","prompt":"Drop it?","default_decision_policy":"whatever"}"#,
            "RiskAck/Abort Drop it?",
        ),
        (
            r#"{"kind":"risk_ack","prompt":"Drop it?","default_decision_policy":"safe_default"}"#,
            "RiskAck/SafeDefault Drop it?",
        ),
        (
            r#"{"kind":"confirm","prompt":"Go?","default_decision_policy":"engine_judgment"}"#,
            "Confirm/EngineJudgement Go?",
        ),
        (r#"{"kind":"confirm","prompt":"Go?","default_decision_policy":"ABORT"}"#, "Confirm/Abort Go?"),
        (
            r#"{"kind":"confirm","prompt":"Go?","options":[{"label":"two\nlines"},null,"",{}]}"#,
            "Confirm/EngineJudgement Go? | two lines",
        ),
        (r#"{"kind":"confirm","prompt":"Go?","options":["a",],}"#, "Confirm/EngineJudgement Go? | a"),
        ("{“kind”: “confirm”, “prompt”: “Go?”}", "Confirm/EngineJudgement Go?"),
        ("{kind: 'confirm', prompt: 'Go?'} // please", "Confirm/EngineJudgement Go?"),
        ("{\"kind\":\"confirm\",\"prompt\":\"Start\nnow?\"}", "Confirm/EngineJudgement Start\nnow?"),
        (r#"{"kind":"confirm","prompt":"Go?","options":["a""#, "Confirm/EngineJudgement Go? | a"),
        (r#"{"interaction_id":1,"id":"q1","kind":"confirm","prompt":"Go?"}"#, "Confirm/EngineJudgement Go?"),
        ("{\"kind\":\"confirm\",\"prompt\":\"用哪个数据库？\"}", "Confirm/EngineJudgement 用哪个数据库？"),
    ] {
        let (_, asks, _) = recognise_question(&format!("```abide-question\n{body}\n```"));
        assert_eq!(describe(&asks), question, "{body}");
    }
}

#[test]
fn unreadable_questions_are_shown_verbatim_with_a_warning() {
    for (text, prose, question) in [
        ("Hm.\n```abide-question\nWhich db?\n```", "Hm.", "OpenText/EngineJudgement Which db?"),
        (
            "```abide-question\n```",
            "",
            "OpenText/EngineJudgement The engine asks for an answer without a question.",
        ),
        ("Which db?\n```abide-question\n```", "Which db?", "OpenText/EngineJudgement Which db?"),
        ("Which db?\n```abide-question\n{}\n```", "Which db?", "OpenText/EngineJudgement Which db?"),
        (
            "Which db?\n```abide-question\n{\"kind\":\"confirm\"}\n```",
            "Which db?",
            "Confirm/EngineJudgement Which db?",
        ),
        ("```abide-question\n[1]\n```", "", "OpenText/EngineJudgement [1]"),
        ("```abide-question\n{\"kind\" \"risk_ack\"}\n```", "", "OpenText/Abort {\"kind\" \"risk_ack\"}"),
        (
            "```abide-question",
            "",
            "OpenText/EngineJudgement The engine asks for an answer without a question.",
        ),
        ("<ASK_USER>\nWhich db?\n</ASK_USER>", "", "OpenText/EngineJudgement Which db?"),
        ("{\"outcome\":\"pending_user\"}", "", "OpenText/EngineJudgement {\"outcome\":\"pending_user\"}"),
        (
            "{\"outcome\": \"ask_user\", \"interaction\" }",
            "",
            "OpenText/EngineJudgement {\"outcome\": \"ask_user\", \"interaction\" }",
        ),
    ] {
        check(text, prose, question);
        let (_, _, warning) = recognise_question(text);
        assert!(warning.is_some(), "a warning for {text}");
    }
}

#[test]
fn mentions_of_questions_are_not_questions() {
    for text in [
        "",
        "Done.",
        "To ask, I would write an abide-question block.",
        "To ask, I would write ```abide-question``` at the end.",
        "```abide-question``` is the fence that I would use.",
        "I would use ```abide-question\nand then some JSON.",
        "Use `<ASK_USER>` for that.",
        "<ASK_USER> is a tag that other programs know.",
        "Which database do you want?",
        "````markdown\nAsk like this:\n```abide-question\n{\"kind\":\"confirm\",\"prompt\":\"Go?\"}\n```\n````\nDone.",
        "~~~\n```abide-question\n{\"kind\":\"confirm\",\"prompt\":\"Go?\"}\n```\n~~~\nDone.",
        "> ```abide-question\n> {\"kind\":\"confirm\",\"prompt\":\"Go?\"}\n> ```\n",
        "```rust\nfn ask() {}\n```",
        "```json\n{\"kind\":\"Pod\",\"prompt\":\"$ \"}\n```",
        "```json\n{\"kind\":\"confirm\",\"prompt\":\"Go?\"}\n```\nis how the file looks now.",
        "{\"status\":\"waiting_user\",\"turn_index\":3}",
        "{\"kind\":\"List\",\"items\":[]}",
        "{\"outcome\":\"success\",\"interaction\":null}",
        "```html\n<ASK_USER>\nno\n</ASK_USER>\n```",
        "{ not json at all }",
    ] {
        let recognized = recognise(text);
        assert_eq!(recognized.outcome, TurnOutcome::Completed { text: text.to_owned() }, "{text}");
        assert_eq!(recognized.warning, None);
    }
}

#[test]
fn of_several_questions_the_last_counts_and_none_is_lost() {
    let first = "```abide-question\n{\"kind\":\"confirm\",\"prompt\":\"First?\"}\n```";
    let text = format!("{first}\nand\n```abide-question\n{DB_JSON}\n```\n");
    let (prose, question, warning) = recognise_question(&text);
    assert_eq!(describe(&question), DB_QUESTION);
    assert_eq!(prose, format!("{first}\nand"));
    assert!(warning.is_some_and(|warning| warning.contains("several")));
    check(
        &format!("```abide-question\n{DB_JSON}\n```\n```abide-question\n```"),
        "```abide-question\n```",
        DB_QUESTION,
    );
}

#[test]
fn hints_are_kept_as_they_are_and_fields_become_hints() {
    let hints = |body: &str| recognise_question(&format!("```abide-question\n{body}\n```")).1.ui_hints;
    assert_eq!(
        hints(r#"{"kind":"confirm","prompt":"Go?","ui_hints":{"a":[1]}}"#).as_deref(),
        Some(r#"{"a":[1]}"#)
    );
    assert_eq!(
        hints(r#"{"kind":"fill_fields","prompt":"Who?","fields":["name"]}"#).as_deref(),
        Some(r#"{"fields":["name"]}"#)
    );
    assert_eq!(hints(r#"{"kind":"confirm","prompt":"Go?","ui_hints":null}"#), None);
}

#[test]
fn overlong_fields_are_truncated_with_a_warning() {
    let options = vec![format!("\"{}\"", "ü".repeat(5_000)); 1_000].join(",");
    let body = format!(
        r#"{{"kind":"choose_one","prompt":"{}","ui_hints":"{}","options":[{options}]}}"#,
        "€".repeat(1 << 20),
        "x".repeat(1 << 20),
    );
    let (_, question, warning) = recognise_question(&format!("```abide-question\n{body}\n```"));
    assert!(question.prompt.chars().count() < 20_000);
    assert!(question.options.len() < 100);
    assert!(question.options.iter().all(|option| option.label.chars().count() < 1_000));
    assert_eq!(question.ui_hints, None);
    let warning = warning.unwrap_or_default();
    for part in ["question is longer", "options", "option is longer", "hints"] {
        assert!(warning.contains(part), "{part} in {}", warning.get(..400).unwrap_or(&warning));
    }
}

/// With quadratic time, this test would not finish.
#[test]
fn megabytes_of_traps_are_read_in_one_go() {
    let megabytes = |piece: &str| piece.repeat((1 << 20) / piece.len());
    for piece in [
        "```\n",
        "~~~x\n",
        "```abide-question\n",
        "```json\n{",
        "<ASK_USER>",
        "<ask_user>{",
        "<ASK_USER>\n",
        "{",
        "{\"a\":",
        "\"",
        "“",
        "``` ```\n",
        "` ",
        "\n{",
        "x ```abide-question\n",
        "   \n",
        "`",
        "```abide-question {",
        "'\\",
        "/*",
        "{,",
        "````x\n```y\n",
        "{\"a\": \"b ",
    ] {
        recognise(&megabytes(piece));
        recognise(&format!("```abide-question\n{}", megabytes(piece)));
        recognise(&format!("{{{}", megabytes(piece)));
    }
}

proptest! {
    #[test]
    fn no_text_is_fatal(text in "(?s).{0,200}") {
        recognise(&text);
    }

    #[test]
    fn no_text_made_of_traps_is_fatal(pieces in proptest::collection::vec(hostile_fragment(), 0..24)) {
        recognise(&pieces.concat());
    }

    #[test]
    fn a_block_named_a_question_never_becomes_a_success(
        before in "(?s)[^`~]{0,80}",
        indent in "[ \t]{0,6}",
        fence in "(`{3,5}|~{3,5})",
        body in proptest::collection::vec(hostile_fragment(), 0..12),
    ) {
        let text = format!("{before}\n{indent}{fence}abide-question\n{}", body.concat());
        let (_, question, _) = recognise_question(&text);
        prop_assert!(!question.prompt.trim().is_empty());
    }

    #[test]
    fn valid_questions_are_read_exactly(
        kind in proptest::sample::select(vec!["choose_one", "confirm", "fill_fields", "open_text", "risk_ack"]),
        prompt in "[^\\s](?s).{0,60}[^\\s]",
        labels in proptest::collection::vec("[a-zA-Zü]{1,12}", 0..5),
        before in "(?s)[^`~<{]{0,60}",
    ) {
        let json = serde_json::json!({ "kind": kind, "prompt": prompt, "options": labels });
        let (text, question, warning) = recognise_question(&format!("{before}\n```abide-question\n{json}\n```\n"));
        prop_assert_eq!(text, before.trim());
        prop_assert_eq!(question.kind, InteractionKind::from_name(kind));
        prop_assert_eq!(question.prompt, prompt);
        prop_assert_eq!(question.options.into_iter().map(|option| option.label).collect::<Vec<_>>(), labels);
        let risk = question.kind == InteractionKind::RiskAck;
        prop_assert_eq!(question.default_decision_policy, if risk { DecisionPolicy::Abort } else { DecisionPolicy::EngineJudgement });
        prop_assert_eq!(warning, None);
    }
}

/// Parts of which difficult inputs are composed.
fn hostile_fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(vec![
            "```",
            "````",
            "~~~",
            "abide-question",
            "json",
            "\n",
            "\r\n",
            "{",
            "}",
            "[",
            "]",
            "\"",
            "“",
            "”",
            ",",
            ":",
            "'",
            "\\",
            "//",
            "/*",
            "*/",
            "<ASK_USER>",
            "</ASK_USER>",
            "kind",
            "prompt",
            "\"prompt\":\"?\"",
            "outcome",
            "ask_user",
            " ",
            "\t",
            "true",
            "None",
            "1e9",
            "\u{0}",
            "é",
            "\u{feff}",
        ])
        .prop_map(str::to_owned),
        "(?s).{0,6}",
    ]
}
