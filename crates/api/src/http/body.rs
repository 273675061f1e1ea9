//! Extractors for JSON bodies and queries, with size limits and error messages that suggest a correction.
//!
//! Unknown fields are errors that name the nearest known field. A misspelt option that is silently ignored would change
//! the permissions of a run.

use std::time::Duration;

use abide_os::suggestion;
use abide_wire::strict::StrictJson;
use axum::{
    body::{Bytes, HttpBody as _},
    extract::{FromRequest, FromRequestParts, Request, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::Value;

use super::{
    HttpState,
    budget::ByteReservation,
    guard::RequestCredential,
    problem::{HttpProblem, ProblemCode},
};

/// Time limit for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Size up to which a body needs no reservation. A body without a length needs one.
const SMALL_BYTES: u64 = 16 << 10;

/// A JSON body together with the value that it was parsed from.
#[derive(Debug)]
pub(super) struct JsonBody<T> {
    pub(super) parsed: T,
    pub(super) raw: Value,
}

impl<T: DeserializeOwned> FromRequest<HttpState> for JsonBody<T> {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, state: &HttpState) -> Result<Self, HttpProblem> {
        let body = json_bytes(request, state).await?;
        let sent: Value = serde_json::from_slice(&body.bytes)
            .map_err(|error| HttpProblem::invalid(format!("the body is not JSON: {error}")))?;
        if contains_nul(&sent) {
            return Err(HttpProblem::invalid("a text must not contain the character NUL; leave it out"));
        }
        if !sent.is_object() {
            return Err(HttpProblem::invalid("the body must be a JSON object"));
        }
        let parsed =
            StrictJson::<T>::deserialize(&sent).map_err(|error| parse_problem(&error.to_string()))?;
        Ok(Self { parsed: parsed.0, raw: sent })
    }
}

/// Bytes of a body, with the memory that is reserved for them.
struct ReceivedBody {
    bytes: Bytes,
    _reservation: Option<ByteReservation>,
}

/// Reads a body with a JSON content type. Memory for a large body is reserved before it is read.
async fn json_bytes(request: Request, state: &HttpState) -> Result<ReceivedBody, HttpProblem> {
    if !is_json(request.headers()) {
        return Err(HttpProblem::new(
            ProblemCode::UnsupportedMediaType,
            "the body must be JSON, with the header content-type: application/json",
        ));
    }
    let is_small = request.body().size_hint().upper().is_some_and(|bytes| bytes <= SMALL_BYTES);
    let mut reservation = None;
    if !is_small {
        let credential = request.extensions().get::<RequestCredential>();
        // Requests that need no credential share one limit.
        let credential = credential.map_or_else(|| "".into(), |credential| credential.0.clone());
        reservation = state.0.received.reserve(&credential, state.0.settings.max_body_bytes).await;
    }
    let bytes = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, state))
        .await
        .map_err(|_| {
            HttpProblem::new(ProblemCode::TooSlow, "the body was not received in time; send it again")
        })?
        .map_err(body_problem)?;
    Ok(ReceivedBody { bytes, _reservation: reservation })
}

/// The bytes of one JSON object, unparsed.
#[derive(Debug)]
pub(super) struct RawJson(pub(super) Bytes);

impl FromRequest<HttpState> for RawJson {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, state: &HttpState) -> Result<Self, HttpProblem> {
        let ReceivedBody { bytes, .. } = json_bytes(request, state).await?;
        let is_object = bytes.trim_ascii_start().starts_with(b"{");
        match serde_json::from_slice::<serde::de::IgnoredAny>(&bytes) {
            Ok(_) if is_object => Ok(Self(bytes)),
            Ok(_) => Err(HttpProblem::invalid("the body must be one JSON object; batches are not served")),
            Err(error) => Err(HttpProblem::invalid(format!("the body is not JSON: {error}"))),
        }
    }
}

/// A JSON body that may be omitted; the default is used then.
#[derive(Debug)]
pub(super) struct OptionalBody<T>(pub(super) T);

impl<T: DeserializeOwned + Default> FromRequest<HttpState> for OptionalBody<T> {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, state: &HttpState) -> Result<Self, HttpProblem> {
        let is_empty =
            request.headers().get(header::CONTENT_TYPE).is_none() && request.body().is_end_stream();
        if is_empty {
            return Ok(Self(T::default()));
        }
        JsonBody::from_request(request, state).await.map(|body| Self(body.parsed))
    }
}

