//! WebSocket connections (RFC 6455) with bounded memory.
//!
//! `tungstenite` encodes the handshake and the frame headers. Its connection type is not used, because its buffers keep
//! the size of the largest message until the connection ends, and each message that is sent is copied twice. Here a
//! connection buffers [`receive::BUFFER_BYTES`] of input. A sent message is written from the memory that it was
//! serialised into. Extensions such as compression are not offered.

mod receive;
mod send;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::ReadHalf;
pub(super) use tungstenite::protocol::frame::coding::CloseCode;

pub(super) use receive::{ClientMessage, MessageLimits, ReceivedMessages};
pub(super) use send::MessageWriter;

/// The connection after the handshake.
pub(super) type WebSocketStream = TokioIo<Upgraded>;
type WebSocketInput = ReadHalf<WebSocketStream>;

/// An accepted handshake.
pub(super) struct WebSocketUpgrade {
    pub(super) response: Response,
    /// Completes when the response is sent.
    pub(super) connection: OnUpgrade,
}

/// Accepts the handshake, and selects `protocol` if the client offers it. Returns None if the request is no handshake.
pub(super) fn upgrade(mut request: Request, protocol: &'static str) -> Option<WebSocketUpgrade> {
    let headers = request.headers();
    let is_handshake = has_token(headers, header::CONNECTION, "upgrade")
        && has_token(headers, header::UPGRADE, "websocket")
        && headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| is_handshake)?;
    let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
    let accept = HeaderValue::from_str(&accept).ok()?;
    let is_offered = has_token(headers, header::SEC_WEBSOCKET_PROTOCOL, protocol);
    let connection = request.extensions_mut().remove::<OnUpgrade>()?;
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if is_offered {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Some(WebSocketUpgrade { response, connection })
}

/// Whether a header that is a list contains this token.
fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_list_in_a_header_is_searched_for_a_whole_token() {
        let mut headers = HeaderMap::new();
        headers.append(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("abide.key.x"));
        headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("abide.rpc"));
        assert!(has_token(&headers, header::CONNECTION, "upgrade"));
        assert!(has_token(&headers, header::SEC_WEBSOCKET_PROTOCOL, "abide.rpc"));
        assert!(!has_token(&headers, header::SEC_WEBSOCKET_PROTOCOL, "abide.key"));
    }

    #[test]
    fn a_plain_request_is_no_handshake() {
        let request = Request::builder().uri("/v1/rpc").body(Body::empty()).unwrap();
        assert!(upgrade(request, "abide.rpc").is_none());
    }
}
