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

fn user_message(text: &str) -> AgentEvent {
    AgentEvent::UserMessage(UserMessage { text: text.to_owned() })
}

/// Hides an event, and checks that another process with the same files restores it.
#[track_caller]
fn assert_hidden(secrets: &SecretStore, state: &Path, expected: &AgentEvent) -> AgentEvent {
    let mut event = expected.clone();
    secrets.hide(&mut event);
    let hidden = event.clone();
    SecretStore::open(state).unwrap().reveal(&mut event);
    assert_eq!(event, *expected, "hidden as {hidden:?}");
    hidden
}

#[test]
fn an_answer_is_hidden_in_all_texts_and_restored_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    secrets.store("act_1", "pä\"ss/w\nord").unwrap();
    secrets.store("act_2", "1234").unwrap();
    let arguments = json!({
        "with": ["x pä\"ss/w\nord y"], "pä\"ss/w\nord": { "pin": 1234, "more": 912_345, "text": "1234", "other": 7.5 },
    });
    let broken =
        r#"{"with": "pä\"ss/w\nord", "p\u00e4\"ss/w\nord", "pä\"ss\/w\nord", "{\"a\": \"pä\\\"ss/w\\nord\"}"#;
    let text = format!("{:?}", assert_hidden(&secrets, folder.path(), &request(arguments, Some(broken))));
    for part in ["ss/w", "ss\\\\/w", "1234"] {
        assert!(!text.contains(part), "{text}");
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
    assert!(!format!("{:?}", assert_hidden(&secrets, folder.path(), &result)).contains("ss/w"));
    secrets.delete_all().unwrap();
    assert!(!folder.path().join("secrets").exists());
    assert!(!secrets.contains("act_1"));
}

#[test]
fn any_answer_is_restored_exactly() {
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
            secrets.store(&format!("act_{number}"), answer).unwrap();
        }
        // Text that is already in the journal may reappear in output of programs or input of persons.
        let tokens: Vec<String> = secrets.stored.iter().map(|kept| kept.token(PLAIN_SPELLING)).collect();
        let openings: Vec<String> =
            secrets.stored.iter().map(|kept| format!("{TOKEN_OPEN}{}", kept.name)).collect();
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
            assert_hidden(&secrets, folder.path(), &user_message(text));
            let arguments = json!({ "text": text, "list": [[text], 1, 10.25, -1, true, null], text.as_str(): text.len() });
            assert_hidden(&secrets, folder.path(), &request(arguments, Some(text)));
        }
        for answer in answers.iter().filter(|answer| !answer.is_empty()) {
            let AgentEvent::UserMessage(UserMessage { text }) =
                assert_hidden(&secrets, folder.path(), &user_message(answer))
            else {
                unreachable!()
            };
            assert!(
                text.starts_with(TOKEN_OPEN) && text.ends_with(TOKEN_CLOSE),
                "{answer:?} is hidden as {text:?}"
            );
        }
    }
}

#[test]
fn an_answer_inside_another_token_is_hidden_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    secrets.store("act_1", "first").unwrap();
    let token = secrets.stored[0].token(PLAIN_SPELLING);
    secrets.store("act_2", &token).unwrap();
    assert_hidden(&secrets, folder.path(), &user_message(&format!("first {token} second")));
}

#[test]
fn tokens_of_an_earlier_version_are_restored_and_hidden_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("secrets")).unwrap();
    std::fs::write(folder.path().join("secrets/act_1"), "hun\"ter").unwrap();
    std::fs::write(folder.path().join("secrets/act_2"), "1234").unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    assert!(secrets.contains("act_1") && secrets.contains("act_2"));
    let hid = json!({ "with": "x [secret act_1] y", "pin": "[secret act_2] as a number" });
    let mut event = request(hid, Some("[secret act_1 in JSON]"));
    secrets.reveal(&mut event);
    assert_eq!(event, request(json!({ "with": "x hun\"ter y", "pin": 1234 }), Some("hun\\\"ter")));
    secrets.store("act_3", "new").unwrap();
    let message = assert_hidden(&secrets, folder.path(), &user_message("hun\"ter [secret act_1] new"));
    assert!(!format!("{message:?}").contains("ter"), "{message:?}");
}

#[test]
fn keys_of_model_servers_are_removed_permanently() {
    let folder = tempfile::tempdir().unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    secrets.set_redacted_keys(vec![String::new(), "sk-12345678".to_owned()]);
    let mut event = user_message("the key is sk-12345678.");
    secrets.redact_keys(&mut event);
    assert_eq!(event, user_message("the key is ***."));
    assert_eq!(secrets.all_spellings(), ["sk-12345678"]);
}

#[test]
fn a_question_can_be_read_from_the_journal_whatever_the_answers_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut secrets = SecretStore::open(folder.path()).unwrap();
    for (number, text) in ["question", "options", "sensitive", "e"].into_iter().enumerate() {
        secrets.store(&format!("act_{number}"), text).unwrap();
    }
    let arguments = json!({ "question": "a question?", "options": ["e", "other"], "sensitive": true });
    let mut event = request(arguments, None);
    if let AgentEvent::ActionRequest(request) = &mut event {
        request.tool_name = ask_human::TOOL_NAME.to_owned();
    }
    let AgentEvent::ActionRequest(request) = assert_hidden(&secrets, folder.path(), &event) else {
        unreachable!()
    };
    let question = ask_human::HumanQuestion::from_request(&request).unwrap();
    assert!(question.sensitive && question.options.len() == 2);
    assert!(!question.question.contains("question"), "{question:?}");
}
