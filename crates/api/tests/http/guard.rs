//! Who may ask, and who may not.

use serde_json::json;

use crate::{
    client::Ask,
    house::{House, TOKEN},
};

/// One of each kind of route, all of which want the token.
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
async fn every_route_but_health_wants_the_token() {
    let house = House::open().await;
    let said = Ask::get("/healthz").of(house.address).await;
    assert_eq!((said.status, said.json()), (200, json!({ "status": "ok" })));
    for path in ROUTES {
        for ask in [
            Ask::get(path),
            Ask::get(path).token("another"),
            Ask::get(path).token(""),
            Ask::get(path).header("authorization", TOKEN),
            Ask::get(path).header("authorization", &format!("Basic {TOKEN}")),
            Ask::get(format!("{path}?token={TOKEN}")),
            Ask::get(path).header("cookie", &format!("abide_session={TOKEN}")),
        ] {
            let said = ask.of(house.address).await;
            assert_eq!(said.refusal(), (401, "UNAUTHORIZED".to_owned()), "{path}");
            assert_eq!(said.header("www-authenticate"), Some("Bearer"));
            assert!(!said.body.contains(TOKEN), "{said:?}");
        }
    }
    assert_eq!(house.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn names_and_pages_of_others_are_refused_even_with_the_token() {
    let house = House::with(|bounds| bounds.allowed_hosts.push("abide.example".to_owned())).await;
    let called = async |host: &str| house.ask(Ask::get("/v1/status").header("host", host)).await;
    assert_eq!(called("evil.example").await.refusal(), (403, "FORBIDDEN_HOST".to_owned()));
    assert_eq!(called("").await.refusal(), (403, "FORBIDDEN_HOST".to_owned()));
    for ours in ["localhost:1", "abide.example", "127.0.0.1"] {
        assert_eq!(called(ours).await.status, 200, "{ours}");
    }
    let page = |origin: String| house.ask(Ask::get("/v1/status").header("origin", &origin));
    assert_eq!(page("http://evil.example".to_owned()).await.refusal(), (403, "FORBIDDEN_ORIGIN".to_owned()));
    assert_eq!(page("null".to_owned()).await.refusal(), (403, "FORBIDDEN_ORIGIN".to_owned()));
    assert_eq!(page(format!("http://{}", house.address)).await.status, 200);
}

#[tokio::test]
async fn a_browser_exchanges_the_token_for_a_cookie_that_is_not_the_token() {
    let house = House::open().await;
    let login = Ask::get("/docs").of(house.address).await;
    assert_eq!((login.status, login.header("content-type")), (401, Some("text/html; charset=utf-8")));
    let opened = house.ask(Ask::method("POST", "/v1/session")).await;
    let cookie = opened.header("set-cookie").unwrap().to_owned();
    assert_eq!(opened.status, 204);
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains(TOKEN));
    let cookie = cookie.split(';').next().unwrap();
    let with = |ask: Ask| ask.header("cookie", cookie).of(house.address);
    assert_eq!(with(Ask::get("/v1/status")).await.status, 200);
    assert_eq!(with(Ask::get("/docs")).await.status, 200);
    assert_eq!(with(Ask::get("/")).await.header("location"), Some("/docs"));
    // Browsers send cookies along unasked, so a change needs a page that says where it comes from.
    let change = || Ask::post("/v1/runs", &json!({ "engine": "any", "prompt": "x" }));
    assert_eq!(with(change()).await.refusal(), (401, "UNAUTHORIZED".to_owned()));
    let origin = format!("http://{}", house.address);
    assert_eq!(with(change().header("origin", &origin)).await.status, 201);
}

/// SECURITY finding 21.
#[tokio::test]
async fn pages_of_other_ports_can_neither_ask_nor_embed() {
    let house = House::open().await;
    for site in ["same-site", "cross-site"] {
        let said = house.ask(Ask::get("/v1/status").header("sec-fetch-site", site)).await;
        assert_eq!(said.refusal(), (403, "FORBIDDEN_ORIGIN".to_owned()), "{site}");
    }
    for site in ["same-origin", "none"] {
        assert_eq!(house.ask(Ask::get("/v1/status").header("sec-fetch-site", site)).await.status, 200);
    }
    let followed = Ask::get("/docs").header("sec-fetch-site", "cross-site");
    let followed = followed.header("sec-fetch-mode", "navigate").header("sec-fetch-dest", "document");
    assert_eq!(followed.of(house.address).await.status, 401, "a link leads to the sign-in page");
    for ask in [Ask::get("/healthz"), Ask::get("/docs"), Ask::get("/v1/status"), Ask::get("/nowhere")] {
        let said = ask.of(house.address).await;
        assert_eq!(said.header("cross-origin-resource-policy"), Some("same-origin"));
        assert_eq!(said.header("cross-origin-opener-policy"), Some("same-origin"));
    }
}

#[tokio::test]
async fn before_everything_found_is_taken_up_nothing_is_taken_and_readyz_says_so() {
    let house = House::starting().await;
    let create = || Ask::post("/v1/runs", &json!({ "engine": "nobody", "prompt": "hello" }));
    assert_eq!(house.get("/healthz").await.status, 200);
    assert_eq!(house.get("/readyz").await.refusal(), (503, "NOT_READY".to_owned()));
    assert_eq!(house.ask(create()).await.refusal(), (503, "NOT_READY".to_owned()));
    let house = house.reconciled().await;
    assert_eq!(house.get("/readyz").await.status, 200);
    assert_ne!(house.ask(create()).await.status, 503);
}
