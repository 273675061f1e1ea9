//! Writes the ledgers of this version as fixtures for `tests/fixtures.rs` of all later versions.
//!
//! Run it before a release and before a change of the stored format, and commit its output. The argument is the name of
//! the fixture's folder; the default is the version. An existing fixture is never overwritten:
//!
//!     cargo run -p abide-store --example fixture -- v0.1.0-first-names
//!
//! The SQLite database is always written. The Postgres dump is written only if ABIDE_TEST_POSTGRES_URL is set; this
//! needs the program `pg_dump`.

use std::{fs, path::Path, process::Command};

use abide_domain::{
    context::{ApprovalContext, ApprovalSubject, CommandLine, FieldValue, FileChange, RequestField},
    engine::{EngineInteractiveProfile, ProfileKind, RunAbilities},
    event::{NewRun, RunEvent},
    id::{IdSeed, RunId},
    inbound::{InboundMessage, MessageKey},
    interaction::GatePurpose,
    process::{Attempt, OutputPosition, ProcessBinding},
    run::CURRENT_RULES_VERSION,
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};
use abide_ports::store::{JournalCommit, JournalSeq, Store};
use abide_store::registry;
use abide_testkit::history::HistoryGenerator;

/// The schema name in the dump, which the test replaces by its own.
const SCHEMA: &str = "abide_fixture";
/// The random history of the fixture.
const SEED: u64 = 1484;
const COMMIT_COUNT: usize = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let name = std::env::args().nth(1).unwrap_or_else(|| concat!("v", env!("CARGO_PKG_VERSION")).to_owned());
    let folder = fixtures.join(name);
    fs::create_dir_all(&folder).expect("the folder can be made");
    let database = folder.join("abide.db");
    if database.exists() {
        println!("{} exists and is left as it is", database.display());
    } else {
        let store = registry::open(&format!("sqlite:{}", database.display())).await.expect("it opens");
        let head = write_history(&*store).await;
        drop(store);
        fs::remove_file(folder.join("abide.db.lock")).expect("the lock is no part of it");
        fs::write(folder.join("head"), format!("{}\n", head.0)).expect("the head can be written");
        println!("{} has {} entries", database.display(), head.0);
    }
    let dump = folder.join("postgres.sql");
    match postgres_url() {
        Some(url) if !dump.exists() => {
            let join = if url.contains('?') { '&' } else { '?' };
            let store = registry::open(&format!("{url}{join}schema={SCHEMA}")).await.expect("it opens");
            write_history(&*store).await;
            fs::write(&dump, dump_schema(&url)).expect("the dump can be written");
            println!("{} is written; drop the schema {SCHEMA} now", dump.display());
        }
        Some(_) => println!("{} exists and is left as it is", dump.display()),
        None => println!("no Postgres dump: ABIDE_TEST_POSTGRES_URL is not set"),
    }
}

/// Writes a history with all kinds of rows and most kinds of events, including rare ones.
async fn write_history(store: &dyn Store) -> JournalSeq {
    let mut generator = HistoryGenerator::new(SEED, 1).with_runs(12);
    for commit in generator.commits(COMMIT_COUNT) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
    for commit in rare_commits(&mut generator) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
    store.head().await.expect("it has a head")
}

/// Commits with fields that the random history does not set: approvals with their whole scope, one behind the other, and
/// a limited search for a lost process.
fn rare_commits(generator: &mut HistoryGenerator) -> Vec<JournalCommit> {
    let mut commits = Vec::new();
    for number in [1_u8, 2] {
        let run_id = RunId(IdSeed(0x019f_0000_0000_0000_0000_0000_0000_0000).nth(number * 64));
        let mut events = begin_run(run_id, number);
        if number == 1 {
            for gate in ["first", "second"] {
                let turn_id = generator_turn(generator, run_id, &mut events, &mut commits);
                let position = OutputPosition(if gate == "first" { 10 } else { 20 });
                events.push(RunEvent::GateRaised {
                    attempt: Attempt(1),
                    turn_id,
                    position,
                    gate: gate.to_owned(),
                    purpose: GatePurpose::Approval,
                    question: approval(gate).into_question(Vec::new(), None),
                });
            }
        } else {
            events.push(RunEvent::ContactLost { attempt: Attempt(1), search_timeout_sec: Some(Seconds(90)) });
        }
        apply_all(generator, run_id, &mut events, &mut commits);
    }
    commits
}

