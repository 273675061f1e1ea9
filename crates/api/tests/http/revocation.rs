//! Tests of open connections whose credential is revoked, replaced or expires.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    client::{TestEventReader, TestRequest},
    fixture::{HttpFixture, TOKEN, poll_until},
};

/// Upper bound for the end of a connection. It is below the interval of the periodic check.
const END_TIMEOUT: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug)]
enum EndOfCredential {
    TokenRevoked,
    TokenRotated,
    TokenExpired,
    SignInRevoked,
    SignedOut,
    TokenOfSignInRotated,
}

use EndOfCredential::{
    SignInRevoked, SignedOut, TokenExpired, TokenOfSignInRotated, TokenRevoked, TokenRotated,
};

const ENDS: [EndOfCredential; 6] =
    [TokenRevoked, TokenRotated, TokenExpired, SignInRevoked, SignedOut, TokenOfSignInRotated];

/// A token with one permission, and the sign-in obtained with it.
struct TestCredential {
    token: String,
    sign_in_headers: [(&'static str, String); 3],
}

impl TestCredential {
    async fn new(fixture: &HttpFixture, permission: &str) -> Self {
        let new = json!({ "name": "guest", "permissions": [permission], "expires_in_sec": 1 });
        let created = fixture.post("/v1/tokens", new).await;
        assert_eq!(created.status, 201, "{created:?}");
        let token = created.json()["secret"].as_str().expect("it has a secret").to_owned();
        let opened = TestRequest::method("POST", "/v1/session").token(&token).send(fixture.address).await;
        let cookie = opened.header("set-cookie").expect("there is a cookie");
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        let key = opened.header("abide-session-key").expect("there is a key").to_owned();
        let origin = format!("http://{}", fixture.address);
        Self { token, sign_in_headers: [("cookie", cookie), ("abide-session-key", key), ("origin", origin)] }
    }

    /// Adds the credential whose end is tested.
    fn sign(&self, request: TestRequest, end: EndOfCredential) -> TestRequest {
        match end {
            TokenRevoked | TokenRotated | TokenExpired => request.token(&self.token),
            SignInRevoked | SignedOut | TokenOfSignInRotated => self
                .sign_in_headers
                .iter()
                .fold(request, |request, (name, value)| request.header(name, value)),
        }
    }

    async fn end(&self, fixture: &HttpFixture, end: EndOfCredential) {
        let response = match end {
            TokenRevoked => fixture.send(TestRequest::method("DELETE", "/v1/tokens/guest")).await,
            TokenRotated | TokenOfSignInRotated => {
                fixture.send(TestRequest::method("POST", "/v1/tokens/guest/rotate")).await
            }
            TokenExpired => {
                fixture.advance_clock(2);
                return;
            }
            SignInRevoked => {
                let all = fixture.get("/v1/sign-ins").await.json();
                let id = all["items"][0]["sign_in_id"].as_str().expect("there is a sign-in").to_owned();
                fixture.send(TestRequest::method("DELETE", format!("/v1/sign-ins/{id}"))).await
            }
            SignedOut => {
                let request = self.sign(TestRequest::method("DELETE", "/v1/session"), end);
                request.send(fixture.address).await
            }
        };
        assert!(response.status < 300, "{response:?}");
    }
}

/// Returns the rest of a stream, which must end in time.
async fn rest(mut listening: TestEventReader) -> String {
    let read = async {
        let mut text = String::new();
        while let Some(line) = listening.line().await {
            text += &line;
        }
        text
    };
    timeout(END_TIMEOUT, read).await.expect("the stream ends")
}

#[tokio::test]
async fn an_event_stream_ends_with_its_credential() {
    for end in ENDS {
        let fixture = HttpFixture::open().await;
        fixture.create_queued_run("before").await;
        let guest = TestCredential::new(&fixture, "read").await;
        let mut listening = guest.sign(TestRequest::get("/v1/events"), end).stream(fixture.address).await;
        let mut owner = fixture.event_stream("/v1/events").await;
        let first = listening.event().await.unwrap();
        assert_eq!(first["data"]["prompt"], "before", "{end:?}");
        guest.end(&fixture, end).await;
        fixture.create_queued_run("after").await;
        let rest = rest(listening).await;
        assert!(!rest.contains("after"), "{end:?}: {rest}");
        // The stream of another credential continues.
        owner.event().await.unwrap();
        assert_eq!(owner.event().await.unwrap()["data"]["prompt"], "after", "{end:?}");
    }
}

#[tokio::test]
async fn a_websocket_is_closed_with_its_credential_and_executes_no_further_request() {
    for end in ENDS {
        let fixture = HttpFixture::open().await;
        let guest = TestCredential::new(&fixture, "admin").await;
        let request = TestRequest::get("/v1/rpc")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let mut socket = guest.sign(request, end).upgrade(fixture.address).await;
        assert_eq!(ping(&mut socket).await["result"]["pong"], true, "{end:?}");
        guest.end(&fixture, end).await;
        // The client may find the connection closed already.
        socket.write_all(&masked_text(PING)).await.ok();
        let mut rest = Vec::new();
        timeout(END_TIMEOUT, socket.read_to_end(&mut rest)).await.expect("the connection ends").ok();
        assert_eq!(rest.first(), Some(&0x88), "{end:?}: a close frame, not {rest:?}");
        assert_eq!(&rest[2..4], 1008_u16.to_be_bytes(), "{end:?}");
        let reason = String::from_utf8_lossy(&rest[4..]).into_owned();
        assert!(reason.contains("revoked") || reason.contains("expired"), "{end:?}: {reason}");
        assert_eq!(rest.len(), 2 + usize::from(rest[1]), "{end:?}: nothing follows");
    }
}

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"system.ping"}"#;

/// A text frame with a mask of zeros. The text has at most 125 bytes.
fn masked_text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("it is short");
    [&[0x81, 0x80 | length, 0, 0, 0, 0], text.as_bytes()].concat()
}

