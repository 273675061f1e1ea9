//! Tests of authentication and origin checks.

use abide_domain::interaction::InteractionKind;
use serde_json::json;

use crate::{
    client::TestRequest,
    fixture::{HttpFixture, TOKEN},
};

/// One route of each kind; all require the token.
const ROUTES: [&str; 11] = [
    "/readyz",
    "/openapi.json",
    "/v1/runs",
    "/v1/runs/x",
    "/v1/interactions",
    "/v1/events",
    "/v1/engines",
    "/v1/status",
    "/v1/rpc",
    "/metrics",
    "/nowhere",
];

#[tokio::test]
async fn every_route_except_health_requires_the_token() {
    let fixture = HttpFixture::open().await;
    let response = TestRequest::get("/healthz").send(fixture.address).await;
    assert_eq!((response.status, response.json()), (200, json!({ "status": "ok" })));
    for path in ROUTES {
        for request in [
            TestRequest::get(path),
            TestRequest::get(path).token("another"),
            TestRequest::get(path).token(""),
            TestRequest::get(path).header("authorization", TOKEN),
            TestRequest::get(path).header("authorization", &format!("Basic {TOKEN}")),
            TestRequest::get(format!("{path}?token={TOKEN}")),
            TestRequest::get(path)
                .header("cookie", &format!("abide_session={TOKEN}"))
                .header("abide-session-key", TOKEN),
        ] {
            let response = request.send(fixture.address).await;
            assert_eq!(response.problem(), (401, "UNAUTHORIZED".to_owned()), "{path}");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            assert!(!response.body.contains(TOKEN), "{response:?}");
        }
    }
    assert_eq!(fixture.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_even_with_the_token() {
    let fixture =
        HttpFixture::with_config(|bounds| bounds.allowed_hosts.push("abide.example".to_owned())).await;
    let called = async |host: &str| fixture.send(TestRequest::get("/v1/status").header("host", host)).await;
    assert_eq!(called("evil.example").await.problem(), (403, "FORBIDDEN_HOST".to_owned()));
    assert_eq!(called("").await.problem(), (403, "FORBIDDEN_HOST".to_owned()));
    for ours in ["localhost:1", "abide.example", "127.0.0.1"] {
        assert_eq!(called(ours).await.status, 200, "{ours}");
    }
    let page = |origin: String| fixture.send(TestRequest::get("/v1/status").header("origin", &origin));
    assert_eq!(page("http://evil.example".to_owned()).await.problem(), (403, "FORBIDDEN_ORIGIN".to_owned()));
    assert_eq!(page("null".to_owned()).await.problem(), (403, "FORBIDDEN_ORIGIN".to_owned()));
    assert_eq!(page(format!("http://{}", fixture.address)).await.status, 200);
}

/// A browser that exchanged a token: its cookie and its page key.
struct TestBrowser {
    cookie: String,
    key: String,
}

impl TestBrowser {
    async fn sign_in(fixture: &HttpFixture, token: &str) -> Self {
        let opened = TestRequest::method("POST", "/v1/session").token(token).send(fixture.address).await;
        assert_eq!(opened.status, 204, "{opened:?}");
        let set = opened.header("set-cookie").expect("a cookie is set");
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
        assert!(!set.contains(token) && !set.contains("Secure"), "{set}");
        let cookie = set.split(';').next().unwrap_or_default().to_owned();
        Self { cookie, key: opened.header("abide-session-key").expect("a key is given").to_owned() }
    }

    /// Sends a request as the page would.
    async fn send(&self, fixture: &HttpFixture, request: TestRequest) -> crate::client::TestResponse {
        let origin = format!("http://{}", fixture.address);
        let request = request.header("cookie", &self.cookie).header("origin", &origin);
        request.header("abide-session-key", &self.key).send(fixture.address).await
    }
}

fn new_run() -> TestRequest {
    TestRequest::post("/v1/runs", &json!({ "engine": "any", "prompt": "x" }))
}

/// SECURITY finding 7.
#[tokio::test]
async fn a_browsers_cookie_counts_only_with_the_key_that_its_page_keeps() {
    let fixture = HttpFixture::open().await;
    let login = TestRequest::get("/docs").send(fixture.address).await;
    assert_eq!((login.status, login.header("content-type")), (401, Some("text/html; charset=utf-8")));
    let browser = TestBrowser::sign_in(&fixture, TOKEN).await;
    assert_eq!(browser.send(&fixture, TestRequest::get("/v1/status")).await.status, 200);
    assert_eq!(browser.send(&fixture, new_run()).await.status, 201);
    // A server on another port of this host receives the cookie. It can forge any other header.
    let origin = format!("http://{}", fixture.address);
    for key in [None, Some(""), Some(TOKEN), Some(browser.cookie.as_str())] {
        for request in [
            TestRequest::get("/v1/status"),
            new_run(),
            TestRequest::get("/v1/rpc"),
            TestRequest::get("/openapi.json"),
        ] {
            let stolen = request.header("cookie", &browser.cookie).header("origin", &origin);
            let stolen =
                key.into_iter().fold(stolen, |request, key| request.header("abide-session-key", key));
            assert_eq!(
                stolen.send(fixture.address).await.problem(),
                (401, "UNAUTHORIZED".to_owned()),
                "{key:?}"
            );
        }
    }
    // A browser that navigates to a page sends only the cookie; the page contains no secret.
    let page = |path: &str| TestRequest::get(path).header("cookie", &browser.cookie).send(fixture.address);
    assert_eq!(page("/docs").await.status, 200);
    assert_eq!(page("/").await.header("location"), Some("/docs"));
    assert_eq!(page("/docs?sign-in").await.status, 401, "a page that lost its key can sign in again");
    // A change requires an `Origin` header.
    let without_origin =
        new_run().header("cookie", &browser.cookie).header("abide-session-key", &browser.key);
    assert_eq!(without_origin.send(fixture.address).await.problem(), (401, "UNAUTHORIZED".to_owned()));
}

/// SECURITY finding 7.
#[tokio::test]
async fn a_sign_in_ends_with_logout_with_its_token_and_when_it_is_revoked() {
    let fixture = HttpFixture::open().await;
    let status = || TestRequest::get("/v1/status");
    let browser = TestBrowser::sign_in(&fixture, TOKEN).await;
    let again = browser.send(&fixture, TestRequest::method("POST", "/v1/session")).await;
    assert_eq!(again.problem(), (403, "PERMISSION_DENIED".to_owned()), "a sign-in makes no other one");
    let other = TestBrowser::sign_in(&fixture, TOKEN).await;
    assert_ne!(browser.cookie, other.cookie, "every browser has its own");
    assert_eq!(browser.send(&fixture, TestRequest::method("DELETE", "/v1/session")).await.status, 204);
    assert_eq!(browser.send(&fixture, status()).await.status, 401);
    assert_eq!(other.send(&fixture, status()).await.status, 200);
    let listed = fixture.get("/v1/sign-ins").await.json();
    let id = listed["items"][0]["sign_in_id"].as_str().unwrap().to_owned();
    assert_eq!(
        (listed["items"].as_array().unwrap().len(), &listed["items"][0]["token"]),
        (1, &json!("owner"))
    );
    assert_eq!(fixture.send(TestRequest::method("DELETE", format!("/v1/sign-ins/{id}"))).await.status, 204);
    assert_eq!(other.send(&fixture, status()).await.status, 401);
    let behind_proxy = TestRequest::method("POST", "/v1/session").header("x-forwarded-proto", "https");
    let secure = fixture.send(behind_proxy).await;
    assert!(secure.header("set-cookie").unwrap().contains("; Secure"), "{secure:?}");
}

async fn token(fixture: &HttpFixture, name: &str, permissions: &[&str]) -> String {
    let new = json!({ "name": name, "permissions": permissions });
    let response = fixture.post("/v1/tokens", new).await;
    assert_eq!(response.status, 201, "{response:?}");
    response.json()["secret"].as_str().expect("it has a secret").to_owned()
}

#[tokio::test]
async fn a_token_may_do_what_its_permissions_say_and_the_refusal_names_the_missing_one() {
    let fixture = HttpFixture::open().await;
    let (run, _) = fixture.create_asking_run().await;
    let rpc =
        || TestRequest::post("/v1/rpc", &json!({ "jsonrpc": "2.0", "id": 1, "method": "session.list" }));
    type AllowedPermissions = &'static [&'static str];
    let requests: [(&dyn Fn() -> TestRequest, AllowedPermissions); 8] = [
        (&|| TestRequest::get("/v1/status"), &["read", "admin"]),
        (&|| TestRequest::get("/v1/events").header("accept", "application/json"), &["read", "admin"]),
        (&new_run, &["run", "admin"]),
        (
            &|| TestRequest::post(format!("/v1/runs/{run}/messages"), &json!({ "text": "x" })),
            &["run", "admin"],
        ),
        (&rpc, &["admin"]),
        (&|| TestRequest::get("/v1/tokens"), &["admin"]),
        (&|| TestRequest::get("/v1/sign-ins"), &["admin"]),
        (&|| TestRequest::get("/readyz"), &["read", "answer", "approve", "run", "admin"]),
    ];
    for permission in ["read", "answer", "approve", "run", "admin"] {
        let secret = token(&fixture, permission, &[permission]).await;
        let browser = TestBrowser::sign_in(&fixture, &secret).await;
        for (number, (request, allowed)) in requests.iter().enumerate() {
            let response = request().token(&secret).send(fixture.address).await;
            let signed_in = browser.send(&fixture, request()).await;
            assert_eq!(
                response.status, signed_in.status,
                "a sign-in permits what its token permits: {number}"
            );
            if allowed.contains(&permission) {
                assert!(response.status < 300, "{permission} {number}: {response:?}");
            } else {
                assert_eq!(
                    response.problem(),
                    (403, "PERMISSION_DENIED".to_owned()),
                    "{permission} {number}"
                );
                let detail = response.json()["detail"].to_string();
                assert!(detail.contains(allowed[0]) && detail.contains(permission), "{detail}");
            }
        }
    }
    let stop = |secret: &str| TestRequest::post("/v1/stop", &json!({ "keep": true })).token(secret);
    let reader = token(&fixture, "reader", &["read", "answer", "approve", "run"]).await;
    assert_eq!(stop(&reader).send(fixture.address).await.problem(), (403, "PERMISSION_DENIED".to_owned()));
}

#[tokio::test]
async fn a_question_is_answered_with_answer_and_an_approval_with_approve() {
    let fixture = HttpFixture::open().await;
    let answers = token(&fixture, "answers", &["answer"]).await;
    let approves = token(&fixture, "approves", &["approve"]).await;
    for (kind, right, wrong) in
        [(InteractionKind::ChooseOne, &answers, &approves), (InteractionKind::RiskAck, &approves, &answers)]
    {
        let (_, question) = fixture.create_run_asking_kind(kind).await;
        let reply = |secret: &str| {
            TestRequest::post(format!("/v1/interactions/{question}/reply"), &json!({ "text": "yes" }))
                .token(secret)
        };
        let refused = reply(wrong).send(fixture.address).await;
        assert_eq!(refused.problem(), (403, "PERMISSION_DENIED".to_owned()));
        assert_eq!(reply(right).send(fixture.address).await.status, 200);
    }
}

#[tokio::test]
async fn only_admin_may_start_a_run_with_less_isolation_than_is_configured() {
    let fixture = HttpFixture::open().await;
    let run_only = token(&fixture, "bot", &["run"]).await;
    let admin = token(&fixture, "boss", &["admin"]).await;
    let browser = TestBrowser::sign_in(&fixture, &run_only).await;
    // The configured isolation is `auto`.
    for (isolation, is_weaker) in [
        (None, false),
        (Some("auto"), false),
        (Some("namespace"), false),
        (Some("landlock"), true),
        (Some("off"), true),
    ] {
        let options = isolation.map_or(json!({}), |isolation| json!({ "isolation": isolation }));
        let new =
            || TestRequest::post("/v1/runs", &json!({ "engine": "any", "prompt": "x", "options": options }));
        for secret in [TOKEN, &admin] {
            assert_eq!(new().token(secret).send(fixture.address).await.status, 201, "{isolation:?}");
        }
        let response = new().token(&run_only).send(fixture.address).await;
        let signed_in = browser.send(&fixture, new()).await;
        if is_weaker {
            for response in [response, signed_in] {
                assert_eq!(response.problem(), (403, "PERMISSION_DENIED".to_owned()), "{isolation:?}");
                let detail = response.json()["detail"].as_str().unwrap().to_owned();
                assert!(
                    detail.contains("options.isolation") && detail.contains("permission admin"),
                    "{detail}"
                );
            }
        } else {
            assert_eq!((response.status, signed_in.status), (201, 201), "{isolation:?}");
        }
    }
}

#[tokio::test]
async fn tokens_are_listed_without_secrets_rotated_and_revoked() {
    let fixture = HttpFixture::open().await;
    let first = token(&fixture, "ci", &["run", "read"]).await;
    let again = fixture.post("/v1/tokens", json!({ "name": "ci", "permissions": ["read"] })).await;
    assert_eq!(again.problem(), (409, "TOKEN_EXISTS".to_owned()));
    for bad in [
        json!({ "name": "a b", "permissions": ["read"] }),
        json!({ "name": "x", "permissions": [] }),
        json!({ "name": "x", "permissions": ["write"] }),
        json!({ "name": "x", "permissions": ["read"], "expires_in_sec": 0 }),
    ] {
        assert_eq!(fixture.post("/v1/tokens", bad.clone()).await.status, 400, "{bad}");
    }
    let listed = fixture.get("/v1/tokens").await;
    assert!(!listed.body.contains(&first) && !listed.body.contains(TOKEN), "{listed:?}");
    let items = listed.json()["items"].clone();
    assert_eq!((&items[0]["name"], &items[0]["permissions"]), (&json!("ci"), &json!(["read", "run"])));
    assert_eq!((&items[1]["name"], &items[1]["permissions"]), (&json!("owner"), &json!(["admin"])));
    let page = fixture.get("/v1/tokens?limit=1").await.json();
    assert_eq!(page["next_cursor"], "ci");
    assert_eq!(fixture.get("/v1/tokens?limit=1&cursor=ci").await.json()["items"][0]["name"], "owner");
    let rotated = fixture.post("/v1/tokens/ci/rotate", json!({})).await.json()["secret"].clone();
    let status = |secret: &str| TestRequest::get("/v1/status").token(secret).send(fixture.address);
    assert_eq!(status(&first).await.status, 401);
    assert_eq!(status(rotated.as_str().unwrap()).await.status, 200);
    assert_eq!(fixture.send(TestRequest::method("DELETE", "/v1/tokens/ci")).await.status, 204);
    assert_eq!(status(rotated.as_str().unwrap()).await.status, 401);
    let response = fixture.send(TestRequest::method("DELETE", "/v1/tokens/ci")).await;
    assert_eq!(response.problem(), (404, "TOKEN_NOT_FOUND".to_owned()));
    let owner = fixture.send(TestRequest::method("DELETE", "/v1/tokens/owner")).await;
    assert_eq!(owner.problem(), (409, "OWNER_TOKEN".to_owned()));
    let owner = fixture.post("/v1/tokens/owner/rotate", json!({})).await.json()["secret"].clone();
    assert_eq!(fixture.get("/v1/status").await.status, 401);
    assert_eq!(status(owner.as_str().unwrap()).await.status, 200);
}

/// SECURITY finding 21.
#[tokio::test]
async fn pages_of_other_ports_can_neither_ask_nor_embed() {
    let fixture = HttpFixture::open().await;
    for site in ["same-site", "cross-site"] {
        let response = fixture.send(TestRequest::get("/v1/status").header("sec-fetch-site", site)).await;
        assert_eq!(response.problem(), (403, "FORBIDDEN_ORIGIN".to_owned()), "{site}");
    }
    for site in ["same-origin", "none"] {
        assert_eq!(
            fixture.send(TestRequest::get("/v1/status").header("sec-fetch-site", site)).await.status,
            200
        );
    }
    let followed = TestRequest::get("/docs").header("sec-fetch-site", "cross-site");
    let followed = followed.header("sec-fetch-mode", "navigate").header("sec-fetch-dest", "document");
    assert_eq!(followed.send(fixture.address).await.status, 401, "a link leads to the sign-in page");
    for request in [
        TestRequest::get("/healthz"),
        TestRequest::get("/docs"),
        TestRequest::get("/v1/status"),
        TestRequest::get("/nowhere"),
    ] {
        let response = request.send(fixture.address).await;
        assert_eq!(response.header("cross-origin-resource-policy"), Some("same-origin"));
        assert_eq!(response.header("cross-origin-opener-policy"), Some("same-origin"));
    }
}

#[tokio::test]
async fn changes_are_refused_until_recovery_is_complete() {
    let fixture = HttpFixture::starting().await;
    let create = || TestRequest::post("/v1/runs", &json!({ "engine": "unknown", "prompt": "hello" }));
    assert_eq!(fixture.get("/healthz").await.status, 200);
    assert_eq!(fixture.get("/readyz").await.problem(), (503, "NOT_READY".to_owned()));
    assert_eq!(fixture.send(create()).await.problem(), (503, "NOT_READY".to_owned()));
    let fixture = fixture.reconciled().await;
    assert_eq!(fixture.get("/readyz").await.status, 200);
    assert_ne!(fixture.send(create()).await.status, 503);
}