#[derive(Debug)]
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, HttpProblem> {
        let parsed = axum::extract::Query::try_from_uri(&parts.uri);
        parsed.map(|query| Self(query.0)).map_err(|rejection| {
            let text = rejection.body_text();
            let reason = text.rsplit_once("query string: ").map_or(text.as_str(), |(_, reason)| reason);
            parse_problem(reason)
        })
    }
}

/// Parameters of the path. A parameter that is not UTF-8 yields "not found".
#[derive(Debug)]
pub(super) struct PathParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HttpProblem> {
        let params = axum::extract::Path::from_request_parts(parts, state).await;
        params
            .map(|axum::extract::Path(params)| Self(params))
            .map_err(|_| HttpProblem::new(ProblemCode::NotFound, "the path is not percent-encoded UTF-8"))
    }
}

/// Validates the requested page size.
pub(super) fn validate_limit(requested: Option<u32>) -> Result<usize, HttpProblem> {
    match requested {
        None => Ok(DEFAULT_PAGE_ITEMS),
        Some(limit @ 1..=MAX_PAGE_ITEMS) => Ok(limit as usize),
        Some(_) => Err(HttpProblem::invalid(format!("limit must be from 1 to {MAX_PAGE_ITEMS}"))),
    }
}

/// Default number of items per page.
pub(super) const DEFAULT_PAGE_ITEMS: usize = 100;
/// Maximum number of items per page.
pub(super) const MAX_PAGE_ITEMS: u32 = 500;

/// Rejects a text that is too short or too long. Length is counted in characters, as in the schema.
pub(super) fn check_length(
    name: &str,
    text: &str,
    min_chars: usize,
    max_chars: usize,
) -> Result<(), HttpProblem> {
    let length = text.chars().count();
    if length < min_chars {
        return Err(HttpProblem::invalid(format!("{name} must not be empty")));
    }
    if length > max_chars {
        return Err(HttpProblem::new(
            ProblemCode::InvalidRequest,
            format!("{name} has {length} characters, and may have at most {max_chars}"),
        ));
    }
    Ok(())
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(kind)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn body_problem(rejection: BytesRejection) -> HttpProblem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => HttpProblem::new(
            ProblemCode::TooLarge,
            "the body exceeds the limit (setting http.max_body_bytes); put long texts into files of the \
             workspace and name them",
        ),
        _ => HttpProblem::invalid("the body is incomplete; send it again"),
    }
}

fn contains_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(contains_nul),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains('\0') || contains_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Converts a serde error into a problem, with a suggestion for a misspelt name.
fn parse_problem(reason: &str) -> HttpProblem {
    let Some((_, rest)) = reason.split_once("unknown field `") else {
        return HttpProblem::invalid(reason.to_owned());
    };
    let (unknown, expected) = rest.split_once('`').unwrap_or((rest, ""));
    let known_names: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let nearest = suggestion::nearest(unknown, known_names.iter().copied());
    let unknown: String = unknown.chars().take(100).collect();
    let advice = match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("known fields are {}", known_names.join(", ")),
    };
    HttpProblem::new(ProblemCode::UnknownOption, format!("unknown field `{unknown}`; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_known_one() {
        let problem = parse_problem("unknown field `modell`, expected one of `model`, `sandbox`");
        assert_eq!(problem.code, ProblemCode::UnknownOption);
        assert_eq!(problem.detail, "unknown field `modell`; did you mean `model`?");
        let problem = parse_problem("unknown field `colour`, expected `keep`");
        assert_eq!(problem.detail, "unknown field `colour`; known fields are keep");
    }

    #[test]
    fn nul_is_found_at_any_depth() {
        for value in [
            serde_json::json!({ "a": ["x", { "b": "\0" }] }),
            serde_json::json!({ "\0": 1 }),
            serde_json::json!("a\0b"),
        ] {
            assert!(contains_nul(&value), "{value}");
        }
        assert!(!contains_nul(&serde_json::json!({ "a": [null, 0, true, "\\u0000"] })));
    }
}
