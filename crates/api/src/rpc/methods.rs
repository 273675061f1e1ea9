//! The JSON-RPC methods: the call that each makes, and the format of output in its response.

use abide_terminal::{
    CallId, CallTicket, SessionId, TerminalCall, TerminalError, TerminalErrorCode, TerminalSize,
};
use abide_wire::{strict::StrictJson, terminal as wire};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::translate::from_wire;

/// The format of output in a response. It has no meaning for methods that return no output.
#[derive(Clone, Copy, Default)]
pub(super) struct RpcOutputFormat {
    pub(super) encoding: wire::OutputEncoding,
    /// The stream that `exec.output` reads.
    pub(super) stream: wire::StreamName,
}

/// Parses a request into the call with this id. `None` if there is no such method.
pub(super) fn parse(
    method: &str,
    params: Option<&RawValue>,
    id: CallId,
) -> Result<Option<(TerminalCall, RpcOutputFormat)>, TerminalError> {
    let session = || parse_params(params).map(|params| from_wire::session_id(&params));
    let mut format = RpcOutputFormat::default();
    let call = match method {
        "session.create" => {
            TerminalCall::Create(from_wire::create(parse_params(params)?), CallTicket::new(id))
        }
        "session.info" => TerminalCall::Info(session()?, CallTicket::new(id)),
        "session.list" => TerminalCall::List(CallTicket::new(id)),
        "session.destroy" => {
            let params: wire::DestroySessionParams = parse_params(params)?;
            let session = SessionId::from_text(&params.session_id);
            TerminalCall::Destroy { session, force: params.force, ticket: CallTicket::new(id) }
        }
        "exec.run" => {
            let params: wire::ExecParams = parse_params(params)?;
            format.encoding = params.encoding;
            TerminalCall::Run(from_wire::execute(params), CallTicket::new(id))
        }
        "exec.stream" => {
            let params: wire::ExecParams = parse_params(params)?;
            format.encoding = params.encoding;
            TerminalCall::Stream(from_wire::execute(params), CallTicket::new(id))
        }
        "exec.input" => {
            let params: wire::ExecInputParams = parse_params(params)?;
            let (session, eof) = (SessionId::from_text(&params.session_id), params.eof);
            TerminalCall::Input {
                session,
                bytes: from_wire::input(params)?,
                eof,
                ticket: CallTicket::new(id),
            }
        }
        "exec.cancel" => TerminalCall::Cancel(session()?, CallTicket::new(id)),
        "exec.output" => {
            let params: wire::ExecOutputParams = parse_params(params)?;
            format = RpcOutputFormat { encoding: params.encoding, stream: params.stream };
            let session = SessionId::from_text(&params.session_id);
            TerminalCall::Output(session, from_wire::output_range(&params)?, CallTicket::new(id))
        }
        "session.screen" => TerminalCall::Screen(session()?, CallTicket::new(id)),
        "session.resize" => {
            let params: wire::ResizeSessionParams = parse_params(params)?;
            let size = TerminalSize { rows: params.rows, cols: params.cols };
            TerminalCall::Resize(SessionId::from_text(&params.session_id), size, CallTicket::new(id))
        }
        "system.stats" => TerminalCall::Stats(CallTicket::new(id)),
        _ => return Ok(None),
    };
    Ok(Some((call, format)))
}

fn parse_params<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, TerminalError> {
    serde_json::from_str::<StrictJson<P>>(params.map_or("{}", RawValue::get))
        .map(|params| params.0)
        .map_err(|error| TerminalError::new(TerminalErrorCode::InvalidParams, error.to_string()))
}

#[derive(Deserialize)]
pub(super) struct RawRpcRequest<'a> {
    #[serde(default)]
    pub(super) jsonrpc: std::borrow::Cow<'a, str>,
    /// Absent for a notification. `null` is a valid id, although JSON-RPC discourages it.
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    pub(super) id: Option<&'a RawValue>,
    pub(super) method: String,
    #[serde(borrow)]
    pub(super) params: Option<&'a RawValue>,
}

fn deserialize_present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

#[derive(Deserialize)]
pub(super) struct RequestIdOnly {
    pub(super) id: Option<Box<RawValue>>,
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use serde_json::json;

    use super::*;

