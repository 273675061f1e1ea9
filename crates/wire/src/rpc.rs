//! Requests and responses of JSON-RPC 2.0 over HTTP. The parameters and results of the methods are in
//! [`crate::terminal`].

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A JSON-RPC request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JsonRpcRequest {
    /// Always `2.0`.
    #[schema(example = "2.0", pattern = "^2\\.0$")]
    pub jsonrpc: String,
    /// A string or a number. A request without an id is a notification and gets no response.
    #[schema(schema_with = any_id)]
    pub id: Option<serde_json::Value>,
    /// Such as `exec.run`.
    #[schema(example = "session.list")]
    pub method: String,
    /// The parameters of the method.
    pub params: Option<serde_json::Map<String, serde_json::Value>>,
}

/// A JSON-RPC response, with a result or an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JsonRpcResponse {
    /// Always `2.0`.
    pub jsonrpc: String,
    /// The id of the request.
    #[schema(schema_with = any_id)]
    pub id: Option<serde_json::Value>,
    /// The result of the method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JsonRpcError>,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JsonRpcError {
    /// The error number of JSON-RPC.
    pub code: i64,
    /// For people.
    pub message: String,
    pub data: JsonRpcErrorData,
}

/// The error code for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JsonRpcErrorData {
    /// Such as `SESSION_NOT_FOUND`.
    pub code: String,
}

fn any_id() -> utoipa::openapi::Schema {
    use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Number, Type::Null]))
        .build()
        .into()
}
