//! The order of messages in each state, and the result of shortening.

use serde_json::{Value, json};

use super::*;
use crate::{
    event::{ActionStatus, SystemMessage, UserMessage},
    model::TokenUsage,
};

fn user_message(text: &str) -> AgentEvent {
    AgentEvent::UserMessage(UserMessage { text: text.to_owned() })
}

fn notice(text: &str) -> AgentEvent {
    let content = text.to_owned();
    AgentEvent::SystemMessage(SystemMessage {
        level: MessageLevel::Warn,
        content,
        session_id: None,
        session_event: None,
    })
}

fn thought(calls: u64) -> AgentEvent {
    AgentEvent::Thought(ModelThought { calls, ..ModelThought::default() })
}

fn request(number: u64) -> AgentEvent {
    AgentEvent::ActionRequest(ActionRequest {
        action_id: format!("act_{number}"),
        call_id: format!("call_{number}"),
        tool_name: "t".to_owned(),
        tool_args: json!({}),
        tool_args_raw: None,
    })
}

fn result(number: u64, text: &str) -> AgentEvent {
    AgentEvent::ActionResult(ActionResult {
        action_id: format!("act_{number}"),
        status: ActionStatus::Success,
        observation_content: text.to_owned(),
        exit_code: Some(0),
        execution_ref: Some(format!("executions/act_{number}")),
        session_id: None,
        session_event: None,
    })
}

