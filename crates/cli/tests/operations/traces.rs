//! The spans of a run arrive at a collector, correctly nested, with ids derived from ours.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc::{Receiver, channel},
};

use abide_testkit::wait;
use serde_json::Value;

use crate::new_home;

/// Starts a local collector; returns its address and a channel with its requests.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut first, mut length) = (String::new(), 0);
            reader.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).unwrap();
            if sender.send((first, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
        }
    });
    (address, requests)
}

fn spans(request: &Value) -> Vec<Value> {
    let scopes = request["resourceSpans"][0]["scopeSpans"].as_array().unwrap();
    scopes.iter().flat_map(|scope| scope["spans"].as_array().unwrap().clone()).collect()
}

fn attribute(span: &Value, key: &str) -> Option<String> {
    let attribute = span["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == key)?;
    let value = &attribute["value"];
    value["stringValue"].as_str().or(value["intValue"].as_str()).map(str::to_owned)
}

#[test]
fn a_run_its_turn_and_its_attempt_are_spans_within_each_other() {
    let (address, requests) = collector();
    let home = new_home(&format!("[otel]\nendpoint = \"{address}\"\n"));
    let _daemon = home.start();
    let run = home.run_parrot("say hello");
    home.wait_for_status(&run, "succeeded");
    let mut spans_received: Vec<Value> = vec![];
    while !spans_received.iter().any(|span| span["name"] == "run") {
        let (first, request) = requests.recv_timeout(wait::LIMIT).unwrap();
        assert!(first.starts_with("POST /v1/traces "), "{first}");
        let service = &request["resourceSpans"][0]["resource"]["attributes"][0];
        assert_eq!(service["value"]["stringValue"], "abide");
        spans_received.extend(spans(&request));
    }
    let named = |name: &str| {
        let mut of_name = spans_received.iter().filter(|span| span["name"] == name);
        let one = of_name.next().unwrap_or_else(|| panic!("no span {name} in {spans_received:?}"));
        assert!(of_name.next().is_none(), "one span {name}");
        one
    };
    let (whole, turn, attempt) = (named("run"), named("turn"), named("attempt"));
    let turns = home.turns(&run);
    let turn_id = turns[0]["turn_id"].as_str().unwrap();
    assert_eq!(whole["traceId"], format!("{:032x}", number(&run)));
    assert_eq!(turn["spanId"], format!("{:016x}", number(turn_id) as u64));
    assert_eq!(whole["parentSpanId"], Value::Null);
    assert_eq!(turn["parentSpanId"], whole["spanId"]);
    assert_eq!(attempt["parentSpanId"], turn["spanId"]);
    for span in [whole, turn, attempt] {
        assert_eq!(span["traceId"], whole["traceId"]);
        assert_eq!(attribute(span, "abide.run").as_deref(), Some(run.as_str()));
        let time = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time("startTimeUnixNano") > 1 << 60 && time("endTimeUnixNano") >= time("startTimeUnixNano"));
    }
    assert_eq!(attribute(attempt, "abide.attempt").as_deref(), Some("1"));
    assert_eq!(attribute(whole, "abide.status").as_deref(), Some("succeeded"));
}

/// Returns the number of an id, from its last 26 base-32 digits.
fn number(id: &str) -> u128 {
    let digits = id.split('_').next_back().unwrap();
    digits.bytes().fold(0, |number, digit| {
        let alphabet = b"0123456789abcdefghjkmnpqrstvwxyz";
        (number << 5) | alphabet.iter().position(|letter| *letter == digit).unwrap() as u128
    })
}

#[test]
fn spans_ended_before_shutdown_are_flushed() {
    let (address, requests) = collector();
    let home = new_home(&format!("[otel]\nendpoint = \"{address}\"\n"));
    let daemon = home.start();
    let run = home.run_parrot("say hello");
    home.wait_for_status(&run, "succeeded");
    home.down(daemon);
    let sent: Vec<Value> = requests.try_iter().flat_map(|(_, request)| spans(&request)).collect();
    assert!(sent.iter().any(|span| span["name"] == "run"), "{sent:?}");
}

#[test]
fn an_unreachable_collector_only_drops_spans() {
    // Port 1 refuses connections.
    let home = new_home("[otel]\nendpoint = \"http://127.0.0.1:1\"\n");
    let daemon = home.start();
    let run = home.run_parrot("say hello");
    home.wait_for_status(&run, "succeeded");
    wait::until("three spans are counted as dropped", || {
        home.get_text("/metrics").contains("abide_dropped_total{kind=\"span\"} 3")
    });
    home.down(daemon);
}

#[test]
fn an_endpoint_that_cannot_be_spoken_to_is_refused_at_the_start() {
    let home = new_home("[otel]\nendpoint = \"https://collector.example\"\n");
    let output = home.run(&["up"]);
    assert_eq!(output.code, Some(1));
    let stderr = output.stderr;
    assert!(stderr.contains("otel.endpoint") && stderr.contains("plain HTTP"), "{stderr}");
}
