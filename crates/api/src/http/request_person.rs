//! The name of the person behind a request. It is stated by the client, not authenticated: any client with the token
//! may act for a person. The ledger records it with replies and stops.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, request::Parts},
};

use super::problem::HttpProblem;

pub(super) const PERSON_HEADER: &str = "abide-person";

/// Name used if the header is missing.
const DEFAULT_PERSON: &str = "api";

/// Maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 100;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestPerson(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for RequestPerson {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, HttpProblem> {
        parse_person(&parts.headers)
    }
}

fn parse_person(headers: &HeaderMap) -> Result<RequestPerson, HttpProblem> {
    let mut values = headers.get_all(PERSON_HEADER).iter();
    let Some(name) = values.next() else { return Ok(RequestPerson(DEFAULT_PERSON.to_owned())) };
    let fits = |name: &&str| {
        (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && !name.chars().any(char::is_control)
    };
    let name = std::str::from_utf8(name.as_bytes()).ok().map(str::trim).filter(fits);
    let advice = "Abide-Person must be given once, as a name of 1 to 100 characters";
    let name = name.filter(|_| values.next().is_none()).ok_or_else(|| HttpProblem::invalid(advice))?;
    Ok(RequestPerson(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn check(names: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for name in names {
            headers.append(PERSON_HEADER, HeaderValue::from_bytes(name.as_bytes()).unwrap());
        }
        parse_person(&headers).ok().map(|person| person.0)
    }

    #[test]
    fn a_person_is_named_once_and_legibly() {
        assert_eq!(check(&[]).as_deref(), Some("api"));
        assert_eq!(check(&["Ada Lovelace"]).as_deref(), Some("Ada Lovelace"));
        assert_eq!(check(&["王小明"]).as_deref(), Some("王小明"));
        for wrong in [&[""][..], &["ada", "bob"], &["a\tb"], &["x".repeat(101).as_str()]] {
            assert_eq!(check(wrong), None, "{wrong:?}");
        }
    }
}
