//! The methods by name: which call each is, and what its answer will look like.

use abide_terminal::{Call, Code, SessionId, Size, TerminalError};
use abide_wire::terminal as wire;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::translate;

/// What the runtime's reply is turned into.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    Created,
    Plain,
    Run(wire::Encoding),
    Stream(wire::Encoding),
    Output(wire::StreamName, wire::Encoding),
}
pub(super) fn parse(method: &str, params: Option<&RawValue>) -> Result<Option<(Call, Shape)>, TerminalError> {
    let session = |params: wire::SessionParams| SessionId::from_text(&params.session_id);
    Ok(Some(match method {
        "session.create" => (translate::create(from(params)?), Shape::Created),
        "session.info" => (Call::Info(session(from(params)?)), Shape::Plain),
        "session.list" => (Call::List, Shape::Plain),
        "session.destroy" => {
            let params: wire::DestroyParams = from(params)?;
            let session = SessionId::from_text(&params.session_id);
            (Call::Destroy { session, force: params.force }, Shape::Plain)
        }
        "exec.run" => {
            let params: wire::ExecParams = from(params)?;
            let shape = Shape::Run(params.encoding);
            (Call::Run(translate::execute(params)), shape)
        }
        "exec.stream" => {
            let params: wire::ExecParams = from(params)?;
            let shape = Shape::Stream(params.encoding);
            (Call::Stream(translate::execute(params)), shape)
        }
        "exec.input" => (translate::input(from(params)?)?, Shape::Plain),
        "exec.cancel" => (Call::Cancel(session(from(params)?)), Shape::Plain),
        "exec.output" => {
            let params: wire::OutputParams = from(params)?;
            (translate::output(&params)?, Shape::Output(params.stream, params.encoding))
        }
        "session.screen" => (Call::Screen(session(from(params)?)), Shape::Plain),
        "session.resize" => {
            let params: wire::ResizeParams = from(params)?;
            let size = Size { rows: params.rows, cols: params.cols };
            (Call::Resize(SessionId::from_text(&params.session_id), size), Shape::Plain)
        }
        "system.stats" => (Call::Stats, Shape::Plain),
        _ => return Ok(None),
    }))
}

fn from<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, TerminalError> {
    serde_json::from_str(params.map_or("{}", RawValue::get))
        .map_err(|error| TerminalError::new(Code::InvalidParams, error.to_string()))
}

#[derive(Deserialize)]
pub(super) struct Request<'a> {
    #[serde(default)]
    pub(super) jsonrpc: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    pub(super) method: String,
    #[serde(borrow)]
    pub(super) params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct OnlyId {
    pub(super) id: Option<Box<RawValue>>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use serde_json::json;

    use super::*;

    const METHODS: [&str; 12] = [
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
        let params = RawValue::from_string(
            json!({
                "session_id": "s-000000", "command": "true", "exec_id": "e-1", "rows": 1, "cols": 1,
            })
            .to_string(),
        )
        .unwrap();
        for method in METHODS {
            let known = parse(method, Some(&params));
            assert!(known.is_err() || known.unwrap().is_some(), "{method}");
        }
        assert!(parse("session.explode", Some(&params)).unwrap().is_none());
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
                let _ = parse(METHODS[method], Some(&raw));
            }
        }

        #[test]
        fn lines_of_any_bytes_are_a_request_or_an_error_and_never_a_panic(line in ".{0,200}") {
            let _ = serde_json::from_str::<Request<'_>>(&line);
        }
    }
}