    pub(in crate::rpc) const METHODS: [&str; 12] = [
        "session.create",
        "session.info",
        "session.list",
        "session.destroy",
        "exec.run",
        "exec.stream",
        "exec.input",
        "exec.cancel",
        "exec.output",
        "session.screen",
        "session.resize",
        "system.stats",
    ];

    #[test]
    fn every_method_of_the_interface_is_known_and_no_other() {
        let params = |method: &str| match method {
            "session.create" | "session.list" | "system.stats" => json!({}),
            "exec.run" | "exec.stream" => json!({ "session_id": "s-000000", "command": "true" }),
            "exec.output" => json!({ "session_id": "s-000000", "exec_id": "e-1" }),
            "session.resize" => json!({ "session_id": "s-000000", "rows": 1, "cols": 1 }),
            _ => json!({ "session_id": "s-000000" }),
        };
        let parsed = |method: &str| {
            let params = RawValue::from_string(params(method).to_string()).unwrap();
            parse(method, Some(&params), CallId::default()).map(|call| call.is_some())
        };
        for method in METHODS {
            assert_eq!(parsed(method), Ok(true), "{method}");
        }
        for other in ["session.explode", "exec", "", "SESSION.INFO", "system.ping "] {
            assert_eq!(parsed(other), Ok(false), "{other}");
        }
    }

    /// Returns parameters with all fields for each method that has any.
    fn full(method: &str) -> serde_json::Value {
        let exec = json!({
            "session_id": "s-000000", "command": "true", "timeout_ms": 1, "stdin": "", "env": {"A": "b"},
            "max_output_bytes": 1, "encoding": "utf8",
        });
        match method {
            "session.create" => json!({
                "shell": "/bin/sh", "cwd": "/", "env": {"A": "b"}, "name": "n", "pty": {"rows": 1, "cols": 1},
            }),
            "session.destroy" => json!({"session_id": "s-000000", "force": true}),
            "exec.run" | "exec.stream" => exec,
            "exec.input" => json!({"session_id": "s-000000", "data": "", "eof": true}),
            "exec.output" => json!({
                "session_id": "s-000000", "exec_id": "e-1", "stream": "stdout", "offset": 0, "limit": 1,
            }),
            "session.resize" => json!({"session_id": "s-000000", "rows": 1, "cols": 1}),
            _ => json!({"session_id": "s-000000"}),
        }
    }

    #[test]
    fn an_array_is_no_object_in_the_parameters_of_any_method() {
        let raw = |value: &serde_json::Value| RawValue::from_string(value.to_string()).unwrap();
        for method in METHODS.into_iter().filter(|it| !["session.list", "system.stats"].contains(it)) {
            let params = full(method);
            assert!(
                parse(method, Some(&raw(&params)), CallId::default()).is_ok_and(|call| call.is_some()),
                "{method}"
            );
            let fields = params.as_object().unwrap();
            let listed: Vec<_> = fields.values().cloned().collect();
            let whole = parse(method, Some(&raw(&json!(listed))), CallId::default());
            assert!(whole.is_err_and(|error| error.code == TerminalErrorCode::InvalidParams), "{method}");
            for (name, value) in fields.iter().filter(|(_, value)| value.is_object()) {
                let mut changed = params.clone();
                changed[name] = value.as_object().unwrap().values().cloned().collect();
                let refused = parse(method, Some(&raw(&changed)), CallId::default());
                assert!(
                    refused.is_err_and(|error| error.code == TerminalErrorCode::InvalidParams),
                    "{method} {name}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn params_of_any_shape_are_a_call_or_an_error_and_never_a_panic(
            method in 0usize..12, key in "[a-z_]{0,12}", text in ".{0,40}", number in any::<i64>(),
        ) {
            for value in [json!({ &key: text }), json!({ &key: number }), json!([text]), json!(null), json!(number),
                json!({ "session_id": text, "command": text, &key: number })]
            {
                let raw = RawValue::from_string(value.to_string()).unwrap();
                let _ = parse(METHODS[method], Some(&raw), CallId::default());
            }
        }

        #[test]
        fn lines_of_any_bytes_are_a_request_or_an_error_and_never_a_panic(line in ".{0,200}") {
            let _ = serde_json::from_str::<RawRpcRequest<'_>>(&line);
        }
    }
}
