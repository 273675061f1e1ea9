//! Complete and broken responses of servers, and independence of chunk boundaries.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::ModelToolCall;

/// The result of decoding these chunks, and the reported pieces.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Result<ModelReply, DecodeFault>, Vec<String>) {
    let mut deltas = Vec::new();
    let mut record_delta = |piece: ReplyDelta<'_>| deltas.push(format!("{piece:?}"));
    let mut decoder = StreamDecoder::default();
    let mut id_count = 0;
    let fresh = || {
        id_count += 1;
        format!("fresh{id_count}")
    };
    let mut outcome = Ok(());
    for piece in pieces {
        match decoder.feed(piece, &mut record_delta) {
            Ok(DecodeProgress::Ended) => break,
            Ok(DecodeProgress::Open | DecodeProgress::Complete) => {}
            Err(fault) => {
                outcome = Err(fault);
                break;
            }
        }
    }
    (outcome.and_then(|()| decoder.end(fresh, &mut record_delta)), deltas)
}

fn answer(text: &str) -> Result<ModelReply, DecodeFault> {
    decode([text.as_bytes()]).0
}

fn stream(chunks: &[Value]) -> String {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

fn delta(delta: Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

fn finish(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

fn text(text: &str) -> Value {
    delta(json!({ "content": text }))
}

fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    let function = json!({ "name": name, "arguments": arguments });
    delta(json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] }))
}

fn text_reply(text: &str) -> ModelReply {
    ModelReply { text: Some(text.to_owned()), calls: vec![], finish_reason: FinishReason::Stop, usage: None }
}

