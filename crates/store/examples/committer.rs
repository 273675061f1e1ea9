//! Commits random histories from several tasks and prints each acknowledgement. Crash tests kill it.
//!
//! `committer URL SEED WRITERS COMMITS` prints `ack WRITER COMMIT SEQ`. It prints the first error and exits.

use std::{io::Write, process::ExitCode, sync::Arc};

use abide_store::registry;
use abide_testkit::history::HistoryGenerator;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [url, seed, writers, commits] = &arguments[..] else {
        eprintln!("usage: committer URL SEED WRITERS COMMITS");
        return ExitCode::FAILURE;
    };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let work = commit_histories(url, number(seed), number(writers) as u16, number(commits) as usize);
    runtime.expect("a runtime").block_on(work)
}

async fn commit_histories(url: &str, seed: u64, writers: u16, commits: usize) -> ExitCode {
    let store = match registry::open(url).await {
        Ok(store) => store,
        Err(error) => {
            print_line(&format!("error {error}"));
            return ExitCode::from(2);
        }
    };
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                // The run ids differ between seeds, so that one database can be used for several kills.
                let name = seed as u16 * 100 + writer;
                for (count, commit) in
                    HistoryGenerator::new(seed, name).commits(commits).into_iter().enumerate()
                {
                    match store.commit(commit).await {
                        Ok(committed) => print_line(&format!("ack {writer} {count} {}", committed.last.0)),
                        Err(error) => return print_line(&format!("error {error}")),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the writer is done");
    }
    ExitCode::SUCCESS
}

/// Prints and flushes one line. A printed commit must have been written; a commit that was not printed may have been.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
