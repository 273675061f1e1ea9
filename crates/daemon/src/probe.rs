//! Determines whether an engine's program can be used: runs its checks as supervised processes, and evaluates them
//! (A3).
//!
//! It needs no daemon, so that other commands can use it. Blocks until the checks are complete.

use std::time::{Duration, Instant};

use abide_domain::process::ExitStatus;
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{EngineHealth, IsolationMode, ProbeCommand, ProbeResult, ProcessSpec, ProcessStdin},
    processes::{OutputOffsets, ProcessOutput, Processes, StartError, StartRequest},
};

/// The parameters of a probe.
#[derive(Clone, Copy)]
pub struct ProbeRequest<'a> {
    /// The working directory of the checks.
    pub directory: &'a str,
    /// A unique word for the names of the processes.
    pub unique: &'a str,
    /// Maximum time of a check, if shorter than its own limit. A check that exceeds it is not repeated.
    pub timeout: Option<Duration>,
    /// Whether the probe is cancelled. Called repeatedly.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

/// Pauses between the rounds of checks.
const PAUSES: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];
/// Maximum time of a probe.
const LONGEST_EXAMINATION: Duration = Duration::from_secs(120);
/// Interval of checks for cancellation.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the checks of an engine and evaluates them. All started processes are ended.
pub fn examine(
    processes: &dyn Processes,
    entry: &InstalledEngine,
    examination: &ProbeRequest<'_>,
) -> EngineHealth {
    look(processes, entry, examination).0
}

/// The same, and whether the result may be cached while the program is unchanged. A failure or a timeout may be
/// temporary.
///
/// Failed checks are repeated after a pause, because a busy machine makes a program slow and a lack of memory keeps it
/// from starting (A3). Only a missing program is not tried again.
pub(crate) fn look(
    processes: &dyn Processes,
    entry: &InstalledEngine,
    examination: &ProbeRequest<'_>,
) -> (EngineHealth, bool) {
    let checks = entry.engine.probe_commands(&entry.installation);
    let deadline = now() + LONGEST_EXAMINATION;
    let mut observed: Vec<ProbeResult> = vec![ProbeResult::TimedOut; checks.len()];
    let mut rounds = std::iter::once(Duration::ZERO).chain(PAUSES).enumerate();
    while let Some((round, pause)) = rounds.next()
        && waits(pause, deadline, examination.is_cancelled)
    {
        let mut slow = false;
        for (number, (check, seen)) in checks.iter().zip(&mut observed).enumerate() {
            if round > 0 && failed_check(seen).is_none() {
                continue;
            }
            // After a timeout, the remaining checks of the round are skipped.
            if slow {
                *seen = ProbeResult::TimedOut;
                continue;
            }
            let name = format!("{CHECK}{}-{round}-{number}", examination.unique);
            *seen = observe(processes, &name, check, examination, entry, deadline);
            slow = *seen == ProbeResult::TimedOut;
        }
        let missing = observed.iter().any(|seen| matches!(seen, ProbeResult::NotFound { .. }));
        let impatient = slow && examination.timeout.is_some();
        if missing || impatient || observed.iter().all(|seen| failed_check(seen).is_none()) {
            break;
        }
    }
    let mut health = entry.engine.assess_health(&observed);
    let failed = observed.iter().find_map(failed_check);
    if let (false, None, Some(why)) = (health.resume.supported, &health.failure, &failed) {
        // An ability that was not observed counts as missing, and the detail states why.
        health.resume.detail = format!("the probe failed: {why}");
    }
    let unseen = |seen: &ProbeResult| matches!(seen, ProbeResult::TimedOut | ProbeResult::Unavailable { .. });
    let answered = observed.first().is_some_and(|seen| failed_check(seen).is_none());
    let lasts = health.failure.is_none() && answered && !observed.iter().any(unseen);
    (health, lasts)
}

/// The health of an engine whose program has not answered yet.
pub(crate) fn unanswered(entry: &InstalledEngine) -> EngineHealth {
    let checks = entry.engine.probe_commands(&entry.installation);
    let mut health = entry.engine.assess_health(&vec![ProbeResult::TimedOut; checks.len()]);
    health.resume.detail =
        "it is being examined, and its program has not answered yet; ask again later".to_owned();
    health
}

/// Why a check failed; None if it succeeded.
fn failed_check(observed: &ProbeResult) -> Option<String> {
    match observed {
        ProbeResult::Ran { code: None | Some(0), .. } => None,
        ProbeResult::Ran { code: Some(code), stderr, .. } => {
            let last = stderr.trim().lines().last().unwrap_or_default();
            let last: String = last.chars().take(MOST_COMPLAINT_CHARS).collect();
            Some(format!("it exited with code {code}: {last}"))
        }
        ProbeResult::NotFound { reason } | ProbeResult::Unavailable { reason } => {
            Some(format!("it could not be started: {reason}"))
        }
        ProbeResult::TimedOut => Some("it did not answer in time".to_owned()),
    }
}

