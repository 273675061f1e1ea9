//! Durable appends per second, relative to a plain commit loop and a plain sync loop measured in the same run.
//!
//! Absolute figures depend mostly on the disk. All loops write the same number of bytes per commit and take turns, so
//! that other load on the machine affects all of them equally. The benchmark fails if group commit is not faster by the
//! factor `MIN_SPEEDUP`.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use abide_domain::{
    engine::{EngineInteractiveProfile, ProfileKind, RunAbilities},
    event::{NewRun, RunEvent},
    id::{IdSeed, RunId},
    inbound::{InboundMessage, MessageKey},
    process::{Attempt, OutputPosition, ProcessBinding},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};
use abide_ports::store::{JournalCommit, Store};
use abide_store::registry;
use abide_testkit::history::HistoryGenerator;

/// The duration of each loop in each round.
const ROUND_DURATION: Duration = Duration::from_millis(500);
/// The number of rounds.
const ROUNDS: usize = 5;
/// The number of concurrent writers for group commit.
const CONCURRENT_WRITERS: usize = 64;
/// The required speedup by group commit.
const MIN_SPEEDUP: f64 = 10.0;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(bench())
}

async fn bench() -> ExitCode {
    // On the disk of the build, because the folder for temporary files may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on disk");
    let mut stores =
        vec![BenchedStore::open("sqlite", &format!("sqlite:{}/abide.db", folder.path().display())).await];
    match postgres_url() {
        Some(url) => stores.push(BenchedStore::open("postgres", &url).await),
        None => println!("postgres: not measured, ABIDE_TEST_POSTGRES_URL is not set"),
    }
    let bytes = stores[0].bytes();
    let (mut bare_sqlite, mut bare_file) =
        (BareSqlite::new(folder.path(), bytes), BareFile::new(folder.path(), bytes));
    let (mut commits, mut syncs) = (ThroughputSum::default(), ThroughputSum::default());
    for _ in 0..ROUNDS {
        commits.add(measure_loop(|| bare_sqlite.commit()));
        syncs.add(measure_loop(|| bare_file.append()));
        for store in &mut stores {
            let alone = store.measure(1).await;
            store.single_writer.add(alone);
            let together = store.measure(CONCURRENT_WRITERS).await;
            store.concurrent_writers.add(together);
        }
    }
    println!(
        "{bytes} bytes per commit; rates per second; x sqlite and x fdatasync are ratios to the bare loops"
    );
    println!("{:<32} {:>9}  {:>9} {:>11}", "", "rate", "x sqlite", "x fdatasync");
    let line = |name: &str, rate: f64| {
        println!("{name:<32} {rate:>9.0}  {:>9.2} {:>11.2}", rate / commits.rate(), rate / syncs.rate());
    };
    line("bare fdatasync loop", syncs.rate());
    line("bare sqlite commit loop", commits.rate());
    let mut passed = true;
    for store in &stores {
        line(&format!("{}, 1 writer", store.name), store.single_writer.rate());
        line(&format!("{}, {CONCURRENT_WRITERS} writers", store.name), store.concurrent_writers.rate());
        let gain = store.concurrent_writers.rate() / store.single_writer.rate();
        let verdict = if gain >= MIN_SPEEDUP { "pass" } else { "FAIL" };
        println!(
            "{}: {CONCURRENT_WRITERS} writers give {gain:.1} x the single writer's rate, at least {MIN_SPEEDUP} wanted: {verdict}",
            store.name
        );
        passed &= gain >= MIN_SPEEDUP;
    }
    println!(
        "limits: 1 writer, the sync and, for postgres, three round trips; {CONCURRENT_WRITERS} writers, the processor time of \
         encoding on the callers' side and of one statement per row (sqlite) or per table (postgres) on the writer's"
    );
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A store under measurement, with one active run per writer.
struct BenchedStore {
    name: &'static str,
    store: Arc<dyn Store>,
    writers: Vec<(HistoryGenerator, RunId, u64)>,
    single_writer: ThroughputSum,
    concurrent_writers: ThroughputSum,
}

impl BenchedStore {
    async fn open(name: &'static str, url: &str) -> Self {
        let store = registry::open(url).await.expect("the store opens");
        let mut writers = Vec::new();
        for number in 0..CONCURRENT_WRITERS {
            let mut history = HistoryGenerator::new(1, number as u16 + 1);
            let run = RunId(IdSeed((1 << 100) + number as u128));
            let mut changes = Vec::new();
            for event in first_events(run) {
                changes.push(history.apply(run, event).expect("a run begins like this"));
            }
            store.commit(JournalCommit { changes }).await.expect("it is written");
            writers.push((history, run, 0));
        }
        Self {
            name,
            store,
            writers,
            single_writer: ThroughputSum::default(),
            concurrent_writers: ThroughputSum::default(),
        }
    }

    /// The number of bytes of one commit in the journal and the run's row.
    fn bytes(&mut self) -> usize {
        let (history, run, position) = &mut self.writers[0];
        let change = progress(&mut history.clone(), *run, position).changes.remove(0);
        let text = |json: Result<String, serde_json::Error>| json.map_or(0, |text| text.len());
        text(serde_json::to_string(&change.event)) + text(serde_json::to_string(&*change.run))
    }

    async fn measure(&mut self, writers: usize) -> (u64, Duration) {
        let start = now();
        let mut tasks = Vec::new();
        for (mut history, run, mut position) in self.writers.drain(..writers) {
            let store = Arc::clone(&self.store);
            tasks.push(tokio::spawn(async move {
                let mut count = 0;
                while start.elapsed() < ROUND_DURATION {
                    let commit = progress(&mut history, run, &mut position);
                    store.commit(commit).await.expect("it is written");
                    count += 1;
                }
                (count, (history, run, position))
            }));
        }
        let mut count = 0;
        let mut back = Vec::new();
        for task in tasks {
            let (written, writer) = task.await.expect("the writer is done");
            count += written;
            back.push(writer);
        }
        let taken = start.elapsed();
        back.append(&mut self.writers);
        self.writers = back;
        (count, taken)
    }
}

/// The most frequent kind of commit: progress of a turn.
fn progress(history: &mut HistoryGenerator, run: RunId, position: &mut u64) -> JournalCommit {
    *position += 1;
    let text = "reading src/lib.rs, then running the tests of the crate that it belongs to".to_owned();
    let event = RunEvent::Progressed { attempt: Attempt(1), position: OutputPosition(*position), text };
    JournalCommit { changes: vec![history.apply(run, event).expect("a turn is at work")] }
}

fn first_events(run_id: RunId) -> [RunEvent; 4] {
    let key = MessageKey { channel: "api".to_owned(), message_id: run_id.to_string() };
    let message = InboundMessage {
        key,
        text: "make the tests of the store crate pass, then open a request".to_owned(),
    };
    let settings = RunSettings {
        engine: "claude".to_owned(),
        workspace: "src/abide".to_owned(),
        execution_mode: ExecutionMode::Interactive,
        conversation_ref: Some("feishu:oc_7f3a".to_owned()),
        unanswered: UnansweredPolicy::Strict,
        session_timeout_sec: Seconds(1200),
        turn_timeout_sec: None,
        on_busy: OnBusy::Queue,
        model: None,
        sandbox: Some("workspace-write".to_owned()),
        isolation: None,
        skill: None,
        labels: BTreeMap::new(),
    };
    let profile = EngineInteractiveProfile {
        kind: ProfileKind::Resumable,
        reason: "it can resume".to_owned(),
        session_timeout_sec: Seconds(1200),
    };
    let process =
        ProcessBinding { keeper: "k".to_owned(), pid: 4711, start_time: 1, boot_id: "b".to_owned() };
    [
        RunEvent::RunCreated(Box::new(NewRun {
            run_id,
            settings,
            message,
            idempotency: None,
            rules: abide_domain::run::CURRENT_RULES_VERSION,
        })),
        RunEvent::Admitted,
        RunEvent::ProfileResolved {
            profile,
            abilities: RunAbilities::default(),
            handle: None,
            command: None,
        },
        RunEvent::AttemptStarted { attempt: Attempt(1), process },
    ]
}

/// A table with one row per commit, synced each time.
struct BareSqlite {
    connection: rusqlite::Connection,
    body: String,
}

impl BareSqlite {
    fn new(folder: &Path, bytes: usize) -> Self {
        let connection = rusqlite::Connection::open(folder.join("bare.db")).expect("it opens");
        let set_up =
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE bare (body TEXT NOT NULL)";
        connection.execute_batch(set_up).expect("it is set up");
        Self { connection, body: "x".repeat(bytes) }
    }

    fn commit(&mut self) {
        let mut insert =
            self.connection.prepare_cached("INSERT INTO bare (body) VALUES (?1)").expect("valid");
        insert.execute([&self.body]).expect("it is written");
    }
}

/// A file that grows by the bytes of one commit, synced each time.
struct BareFile {
    file: File,
    body: Vec<u8>,
}

impl BareFile {
    fn new(folder: &Path, bytes: usize) -> Self {
        let file =
            OpenOptions::new().create(true).append(true).open(folder.join("bare.log")).expect("it opens");
        Self { file, body: vec![b'x'; bytes] }
    }

    fn append(&mut self) {
        self.file.write_all(&self.body).expect("it is written");
        self.file.sync_data().expect("it is synced");
    }
}

/// Work and time, summed over the rounds.
#[derive(Default)]
struct ThroughputSum {
    count: u64,
    time: Duration,
}

impl ThroughputSum {
    fn add(&mut self, (count, time): (u64, Duration)) {
        self.count += count;
        self.time += time;
    }

    fn rate(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }
}

fn measure_loop(mut once: impl FnMut()) -> (u64, Duration) {
    let (start, mut count) = (now(), 0);
    while start.elapsed() < ROUND_DURATION {
        once();
        count += 1;
    }
    (count, start.elapsed())
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the bench command says where its server is")]
fn postgres_url() -> Option<String> {
    let url = std::env::var("ABIDE_TEST_POSTGRES_URL").ok()?;
    let join = if url.contains('?') { '&' } else { '?' };
    Some(format!("{url}{join}schema=bench_{}", std::process::id()))
}
