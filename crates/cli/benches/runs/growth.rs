//! Checks that no operation becomes slower with the number of runs in the database.
//!
//! There are two databases, one with a thousand finished runs and one with many more, with the same number of waiting
//! runs. Each operation is timed in both alternately, and the means of the fastest tenths are compared, because noise
//! of the machine only adds time.

use std::{path::Path, sync::Arc, time::Duration};

use abide_daemon::Daemon;
use abide_domain::{
    engine::{EngineInteractiveProfile, EngineSessionHandle, HandleType, ProfileKind, RunAbilities},
    event::{ProcessAfterTurn, RunEvent, TurnOutcome},
    id::{InteractionId, RunId},
    interaction::{DecisionPolicy, InteractionKind, Question},
    process::{Attempt, ExitStatus, OutputPosition, ProcessBinding},
    reply::{InteractionReply, ReplyAuthor},
    run::{self, Run},
    time::Seconds,
};
use abide_host::clock::SystemClock;
use abide_ports::{
    clock::Clock,
    store::{JournalCommit, JournalSeq, PageRequest, RunChange, Store},
};

use crate::{
    cycles::{fake_engine_ports, new_run},
    in_process, now, verdict,
};

/// The numbers of finished runs in the two databases.
const FEW_RUNS: usize = 1_000;
pub(crate) const MANY_RUNS: usize = 100_000;
/// The number of waiting runs in both; each reply uses one.
const WAITING: usize = SAMPLES + 100;
/// The number of samples of each operation in each database.
const SAMPLES: usize = 300;
/// The number of times that a database is opened.
const OPENINGS: usize = 60;
/// The number of runs in one commit when a database is filled.
const RUNS_PER_COMMIT: usize = 200;
/// The maximum ratio of the times in the larger and the smaller database.
const MAX_GROWTH_RATIO: f64 = 1.2;

pub(crate) async fn bench(runs: usize) -> bool {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on disk");
    let mut few = GrowthDatabase::filled(folder.path(), "few", FEW_RUNS).await;
    let mut many = GrowthDatabase::filled(folder.path(), "many", runs).await;
    println!("\n{FEW_RUNS} against {runs} finished runs; the quickest tenths of {SAMPLES} times each");
    let mut passed = true;
    for (operation, samples) in OPERATIONS {
        let (mut short, mut long) = (vec![], vec![]);
        for _ in 0..operation.warm_up() {
            few.time(operation).await;
            many.time(operation).await;
        }
        for _ in 0..samples {
            short.push(few.time(operation).await);
            long.push(many.time(operation).await);
        }
        let (short, long) = (fastest_tenth_mean(short), fastest_tenth_mean(long));
        let ratio = long.as_secs_f64() / short.as_secs_f64();
        passed &= !operation.is_judged() || ratio <= MAX_GROWTH_RATIO;
        println!(
            "{:<20} {:>9.1} us {:>9.1} us  x {ratio:.2}  {}",
            format!("{operation:?}"),
            short.as_secs_f64() * 1e6,
            long.as_secs_f64() * 1e6,
            if operation.is_judged() { verdict(ratio <= MAX_GROWTH_RATIO) } else { "for scale" }
        );
    }
    passed
}

/// The frequent operations of clients and the daemon.
#[derive(Clone, Copy, Debug)]
enum GrowthOperation {
    Create,
    Reply,
    ReadRun,
    /// Reads a random run. The larger database then also has a colder cache.
    ReadAnyRun,
    ListRuns,
    Inbox,
    DueDeadlines,
    PendingEffects,
    EventsPage,
    Open,
}

impl GrowthOperation {
    /// Returns the number of operations before the measurement. A daemon that has run for a while has the upper pages
    /// of its tables in the cache, whatever their size.
    fn warm_up(self) -> usize {
        match self {
            Self::ReadRun | Self::ReadAnyRun => 4_000,
            Self::ListRuns | Self::Inbox | Self::DueDeadlines | Self::PendingEffects | Self::EventsPage => {
                100
            }
            Self::Create | Self::Reply | Self::Open => 0,
        }
    }

