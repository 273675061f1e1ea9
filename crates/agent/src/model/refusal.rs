//! Classifies a refusal of a server by its status, headers and body.
//!
//! Servers agree on status codes and on little else, so unknown models and too long conversations are also recognised
//! by their wording. This file sends no requests.

use std::time::Duration;

use serde_json::Value;

use super::error::ModelError;

/// The reaction to a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ErrorVerdict {
    /// A retry is pointless.
    Final(ModelError),
    /// A retry may succeed after a wait.
    Retry { reason: String, wait: Option<Duration>, limited: RateLimited },
    /// The model does not exist; `message` is the server's.
    UnknownModel { message: String },
    /// The URL does not exist.
    NotFound { message: String },
    /// The key was refused.
    Unauthorised { message: String },
    /// The server does not support an optional field, or uses another name for it.
    UnsupportedField(FieldSupport),
}

/// Whether the refusal is due to a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateLimited {
    Yes,
    No,
}

/// A field that some servers refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldSupport {
    /// The server refuses `stream_options`, so a stream reports no token usage.
    NoUsage,
    /// `max_completion_tokens` is required instead of `max_tokens`.
    MaxCompletionTokens,
}

/// Classifies a response that is not a reply. `wait` is the wait that its headers request.
pub(super) fn classify_response(status: u16, body: &str, wait: Option<Duration>) -> ErrorVerdict {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    classify(status, &error_message(&value, body), &error_code(&value), wait)
}

/// Classifies an error object in a response with a success status.
pub(super) fn classify_error_object(value: &Value) -> ErrorVerdict {
    let status_field = value["error"]["code"].as_u64().or_else(|| value["error"]["status"].as_u64());
    let status = status_field.and_then(|status| u16::try_from(status).ok()).filter(|status| *status >= 400);
    // An error without a number is treated as a server error.
    classify(status.unwrap_or(500), &error_message(value, ""), &error_code(value), None)
}

fn classify(status: u16, message: &str, code: &str, wait: Option<Duration>) -> ErrorVerdict {
    let message = message.to_owned();
    let lower = message.to_lowercase();
    // A rate limit may be expressed in tokens too.
    if status != 429 && is_too_long(&lower, code) {
        return ErrorVerdict::Final(ModelError::ContextLength { message });
    }
    if is_unknown_model(status, &lower, code) {
        return ErrorVerdict::UnknownModel { message };
    }
    let again = |limited| ErrorVerdict::Retry { reason: format!("{status}: {message}"), wait, limited };
    match status {
        400 | 422 if lower.contains("stream_options") => {
            ErrorVerdict::UnsupportedField(FieldSupport::NoUsage)
        }
        400 | 422 if lower.contains("max_completion_tokens") => {
            ErrorVerdict::UnsupportedField(FieldSupport::MaxCompletionTokens)
        }
        401 | 403 => ErrorVerdict::Unauthorised { message },
        402 => ErrorVerdict::Final(ModelError::Quota { message }),
        // A success status with an HTML page instead of a reply.
        200..300 | 404 | 405 | 410 => ErrorVerdict::NotFound { message },
        429 if code == "insufficient_quota" => ErrorVerdict::Final(ModelError::Quota { message }),
        429 => again(RateLimited::Yes),
        408 | 409 | 425 | 500.. => again(RateLimited::No),
        300..400 => ErrorVerdict::NotFound { message: format!("it has moved: {message}") },
        _ => ErrorVerdict::Final(ModelError::Refused { status, message }),
    }
}

fn is_too_long(lower: &str, code: &str) -> bool {
    let codes = ["context_length_exceeded", "exceed_context_size_error", "string_above_max_length"];
    let wordings = [
        "maximum context length",
        "context length exceeded",
        "context_length_exceeded",
        "context window",
        "available context size",
        "maximum prompt length",
        "prompt is too long",
        "input is too long",
        "too many tokens",
        "reduce the length of the messages",
    ];
    codes.contains(&code) || wordings.iter().any(|wording| lower.contains(wording))
}

