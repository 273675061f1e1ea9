//! The OpenAPI 3.1 document, generated from the declarations at the handlers.
//!
//! Parts common to all routes are added here: the security schemes and the error responses.

use std::sync::OnceLock;

use abide_wire::service::ProblemDetails;
use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, openapi::OpenApi};

use super::problem::PROBLEM_JSON;

/// Returns the complete document with sorted keys.
pub(super) fn complete(declared: OpenApi) -> Value {
    let mut document = serde_json::to_value(declared).unwrap_or_default();
    document["openapi"] = json!("3.1.0");
    document["info"] = json!({
        "title": "Abide",
        "version": env!("CARGO_PKG_VERSION"),
        "description": API_DESCRIPTION,
        "license": { "name": "Apache-2.0 OR MIT" },
    });
    document["tags"] = json!([
        { "name": "runs", "description": "Tasks and conversations given to an engine." },
        { "name": "interactions", "description": "Questions and approvals that wait for a person." },
        { "name": "messages", "description": "Messages to a run, and their status." },
        { "name": "events", "description": "The journal's events. Cursors never expire." },
        { "name": "artifacts", "description": "Files that a run made for the person." },
        { "name": "engines", "description": "Agent programs on this machine." },
        { "name": "terminals", "description": "Persistent shells, as JSON-RPC." },
        { "name": "access", "description": "Tokens with permissions, and browser sign-ins." },
        { "name": "service", "description": "The daemon itself." },
    ]);
    document["components"]["securitySchemes"] = json!({
        "token": { "type": "http", "scheme": "bearer", "description": "The text in the file `token` of Abide's home, or the secret of a token that `abide token new` made. A token has permissions; 403 `PERMISSION_DENIED` names the one that is missing." },
        "session": { "type": "apiKey", "in": "cookie", "name": "abide_session_HOME",
            "description": "For browsers: `POST /v1/session` gives it in exchange for the token, with a name of this home's own. It is valid only together with the page's key." },
        "page_key": { "type": "apiKey", "in": "header", "name": "Abide-Session-Key",
            "description": "For browsers, beside the cookie: the key that `POST /v1/session` gave to the page." },
    });
    document["components"]["schemas"]["Problem"] =
        serde_json::to_value(<ProblemDetails as PartialSchema>::schema()).unwrap_or_default();
    document["security"] = json!([{ "token": [] }, { "session": [], "page_key": [] }]);
    // The router marks a wildcard parameter with a star, which OpenAPI does not know.
    if let Some(paths) = document["paths"].as_object_mut() {
        for path in paths.keys().filter(|path| path.contains("{*")).cloned().collect::<Vec<_>>() {
            let item = paths.remove(&path).unwrap_or_default();
            paths.insert(path.replace("{*", "{"), item);
        }
    }
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            if METHODS.contains(&method.as_str()) {
                complete_operation(path, method, operation);
            }
        }
    }
    sorted(document)
}

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

const API_DESCRIPTION: &str = "The HTTP interface of the daemon. Refusals are `application/problem+json` (RFC 9457) \
with a `code` for programs and a `detail` that says what to do. Lists take `cursor` and `limit` and answer `items` and \
`next_cursor`, which is null on the last page. Times are RFC 3339 in UTC. Ids are prefixed and ordered by time. Answers \
may gain fields; requests with unknown fields are refused.";

/// Adds the error responses that every route can return.
fn complete_operation(path: &str, method: &str, operation: &mut Value) {
    if path == "/healthz" {
        operation["security"] = json!([]);
    }
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    let mut every = |status: &str, description: &str| {
        responses.entry(status).or_insert_with(|| json!({ "description": description }));
    };
    if path != "/healthz" {
        every(
            "401",
            "`UNAUTHORIZED`: the token is missing or wrong, or a browser's cookie came without its key",
        );
    }
    every(
        "403",
        "`FORBIDDEN_HOST`, `FORBIDDEN_ORIGIN`: called by a name, or from a page, that is not allowed; \
         `PERMISSION_DENIED`: the token lacks the permission that the detail names",
    );
    every("429", "`RATE_LIMITED`: try again after the seconds in `Retry-After`");
    every(
        "500",
        "`INTERNAL`: our bug; `OUTCOME_UNKNOWN`: it may have been done, so look before trying again",
    );
    every(
        "503",
        "`NOT_READY`, `STOPPING`, `STORE_UNAVAILABLE`, `TOO_MANY_CONNECTIONS`: try again later; \
           `STORE_GONE`: an operator must look after the store; `STORE_IN_USE`: another daemon has taken it",
    );
    if method != "get" {
        every("408", "`TOO_SLOW`: the body took too long");
        every("507", "`STORE_FULL`: nothing was taken; free some space");
    }
    for (status, response) in responses {
        if status.starts_with(['4', '5']) {
            response["content"][PROBLEM_JSON] =
                json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
        }
        if status == "429" {
            response["headers"]["Retry-After"] =
                json!({ "description": "Seconds.", "schema": { "type": "integer", "minimum": 0 } });
        }
    }
}

/// Sorts the keys, so that the result does not depend on the map type of the JSON library.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            Value::Object(fields.into_iter().map(|(key, value)| (key, sorted(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// Tells everything that can be asked here.
#[utoipa::path(
    get, path = "/openapi.json", tag = "service", operation_id = "document",
    responses((status = 200, description = "This document.", body = Object)),
)]
pub(super) async fn show() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| super::openapi().to_string());
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}
