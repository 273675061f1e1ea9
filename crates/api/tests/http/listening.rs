//! Tests of events: ordered and complete from any position, also beside slow clients.

use serde_json::{Value, json};

use crate::{
    client::TestRequest,
    fixture::{HttpFixture, TOKEN, poll_until},
};

#[tokio::test]
async fn events_come_in_order_as_a_page_and_as_a_stream() {
    let fixture = HttpFixture::open().await;
    let (run, _) = fixture.create_asking_run().await;
    let page = |query: &str| {
        TestRequest::get(format!("/v1/runs/{run}/events{query}")).header("accept", "application/json")
    };
    let all = fixture.send(page("")).await.json();
    let kinds: Vec<_> = all["items"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
    let expected =
        ["run_created", "admitted", "profile_resolved", "attempt_started", "handle_announced", "turn_ended"];
    assert_eq!(kinds, expected.map(Value::from));
    assert_eq!(all["next_cursor"], Value::Null);
    assert!(!all.to_string().contains("s3cret-session"), "an engine's session is not published");
    let ended = &all["items"][5]["data"];
    assert_eq!(
        (ended["outcome"].clone(), ended["question"]["prompt"].clone()),
        (json!("asked"), json!("which?"))
    );
    let first = fixture.send(page("?limit=2")).await.json();
    assert_eq!(first["next_cursor"], "2");
    let rest = fixture.send(page("?cursor=2&limit=100")).await.json();
    assert_eq!(rest["items"][0]["seq"], 3);
    let mut listening = fixture.event_stream(&format!("/v1/runs/{run}/events?after=1")).await;
    assert!(listening.head.contains("content-type: text/event-stream"), "{}", listening.head);
    for expected in all["items"].as_array().unwrap().iter().skip(1) {
        assert_eq!(listening.event().await.as_ref(), Some(expected));
    }
}

#[tokio::test]
async fn a_reader_continues_where_it_stopped_after_a_restart() {
    let fixture = HttpFixture::open().await;
    fixture.create_queued_run("one").await;
    let mut listening = fixture.event_stream("/v1/events").await;
    let first = listening.event().await.unwrap();
    assert_eq!((first["seq"].clone(), first["data"]["prompt"].clone()), (json!(1), json!("one")));
    fixture.create_queued_run("two").await;
    let second = listening.event().await.unwrap();
    let fixture = fixture.reopen().await;
    assert_eq!(listening.event().await, None, "a stream ends when the daemon goes");
    fixture.create_queued_run("three").await;
    let seq = second["seq"].to_string();
    let mut listening = TestRequest::get("/v1/events?after=0")
        .token(TOKEN)
        .header("last-event-id", &seq)
        .stream(fixture.address)
        .await;
    assert_eq!(listening.event().await.unwrap()["data"]["prompt"], "three");
    fixture.create_queued_run("four").await;
    assert_eq!(listening.event().await.unwrap()["data"]["prompt"], "four");
}

/// SECURITY findings 9 and 14: the memory of one request does not depend on the size of events.
#[tokio::test]
async fn pages_are_bounded_in_bytes_and_nothing_is_left_out() {
    let fixture = HttpFixture::open().await;
    let mut listening = fixture.event_stream("/v1/events").await;
    let long = "x".repeat(400_000);
    for number in 0..12 {
        fixture
            .create_queued_run(&if number % 4 == 0 {
                format!("{number}")
            } else {
                format!("{number} {long}")
            })
            .await;
    }
    let first = |text: &Value| text.as_str().unwrap().split(' ').next().unwrap().to_owned();
    let (mut prompts, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let request =
            TestRequest::get(format!("/v1/events?limit=500{cursor}")).header("accept", "application/json");
        let response = fixture.send(request).await;
        assert!(response.body.len() < (1 << 20) + 500_000, "a page has {} bytes", response.body.len());
        let page = response.json();
        prompts.extend(page["items"].as_array().unwrap().iter().map(|event| first(&event["data"]["prompt"])));
        pages += 1;
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let expected: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    assert_eq!((&prompts, pages >= 3), (&expected, true), "{pages} pages");
    for number in &expected {
        let event = listening.event().await.unwrap();
        assert_eq!(&first(&event["data"]["prompt"]), number, "a stream has all of them too");
    }
}

#[tokio::test]
async fn a_stream_of_one_run_has_no_other_events() {
    let fixture = HttpFixture::open().await;
    let (one, other) = (fixture.create_queued_run("one").await, fixture.create_queued_run("other").await);
    let mut listening = fixture.event_stream(&format!("/v1/runs/{one}/events")).await;
    assert_eq!(listening.event().await.unwrap()["type"], "run_created");
    for id in [&other, &one] {
        fixture.send(TestRequest::method("POST", format!("/v1/runs/{id}/cancel"))).await;
    }
    let next = listening.event().await.unwrap();
    assert_eq!(
        (next["run_id"].as_str(), next["type"].as_str()),
        (Some(one.as_str()), Some("cancel_requested"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read_is_disconnected() {
    const RUNS: usize = 400;
    let fixture = HttpFixture::with_config(|bounds| bounds.idle_timeout_sec = 1).await;
    let mut stalled = fixture.event_stream("/v1/events").await;
    let mut lively = fixture.event_stream("/v1/events").await;
    let prompt = "x".repeat(100_000);
    // 40 MB, far more than the socket buffers of a connection.
    let reading = async {
        let mut count = 0;
        while count < RUNS {
            let event = lively.event().await.expect("the lively reader hears everything");
            count += usize::from(event["type"] == "run_created");
        }
    };
    let writing = async {
        for _ in 0..RUNS {
            fixture.create_queued_run(&prompt).await;
        }
    };
    tokio::join!(reading, writing);
    // The stream slot of a client is released when it is disconnected, and only then.
    poll_until("the stalled reader being cut off", async || {
        fixture.get("/v1/status").await.json()["streams"] == json!(1)
    })
    .await;
    let mut event_count = 0;
    while stalled.event().await.is_some() {
        event_count += 1;
    }
    assert!(event_count < RUNS, "{event_count}");
}
