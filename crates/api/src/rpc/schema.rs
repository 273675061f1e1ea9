//! The terminal methods with the schemas of their parameters and results, for the OpenAPI document.
//!
//! The parameters are checked by `methods`, not by these schemas.

use abide_wire::terminal as wire;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Adds the schemas of all methods to `schemas`. Returns, for each method, references to its parameters and its result.
pub(crate) fn describe_methods(schemas: &mut Map<String, Value>) -> Map<String, Value> {
    let mut methods = Map::new();
    for method in METHODS {
        let mut description = Map::new();
        description.extend(method.params.map(|params| ("params".to_owned(), params(schemas))));
        description.insert("result".to_owned(), (method.result)(schemas));
        if let Some(name) = method.notification {
            let params = reference::<wire::ExecChunkNotification>(schemas);
            description.insert("notification".to_owned(), json!({ "method": name, "params": params }));
        }
        methods.insert(method.name.to_owned(), Value::Object(description));
    }
    // The flattened fields of the last chunk refer to it by name only.
    reference::<wire::ExecExit>(schemas);
    methods
}

type AddSchema = fn(&mut Map<String, Value>) -> Value;

/// A method and the functions that add its schemas.
struct TerminalMethod {
    name: &'static str,
    params: Option<AddSchema>,
    result: AddSchema,
    /// Sent after the result.
    notification: Option<&'static str>,
}

const fn method<P: ToSchema, R: ToSchema>(name: &'static str) -> TerminalMethod {
    TerminalMethod { name, params: Some(reference::<P>), result: reference::<R>, notification: None }
}

const fn method_without_params<R: ToSchema>(name: &'static str) -> TerminalMethod {
    TerminalMethod { name, params: None, result: reference::<R>, notification: None }
}

const METHODS: [TerminalMethod; 13] = [
    method::<wire::CreateSessionParams, wire::SessionView>("session.create"),
    method::<wire::SessionParams, wire::SessionView>("session.info"),
    method_without_params::<wire::SessionListResult>("session.list"),
    method::<wire::DestroySessionParams, wire::DestroySessionResult>("session.destroy"),
    method::<wire::ExecParams, wire::ExecRunResult>("exec.run"),
    TerminalMethod {
        notification: Some("exec.chunk"),
        ..method::<wire::ExecParams, wire::ExecStreamResult>("exec.stream")
    },
    method::<wire::ExecInputParams, wire::EmptyResult>("exec.input"),
    method::<wire::SessionParams, wire::ExecCancelResult>("exec.cancel"),
    method::<wire::ExecOutputParams, wire::ExecOutputResult>("exec.output"),
    method::<wire::SessionParams, wire::ScreenResult>("session.screen"),
    method::<wire::ResizeSessionParams, wire::EmptyResult>("session.resize"),
    method_without_params::<wire::SystemPingResult>("system.ping"),
    method_without_params::<wire::SystemStatsResult>("system.stats"),
];

/// Adds the schema of a type and of the types in it. Returns a reference to the type.
fn reference<T: ToSchema>(schemas: &mut Map<String, Value>) -> Value {
    let mut named = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut named);
    for (name, schema) in named {
        // A schema is always an object.
        schemas.insert(name, serde_json::to_value(schema).unwrap_or_default());
    }
    json!({ "$ref": format!("#/components/schemas/{}", T::name()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::methods::tests::METHODS as PARSED_METHODS;

    #[test]
    fn every_method_is_described_with_a_schema_for_each_reference() {
        let mut schemas = Map::new();
        let methods = describe_methods(&mut schemas);
        let mut names: Vec<_> = methods.keys().map(String::as_str).collect();
        // The connection answers it without the runtime.
        let mut parsed = [PARSED_METHODS.as_slice(), &["system.ping"]].concat();
        names.sort_unstable();
        parsed.sort_unstable();
        assert_eq!(names, parsed);
        assert!(schemas.contains_key("ExecExit") && schemas.contains_key("PtySize"));
        assert_eq!(methods["exec.stream"]["notification"]["method"], "exec.chunk");
    }
}