/// Applies the events so far and returns the running turn.
fn generator_turn(
    generator: &mut HistoryGenerator,
    run_id: RunId,
    events: &mut Vec<RunEvent>,
    commits: &mut Vec<JournalCommit>,
) -> abide_domain::id::TurnId {
    apply_all(generator, run_id, events, commits);
    let run = generator.runs().get(&run_id).expect("the run exists");
    run.turns.last().expect("a turn runs").turn_id
}

fn apply_all(
    generator: &mut HistoryGenerator,
    run_id: RunId,
    events: &mut Vec<RunEvent>,
    commits: &mut Vec<JournalCommit>,
) {
    for event in events.drain(..) {
        let name = event.name();
        let change = generator.apply(run_id, event).unwrap_or_else(|| panic!("{name} changes the run"));
        commits.push(JournalCommit { changes: vec![change] });
    }
}

fn begin_run(run_id: RunId, number: u8) -> Vec<RunEvent> {
    let key = MessageKey { channel: "api".to_owned(), message_id: format!("rare-{number}") };
    let settings = RunSettings {
        engine: "parrot".to_owned(),
        workspace: "/tmp".to_owned(),
        execution_mode: ExecutionMode::Interactive,
        conversation_ref: Some("api:rare".to_owned()),
        unanswered: UnansweredPolicy::Strict,
        session_timeout_sec: Seconds(1200),
        turn_timeout_sec: Some(Seconds(600)),
        on_busy: OnBusy::Queue,
        model: None,
        sandbox: None,
        isolation: None,
        skill: None,
        // Keys of a person, which are not renamed.
        labels: [("owed".to_owned(), "heard".to_owned()), ("cause".to_owned(), "unseen".to_owned())].into(),
    };
    let message = InboundMessage { key, text: "{\"cause\":\"unseen\"}".to_owned() };
    let rules = CURRENT_RULES_VERSION;
    let profile = EngineInteractiveProfile {
        kind: ProfileKind::Resumable,
        reason: "it resumes".to_owned(),
        session_timeout_sec: Seconds(1200),
    };
    let process = ProcessBinding {
        keeper: format!("{run_id}-1"),
        pid: 4242,
        start_time: 77,
        boot_id: "boot".to_owned(),
    };
    let abilities = RunAbilities { steer: false, recover: true };
    vec![
        RunEvent::RunCreated(Box::new(NewRun { run_id, settings, message, idempotency: None, rules })),
        RunEvent::Admitted,
        RunEvent::ProfileResolved { profile, abilities, handle: None, command: None },
        RunEvent::AttemptStarted { attempt: Attempt(1), process },
    ]
}

fn approval(name: &str) -> ApprovalContext {
    let field = |value| RequestField { name: name.to_owned(), value };
    let subject = match name {
        "first" => ApprovalSubject::Command { line: CommandLine::Shell("make".to_owned()), cwd: None },
        _ => ApprovalSubject::FileChange {
            files: vec![FileChange {
                path: "a".to_owned(),
                change: abide_domain::context::ChangeKind::Edit,
                diff: "-b".to_owned(),
                truncated: true,
            }],
        },
    };
    ApprovalContext {
        subject,
        tool: Some("bash".to_owned()),
        remarks: vec!["builds".to_owned()],
        other_fields: vec![
            field(FieldValue::Text("t".to_owned())),
            field(FieldValue::Json("[1]".to_owned())),
        ],
        truncated: true,
    }
}

#[expect(clippy::disallowed_methods, reason = "the server's own program makes the dump")]
fn dump_schema(url: &str) -> String {
    let arguments = ["--inserts", "--no-owner", "--no-privileges", "--schema", SCHEMA, url];
    let output = Command::new("pg_dump").args(arguments).output().expect("pg_dump is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("a dump is text");
    // Commands of psql and settings of the server are omitted.
    let is_data =
        |line: &&str| !line.starts_with(['\\', '-']) && !line.starts_with("SET ") && !line.is_empty();
    text.lines().filter(is_data).map(|line| format!("{line}\n")).collect()
}

#[expect(clippy::disallowed_methods, reason = "the caller says where a server is")]
fn postgres_url() -> Option<String> {
    std::env::var("ABIDE_TEST_POSTGRES_URL").ok()
}
