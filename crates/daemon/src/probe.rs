//! Whether an engine's program can be used: its checks are run under somebody who holds processes, and judged (A3).
//!
//! Needs no daemon, so that it also serves those who only want to know. Blocks for as long as the checks take.

use std::time::{Duration, Instant};

use abide_domain::process::Exit;
use abide_ports::{
    catalogue::Entry,
    engine::{Check, Health, Launch, Observed, Stdin},
    processes::{Heard, Processes, Start, StartError},
};

/// How an engine is examined.
#[derive(Clone, Copy, Debug)]
pub struct Examination<'a> {
    /// The directory in which checks run.
    pub directory: &'a str,
    /// A word that no other examination has, for the names of processes.
    pub unique: &'a str,
    /// The most that a check may take, if less than it asks for.
    pub patience: Option<Duration>,
}

/// Runs an engine's checks and judges them. Whatever was started is ended.
pub fn examine(processes: &dyn Processes, entry: &Entry, examination: &Examination<'_>) -> Health {
    look(processes, entry, examination).0
}

/// The same, and whether it may be believed for as long as the program is the same: a program that is in trouble or too
/// slow to answer today may be well in a moment.
pub(crate) fn look(
    processes: &dyn Processes,
    entry: &Entry,
    examination: &Examination<'_>,
) -> (Health, bool) {
    let mut observed: Vec<Observed> = Vec::new();
    for (number, check) in entry.engine.checks(&entry.installation).iter().enumerate() {
        // A program that did not answer once is not waited for a second time.
        let seen = if observed.contains(&Observed::TimedOut) {
            Observed::TimedOut
        } else {
            let name = format!("{CHECK}{}-{number}", examination.unique);
            observe(processes, &name, check, examination, entry)
        };
        observed.push(seen);
    }
    let health = entry.engine.judge(&observed);
    let lasts = health.trouble.is_none() && !observed.contains(&Observed::TimedOut);
    (health, lasts)
}

/// How the names of processes begin that are checks.
const CHECK: &str = "check-";

/// Whether a process of this name is a check.
pub(crate) fn is_check(name: &str) -> bool {
    name.starts_with(CHECK)
}

/// Runs one check to its answer.
fn observe(
    processes: &dyn Processes,
    name: &str,
    check: &Check,
    examination: &Examination<'_>,
    entry: &Entry,
) -> Observed {
    let installed = entry.installation.env.clone();
    let launch = Launch {
        argv: check.argv.clone(),
        env: installed.into_iter().chain(check.env.iter().cloned()).collect(),
        without_env: vec![],
        files: vec![],
        stdin: match check.until {
            Some(_) => Stdin::Open(check.stdin.clone()),
            None => Stdin::Whole(check.stdin.clone()),
        },
        not_before: None,
        outliving: None,
    };
    let directory = examination.directory;
    let start = Start { launch: &launch, workspace: directory, private: directory };
    let wanted = Duration::from_millis(check.patience_ms);
    let patience = examination.patience.map_or(wanted, |most| most.min(wanted));
    let observed = match processes.start(name, &start) {
        Ok(_) => listen(processes, name, check, patience),
        Err(StartError::Program(reason) | StartError::System(reason)) => Observed::NotFound { reason },
        Err(error @ (StartError::Directory(_) | StartError::Gone)) => {
            Observed::NotFound { reason: error.to_string() }
        }
    };
    let _nobody_else_could_end_it_better = processes.end(name);
    observed
}

/// How much of each stream is looked at. No help text is longer; what comes after is heard and dropped.
const MOST: usize = 1 << 20;

fn listen(processes: &dyn Processes, name: &str, check: &Check, patience: Duration) -> Observed {
    let Ok(mut follow) = processes.follow(name) else { return Observed::TimedOut };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let keep = |kept: &mut Vec<u8>, mut bytes: Vec<u8>| {
        bytes.truncate(MOST - kept.len());
        kept.extend(bytes);
    };
    let deadline = now() + patience;
    let code = loop {
        let left = deadline.saturating_duration_since(now());
        // A program that never stops talking has not answered either.
        if left.is_zero() {
            return Observed::TimedOut;
        }
        match follow.next(Some(left)) {
            Ok(Heard::Stdout(bytes)) => keep(&mut stdout, bytes),
            Ok(Heard::Stderr(bytes)) => keep(&mut stderr, bytes),
            Ok(Heard::Exited(Exit::Code(code))) => break Some(code),
            Ok(Heard::Exited(Exit::Unseen) | Heard::Nothing) | Err(_) => return Observed::TimedOut,
        }
        let answered = |until: &String| String::from_utf8_lossy(&stdout).contains(until.as_str());
        if check.until.as_ref().is_some_and(answered) {
            break None;
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Observed::Ran { code, stdout: text(stdout), stderr: text(stderr) }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a check's patience is counted in real time, and nothing is decided by it but that"
)]
fn now() -> Instant {
    Instant::now()
}
