//! Each answer is hidden in all texts, and each event is restored exactly.

use serde_json::json;

use super::*;
use crate::event::{ActionResult, ActionStatus, UserMessage};

fn request(args: Value, raw: Option<&str>) -> AgentEvent {
    AgentEvent::ActionRequest(ActionRequest {
        action_id: "act_9".to_owned(),
        call_id: "c".to_owned(),
        tool_name: "login".to_owned(),
        tool_args: args,
        tool_args_raw: raw.map(str::to_owned),
    })
}

fn said(text: &str) -> AgentEvent {
    AgentEvent::UserMessage(UserMessage { text: text.to_owned() })
}

/// Hides an event, and checks that another process with the same files restores it.
#[track_caller]
fn hidden(secrets: &SecretStore, state: &Path, meant: &AgentEvent) -> AgentEvent {
    let mut event = meant.clone();
    secrets.hide(&mut event);
    let hidden = event.clone();
    SecretStore::open(state).unwrap().reveal(&mut event);
    assert_eq!(event, *meant, "hidden as {hidden:?}");
    hidden
}

#[test]
fn an_answer_is_hidden_wherever_words_are_and_comes_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    secrets.keep("act_1", "pä\"ss/w\nord").unwrap();
    secrets.keep("act_2", "1234").unwrap();
    let arguments = json!({
        "with": ["x pä\"ss/w\nord y"], "pä\"ss/w\nord": { "pin": 1234, "more": 912_345, "text": "1234", "other": 7.5 },
    });
    let broken =
        r#"{"with": "pä\"ss/w\nord", "p\u00e4\"ss/w\nord", "pä\"ss\/w\nord", "{\"a\": \"pä\\\"ss/w\\nord\"}"#;
    let told = format!("{:?}", hidden(&secrets, folder.path(), &request(arguments, Some(broken))));
    for part in ["ss/w", "ss\\\\/w", "1234"] {
        assert!(!told.contains(part), "{told}");
    }
    let result = AgentEvent::ActionResult(ActionResult {
        action_id: "act_1".to_owned(),
        status: ActionStatus::Success,
        observation_content: "pä\"ss/w\nord".to_owned(),
        exit_code: None,
        execution_ref: None,
        session_id: None,
        session_event: None,
    });
    assert!(!format!("{:?}", hidden(&secrets, folder.path(), &result)).contains("ss/w"));
    secrets.forget().unwrap();
    assert!(!folder.path().join("secrets").exists());
    assert!(!secrets.holds("act_1"));
}

#[test]
fn answers_come_back_exactly_whatever_they_are() {
    let sets: &[&[&str]] = &[
        &["secret"],
        &["secret", "act"],
        &["hunter2", "secret", "t"],
        &["a"],
        &["a", "aa", "aaa"],
        &["abc", "cde", "bcd"],
        &["⟦"],
        &["⟧", "⟦"],
        &["[secret act_0]", "in JSON", " as a number"],
        &["1", "0", "."],
        &["\\", "\"", "\\\""],
        &["", "x"],
        &[" padded ", "padded"],
        &["same", "same"],
        &["null", "true", "{", "}"],
        &["\u{1F600}é", "\n"],
    ];
    for answers in sets {
        let folder = tempfile::tempdir().unwrap();
        let mut secrets = SecretStore::open(folder.path()).unwrap();
        for (number, answer) in answers.iter().enumerate() {
            secrets.keep(&format!("act_{number}"), answer).unwrap();
        }
        // Text that is already in the journal may reappear in output of programs or input of persons.
        let tokens: Vec<String> = secrets.kept.iter().map(|kept| kept.token(PLAIN)).collect();
        let openings: Vec<String> = secrets.kept.iter().map(|kept| format!("{OPEN}{}", kept.name)).collect();
        let parts = [
            answers.concat(),
            answers.join("⟦"),
            tokens.concat(),
            openings.join("."),
            "[secret act_0] ".into(),
        ];
        let mut texts: Vec<String> = parts.to_vec();
        texts.push(parts.concat());
        texts.extend(answers.iter().map(|answer| (*answer).to_owned()));
        texts.push(json!(parts).to_string());
        for text in &texts {
            hidden(&secrets, folder.path(), &said(text));
            let arguments = json!({ "text": text, "list": [[text], 1, 10.25, -1, true, null], text.as_str(): text.len() });
            hidden(&secrets, folder.path(), &request(arguments, Some(text)));
        }
        for answer in answers.iter().filter(|answer| !answer.is_empty()) {
            let AgentEvent::UserMessage(UserMessage { text }) =
                hidden(&secrets, folder.path(), &said(answer))
            else {
                unreachable!()
            };
            assert!(text.starts_with(OPEN) && text.ends_with(CLOSE), "{answer:?} is hidden as {text:?}");
        }
    }
}

#[test]
fn an_answer_in_a_token_of_another_is_hidden_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    secrets.keep("act_1", "first").unwrap();
    let token = secrets.kept[0].token(PLAIN);
    secrets.keep("act_2", &token).unwrap();
    hidden(&secrets, folder.path(), &said(&format!("first {token} second")));
}

#[test]
fn what_an_earlier_version_hid_comes_back_and_goes_on_to_be_hidden() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("secrets")).unwrap();
    std::fs::write(folder.path().join("secrets/act_1"), "hun\"ter").unwrap();
    std::fs::write(folder.path().join("secrets/act_2"), "1234").unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    assert!(secrets.holds("act_1") && secrets.holds("act_2"));
    let hid = json!({ "with": "x [secret act_1] y", "pin": "[secret act_2] as a number" });
    let mut event = request(hid, Some("[secret act_1 in JSON]"));
    secrets.reveal(&mut event);
    assert_eq!(event, request(json!({ "with": "x hun\"ter y", "pin": 1234 }), Some("hun\\\"ter")));
    secrets.keep("act_3", "new").unwrap();
    let told = hidden(&secrets, folder.path(), &said("hun\"ter [secret act_1] new"));
    assert!(!format!("{told:?}").contains("ter"), "{told:?}");
}

#[test]
fn keys_of_model_servers_are_struck_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    secrets.withhold(vec![String::new(), "sk-12345678".to_owned()]);
    let mut event = said("the key is sk-12345678.");
    secrets.strike(&mut event);
    assert_eq!(event, said("the key is ***."));
    assert_eq!(secrets.texts(), ["sk-12345678"]);
}

#[test]
fn a_question_can_be_read_from_the_journal_whatever_the_answers_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    for (number, text) in ["question", "options", "sensitive", "e"].into_iter().enumerate() {
        secrets.keep(&format!("act_{number}"), text).unwrap();
    }
    let arguments = json!({ "question": "a question?", "options": ["e", "other"], "sensitive": true });
    let mut event = request(arguments, None);
    if let AgentEvent::ActionRequest(request) = &mut event {
        request.tool_name = human::TOOL.to_owned();
    }
    let AgentEvent::ActionRequest(told) = hidden(&secrets, folder.path(), &event) else { unreachable!() };
    let question = human::HumanQuestion::of(&told).unwrap();
    assert!(question.sensitive && question.options.len() == 2);
    assert!(!question.question.contains("question"), "{question:?}");
}