/// Maximum length of a program's error output in a message, in characters.
const MOST_COMPLAINT_CHARS: usize = 200;

/// Waits, unless the probe is cancelled or the deadline comes first.
#[expect(clippy::disallowed_methods, reason = "the pause before another try is what is wanted")]
fn waits(pause: Duration, deadline: Instant, is_cancelled: &dyn Fn() -> bool) -> bool {
    let end = now() + pause;
    while now() < end && end < deadline && !is_cancelled() {
        std::thread::sleep(LOOK.min(end.saturating_duration_since(now())));
    }
    end < deadline && !is_cancelled()
}

/// Prefix of the names of checks.
const CHECK: &str = "check-";

/// Whether a process with this name is a check.
pub(crate) fn is_check(name: &str) -> bool {
    name.starts_with(CHECK)
}

/// Runs one check to its result.
fn observe(
    processes: &dyn Processes,
    name: &str,
    check: &ProbeCommand,
    examination: &ProbeRequest<'_>,
    entry: &InstalledEngine,
    deadline: Instant,
) -> ProbeResult {
    let installed = entry.installation.env.clone();
    let launch = ProcessSpec {
        argv: check.argv.clone(),
        env: installed.into_iter().chain(check.env.iter().cloned()).collect(),
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: match check.stop_at_output {
            Some(_) => ProcessStdin::KeptOpen(check.stdin.clone()),
            None => ProcessStdin::Complete(check.stdin.clone()),
        },
        not_before: None,
        surviving_keepers_dir: None,
    };
    let directory = examination.directory;
    let pass_env = &entry.installation.pass_env;
    // A check runs in an empty directory and asks only for a version or a help text.
    let start = StartRequest {
        spec: &launch,
        workspace: directory,
        private_dir: directory,
        pass_env,
        isolation: IsolationMode::Off,
    };
    let wanted = Duration::from_millis(check.timeout_ms);
    let timeout = examination.timeout.map_or(wanted, |most| most.min(wanted));
    let until = deadline.min(now() + timeout);
    let observed = match processes.start(name, &start) {
        Ok(_) => listen(processes, name, check, until, examination.is_cancelled),
        Err(StartError::ProgramUnusable(reason)) => ProbeResult::NotFound { reason },
        Err(
            error @ (StartError::DirectoryUnusable(_)
            | StartError::IsolationUnavailable(_)
            | StartError::Lost
            | StartError::Unresponsive
            | StartError::SystemError(_)),
        ) => ProbeResult::Unavailable { reason: error.to_string() },
    };
    // A failure to end the process does not change the result of the check.
    processes.terminate(name).ok();
    observed
}

/// Maximum bytes kept of each stream. No help text is longer; further output is discarded.
const MOST: usize = 1 << 20;

fn listen(
    processes: &dyn Processes,
    name: &str,
    check: &ProbeCommand,
    until: Instant,
    is_cancelled: &dyn Fn() -> bool,
) -> ProbeResult {
    let unavailable = |reason: String| ProbeResult::Unavailable { reason };
    let mut follow = match processes.follow(name, OutputOffsets::START) {
        Ok(follow) => follow,
        Err(lost) => return unavailable(lost.to_string()),
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let keep = |kept: &mut Vec<u8>, mut bytes: Vec<u8>| {
        bytes.truncate(MOST - kept.len());
        kept.extend(bytes);
    };
    let code = loop {
        let left = until.saturating_duration_since(now());
        // A program with endless output has not answered either.
        if left.is_zero() || is_cancelled() {
            return ProbeResult::TimedOut;
        }
        match follow.next(Some(left.min(LOOK))) {
            Ok(ProcessOutput::Stdout(bytes)) => keep(&mut stdout, bytes),
            Ok(ProcessOutput::Stderr(bytes)) => keep(&mut stderr, bytes),
            Ok(ProcessOutput::Exited(ExitStatus::Code(code))) => break Some(code),
            Ok(ProcessOutput::TimedOut) => {}
            Ok(ProcessOutput::Exited(ExitStatus::Unknown)) => {
                return unavailable("its exit status is unknown".to_owned());
            }
            Ok(ProcessOutput::Gap(reason)) => return unavailable(reason),
            Err(lost) => return unavailable(lost.to_string()),
        }
        let answered = |until: &String| String::from_utf8_lossy(&stdout).contains(until.as_str());
        if check.stop_at_output.as_ref().is_some_and(answered) {
            break None;
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    ProbeResult::Ran { code, stdout: text(stdout), stderr: text(stderr) }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the timeout of a check is measured in real time and decides nothing else"
)]
fn now() -> Instant {
    Instant::now()
}
