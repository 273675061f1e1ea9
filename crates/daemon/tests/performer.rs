//! The performer on a memory store, with actors for engines: what is heard together is committed together, what is
//! known is not asked again, and nothing is said to a process before what it said is durable.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use abide_daemon::{Desk, Outcome, Performer, World};
use abide_domain::{
    engine::{Abilities, Handle, HandleType, Profile, ProfileKind},
    event::{Event, NewRun},
    id::RunId,
    inbound::{Message, MessageKey},
    process::{Attempt, Exit},
    reply::{Answerer, Reply},
    run::{Run, Status},
    settings::{ExecutionMode, OnBusy, Settings, Unanswered},
    time::Seconds,
};
use abide_ports::{
    clock::Clock,
    engine::{Launch, Said, Stdin},
    processes::{Heard, Processes, Start},
    store::{Journal, Runs, Seq},
    workspace::{Preparation, Unusable, Workspaces},
};
use abide_store::memory::{CrashPoint, MemoryStore};
use abide_testkit::{
    actor::{Actors, BareStage, OnlyActor, Part},
    clock::FakeClock,
};

/// A daemon's inside, with everything that outlives it.
struct Theatre {
    desk: Arc<Desk>,
    performer: Performer,
    store: Arc<MemoryStore>,
    clock: Arc<FakeClock>,
    actors: Arc<Actors>,
}

/// Longer than anything here takes on any machine.
const PATIENCE: Duration = Duration::from_secs(20);

impl Theatre {
    async fn open(actors: Actors) -> Self {
        Self::on(Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), Arc::new(actors)).await
    }

    async fn on(store: Arc<MemoryStore>, clock: Arc<FakeClock>, actors: Arc<Actors>) -> Self {
        Self::in_workspaces(Arc::new(BareStage), store, clock, actors).await
    }

    async fn in_workspaces(
        workspaces: Arc<dyn Workspaces>,
        store: Arc<MemoryStore>,
        clock: Arc<FakeClock>,
        actors: Arc<Actors>,
    ) -> Self {
        let desk = Arc::new(Desk::open(store.clone(), clock.clone(), 4).await.expect("it opens"));
        let performer = Performer::new(World {
            desk: desk.clone(),
            store: store.clone(),
            clock: clock.clone(),
            catalogue: Arc::new(OnlyActor),
            processes: actors.clone(),
            workspaces,
            private: "private".to_owned(),
        });
        Self { desk, performer, store, clock, actors }
    }

    async fn create(&self) -> RunId {
        let run_id = RunId(self.clock.stamp().fresh);
        self.follow_up(&self.desk.create(new_run(run_id)).await.expect("it is created")).await;
        run_id
    }

    async fn reply(&self, run: &Run) {
        let interaction_id = run.pending_interaction_id().expect("it asks");
        let by = Answerer::Person("ada".into());
        let reply = Reply { interaction_id, text: "this".into(), by, idempotency_key: None };
        self.follow_up(&self.desk.reply(reply).await.expect("it is taken")).await;
    }

    async fn follow_up(&self, outcome: &Outcome) {
        self.performer.follow_up(outcome).await;
    }

    /// Waits until a run is like that and nothing of it is held or owed.
    async fn until(&self, run: RunId, status: Status) -> Run {
        let mut changes = self.performer.changes();
        let waits = async {
            loop {
                changes.mark_unchanged();
                let state = self.store.run(run).await.expect("memory can be read").expect("it is there");
                if state.status() == status && state.owed.is_empty() && self.actors.names().is_empty() {
                    return state;
                }
                changes.changed().await.expect("the performer lives");
            }
        };
        tokio::time::timeout(PATIENCE, waits).await.expect("it comes to that")
    }

    async fn told(&self, run: RunId) -> Vec<&'static str> {
        let entries = self.store.entries_of(run, Seq(0), 100).await.expect("memory can be read");
        entries.iter().map(|entry| entry.event.name()).collect()
    }
}

fn profile() -> Profile {
    Profile { kind: ProfileKind::Resumable, reason: "so it is".into(), session_timeout_sec: Seconds(60) }
}