fn is_unknown_model(status: u16, lower: &str, code: &str) -> bool {
    let wordings = [
        "does not exist",
        "not found",
        "not a valid model",
        "invalid model",
        "unknown model",
        "no such model",
        "not exist",
    ];
    let worded = lower.contains("model") && wordings.iter().any(|wording| lower.contains(wording));
    code == "model_not_found" || (matches!(status, 400 | 404 | 422) && worded)
}

/// The error code of the server, if it has one.
fn error_code(value: &Value) -> String {
    let error = &value["error"];
    let named = [&error["code"], &error["type"], &value["code"], &value["type"]];
    named.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
}

/// The server's message in one line of bounded length.
fn error_message(value: &Value, body: &str) -> String {
    let error = &value["error"];
    let fields = [&error["message"], error, &value["message"], &value["detail"], &value["title"]];
    let reason = fields.into_iter().find_map(|place| place.as_str().filter(|text| !text.trim().is_empty()));
    let whole = |value: &Value| if value.is_null() { body.to_owned() } else { value.to_string() };
    let reason = reason.map_or_else(|| whole(if error.is_null() { value } else { error }), str::to_owned);
    let text = if reason.trim_start().starts_with('<') { html_title(&reason) } else { reason };
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return "no reason given".to_owned();
    }
    match line.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

const MAX_MESSAGE_CHARS: usize = 600;

/// The title of an HTML page, for instance of a proxy.
fn html_title(html: &str) -> String {
    let title = html.split_once("<title>").and_then(|(_, after)| after.split_once("</title>"));
    title.map_or_else(|| "an HTML page".to_owned(), |(title, _)| format!("an HTML page, {title:?}"))
}

