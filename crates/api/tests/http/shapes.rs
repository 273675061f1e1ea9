//! Tests that no request accepts an array in place of an object.

use serde_json::{Map, Value, json};

use crate::{client::TestRequest, fixture::HttpFixture};

#[tokio::test]
async fn an_array_is_no_object_in_any_request() {
    let fixture = HttpFixture::open().await;
    let document = abide_api::http::openapi();
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().expect("there are paths") {
        let schema = &item["post"]["requestBody"]["content"]["application/json"]["schema"];
        if schema.is_null() {
            continue;
        }
        let path =
            path.replace("{run_id}", "run_00000000000000000000000000").replace("{interaction_id}", "x");
        let (sample, objects) = sample(schema, &document, "");
        for pointer in objects {
            let mut body = sample.clone();
            let object = body.pointer_mut(&pointer).expect("it is there");
            *object = object.as_object().expect("it is an object").values().cloned().collect();
            let response = fixture.send(TestRequest::post(&path, &body)).await;
            assert_eq!(response.status, 400, "{path} {pointer}: {}", response.body);
            assert!(response.body.contains("object"), "{path} {pointer}: {}", response.body);
            tried += 1;
        }
    }
    assert!(tried >= 6, "only {tried} objects were found in all requests");
}

/// Builds a value of this schema with all fields. Returns it with the paths of its nested objects.
fn sample(schema: &Value, document: &Value, at: &str) -> (Value, Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let named = document.pointer(reference.trim_start_matches('#')).expect("it leads somewhere");
        return sample(named, document, at);
    }
    if let Some(choice) = ["oneOf", "anyOf", "allOf"].iter().find_map(|word| schema[word].as_array()) {
        let used = choice.iter().find(|it| it["type"] != "null").expect("one of them is something");
        return sample(used, document, at);
    }
    if let Some(fields) = schema["properties"].as_object() {
        let (mut object, mut objects) = (Map::new(), vec![at.to_owned()]);
        for (name, field) in fields {
            let (value, inner) = sample(field, document, &format!("{at}/{name}"));
            object.insert(name.clone(), value);
            objects.extend(inner);
        }
        return (Value::Object(object), objects);
    }
    let kind = match schema["type"].as_array() {
        Some(kinds) => kinds.iter().find(|kind| **kind != "null").unwrap_or(&Value::Null),
        None => &schema["type"],
    };
    let value = match kind.as_str().unwrap_or_default() {
        "string" => schema["enum"].get(0).cloned().unwrap_or_else(|| json!("x")),
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        "boolean" => json!(true),
        "array" => json!([]),
        _ => json!({}),
    };
    (value, vec![])
}
