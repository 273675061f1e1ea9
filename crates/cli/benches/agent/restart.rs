//! The restart time of a killed run: from the start of the real binary until its first request was read completely.
//!
//! The kill left a call without a result. The time includes the start of the process, the lock, reading and repairing
//! the journal, checking the call, recording its outcome as unknown, and the request with its window.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    LONG_JOURNAL_EVENTS, SHORT_JOURNAL_EVENTS,
    figures::{TimeSeries, report_limit},
    fixture::{AgentBenchFixture, JournalFixture, MESSAGE},
    model::{ModelBehaviour, SocketModel},
};

const ROUNDS: usize = 15;
/// The absolute limit.
const MAX_RESTART_TIME: Duration = Duration::from_millis(200);

pub(crate) fn bench(fixture: &AgentBenchFixture) -> bool {
    let model = SocketModel::start(ModelBehaviour::Silent);
    let (few, many) = (
        KilledRun::new(fixture, "restart-few", &fixture.short),
        KilledRun::new(fixture, "restart-many", &fixture.long),
    );
    let (mut version, mut short, mut long) = (vec![], vec![], vec![]);
    let mut peak = (0, 0);
    for _ in 0..ROUNDS {
        version.push(measure_start());
        let (time, memory) = few.restart(&model);
        short.push(time);
        peak.0 = memory;
        let (time, memory) = many.restart(&model);
        long.push(time);
        peak.1 = memory;
    }
    let (version, short, long) = (TimeSeries::of(&version), TimeSeries::of(&short), TimeSeries::of(&long));
    let ms = |micros: f64| micros / 1e3;
    println!("\nrestart, {ROUNDS} rounds, median and worst, to the end of the first request");
    for (name, series) in [
        ("abide --version".to_owned(), version),
        (format!("a run of {SHORT_JOURNAL_EVENTS} events"), short),
        (format!("a run of {LONG_JOURNAL_EVENTS} events"), long),
    ] {
        let ratio = series.median / version.median;
        println!("{name:<24} {:>7.1} ms {:>7.1} ms   x {ratio:.1}", ms(series.median), ms(series.worst));
    }
    let passed = report_limit(
        long.worst < MAX_RESTART_TIME.as_secs_f64() * 1e6,
        &format!(
            "a run of {LONG_JOURNAL_EVENTS} events is back in less than {} ms, every time",
            MAX_RESTART_TIME.as_millis()
        ),
    );
    println!("    limited by reading the journal, {:.1} ms of it", ms(long.median - short.median));
    println!(
        "    peak memory {} KiB with {SHORT_JOURNAL_EVENTS} events, {} KiB with {LONG_JOURNAL_EVENTS}",
        peak.0, peak.1
    );
    passed
}

/// The place in which a run was killed.
struct KilledRun<'a> {
    fixture: &'a AgentBenchFixture,
    journal: &'a JournalFixture,
    work: std::path::PathBuf,
}

impl<'a> KilledRun<'a> {
    fn new(fixture: &'a AgentBenchFixture, name: &str, journal: &'a JournalFixture) -> Self {
        let work = fixture.folder.join(name);
        journal.create_execution_dirs(&work.join(".abide"));
        Self { fixture, journal, work }
    }

    /// Restarts the run, and returns the time until its request arrived and its peak memory at that time.
    fn restart(&self, model: &SocketModel) -> (Duration, u64) {
        self.journal.write_truncated_to(&self.work.join(".abide"));
        let mut command = Command::new(BINARY);
        // The journal was copied there, so the home has no record of it.
        command.args(["agent", "run", "--adopt", "--message", MESSAGE, "--agent"]).arg(&self.fixture.agent);
        command.arg("--workdir").arg(&self.work);
        command
            .env("ABIDE_HOME", self.fixture.folder.join("home"))
            .env("ABIDE_MODEL_BASE_URL", &model.base_url);
        command.env_remove("ABIDE_MODEL").env_remove("ABIDE_MODEL_API_KEY");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        let mut child = command.spawn().expect("the binary starts");
        let request = model.requests.recv_timeout(RESTART_TIMEOUT).expect("the run continues");
        let peak = peak_kib(Path::new(&format!("/proc/{}/status", child.id())));
        child.kill().and_then(|()| child.wait()).expect("a child that can be killed");
        (request.read - began, peak)
    }
}

const BINARY: &str = env!("CARGO_BIN_EXE_abide");
/// The timeout of a restart.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

/// Measures the start of the binary without any work.
fn measure_start() -> Duration {
    let mut command = Command::new(BINARY);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let status = command.status().expect("the binary starts");
    assert!(status.success(), "it has a version");
    began.elapsed()
}

/// Returns the peak memory of a process, in KiB.
fn peak_kib(status: &Path) -> u64 {
    let status = fs::read_to_string(status).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}