fn rendered_messages(window: &ContextWindow) -> Vec<String> {
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
fn results_keep_the_order_of_their_calls_and_later_messages_follow() {
    let mut window = ContextWindow::new("be good", 1000, 0, ".abide");
    let events = [
        user_message("go"),
        thought(2),
        request(1),
        request(2),
        notice("lost"),
        user_message("hurry"),
        result(2, "two"),
    ];
    for event in events {
        window.apply(event);
    }
    assert_eq!(rendered_messages(&window), ["system be good", "user go"]);
    window.apply(result(1, "one"));
    let lost = format!("user {NOTICE_PREFIX} lost");
    assert_eq!(
        rendered_messages(&window),
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

/// A window after this many batches, each with results of `size` bytes.
fn filled_window(batches: u64, size: usize, max_tokens: u64) -> ContextWindow {
    let mut window = ContextWindow::new("be good", max_tokens, 0, ".abide");
    window.apply(user_message("go"));
    for number in 1..=batches {
        for event in [thought(1), request(number), result(number, &"x".repeat(size))] {
            window.apply(event);
        }
    }
    window
}

#[test]
fn old_observations_become_pointers_and_the_newest_stays() {
    let mut window = filled_window(10, 4000, 10_000);
    window.shorten_if_full();
    let shown = rendered_messages(&window);
    assert!(window.tokens() <= 8_000, "{}", window.tokens());
    assert_eq!(shown.len(), 22);
    assert_eq!(
        shown[3],
        "tool call_1 [older output left out: 4000 bytes, exit code 0; all of it is in .abide/executions/act_1]"
    );
    assert_eq!(shown[21], format!("tool call_10 {}", "x".repeat(4000)));
}

#[test]
fn exchanges_are_omitted_after_pointers_and_user_messages_stay() {
    let mut window = filled_window(400, 200, 4_000);
    window.apply(user_message("and?"));
    window.shorten_if_full();
    let shown = rendered_messages(&window);
    assert!(window.tokens() <= 4_000 / 100 * 80, "{}", window.tokens());
    assert_eq!(&shown[..2], ["system be good", "user go"]);
    assert!(shown[2].contains("earlier exchanges with tools are left out"), "{}", shown[2]);
    assert_eq!(shown.last().unwrap(), "user and?");
    // The remaining messages begin with a call and not with a result.
    assert_eq!(shown[3], "assistant calls 1");
    let bytes: usize = window.messages().iter().map(|message| message.len() + 1).sum();
    assert_eq!(bytes, window.message_bytes);
}

#[test]
fn a_journal_that_is_read_again_gives_the_same_messages() {
    let (live, again) = (filled_window(60, 700, 4_000), filled_window(60, 700, 4_000));
    let mut live = live;
    live.shorten_if_full();
    let mut again = again;
    again.shorten_if_full();
    assert_eq!(rendered_messages(&live), rendered_messages(&again));
}

#[test]
fn the_token_rate_follows_the_servers_count() {
    let mut window = filled_window(1, 4000, 100_000);
    let guess = window.tokens();
    let usage = Some(TokenUsage { input_tokens: guess * 2, ..TokenUsage::default() });
    window.apply(AgentEvent::Thought(ModelThought {
        text: Some("hm".to_owned()),
        usage,
        ..ModelThought::default()
    }));
    assert!(window.tokens() >= guess * 2);
}

/// A batch with this many results of `size` bytes.
fn batch(calls: u64, size: usize) -> Vec<AgentEvent> {
    let mut events = vec![thought(calls)];
    events.extend((1..=calls).map(|number| request(1000 + number)));
    events
        .extend((1..=calls).map(|number| result(1000 + number, &format!("{number:05}{}", "x".repeat(size)))));
    events
}

/// Asserts that each call is directly followed by its result, and that the recorded size is right.
#[track_caller]
fn assert_batches_complete(window: &ContextWindow) {
    let messages: Vec<Value> =
        window.messages().iter().map(|message| serde_json::from_str(message).unwrap()).collect();
    let mut owed: Vec<Value> = Vec::new();
    for message in &messages {
        if message["role"] == "tool" {
            assert_eq!(Some(&message["tool_call_id"]), owed.first(), "{message}");
            owed.remove(0);
            continue;
        }
        assert_eq!(owed, [Value::Null; 0], "results are missing before {message}");
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        owed = calls.iter().map(|call| call["id"].clone()).collect();
    }
    assert_eq!(owed, [Value::Null; 0]);
    let bytes: usize = window.messages().iter().map(|message| message.len() + 1).sum();
    assert_eq!(bytes, window.message_bytes);
}

#[test]
fn the_newest_observations_are_cut_with_their_path() {
    let mut window = filled_window(3, 1000, 8_000);
    batch(4, 16 << 10).into_iter().for_each(|event| window.apply(event));
    window.shorten_if_full();
    assert!(window.tokens() <= 6_400, "{}", window.tokens());
    assert_batches_complete(&window);
    let shown = rendered_messages(&window);
    let newest = &shown[shown.len() - 4..];
    for (number, result) in (1..).zip(newest) {
        assert!(result.contains(&format!("{number:05}xxx")), "{result}");
        assert!(
            result.contains(&format!("all 16389 bytes are in .abide/executions/act_100{number}]")),
            "{result}"
        );
        assert!(result.ends_with("xxx") && result.len() > 1000, "{result}");
    }
}

#[test]
fn small_observations_of_the_newest_batch_stay_whole_beside_large_ones() {
    let mut window = filled_window(1, 10, 8_000);
    let mut events = vec![thought(3)];
    events.extend([request(21), request(22), request(23)]);
    events.extend([result(21, "tiny"), result(22, &"x".repeat(100_000)), result(23, &"y".repeat(2_000))]);
    events.into_iter().for_each(|event| window.apply(event));
    window.shorten_if_full();
    assert_batches_complete(&window);
    let shown = rendered_messages(&window);
    assert_eq!(shown[shown.len() - 3], "tool call_21 tiny");
    assert_eq!(shown[shown.len() - 1], format!("tool call_23 {}", "y".repeat(2_000)));
}

#[test]
fn a_batch_of_any_size_fits_into_any_window() {
    for most in [2_000, 8_000, 128_000] {
        for (calls, size) in
            [(1, 1 << 20), (4, 16 << 10), (50, 16 << 10), (500, 300), (3_000, 16 << 10), (5_000, 0)]
        {
            let mut window = filled_window(5, 500, most);
            window.apply(user_message(&"and this. ".repeat(20)));
            batch(calls, size).into_iter().for_each(|event| window.apply(event));
            window.apply(notice("something was lost"));
            window.shorten_if_full();
            assert!(window.tokens() <= most / 100 * 80, "{calls} of {size} in {most}: {}", window.tokens());
            assert_batches_complete(&window);
            let shown = rendered_messages(&window);
            assert_eq!(&shown[..2], ["system be good", "user go"]);
            assert!(shown.iter().any(|shown| shown.starts_with("assistant calls")), "{shown:#?}");
            assert!(shown.last().unwrap().ends_with("something was lost"), "{shown:#?}");
        }
    }
}

#[test]
fn long_messages_of_any_role_are_cut_and_the_window_always_fits() {
    let long = "words and more words ".repeat(20_000);
    let reply = ModelThought {
        text: Some(long.clone()),
        finish: Some("length".to_owned()),
        ..ModelThought::default()
    };
    let wordy = ModelThought { text: Some(long.clone()), calls: 1, ..ModelThought::default() };
    let mut wanting = request(7);
    if let AgentEvent::ActionRequest(request) = &mut wanting {
        request.tool_args = json!({ "text": long });
    }
    let stories: [Vec<AgentEvent>; 4] = [
        vec![user_message(&long)],
        vec![user_message("go"), AgentEvent::Thought(reply), notice("continue")],
        vec![user_message("go"), AgentEvent::Thought(wordy), wanting, result(7, &long)],
        std::iter::repeat_with(|| user_message("once more, and then again")).take(2_000).collect(),
    ];
    for events in stories {
        let mut window = ContextWindow::new("be good", 2_000, 0, ".abide");
        events.into_iter().for_each(|event| window.apply(event));
        window.shorten_if_full();
        assert!(window.tokens() <= 1_600, "{}", window.tokens());
        assert_batches_complete(&window);
        let messages = window.messages();
        assert!(messages.iter().any(|message| message.contains(".abide/journal.jsonl")), "{messages:#?}");
        assert!(!messages.iter().any(|message| message.contains("older output")), "{messages:#?}");
    }
}

#[test]
fn a_refused_window_gets_shorter_until_nothing_is_left_to_shorten() {
    let mut window = filled_window(20, 3_000, 1_000_000);
    batch(30, 3_000).into_iter().for_each(|event| window.apply(event));
    let mut squeezes = 0;
    while window.shorten_after_refusal() {
        squeezes += 1;
        assert!(squeezes < 50);
        assert_batches_complete(&window);
    }
    assert!(window.message_bytes < 1_500, "{}", window.message_bytes);
}
