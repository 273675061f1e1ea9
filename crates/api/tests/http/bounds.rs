//! Tests of limits: excess requests are rejected while other clients are served.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use abide_domain::interaction::InteractionKind;
use abide_ports::space::DiskSpace;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    time::{Instant, timeout},
};

use crate::{
    client::TestRequest,
    fixture::{HttpFixture, poll_until},
};

#[tokio::test]
async fn a_client_over_its_rate_is_limited() {
    let fixture = HttpFixture::with_config(|bounds| bounds.requests_per_second = 5).await;
    let mut refused = 0;
    for _ in 0..40 {
        let response = TestRequest::get("/healthz").send(fixture.address).await;
        if response.status != 200 {
            assert_eq!(response.problem(), (429, "RATE_LIMITED".to_owned()));
            assert_eq!(response.header("retry-after"), Some("1"));
            refused += 1;
        }
    }
    assert!(refused > 0);
}

#[tokio::test]
async fn a_connection_over_the_limit_is_refused() {
    let fixture = HttpFixture::with_config(|bounds| bounds.max_connections = 2).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(fixture.event_stream("/v1/events").await);
    }
    let answered = async || fixture.get("/v1/status").await;
    assert_eq!(answered().await.problem(), (503, "TOO_MANY_CONNECTIONS".to_owned()));
    drop(held);
    poll_until("room for others", async || answered().await.status == 200).await;
}

/// SECURITY finding 13.
#[tokio::test]
async fn refused_requests_do_not_use_up_the_rate_of_clients_with_a_token() {
    let fixture = HttpFixture::with_config(|bounds| bounds.requests_per_second = 50).await;
    let mut refusals = std::collections::BTreeSet::new();
    let hostile = |number: u32| match number % 4 {
        0 => TestRequest::get("/v1/status").header("host", "evil.example"),
        1 => TestRequest::get("/v1/status").header("origin", "http://evil.example"),
        2 => TestRequest::get("/v1/status").token("wrong"),
        _ => TestRequest::get("/v1/status").header("sec-fetch-site", "cross-site"),
    };
    for number in 0..4_000 {
        refusals.insert(hostile(number).send(fixture.address).await.problem().0);
        if number % 100 == 0 {
            assert_eq!(fixture.get("/v1/status").await.status, 200, "after {number}");
        }
    }
    assert!(refusals.contains(&429), "refused requests have a bucket of their own: {refusals:?}");
    assert_eq!(TestRequest::get("/healthz").send(fixture.address).await.status, 200, "health has one too");
}

/// SECURITY finding 13.
#[tokio::test]
async fn silent_connections_do_not_keep_clients_with_a_token_out() {
    let fixture = HttpFixture::open().await;
    let working = fixture.event_stream("/v1/events").await;
    let mut silent = Vec::new();
    for number in 0..1_030 {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        stream.write_all(b"G").await.unwrap();
        silent.push(stream);
        if number % 100 == 0 {
            assert_eq!(fixture.get("/v1/status").await.status, 200, "beside {number}");
        }
    }
    assert_eq!(fixture.get("/v1/status").await.status, 200);
    assert_eq!(TestRequest::get("/healthz").send(fixture.address).await.status, 200);
    // The oldest of them was evicted: its connection ends.
    let mut answer = Vec::new();
    let ended = timeout(Duration::from_secs(60), silent[0].read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "a silent connection is still open");
    drop(working);
}

#[tokio::test]
async fn a_connection_without_a_token_carries_one_request() {
    let fixture = HttpFixture::open().await;
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", fixture.address);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let ended = timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection stays open");
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_stream_over_the_limit_is_refused() {
    let fixture = HttpFixture::with_config(|bounds| bounds.max_streams = 1).await;
    let listening = fixture.event_stream("/v1/events").await;
    assert_eq!(fixture.get("/v1/events").await.problem(), (503, "TOO_MANY_CONNECTIONS".to_owned()));
    drop(listening);
    let page = || TestRequest::get("/v1/events").header("accept", "application/json");
    assert_eq!(fixture.send(page()).await.status, 200, "a page is no stream");
}

/// Follows the cursors of a list. Returns the size in bytes and the items of each page.
async fn pages(fixture: &HttpFixture, path: &str) -> Vec<(usize, Vec<serde_json::Value>)> {
    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let response = fixture.get(&format!("{path}?limit=500{cursor}")).await;
        assert_eq!(response.status, 200, "{response:?}");
        let page = response.json();
        let items = page["items"].as_array().cloned().expect("a page has items");
        pages.push((page.to_string().len(), items));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return pages,
        }
    }
}