fn broken_reason(outcome: Result<ModelReply, DecodeFault>) -> String {
    match outcome {
        Err(DecodeFault::Broken(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stream_adds_up_to_its_answer() {
    let usage = json!({
        "choices": [],
        "usage": { "prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": { "cached_tokens": 2 } },
    });
    let chunks = [
        text("one "),
        text("moment"),
        call(0, "a", "ls", "{\"x\""),
        call(0, "", "", ":1}"),
        finish("tool_calls"),
        usage,
    ];
    let reply = answer(&(stream(&chunks) + "data: [DONE]\n\n")).unwrap();
    let expected = ModelReply {
        text: Some("one moment".to_owned()),
        calls: vec![ModelToolCall {
            id: "a".to_owned(),
            name: "ls".to_owned(),
            arguments: "{\"x\":1}".to_owned(),
        }],
        finish_reason: FinishReason::ToolCalls,
        usage: Some(TokenUsage { input_tokens: 7, output_tokens: 3, cached_tokens: 2 }),
    };
    assert_eq!(reply, expected);
}

#[test]
fn a_stream_that_ends_before_its_answer_is_broken() {
    let half = stream(&[text("one "), call(0, "a", "ls", "{}")]);
    assert_eq!(broken_reason(answer(&half)), "the connection ended before the answer did");
    assert_eq!(broken_reason(answer("")), "the connection ended before the answer did");
    assert_eq!(broken_reason(answer(": waiting\n\n")), "the connection ended before the answer did");
}

#[test]
fn a_finish_reason_or_the_end_marker_ends_a_reply() {
    assert_eq!(answer(&stream(&[text("hi"), finish("stop")])), Ok(text_reply("hi")));
    assert_eq!(answer(&(stream(&[text("hi")]) + "data: [DONE]\n\n")), Ok(text_reply("hi")));
    assert_eq!(answer(&(stream(&[text("hi")]) + "data: [DONE]")).map_err(|_| ()), Err(()));
}

#[test]
fn a_single_json_object_instead_of_a_stream_is_a_reply() {
    let function = json!({ "name": "ls", "arguments": "{}" });
    let body = json!({
        "choices": [{ "message": { "role": "assistant", "content": null,
            "tool_calls": [{ "id": "a", "function": function.clone() }, { "id": "b", "function": function }] },
            "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 2 },
    });
    let reply = answer(&format!("\n {body}")).unwrap();
    assert_eq!((reply.calls.len(), reply.finish_reason), (2, FinishReason::ToolCalls));
    assert_eq!(reply.usage.map(|usage| usage.total()), Some(3));
    let torn = body.to_string();
    assert!(broken_reason(answer(&torn[..torn.len() - 3])).starts_with("the answer is not complete JSON"));
}

#[test]
fn a_truncated_reply_has_only_complete_calls() {
    let chunks = [call(0, "a", "ls", "{\"x\":1}"), call(1, "b", "ls", "{\"x\""), call(2, "c", "rm", "")];
    for (reason, expected) in
        [("length", FinishReason::Length), ("content_filter", FinishReason::ContentFilter)]
    {
        let reply = answer(&(stream(&chunks) + &stream(&[finish(reason)]))).unwrap();
        assert_eq!(reply.finish_reason, expected);
        assert_eq!(reply.calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["a"]);
    }
}

#[test]
fn an_empty_reply_is_a_fault() {
    assert_eq!(broken_reason(answer(&stream(&[text(" \n"), finish("stop")]))), "the answer is empty");
    let nothing = answer(&stream(&[finish("length")])).unwrap();
    assert_eq!((nothing.text, nothing.finish_reason), (None, FinishReason::Length));
}

#[test]
fn a_call_without_a_name_is_no_answer() {
    let chunks = [call(0, "a", "", "{}"), finish("tool_calls")];
    assert_eq!(broken_reason(answer(&stream(&chunks))), "the answer calls a tool without a name");
}

#[test]
fn an_error_in_the_middle_is_no_answer() {
    let error = json!({ "error": { "message": "overloaded" } });
    assert_eq!(answer(&stream(&[text("hi"), error.clone()])), Err(DecodeFault::ErrorObject(error)));
    assert_eq!(
        broken_reason(answer(&stream(&[text("hi"), finish("error")]))),
        "the server stopped in the middle of the answer"
    );
}

#[test]
fn known_deviations_of_servers_are_accepted() {
    let parts =
        delta(json!({ "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }));
    assert_eq!(answer(&stream(&[parts, finish("stop")])), Ok(text_reply("ab")));
    let repeated = json!({ "choices": [{ "message": { "content": "ab" }, "finish_reason": "stop" }] });
    assert_eq!(answer(&stream(&[text("ab"), repeated])), Ok(text_reply("ab")));
    let glued = format!("data: {}\ndata: {}\n\n", text("a"), finish("stop"));
    assert_eq!(answer(&glued), Ok(text_reply("a")));
    let other = json!({ "choices": [{ "index": 1, "delta": { "content": "no" } }] });
    assert_eq!(answer(&stream(&[other, text("a"), finish("stop")])), Ok(text_reply("a")));
    let odd = answer(&stream(&[text("a"), finish("eos")])).unwrap();
    assert_eq!(odd.finish_reason, FinishReason::Other("eos".to_owned()));
    let (reply, deltas) =
        decode(
            [stream(&[delta(json!({ "reasoning_content": "hm" })), text("a"), finish("stop")]).as_bytes()],
        );
    assert_eq!(
        (reply, deltas),
        (Ok(text_reply("a")), vec!["Reasoning(\"hm\")".to_owned(), "Text(\"a\")".to_owned()])
    );
}

#[test]
fn an_endless_reply_exceeds_the_size_limit() {
    let mut hearing = StreamDecoder::default();
    let piece = vec![b'x'; 8 << 20];
    let outcome = (0..9).map(|_| hearing.feed(&piece, &mut |_| {})).find(Result::is_err);
    assert_eq!(outcome, Some(Err(DecodeFault::TooLarge)));
}

/// A random stream: texts and pieces of calls with and without ids, in any order, complete or not.
fn any_stream() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-zü€😀 \n\"]{0,9}".prop_map(|content| text(&content)),
        (0_u64..3, "[ab]{0,1}", "(ls|cat)?", "[{}a:1\"]{0,5}")
            .prop_map(|(index, id, name, arguments)| call(index, &id, &name, &arguments)),
        Just(delta(json!({ "reasoning": "hm" }))),
        Just(json!({ "choices": [], "usage": { "prompt_tokens": 1, "completion_tokens": 1 } })),
        Just(json!({ "error": { "message": "no" } })),
    ];
    let end = prop_oneof!["stop", "length", "tool_calls"].prop_map(|reason| stream(&[finish(&reason)]));
    let end = prop_oneof![end, Just(String::new()), Just("data: [DONE]\n\n".to_owned())];
    let lines = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    (prop::collection::vec(piece, 0..12), end, lines)
        .prop_map(|(pieces, end, line)| (stream(&pieces) + &end).replace('\n', line))
}

proptest! {
    #[test]
    fn check_chunking(
        stream in any_stream(),
        keep in 0.0..1.5_f64,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        // Some of the streams are truncated.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share of a small length")]
        let length = ((stream.len() as f64 * keep) as usize).min(stream.len());
        let bytes = &stream.as_bytes()[..length];
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(length + 1)).chain([0, length]).collect();
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        let whole = decode([bytes]);
        prop_assert_eq!(&decode(pieces), &whole);
        prop_assert_eq!(&decode(single), &whole);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (_any, _told) = decode([bytes.as_slice()]);
    }
}
