//! Runs the loopback model server with the default script on a given port and prints one line for each request.
//!
//! `cargo run -p abide-testkit --features model --example model -- 8399 [requests.jsonl]`; the file receives each
//! request unchanged. It is meant for manual experiments with agent programs; tests start the server themselves.

use std::fs::File;
use std::io::{self, Write};

use abide_testkit::model::{ModelExchange, ModelScript, ModelServer, faults};

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let port = args.next().and_then(|port| port.parse().ok()).unwrap_or(0);
    let mut file = args.next().map(File::create).transpose()?;
    let server = ModelServer::start_on(port, ModelScript::new());
    println!("listening on {}", server.url(""));
    let mut next = 0;
    loop {
        let exchange = server.await_exchange(next);
        next += 1;
        println!("{}", line(&exchange));
        if let Some(file) = &mut file {
            writeln!(file, "{}", exchange.request.raw)?;
        }
    }
}

fn line(exchange: &ModelExchange) -> String {
    let request = &exchange.request;
    let results: Vec<String> = request.new_tool_results().into_iter().map(|result| result.text).collect();
    let faults = faults(request);
    format!(
        "#{} {:?} {:?} model={} stream={} tools={} users={:?} returned={results:?} faults={faults:?}",
        request.index,
        request.protocol,
        exchange.answer_source,
        request.model,
        request.streaming,
        request.tools.len(),
        request.user_texts(),
    )
}
