//! The parameters of a tool: parsed from JSON objects only, and described by the schema of the wire type.
//!
//! The SDK requires the trait of the crate `schemars`. Wire types have schemas of `utoipa`, as in the OpenAPI document.
//! OpenAPI 3.1 uses JSON Schema 2020-12, as MCP does, so only the references differ (decision 0024).

use std::borrow::Cow;

use abide_wire::strict::StrictJson;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::{
    ToSchema,
    openapi::{RefOr, schema::Schema as OpenApiSchema},
};

/// The parameters of a tool.
#[derive(Debug)]
pub(super) struct ToolParams<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ToolParams<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StrictJson::deserialize(deserializer).map(|StrictJson(params)| Self(params))
    }
}

impl<T: ToSchema> JsonSchema for ToolParams<T> {
    fn schema_name() -> Cow<'static, str> {
        T::name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut inner_schemas = Vec::new();
        T::schemas(&mut inner_schemas);
        let definitions = generator.definitions_mut();
        for (name, schema) in inner_schemas {
            definitions.insert(name, Value::Object(tool_schema(&schema)));
        }
        Schema::from(tool_schema(&T::schema()))
    }
}

const OPENAPI_PREFIX: &str = "#/components/schemas/";
const TOOL_PREFIX: &str = "#/$defs/";

fn tool_schema(schema: &RefOr<OpenApiSchema>) -> Map<String, Value> {
    match serde_json::to_value(schema) {
        Ok(Value::Object(mut fields)) => {
            fields.values_mut().for_each(move_references);
            fields
        }
        // A schema is always an object.
        Ok(_) | Err(_) => Map::new(),
    }
}

fn move_references(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(name) = reference.strip_prefix(OPENAPI_PREFIX)
            {
                *reference = format!("{TOOL_PREFIX}{name}");
            }
            fields.values_mut().for_each(move_references);
        }
        Value::Array(items) => items.iter_mut().for_each(move_references),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use abide_wire::terminal::{CreateSessionParams, DestroySessionParams};
    use serde_json::json;

    use super::*;

    fn schema<T: ToSchema>() -> Value {
        let settings = schemars::generate::SchemaSettings::draft2020_12();
        let schema = settings.into_generator().into_root_schema_for::<ToolParams<T>>();
        serde_json::to_value(schema).unwrap()
    }

    #[test]
    fn the_schema_of_a_tool_describes_its_fields_and_allows_no_others() {
        let schema = schema::<DestroySessionParams>();
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["required"], json!(["session_id"]));
        assert_eq!(schema["properties"]["force"]["type"], "boolean");
        assert_eq!(schema["additionalProperties"], false);
    }

    #[test]
    fn a_type_inside_the_parameters_is_a_definition_of_the_same_schema() {
        let schema = schema::<CreateSessionParams>();
        assert!(!schema.to_string().contains(OPENAPI_PREFIX), "{schema}");
        let reference = schema.pointer("/properties/pty/oneOf/0/$ref").and_then(Value::as_str);
        assert_eq!(reference, Some("#/$defs/PtySize"), "{schema}");
        assert_eq!(schema["$defs"]["PtySize"]["required"], json!(["rows", "cols"]));
    }

    #[test]
    fn an_array_is_no_object() {
        let object = json!({ "session_id": "s-000000" });
        assert!(serde_json::from_value::<ToolParams<DestroySessionParams>>(object).is_ok());
        let array = json!(["s-000000", true]);
        assert!(serde_json::from_value::<ToolParams<DestroySessionParams>>(array).is_err());
    }
}
