//! Compares the checked-in OpenAPI document with the served one, and checks rules common to all routes.

use std::{fs, path::Path};

use abide_api::http::openapi;
use serde_json::Value;

#[test]
fn the_document_that_is_checked_in_is_the_one_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let document = serde_json::to_string_pretty(&openapi()).unwrap() + "\n";
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &document).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == document,
        "docs/openapi.json is stale; `UPDATE_EXPECT=1 cargo test -p abide-api --test openapi` rewrites it"
    );
}

#[test]
fn every_route_documents_its_errors() {
    let document = openapi();
    let mut seen = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = format!("{method} {path}");
            seen += 1;
            assert!(operation["operationId"].is_string() && operation["summary"].is_string(), "{name}");
            let responses = operation["responses"].as_object().unwrap();
            assert_eq!(responses.contains_key("401"), path != "/healthz", "{name}");
            for status in ["403", "429", "500", "503"] {
                assert!(responses.contains_key(status), "{name} {status}");
            }
            for (status, response) in responses {
                let refused = status.starts_with(['4', '5']);
                let content = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(content == "#/components/schemas/ProblemDetails", refused, "{name} {status}");
            }
        }
    }
    assert!(seen >= 25, "{seen}");
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk(value: &Value, document: &Value) {
        if let Some(Value::String(reference)) = value.get("$ref") {
            let pointer = reference.trim_start_matches('#');
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        match value {
            Value::Object(fields) => fields.values().for_each(|value| walk(value, document)),
            Value::Array(items) => items.iter().for_each(|value| walk(value, document)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = openapi();
    walk(&document, &document);
}