fn new_run(run_id: RunId) -> NewRun {
    let settings = Settings {
        engine: "actor".into(),
        workspace: "w".into(),
        execution_mode: ExecutionMode::Interactive,
        conversation_ref: None,
        unanswered: Unanswered::Strict,
        session_timeout_sec: Seconds(60),
        turn_timeout_sec: None,
        on_busy: OnBusy::Queue,
        model: None,
        sandbox: None,
        skill: None,
        labels: Default::default(),
    };
    let key = MessageKey { channel: "api".into(), message_id: run_id.to_string() };
    let message = Message { key, text: "play".into() };
    NewRun { run_id, settings, message, idempotency: None }
}

fn line(text: &str) -> Heard {
    Heard::Stdout(format!("{text}\n").into_bytes())
}

/// Asks in a new session, and is done in one that goes on.
fn asks_once(part: Part<'_>) -> Vec<Heard> {
    let last = if part.session.is_empty() { "ask which?" } else { "done" };
    vec![line("session s"), line(last), Heard::Exited(Exit::Code(0))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_is_examined_once_until_it_is_replaced() {
    let theatre = Theatre::open(Actors::new(asks_once)).await;
    for (examined, replaced) in [(1, false), (1, false), (2, true), (2, false)] {
        if replaced {
            theatre.actors.replace_program();
        }
        let run = theatre.create().await;
        theatre.until(run, Status::WaitingUser).await;
        assert_eq!(theatre.actors.examined(), examined);
    }
}

/// A workspace that breaks whoever prepares it.
struct Trapdoor;

impl Workspaces for Trapdoor {
    fn prepare(&self, _: &Preparation<'_>) -> Result<(), Unusable> {
        panic!("the floor gives way")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launch_that_breaks_us_is_counted_and_put_to_a_person() {
    let (store, clock, actors) =
        (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), Arc::new(Actors::new(asks_once)));
    let theatre = Theatre::in_workspaces(Arc::new(Trapdoor), store, clock, actors).await;
    let run = theatre.create().await;
    let mut changes = theatre.performer.changes();
    let parked = async {
        while theatre.told(run).await.last() != Some(&"LaunchFailed")
            || theatre.store.run(run).await.expect("memory can be read").expect("it is there").status()
                != Status::WaitingUser
        {
            theatre.clock.advance(60_000_000);
            theatre.performer.look_after(run);
            changes.changed().await.expect("the performer lives");
        }
    };
    tokio::time::timeout(PATIENCE, parked).await.expect("somebody is asked");
    assert_eq!(theatre.told(run).await.iter().filter(|event| **event == "LaunchFailed").count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_of_two_turns_is_a_handful_of_commits() {
    let theatre = Theatre::open(Actors::new(asks_once)).await;
    let first = theatre.create().await;
    theatre.until(first, Status::WaitingUser).await;
    let run = theatre.create().await;
    let waiting = theatre.until(run, Status::WaitingUser).await;
    theatre.reply(&waiting).await;
    theatre.until(run, Status::Succeeded).await;
    let turn = ["AttemptStarted", "HandleAnnounced", "TurnEnded", "ProcessExited"];
    let begins = ["RunCreated", "Admitted", "ProfileResolved"];
    let goes_on = ["ReplyArrived", "Admitted"];
    assert_eq!(theatre.told(run).await, [&begins[..], &turn, &goes_on, &turn].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_wants_written_is_written_after_what_it_said_before_is_durable() {
    let store = Arc::new(MemoryStore::new());
    let seen: Arc<Mutex<Vec<(String, usize)>>> = Arc::default();
    let (watched, log) = (store.clone(), seen.clone());
    let plays = |_: Part<'_>| {
        let together = "session s\nprogress one\nwrite first\nprogress two\nwrite second\ndone\n";
        vec![Heard::Stdout(together.into()), Heard::Exited(Exit::Code(0))]
    };
    let watch = move |_: &str, bytes: &[u8]| {
        // The memory store answers at once, so nobody has to be waited for.
        let entries = futures_now(watched.entries(Seq(0), 100)).expect("memory can be read");
        let progressed = entries.iter().filter(|entry| entry.event.name() == "Progressed").count();
        log.lock().unwrap().push((String::from_utf8_lossy(bytes).into_owned(), progressed));
    };
    let actors = Arc::new(Actors::watched(plays, watch));
    let theatre = Theatre::on(store, Arc::new(FakeClock::new()), actors).await;
    let run = theatre.create().await;
    theatre.until(run, Status::Succeeded).await;
    assert_eq!(*seen.lock().unwrap(), [("first\n".to_owned(), 1), ("second\n".to_owned(), 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_that_comes_later_is_not_waited_for() {
    let theatre = Theatre::open(Actors::new(|_| vec![line("session s"), line("progress one")])).await;
    let run = theatre.create().await;
    let mut changes = theatre.performer.changes();
    let progressed = async {
        while !theatre.told(run).await.contains(&"Progressed") {
            changes.changed().await.expect("the performer lives");
        }
    };
    tokio::time::timeout(PATIENCE, progressed).await.expect("it is committed while the actor is silent");
    let name = theatre.actors.names().remove(0);
    theatre.actors.says(&name, line("done"));
    theatre.actors.says(&name, Heard::Exited(Exit::Code(0)));
    theatre.until(run, Status::Succeeded).await;
}

/// A daemon examines the engine of a run and starts its process, and no more.
async fn started_by_hand(desk: &Desk, actors: &Actors, run_id: RunId) {
    let resolved =
        Event::ProfileResolved { profile: profile(), abilities: Abilities::default(), handle: None };
    desk.take(run_id, resolved).await.expect("it is taken");
    let launch = Launch {
        argv: vec!["actor".into(), String::new(), "play".into()],
        env: vec![],
        without_env: vec![],
        files: vec![],
        stdin: Stdin::Open(vec![]),
        not_before: None,
        outliving: None,
    };
    let start = Start { launch: &launch, workspace: "w", private: "p" };
    let process = actors.start(&format!("{run_id}-1"), &start).expect("it starts");
    desk.take(run_id, Event::AttemptStarted { attempt: Attempt(1), process }).await.expect("it is taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_dies_in_a_commit_is_followed_by_one_that_comes_to_the_same() {
    for point in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()));
        let plays = |_: Part<'_>| {
            let said = "session s\nprogress one\nask which?\n";
            vec![Heard::Stdout(said.into()), Heard::Exited(Exit::Code(0))]
        };
        let actors = Arc::new(Actors::new(plays));
        // This daemon lives until it has started the process and heard some of what it said.
        let desk = Desk::open(store.clone(), clock.clone(), 4).await.expect("it opens");
        let run_id = RunId(clock.stamp().fresh);
        desk.create(new_run(run_id)).await.expect("it is created");
        started_by_hand(&desk, &actors, run_id).await;
        let attempt = Attempt(1);
        let handle = Handle {
            engine: "actor".into(),
            handle_type: HandleType::SessionId,
            handle_value: "s".into(),
            created_at_turn: 0,
        };
        let (named, progressed) = (Said::position(10, 0), Said::position(23, 0));
        let heard = vec![
            Event::HandleAnnounced { attempt, position: named, handle },
            Event::Progressed { attempt, position: progressed, text: "one".into() },
        ];
        store.crash_at(point);
        assert!(desk.take_all(run_id, &heard).await.is_err());
        drop(desk);
        let next = Theatre::on(store, clock, actors).await;
        next.performer.reconcile().await.expect("it starts");
        let waiting = next.until(run_id, Status::WaitingUser).await;
        assert!(waiting.pending_interaction_id().is_some());
        let told = ["HandleAnnounced", "Progressed", "TurnEnded", "ProcessExited"];
        assert_eq!(next.told(run_id).await.split_off(4), told, "nothing is lost and nothing is doubled");
    }
}

/// The result of something that is ready.
fn futures_now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("memory answers at once"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_may_have_ended_while_nobody_listened_is_heard_out_before_it_is_timed_out() {
    let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()));
    let actors = Arc::new(Actors::new(|_| vec![line("session s")]));
    let desk = Desk::open(store.clone(), clock.clone(), 4).await.expect("it opens");
    let run = RunId(clock.stamp().fresh);
    let mut new = new_run(run);
    new.settings.turn_timeout_sec = Some(Seconds(10));
    desk.create(new).await.expect("it is created");
    started_by_hand(&desk, &actors, run).await;
    // The next daemon comes when the turn's time is long over.
    clock.advance(60_000_000);
    let theatre = Theatre::on(store, clock, actors).await;
    theatre.performer.reconcile().await.expect("memory can be read");
    theatre.performer.ring().await.expect("memory can be read");
    let name = theatre.actors.names().remove(0);
    theatre.actors.says(&name, line("done"));
    theatre.actors.says(&name, Heard::Exited(Exit::Code(0)));
    theatre.until(run, Status::Succeeded).await;
}