/// Issue 14, limits: lists are limited in bytes like pages of events, and no item is lost.
#[tokio::test]
async fn pages_of_lists_are_bounded_in_bytes_and_cursors_lead_to_the_rest() {
    let fixture = HttpFixture::open().await;
    let (mut question_ids, mut last) = (Vec::new(), None);
    for _ in 0..40 {
        let (run, question) = fixture
            .create_run_asking_text(InteractionKind::OpenText, &"?".repeat(60_000), &"s".repeat(50_000))
            .await;
        question_ids.push(question.to_string());
        last = Some(run);
    }
    for _ in 0..6 {
        fixture.create_queued_run(&"p".repeat(400_000)).await;
    }
    let most = (1 << 20) + 500_000;
    let inbox = pages(&fixture, "/v1/interactions").await;
    assert!(inbox.len() >= 3 && inbox.iter().all(|(bytes, _)| *bytes < most), "{} pages", inbox.len());
    let shown: Vec<String> = inbox
        .iter()
        .flat_map(|(_, items)| items)
        .map(|item| item["interaction_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(shown, question_ids, "whole, once and in order");
    let runs = pages(&fixture, "/v1/runs").await;
    assert!(runs.len() >= 2, "queued runs hold their prompts");
    assert_eq!(runs.iter().map(|(_, items)| items.len()).sum::<usize>(), 46);
    // A page has at least one item, however large it is.
    let (large, _) =
        fixture.create_run_asking_text(InteractionKind::OpenText, "?", &"s".repeat(3 << 20)).await;
    for (run, least) in [(large, 3 << 20), (last.unwrap(), 50_000)] {
        let turns = pages(&fixture, &format!("/v1/runs/{run}/turns")).await;
        assert_eq!(turns.len(), 1);
        assert!(turns[0].0 > least && turns[0].1.len() == 1);
        assert_eq!(pages(&fixture, &format!("/v1/runs/{run}/interactions")).await.len(), 1);
    }
}

#[tokio::test]
async fn an_unfinished_request_times_out() {
    let fixture = HttpFixture::with_config(|bounds| bounds.idle_timeout_sec = 1).await;
    let mut slow = TcpStream::connect(fixture.address).await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ").await.unwrap();
    let mut response = Vec::new();
    // The connection ends because the daemon closes it, and not before the timeout.
    let start = Instant::now();
    let ended = timeout(Duration::from_secs(60), slow.read_to_end(&mut response)).await;
    assert!(ended.is_ok(), "the daemon still waits for the rest of the request");
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    assert_eq!(String::from_utf8_lossy(&response), "", "a request that never was is not answered");
    assert_eq!(fixture.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn an_overlong_head_is_refused() {
    let fixture = HttpFixture::open().await;
    for (length, status) in [(30_000, 200), (200_000, 431), (2_000_000, 431)] {
        let response = fixture.send(TestRequest::get("/healthz").header("x-long", &"x".repeat(length))).await;
        assert_eq!(response.status, status, "{length}: {response:?}");
    }
    let many: Vec<String> = (0..150).map(|number| format!("x-{number}")).collect();
    let request = many.iter().fold(TestRequest::get("/healthz"), |request, name| request.header(name, "x"));
    assert_eq!(fixture.send(request).await.status, 431, "too many lines");
    assert_eq!(fixture.get("/healthz").await.status, 200);
}

/// A file system that does not respond while it is stopped.
#[derive(Debug, Default)]
struct StoppableDisk {
    is_stopped: Mutex<bool>,
    resumed: Condvar,
    blocked: Notify,
}

impl StoppableDisk {
    fn set_stopped(&self, is_stopped: bool) {
        *self.is_stopped.lock().expect("no thread panics") = is_stopped;
        self.resumed.notify_all();
    }
}

impl DiskSpace for StoppableDisk {
    fn free_bytes(&self, _: &str) -> Option<u64> {
        let is_stopped = self.is_stopped.lock().expect("no thread panics");
        if *is_stopped {
            self.blocked.notify_one();
        }
        let limit = Duration::from_secs(10);
        let waited = self
            .resumed
            .wait_timeout_while(is_stopped, limit, |stopped| *stopped)
            .expect("no thread panics")
            .1;
        assert!(!waited.timed_out(), "the disk was not resumed");
        Some(u64::MAX)
    }
}

/// The runtime of this test has one thread, so a blocked handler would block the second request.
#[tokio::test]
async fn a_file_system_that_does_not_respond_does_not_block_other_requests() {
    let disk = Arc::new(StoppableDisk::default());
    let fixture = HttpFixture::with_disk_space(disk.clone()).await;
    let run = fixture.create_queued_run("x").await;
    for path in [format!("/v1/runs/{run}"), "/v1/runs".to_owned()] {
        disk.set_stopped(true);
        let others = async {
            disk.blocked.notified().await;
            let other = TestRequest::get("/healthz").send(fixture.address).await;
            disk.set_stopped(false);
            other.status
        };
        let (shown, other) = tokio::join!(fixture.get(&path), others);
        assert_eq!((shown.status, other), (200, 200), "{path}");
    }
}
