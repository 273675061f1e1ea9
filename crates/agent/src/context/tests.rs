//! The order of messages in every state, and what is left when room is made.

use serde_json::{Value, json};

use super::*;
use crate::{
    event::{Status, SystemMessage, UserMessage},
    model::Usage,
};

fn said(text: &str) -> Event {
    Event::UserMessage(UserMessage { text: text.to_owned() })
}

fn notice(text: &str) -> Event {
    let content = text.to_owned();
    Event::SystemMessage(SystemMessage { level: Level::Warn, content, session_id: None, session_event: None })
}

fn thought(calls: u64) -> Event {
    Event::Thought(Thought { calls, ..Thought::default() })
}

fn request(number: u64) -> Event {
    Event::ActionRequest(ActionRequest {
        action_id: format!("act_{number}"),
        call_id: format!("call_{number}"),
        tool_name: "t".to_owned(),
        tool_args: json!({}),
        tool_args_raw: None,
    })
}

fn result(number: u64, text: &str) -> Event {
    Event::ActionResult(ActionResult {
        action_id: format!("act_{number}"),
        status: Status::Success,
        observation_content: text.to_owned(),
        exit_code: Some(0),
        execution_ref: Some(format!("executions/act_{number}")),
        session_id: None,
        session_event: None,
    })
}

fn shown(window: &Window) -> Vec<String> {
    let tell = |json: &str| {
        let value: Value = serde_json::from_str(json).unwrap();
        let role = value["role"].as_str().unwrap();
        match (role, &value["tool_calls"]) {
            ("tool", _) => format!("tool {} {}", value["tool_call_id"], value["content"]).replace('"', ""),
            ("assistant", Value::Array(calls)) => format!("assistant calls {}", calls.len()),
            _ => format!("{role} {}", value["content"].as_str().unwrap()),
        }
    };
    window.messages().into_iter().map(tell).collect()
}

#[test]
fn results_stand_in_the_order_of_their_calls_and_what_was_said_meanwhile_after_them() {
    let mut window = Window::new("be good", 1000, 0, ".abide");
    let story =
        [said("go"), thought(2), request(1), request(2), notice("lost"), said("hurry"), result(2, "two")];
    for event in story {
        window.apply(event);
    }
    assert_eq!(shown(&window), ["system be good", "user go"]);
    window.apply(result(1, "one"));
    let lost = format!("user {NOTICE} lost");
    assert_eq!(
        shown(&window),
        [
            "system be good",
            "user go",
            "assistant calls 2",
            "tool call_1 one",
            "tool call_2 two",
            lost.as_str(),
            "user hurry"
        ]
    );
}

/// A window after so many batches with results of this size.
fn filled(batches: u64, size: usize, most: u64) -> Window {
    let mut window = Window::new("be good", most, 0, ".abide");
    window.apply(said("go"));
    for number in 1..=batches {
        for event in [thought(1), request(number), result(number, &"x".repeat(size))] {
            window.apply(event);
        }
    }
    window
}

#[test]
fn old_observations_become_pointers_and_the_newest_stays() {
    let mut window = filled(10, 4000, 10_000);
    window.fit();
    let shown = shown(&window);
    assert!(window.tokens() <= 8_000, "{}", window.tokens());
    assert_eq!(shown.len(), 22);
    assert_eq!(
        shown[3],
        "tool call_1 [older output left out: 4000 bytes, exit code 0; all of it is in .abide/executions/act_1]"
    );
    assert_eq!(shown[21], format!("tool call_10 {}", "x".repeat(4000)));
}

#[test]
fn when_pointers_are_not_enough_whole_exchanges_are_left_out_and_nothing_that_a_person_said() {
    let mut window = filled(400, 200, 4_000);
    window.apply(said("and?"));
    window.fit();
    let shown = shown(&window);
    assert!(window.tokens() <= 4_000 / 100 * 80, "{}", window.tokens());
    assert_eq!(&shown[..2], ["system be good", "user go"]);
    assert!(shown[2].contains("earlier exchanges with tools are left out"), "{}", shown[2]);
    assert_eq!(shown.last().unwrap(), "user and?");
    // What is left begins with calls and not with results.
    assert_eq!(shown[3], "assistant calls 1");
    let bytes: usize = window.messages().iter().map(|message| message.len() + 1).sum();
    assert_eq!(bytes, window.bytes);
}

#[test]
fn a_journal_that_is_read_again_gives_the_same_messages() {
    let (live, again) = (filled(60, 700, 4_000), filled(60, 700, 4_000));
    let mut live = live;
    live.fit();
    let mut again = again;
    again.fit();
    assert_eq!(shown(&live), shown(&again));
}

#[test]
fn the_server_counts_better_than_we_guess() {
    let mut window = filled(1, 4000, 100_000);
    let guess = window.tokens();
    let usage = Some(Usage { input_tokens: guess * 2, ..Usage::default() });
    window.apply(Event::Thought(Thought { text: Some("hm".to_owned()), usage, ..Thought::default() }));
    assert!(window.tokens() >= guess * 2);
}