async fn ping(socket: &mut TcpStream) -> Value {
    socket.write_all(&masked_text(PING)).await.expect("it is taken");
    let mut head = [0; 2];
    socket.read_exact(&mut head).await.expect("a frame comes");
    let mut payload = vec![0; usize::from(head[1])];
    socket.read_exact(&mut payload).await.expect("it is whole");
    serde_json::from_slice(&payload).expect("it is JSON")
}

#[tokio::test]
async fn a_request_whose_body_arrives_after_the_end_of_its_credential_is_not_executed() {
    let fixture = HttpFixture::open().await;
    let new = json!({ "name": "guest", "permissions": ["admin"] });
    let created = fixture.post("/v1/tokens", new).await.json();
    let body = json!({ "name": "backdoor", "permissions": ["admin"] });
    let request = TestRequest::post("/v1/tokens", &body).token(created["secret"].as_str().unwrap());
    let mut sending = request.without_last_byte(fixture.address).await;
    poll_until("the authentication", async || {
        let tokens = fixture.get("/v1/tokens").await.json();
        tokens["items"][0]["name"] == "guest" && tokens["items"][0]["last_used_at"].is_string()
    })
    .await;
    let revoked = fixture.send(TestRequest::method("DELETE", "/v1/tokens/guest")).await;
    assert_eq!(revoked.status, 204, "{revoked:?}");
    sending.write_all(b"}").await.ok();
    let mut response = String::new();
    timeout(END_TIMEOUT, sending.read_to_string(&mut response)).await.expect("an answer comes").ok();
    assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
    let tokens = fixture.get("/v1/tokens").await.json();
    assert!(!tokens.to_string().contains("backdoor"), "{tokens}");
}

#[tokio::test]
async fn the_response_to_a_request_that_ends_its_own_credential_is_sent() {
    let fixture = HttpFixture::open().await;
    let rotated = fixture.send(TestRequest::method("POST", "/v1/tokens/owner/rotate")).await;
    assert_eq!(rotated.status, 200, "{rotated:?}");
    let secret = rotated.json()["secret"].as_str().unwrap().to_owned();
    assert_eq!(fixture.get("/v1/status").await.status, 401, "{TOKEN} is replaced");
    let new = json!({ "name": "self", "permissions": ["admin"] });
    let created = TestRequest::post("/v1/tokens", &new).token(&secret).send(fixture.address).await.json();
    let own = created["secret"].as_str().unwrap();
    let revoked = TestRequest::method("DELETE", "/v1/tokens/self").token(own).send(fixture.address).await;
    assert_eq!(revoked.status, 204, "{revoked:?}");
}
