//! Extractors for JSON bodies and queries, with size limits and error messages that suggest a correction.
//!
//! Unknown fields are errors that name the nearest known field. A misspelt option that is silently ignored would change
//! the permissions of a run.

use std::time::Duration;

use abide_wire::strict::StrictJson;
use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Request, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::Value;

use super::problem::{HttpProblem, ProblemCode};

/// Time limit for receiving a body.
const PATIENCE: Duration = Duration::from_secs(30);

/// A JSON body together with the value that it was parsed from.
#[derive(Debug)]
pub(super) struct JsonBody<T> {
    pub(super) parsed: T,
    pub(super) sent: Value,
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, HttpProblem> {
        let bytes = json_bytes(request, state).await?;
        let sent: Value = serde_json::from_slice(&bytes)
            .map_err(|error| HttpProblem::invalid(format!("the body is not JSON: {error}")))?;
        if holds_nul(&sent) {
            return Err(HttpProblem::invalid("a text must not contain the character NUL; leave it out"));
        }
        if !sent.is_object() {
            return Err(HttpProblem::invalid("the body must be a JSON object"));
        }
        let parsed =
            StrictJson::<T>::deserialize(&sent).map_err(|error| not_understood(&error.to_string()))?;
        Ok(Self { parsed: parsed.0, sent })
    }
}

/// Reads a body with a JSON content type.
async fn json_bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, HttpProblem> {
    if !is_json(request.headers()) {
        return Err(HttpProblem::new(
            ProblemCode::UnsupportedMediaType,
            "the body must be JSON and say so: content-type: application/json",
        ));
    }
    tokio::time::timeout(PATIENCE, Bytes::from_request(request, state))
        .await
        .map_err(|_| HttpProblem::new(ProblemCode::TooSlow, "the body took too long; send it again, faster"))?
        .map_err(unreadable)
}

/// The bytes of one JSON object, unparsed.
#[derive(Debug)]
pub(super) struct RawJson(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for RawJson {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, HttpProblem> {
        let bytes = json_bytes(request, state).await?;
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

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalBody<T> {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, HttpProblem> {
        let says_nothing = request.headers().get(header::CONTENT_TYPE).is_none()
            && axum::body::HttpBody::is_end_stream(request.body());
        if says_nothing {
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
            not_understood(reason)
        })
    }
}

/// Parameters of the path. A parameter that is not UTF-8 yields "not found".
#[derive(Debug)]
pub(super) struct PathParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HttpProblem> {
        let named = axum::extract::Path::from_request_parts(parts, state).await;
        named.map(|axum::extract::Path(named)| Self(named)).map_err(|_| {
            HttpProblem::new(ProblemCode::NotFound, "the path is not encoded UTF-8, so it names nothing")
        })
    }
}

/// Validates the requested page size.
pub(super) fn limit(asked: Option<u32>) -> Result<usize, HttpProblem> {
    match asked {
        None => Ok(USUAL_LIMIT),
        Some(limit @ 1..=MOST_ITEMS) => Ok(limit as usize),
        Some(_) => Err(HttpProblem::invalid(format!("limit must be from 1 to {MOST_ITEMS}"))),
    }
}

/// Default number of items per page.
pub(super) const USUAL_LIMIT: usize = 100;
/// Maximum number of items per page.
pub(super) const MOST_ITEMS: u32 = 500;

/// Rejects a text that is too short or too long. Length is counted in characters, as in the schema.
pub(super) fn check_length(name: &str, text: &str, least: usize, most: usize) -> Result<(), HttpProblem> {
    let length = text.chars().count();
    if length < least {
        return Err(HttpProblem::invalid(format!("{name} must not be empty")));
    }
    if length > most {
        return Err(HttpProblem::new(
            ProblemCode::InvalidRequest,
            format!("{name} has {length} characters, and may have at most {most}"),
        ));
    }
    Ok(())
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(kind)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn unreadable(rejection: BytesRejection) -> HttpProblem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => HttpProblem::new(
            ProblemCode::TooLarge,
            "the body is larger than is taken (setting http.max_body_bytes); put long texts into files of the \
             workspace and name them",
        ),
        _ => HttpProblem::invalid("the body ended before it was whole; send it again"),
    }
}

fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Converts a serde error into a problem, with a suggestion for a misspelt name.
fn not_understood(reason: &str) -> HttpProblem {
    let Some((_, rest)) = reason.split_once("unknown field `") else {
        return HttpProblem::invalid(reason.to_owned());
    };
    let (unknown, expected) = rest.split_once('`').unwrap_or((rest, ""));
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let nearest = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(unknown, known), known))
        .min()
        .filter(|(distance, known)| *distance <= known.len().max(unknown.len()) / 2);
    let unknown: String = unknown.chars().take(100).collect();
    let advice = match nearest {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None => format!("known are {}", known.join(", ")),
    };
    HttpProblem::new(ProblemCode::UnknownOption, format!("`{unknown}` is not known here; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_known_one() {
        let problem = not_understood("unknown field `modell`, expected one of `model`, `sandbox`");
        assert_eq!(problem.code, ProblemCode::UnknownOption);
        assert_eq!(problem.detail, "`modell` is not known here; did you mean `model`?");
        let problem = not_understood("unknown field `colour`, expected `keep`");
        assert_eq!(problem.detail, "`colour` is not known here; known are keep");
    }

    #[test]
    fn nul_is_found_wherever_it_hides() {
        for value in [
            serde_json::json!({ "a": ["x", { "b": "\0" }] }),
            serde_json::json!({ "\0": 1 }),
            serde_json::json!("a\0b"),
        ] {
            assert!(holds_nul(&value), "{value}");
        }
        assert!(!holds_nul(&serde_json::json!({ "a": [null, 0, true, "\\u0000"] })));
    }
}