/// The wait that the headers request. A date is compared with the `date` header of the same response.
pub(super) fn retry_after(header: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let number = |text: String| text.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    if let Some(milliseconds) = header("retry-after-ms").and_then(number) {
        return Duration::try_from_secs_f64(milliseconds / 1000.0).ok();
    }
    let after = header("retry-after")?;
    if let Some(seconds) = number(after.clone()) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = |text: &str| jiff::fmt::rfc2822::parse(text).ok().map(|zoned| zoned.timestamp());
    let wait = date(&after)?.duration_since(date(&header("date")?)?);
    Duration::try_from(wait).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn too_long_conversations_are_recognised() {
        for body in [
            json!({ "error": { "message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded" } }),
            json!({ "error": { "message": "the request exceeds the available context size", "type": "exceed_context_size_error" } }),
            json!({ "error": { "message": "prompt is too long: 210000 tokens > 200000 maximum" } }),
            json!({ "detail": "Input is too long for requested model." }),
        ] {
            let verdict = classify_response(400, &body.to_string(), None);
            assert!(matches!(verdict, ErrorVerdict::Final(ModelError::ContextLength { .. })), "{verdict:?}");
        }
    }

    #[test]
    fn unknown_models_are_distinguished_from_unknown_urls() {
        for (status, body) in [
            (
                404,
                json!({ "error": { "message": "The model `x` does not exist", "code": "model_not_found" } }),
            ),
            (404, json!({ "error": { "message": "model \"x\" not found, try pulling it first" } })),
            (400, json!({ "error": { "message": "x is not a valid model ID" } })),
        ] {
            let verdict = classify_response(status, &body.to_string(), None);
            assert!(matches!(verdict, ErrorVerdict::UnknownModel { .. }), "{verdict:?}");
        }
        for body in
            [json!({ "detail": "Not Found" }).to_string(), "404 page not found".to_owned(), String::new()]
        {
            assert!(matches!(classify_response(404, &body, None), ErrorVerdict::NotFound { .. }), "{body}");
        }
    }

    #[test]
    fn only_transient_errors_are_retried() {
        let wait = Some(Duration::from_secs(3));
        let expected =
            ErrorVerdict::Retry { reason: "429: slow".to_owned(), wait, limited: RateLimited::Yes };
        assert_eq!(classify_response(429, r#"{"error":{"message":"slow"}}"#, wait), expected);
        let tokens = r#"{"error":{"message":"too many tokens per minute"}}"#;
        assert!(matches!(classify_response(429, tokens, None), ErrorVerdict::Retry { .. }));
        let quota = r#"{"error":{"message":"nothing left","code":"insufficient_quota"}}"#;
        let nothing_left = ErrorVerdict::Final(ModelError::Quota { message: "nothing left".to_owned() });
        assert_eq!(classify_response(429, quota, None), nothing_left);
        for status in [408, 500, 502, 503, 529] {
            assert!(matches!(classify_response(status, "", None), ErrorVerdict::Retry { .. }), "{status}");
        }
        let refused = ModelError::Refused { status: 400, message: "no".to_owned() };
        assert_eq!(classify_response(400, r#"{"error":"no"}"#, None), ErrorVerdict::Final(refused));
        assert!(matches!(classify_response(401, "", None), ErrorVerdict::Unauthorised { .. }));
    }

    #[test]
    fn fields_that_a_server_does_not_take_are_recognised() {
        let usage = r#"{"error":{"message":"Unknown field: stream_options"}}"#;
        assert_eq!(
            classify_response(400, usage, None),
            ErrorVerdict::UnsupportedField(FieldSupport::NoUsage)
        );
        let most =
            r#"{"error":{"message":"'max_tokens' is not supported. Use 'max_completion_tokens' instead."}}"#;
        assert_eq!(
            classify_response(400, most, None),
            ErrorVerdict::UnsupportedField(FieldSupport::MaxCompletionTokens)
        );
    }

    #[test]
    fn messages_are_found_wherever_servers_put_them() {
        let message_of = |body: &str| {
            let verdict = classify_response(418, body, None);
            let ErrorVerdict::Final(ModelError::Refused { message, .. }) = verdict else {
                panic!("{verdict:?}")
            };
            message
        };
        assert_eq!(message_of(r#"{"error":{"message":"a\n  b"}}"#), "a b");
        assert_eq!(message_of(r#"{"message":"b"}"#), "b");
        assert_eq!(message_of(r#"{"detail":[{"loc":1}]}"#), r#"{"detail":[{"loc":1}]}"#);
        assert_eq!(message_of("<html><title>Oops</title></html>"), "an HTML page, \"Oops\"");
        assert_eq!(message_of("  "), "no reason given");
        assert_eq!(message_of(&"é".repeat(700)).chars().count(), 601);
    }

    #[test]
    fn a_wait_is_seconds_or_milliseconds_or_a_date() {
        let with = |pairs: &'static [(&str, &str)]| {
            retry_after(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(with(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(
            with(&[("retry-after", "7"), ("retry-after-ms", "250")]),
            Some(Duration::from_millis(250))
        );
        let dates =
            &[("retry-after", "Wed, 21 Oct 2015 07:28:30 GMT"), ("date", "Wed, 21 Oct 2015 07:28:00 GMT")];
        assert_eq!(with(dates), Some(Duration::from_secs(30)));
        assert_eq!(with(&[("retry-after", "soon")]), None);
        assert_eq!(with(&[("retry-after", "-1")]), None);
    }

    #[test]
    fn an_error_object_is_classified_by_its_code() {
        let error_object = json!({ "error": { "message": "busy", "code": 429 } });
        let expected =
            ErrorVerdict::Retry { reason: "429: busy".to_owned(), wait: None, limited: RateLimited::Yes };
        assert_eq!(classify_error_object(&error_object), expected);
        let error_object = json!({ "error": { "message": "it broke" } });
        assert!(matches!(
            classify_error_object(&error_object),
            ErrorVerdict::Retry { limited: RateLimited::No, .. }
        ));
    }
}