    /// Whether only the number of runs differs, and not the number of runs that are read.
    fn is_judged(self) -> bool {
        !matches!(self, Self::ReadAnyRun)
    }
}

const OPERATIONS: [(GrowthOperation, usize); 10] = [
    (GrowthOperation::Create, SAMPLES),
    (GrowthOperation::Reply, SAMPLES),
    (GrowthOperation::ReadRun, SAMPLES),
    (GrowthOperation::ReadAnyRun, SAMPLES),
    (GrowthOperation::ListRuns, SAMPLES),
    (GrowthOperation::Inbox, SAMPLES),
    (GrowthOperation::DueDeadlines, SAMPLES),
    (GrowthOperation::PendingEffects, SAMPLES),
    (GrowthOperation::EventsPage, SAMPLES),
    (GrowthOperation::Open, OPENINGS),
];

/// The number of items in a page.
const PAGE: usize = 20;

/// A database and the daemon on it. It has no slots, so no effect is performed.
struct GrowthDatabase {
    url: String,
    open: Option<(Arc<dyn Store>, Daemon)>,
    questions: Vec<InteractionId>,
    finished: Vec<RunId>,
    next: usize,
}

impl GrowthDatabase {
    async fn filled(folder: &Path, name: &str, runs: usize) -> Self {
        let url = format!("sqlite:{}/{name}.db", folder.display());
        let mut place = Self { url, open: None, questions: vec![], finished: vec![], next: 0 };
        place.open().await;
        let (store, _) = place.open.as_ref().expect("it was just opened");
        let store = store.clone();
        let mut remaining_runs = runs;
        while remaining_runs > 0 {
            let mut changes = Vec::new();
            for _ in 0..remaining_runs.min(RUNS_PER_COMMIT) {
                let (history, run) = run_history(true);
                changes.extend(history);
                place.finished.push(run.run_id);
            }
            remaining_runs -= remaining_runs.min(RUNS_PER_COMMIT);
            store.commit(JournalCommit { changes }).await.expect("it is written");
        }
        for _ in 0..WAITING {
            let (changes, run) = run_history(false);
            place.questions.extend(run.pending_interaction_id());
            store.commit(JournalCommit { changes }).await.expect("it is written");
        }
        place.close().await;
        place.open().await;
        place
    }

    async fn open(&mut self) {
        let store = abide_store::registry::open(&self.url).await.expect("it opens");
        let daemon = in_process::open_daemon(fake_engine_ports(store.clone()), 0).await;
        self.open = Some((store, daemon));
    }

    async fn close(&mut self) {
        if let Some((store, daemon)) = self.open.take() {
            daemon.end().await;
            store.close().await.expect("it closes");
        }
    }

    async fn time(&mut self, operation: GrowthOperation) -> Duration {
        self.next += 1;
        if let GrowthOperation::Open = operation {
            // Closing is not measured.
            self.close().await;
            let start = now();
            self.open().await;
            return start.elapsed();
        }
        let (store, daemon) = self.open.as_ref().expect("it is open between operations");
        let any = self.next * 7919 % self.finished.len();
        // The same number of different runs in both, spread over the whole range: only the number of other runs
        // differs.
        let some = any - any % (self.finished.len() / FEW_RUNS).max(1);
        let replies = matches!(operation, GrowthOperation::Reply);
        let question = if replies { self.questions.pop() } else { None };
        let head = store.head().await.expect("it answers");
        let (start, page) = (now(), PageRequest::first(PAGE));
        match operation {
            GrowthOperation::Create => {
                let run_id = RunId(SystemClock.stamp().id_seed);
                drop(daemon.create(new_run(run_id)).await.expect("it is created"));
            }
            GrowthOperation::Reply => {
                let interaction_id = question.expect("there are enough questions");
                let by = ReplyAuthor::Person("ada".to_owned());
                let reply =
                    InteractionReply { interaction_id, text: "this".to_owned(), by, idempotency_key: None };
                let asked = daemon.question(interaction_id).await.expect("it answers");
                drop(daemon.reply(reply, asked.expect("it is there")).await.expect("it is taken"));
            }
            GrowthOperation::ReadRun => drop(store.run(self.finished[some]).await.expect("it answers")),
            GrowthOperation::ReadAnyRun => drop(store.run(self.finished[any]).await.expect("it answers")),
            GrowthOperation::ListRuns => drop(store.runs(None, page).await.expect("it answers")),
            GrowthOperation::Inbox => drop(store.open_interactions(page).await.expect("it answers")),
            GrowthOperation::DueDeadlines => {
                drop(store.runs_due(SystemClock.stamp().at, PAGE).await.expect("it answers"));
            }
            GrowthOperation::PendingEffects => {
                drop(store.pending_effects(None, PAGE).await.expect("it answers"))
            }
            GrowthOperation::EventsPage => {
                drop(store.entries(JournalSeq(head.0 / 2), PAGE).await.expect("it answers"));
            }
            GrowthOperation::Open => {}
        }
        start.elapsed()
    }
}

