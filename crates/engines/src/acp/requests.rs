//! The requests and responses to an ACP agent, as lines of JSON-RPC 2.0.
//!
//! Request ids are fixed and do not depend on earlier requests. An interpreter that only reads the responses can
//! therefore match them.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::line_protocol::LongLine;

/// The supported version of the protocol.
pub(super) const PROTOCOL_VERSION: u64 = 1;

/// The id of `initialize`.
pub(super) const INITIALIZE_ID: u64 = 1;

/// The id of the request that opens the session.
pub(super) const OPEN_SESSION_ID: u64 = 2;

/// The first id of the requests that set modes and models.
const FIRST_SETTING_ID: u64 = 10;

/// The ids of prompts are this plus the turn.
const FIRST_PROMPT_ID: u64 = 1000;

/// The id of the `index`-th setting.
pub(super) fn setting_id(index: usize) -> u64 {
    FIRST_SETTING_ID + index as u64
}

/// The id of a turn's prompt.
pub(super) fn prompt_id(turn: u32) -> u64 {
    FIRST_PROMPT_ID + u64::from(turn)
}

/// The turn whose prompt has this id.
pub(super) fn turn_of_prompt_id(id: u64) -> Option<u32> {
    id.checked_sub(FIRST_PROMPT_ID).and_then(|turn| u32::try_from(turn).ok()).filter(|turn| *turn > 0)
}

#[derive(Serialize)]
struct AcpRequest<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct AcpNotification<'a, P> {
    jsonrpc: &'static str,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct AcpResponse<'a, R> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    result: R,
}

#[derive(Serialize)]
struct AcpErrorResponse<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    error: AcpErrorBody,
}

#[derive(Serialize)]
struct AcpErrorBody {
    code: i64,
    message: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams {
    protocol_version: u64,
    client_capabilities: ClientCapabilities,
    client_info: ClientInfo,
}

#[derive(Serialize)]
struct ClientCapabilities {
    fs: FileCapabilities,
    terminal: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileCapabilities {
    read_text_file: bool,
    write_text_file: bool,
}

#[derive(Serialize)]
struct ClientInfo {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OpenSessionParams<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    cwd: &'a str,
    mcp_servers: [(); 0],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionScoped<'a, P> {
    session_id: &'a str,
    #[serde(flatten)]
    rest: P,
}

#[derive(Serialize)]
struct PromptParams<'a> {
    prompt: [PromptText<'a>; 1],
}

#[derive(Serialize)]
struct PromptText<'a> {
    r#type: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SetModeParams<'a> {
    mode_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SetModelParams<'a> {
    model_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SetConfigOptionParams<'a> {
    config_id: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
struct EmptyParams {}

#[derive(Serialize)]
struct PermissionResult<'a> {
    outcome: PermissionOutcome<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PermissionOutcome<'a> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    option_id: Option<&'a str>,
}

/// `initialize`. Files and terminals are not offered: agents have their own, inside their sandbox.
pub(super) fn initialize() -> Vec<u8> {
    let params = InitializeParams {
        protocol_version: PROTOCOL_VERSION,
        client_capabilities: ClientCapabilities {
            fs: FileCapabilities { read_text_file: false, write_text_file: false },
            terminal: false,
        },
        client_info: ClientInfo { name: "abide", version: env!("CARGO_PKG_VERSION") },
    };
    request(INITIALIZE_ID, "initialize", params)
}

/// `session/new`, or `session/load` or `session/resume` with a session id.
pub(super) fn open_session(method: &str, session_id: Option<&str>, cwd: &str) -> Vec<u8> {
    request(OPEN_SESSION_ID, method, OpenSessionParams { session_id, cwd, mcp_servers: [] })
}

/// `session/set_mode`
pub(super) fn set_mode(index: usize, session_id: &str, mode_id: &str) -> Vec<u8> {
    let params = SessionScoped { session_id, rest: SetModeParams { mode_id } };
    request(setting_id(index), "session/set_mode", params)
}

/// `session/set_model`
pub(super) fn set_model(index: usize, session_id: &str, model_id: &str) -> Vec<u8> {
    let params = SessionScoped { session_id, rest: SetModelParams { model_id } };
    request(setting_id(index), "session/set_model", params)
}

/// `session/set_config_option`
pub(super) fn set_option(index: usize, session_id: &str, config_id: &str, value: &str) -> Vec<u8> {
    let params = SessionScoped { session_id, rest: SetConfigOptionParams { config_id, value } };
    request(setting_id(index), "session/set_config_option", params)
}

/// `session/prompt`
pub(super) fn prompt(turn: u32, session_id: &str, text: &str) -> Vec<u8> {
    let rest = PromptParams { prompt: [PromptText { r#type: "text", text }] };
    request(prompt_id(turn), "session/prompt", SessionScoped { session_id, rest })
}

/// `session/cancel`
pub(super) fn cancel(session_id: &str) -> Vec<u8> {
    let params = SessionScoped { session_id, rest: EmptyParams {} };
    line(&AcpNotification { jsonrpc: "2.0", method: "session/cancel", params })
}

/// The response to a permission request: the chosen option, or `cancelled`.
pub(super) fn permission(id: &RawValue, option_id: Option<&str>) -> Vec<u8> {
    let outcome = if option_id.is_some() { "selected" } else { "cancelled" };
    let result = PermissionResult { outcome: PermissionOutcome { outcome, option_id } };
    line(&AcpResponse { jsonrpc: "2.0", id, result })
}

/// The response to a request for an unsupported method.
pub(super) fn method_not_found(id: &RawValue) -> Vec<u8> {
    let error = AcpErrorBody { code: -32601, message: "this client does not offer that method".to_owned() };
    line(&AcpErrorResponse { jsonrpc: "2.0", id, error })
}

/// The response to a request that exceeds the size limit.
pub(super) fn request_too_long(id: &RawValue) -> Vec<u8> {
    let error = AcpErrorBody { code: -32600, message: LongLine::refusal() };
    line(&AcpErrorResponse { jsonrpc: "2.0", id, error })
}

fn request(id: u64, method: &str, params: impl Serialize) -> Vec<u8> {
    line(&AcpRequest { jsonrpc: "2.0", id, method, params })
}

fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("text and numbers can always be written");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_one_line_of_json() {
        let text = "a \"quote\", a \\, a line\nbreak, a nul \0, \u{2028} and {\"jsonrpc\":\"2.0\"}";
        let line = prompt(2, "s", text);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["params"]["prompt"][0]["text"], text);
        assert_eq!(value["id"], 1002);
    }

    #[test]
    fn a_request_is_answered_under_its_own_id_whatever_that_is() {
        for id in ["0", "\"a-b\"", "7.0"] {
            let raw = RawValue::from_string(id.to_owned()).unwrap();
            let answer = String::from_utf8(permission(&raw, None)).unwrap();
            let expected = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"outcome\":{{\"outcome\":\"cancelled\"}}}}}}\n"
            );
            assert_eq!(answer, expected);
        }
    }

    #[test]
    fn prompts_are_known_by_their_ids() {
        assert_eq!(turn_of_prompt_id(prompt_id(7)), Some(7));
        for other in [INITIALIZE_ID, OPEN_SESSION_ID, setting_id(3), 1000, u64::MAX] {
            assert_eq!(turn_of_prompt_id(other), None);
        }
    }
}