/// Returns the mean of the fastest tenth.
fn fastest_tenth_mean(mut times: Vec<Duration>) -> Duration {
    times.sort();
    let tenth = (times.len() / 10).max(1);
    times.iter().take(tenth).sum::<Duration>() / tenth as u32
}

/// Returns all changes of a run until it is finished, or waits for an answer.
fn run_history(finishes: bool) -> (Vec<RunChange>, Run) {
    let run_id = RunId(SystemClock.stamp().id_seed);
    let mut changes = Vec::new();
    let mut happens = |event: RunEvent| {
        let before = changes.last().map(|change: &RunChange| &*change.run);
        let stamp = SystemClock.stamp();
        let step = run::apply(before, &stamp, &event).expect("this is how a run goes");
        let change = RunChange::new(before, stamp, event, step);
        let run = Run::clone(&change.run);
        changes.push(change);
        run
    };
    happens(RunEvent::RunCreated(Box::new(new_run(run_id))));
    happens(RunEvent::Admitted);
    let profile = EngineInteractiveProfile {
        kind: ProfileKind::Resumable,
        reason: "it can resume".to_owned(),
        session_timeout_sec: Seconds(1200),
    };
    happens(RunEvent::ProfileResolved {
        profile,
        abilities: RunAbilities::default(),
        handle: None,
        command: None,
    });
    let question = Question {
        kind: InteractionKind::OpenText,
        prompt: "Which of the two places shall it be?".to_owned(),
        options: vec![],
        ui_hints: None,
        default_decision_policy: DecisionPolicy::EngineJudgement,
        context: None,
        hidden: None,
    };
    let outcome = TurnOutcome::Asked { text: String::new(), question };
    let mut run = turn(&mut happens, Attempt(1), outcome);
    if finishes {
        let interaction_id = run.pending_interaction_id().expect("it asks");
        let by = ReplyAuthor::Person("ada".to_owned());
        let reply = InteractionReply { interaction_id, text: "this".to_owned(), by, idempotency_key: None };
        happens(RunEvent::ReplyArrived { reply });
        happens(RunEvent::Admitted);
        run = turn(&mut happens, Attempt(2), TurnOutcome::Completed { text: "It is done.".to_owned() });
    }
    (changes, run)
}

fn turn(happens: &mut impl FnMut(RunEvent) -> Run, attempt: Attempt, ending: TurnOutcome) -> Run {
    let process =
        ProcessBinding { keeper: "k".to_owned(), pid: 4711, start_time: 1, boot_id: "b".to_owned() };
    let run = happens(RunEvent::AttemptStarted { attempt, process });
    let turn_id = run.turns.last().expect("a turn is at work").turn_id;
    let handle = EngineSessionHandle {
        engine: "actor".to_owned(),
        handle_type: HandleType::SessionId,
        handle_value: "s".to_owned(),
        created_at_turn: 1,
    };
    happens(RunEvent::HandleAnnounced { attempt, position: OutputPosition(1), handle });
    let aftermath = ProcessAfterTurn::Exited(ExitStatus::Code(0));
    happens(RunEvent::TurnEnded {
        attempt,
        turn_id,
        position: OutputPosition(2),
        outcome: ending,
        process_after: aftermath,
    })
}
