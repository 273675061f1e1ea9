//! Performs what runs owe to the world, and takes what engines say back to the desk.
//!
//! The orders of one run are carried out one after the other, each reported before anything else of that run is taken
//! (decision 0002): that is the run's lane. Every order may be carried out again after a crash. A process that is held
//! is started and read by a thread of its own; there are as many as there are slots.

mod examined;
mod lane;
mod launch;
mod listen;
mod orders;
mod probe;
mod threads;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use abide_domain::{
    deadline::DeadlineKind,
    effect::EffectNumber,
    event::Event,
    id::RunId,
    process::{Attempt, Exit, Position},
    run::{Run, RunState, Working},
    time::Timestamp,
};
use abide_ports::{
    catalogue::Catalogue,
    clock::Clock,
    processes::{Found, Processes},
    store::Store,
    workspace::Workspaces,
};
use examined::Examined;
use tokio::{runtime::Handle, sync::watch};

use crate::{
    desk::{Desk, Outcome},
    error::DeskError,
    failpoint::{self, Point},
    talk::Talk,
};

/// What the performer works with.
#[derive(Clone)]
pub struct World {
    /// The one door to every run.
    pub desk: Arc<Desk>,
    /// Where runs are looked up.
    pub store: Arc<dyn Store>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Which engines there are.
    pub catalogue: Arc<dyn Catalogue>,
    /// Who holds processes.
    pub processes: Arc<dyn Processes>,
    /// Who prepares the directories that runs work in.
    pub workspaces: Arc<dyn Workspaces>,
    /// The directory in which each run has its private one.
    pub private: String,
}

/// Performs orders. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Performer {
    world: World,
    shared: Arc<Shared>,
    runtime: Handle,
}

type Talks = BTreeMap<(RunId, Attempt), Arc<Mutex<Talk>>>;

struct Shared {
    lanes: lane::RunLanes,
    /// The processes that are being listened to.
    talks: Mutex<Talks>,
    threads: threads::Threads,
    /// Engines that need not be examined again.
    examined: Arc<Examined>,
    /// Runs whose orders are being performed, and whether to look again afterwards.
    busy: Mutex<BTreeMap<RunId, Again>>,
    /// Wakes whoever waits for something to change.
    changed: tokio::sync::watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    No,
    Yes,
}

/// What became of an order.
enum Carried {
    /// It was carried out, or cannot be: this says so.
    Told(Event),
    /// It has to wait until then.
    NotBefore(Timestamp),
    /// It is a process that takes a while to start.
    Starts(Box<launch::Starting>),
    /// It is for a process that has not been heard as far as its run has, so nobody knows yet how to speak to it.
    Unheard(watch::Receiver<Position>, Position),
}

/// How long to wait before an order is tried again that could not be reported.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long a run is left alone whose orders broke an assumption of ours.
const BROKEN_PAUSE: Duration = Duration::from_secs(30);

impl Performer {
    /// A performer on the present runtime. What it knows of engines is known to the desk from now on.
    pub fn new(world: World) -> Self {
        let (catalogue, processes) = (world.catalogue.clone(), world.processes.clone());
        let examined = Arc::new(Examined::new(catalogue, processes, world.clock.clone()));
        let known = examined.clone();
        world.desk.foresee(Arc::new(move |run| known.foresee(run)));
        let shared = Shared {
            examined,
            threads: threads::Threads::default(),
            lanes: lane::RunLanes::default(),
            talks: Mutex::default(),
            busy: Mutex::default(),
            changed: tokio::sync::watch::channel(0).0,
        };
        Self { world, shared: Arc::new(shared), runtime: Handle::current() }
    }

    /// Start-up is no special case: what is found dead comes in as an event, what lives is listened to, what is owed
    /// is performed.
    pub async fn reconcile(&self) -> Result<(), DeskError> {
        // Before anything is performed: a check that this daemon begins is no stranger.
        let processes = self.world.processes.clone();
        let found = self.blocking(move || processes.names()).await;
        let mut cursor = None;
        for (run, _) in self.world.store.occupying().await? {
            self.perform_owed(run).await;
            if let Some(run) = self.world.store.run(run).await? {
                self.find_again(&run).await?;
            }
        }
        loop {
            let owed = self.world.store.owed(cursor, OWED_AT_ONCE).await?;
            let Some((run, last)) = owed.last() else { break };
            cursor = Some((*run, last.number));
            let runs: BTreeSet<RunId> = owed.into_iter().map(|(run, _)| run).collect();
            for run in runs {
                self.look_after(run);
            }
        }
        self.forget_strangers(found).await
    }

    /// Takes news of a run to the desk, and performs what follows. Requests of people go to the desk directly: they may
    /// come between an order and its report, and then to [`Self::follow_up`].
    pub async fn take(&self, run: RunId, event: Event) -> Result<Outcome, DeskError> {
        let outcome = {
            let _lane = self.shared.lanes.enter(run).await;
            self.world.desk.take(run, event).await?
        };
        self.follow_up(&outcome).await;
        Ok(outcome)
    }

    /// Performs what follows from something that the desk has taken.
    pub async fn follow_up(&self, outcome: &Outcome) {
        if let Outcome::Changed(run) = outcome {
            if !run.owed.is_empty() {
                self.look_after(run.run_id);
            }
            self.shared.changed.send_modify(|changes| *changes += 1);
        }
        for run in self.world.desk.admit().await.unwrap_or_default() {
            self.look_after(run);
        }
    }

    /// Lets deadlines pass, and performs what follows. A turn that may have ended in time, while nobody listened, is
    /// heard out first.
    pub async fn ring(&self) -> Result<(), DeskError> {
        let now = self.world.clock.stamp().at;
        for (run, deadline) in self.world.store.due(now, DUE_AT_ONCE).await? {
            if let DeadlineKind::Turn(attempt) = deadline.kind
                && self.talk_of(run, attempt).is_some_and(|talk| lock(&talk).is_behind())
            {
                continue;
            }
            self.take(run, Event::DeadlinePassed { deadline: deadline.kind }).await?;
        }
        Ok(())
    }

    /// Something that changes whenever a run does.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Sees to it that what a run owes is performed, now or right after what is being performed.
    pub fn look_after(&self, run: RunId) {
        let mut busy = lock(&self.shared.busy);
        if let Some(again) = busy.get_mut(&run) {
            *again = Again::Yes;
            return;
        }
        busy.insert(run, Again::No);
        let looking = Looking { performer: self.clone(), run };
        self.runtime.spawn(async move {
            let performer = &looking.performer;
            loop {
                performer.perform_owed(run).await;
                let mut busy = lock(&performer.shared.busy);
                match busy.get(&run) {
                    Some(Again::Yes) => busy.insert(run, Again::No),
                    Some(Again::No) | None => {
                        busy.remove(&run);
                        break;
                    }
                };
            }
        });
    }

    /// Carries out what a run owes, one order after the other, until nothing is due.
    async fn perform_owed(&self, run: RunId) {
        loop {
            let lane = self.shared.lanes.enter(run).await;
            let state = match self.world.desk.latest(run).await {
                Ok(Some(state)) => state,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%run, %error, "orders not read");
                    return self.look_later(run, RETRY_PAUSE);
                }
            };
            let Some(owed) = state.owed.first() else { return };
            let wait = self.wait_until(owed.due_at);
            if !wait.is_zero() {
                return self.look_later(run, wait);
            }
            match self.carry_out(&state, owed).await {
                Carried::NotBefore(at) => return self.look_later(run, self.wait_until(at)),
                // Listening needs the lane, so it is not waited for here.
                Carried::Unheard(progress, wanted) => return self.look_when_heard(run, progress, wanted),
                // Who starts a process listens to it, tells both, and sees to what is owed then. The lane is free again
                // when that is told.
                Carried::Starts(starting) => {
                    if !self.start_and_listen(&state, *starting, lane) {
                        self.look_later(run, RETRY_PAUSE);
                    }
                    return;
                }
                Carried::Told(event) => {
                    failpoint::reach(Point::OrderCarriedOut);
                    let listens = matches!(event, Event::ContactRestored { .. });
                    match self.world.desk.take(run, event).await {
                        Ok(outcome) => {
                            if listens && let Outcome::Changed(run) = &outcome {
                                self.listen(run).await;
                            }
                            drop(lane);
                            self.announce(&outcome).await;
                        }
                        // It is still owed. Doing it again does no harm.
                        Err(error) => {
                            tracing::warn!(%run, effect = owed.number.0, %error, "order not reported");
                            return self.look_later(run, RETRY_PAUSE);
                        }
                    }
                }
            }
        }
    }

    /// Like [`Self::follow_up`], for a run that is being looked after already.
    async fn announce(&self, outcome: &Outcome) {
        if let Outcome::Changed(_) = outcome {
            self.shared.changed.send_modify(|changes| *changes += 1);
        }
        for run in self.world.desk.admit().await.unwrap_or_default() {
            self.look_after(run);
        }
    }

    fn wait_until(&self, at: Timestamp) -> Duration {
        Duration::from_micros(self.world.clock.stamp().at.until(at).0)
    }

    fn look_later(&self, run: RunId, wait: Duration) {
        let performer = self.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(wait).await;
            performer.look_after(run);
        });
    }

    /// Looks after a run again when its process has been heard that far, or is no longer listened to.
    fn look_when_heard(&self, run: RunId, mut progress: watch::Receiver<Position>, wanted: Position) {
        let performer = self.clone();
        self.runtime.spawn(async move {
            if progress.wait_for(|heard| *heard >= wanted).await.is_err() {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            performer.look_after(run);
        });
    }

    /// Ends every process that a run still holds, and takes the news of it.
    pub(crate) async fn end_held(&self) -> Result<(), DeskError> {
        for (run, _) in self.world.store.occupying().await? {
            let Some(attempt) = self.world.store.run(run).await?.and_then(|run| run.attempt()) else {
                continue;
            };
            self.end(run, attempt).await;
            self.take(run, Event::ProcessExited { attempt, exit: Exit::Unseen }).await?;
        }
        Ok(())
    }

    /// A process that a run still counts on is listened to, or reported gone.
    async fn find_again(&self, run: &Run) -> Result<(), DeskError> {
        let Some(attempt) = run.live().map(|live| live.attempt) else { return Ok(()) };
        if lock(&self.shared.talks).contains_key(&(run.run_id, attempt)) {
            return Ok(());
        }
        match self
            .blocking({
                let (processes, name) = (self.world.processes.clone(), name(run.run_id, attempt));
                move || processes.find(&name)
            })
            .await
        {
            Found::Held(_) => self.listen(run).await,
            Found::Gone | Found::Never => {
                self.take(run.run_id, Event::ProcessExited { attempt, exit: Exit::Unseen }).await?;
            }
        }
        Ok(())
    }

    /// Ends processes that no run counts on: their last news was committed, but not that they may go.
    async fn forget_strangers(&self, found: Vec<String>) -> Result<(), DeskError> {
        for name in found {
            let forgotten = match parse(&name) {
                Some((run, attempt)) => {
                    let state = self.world.store.run(run).await?;
                    state.is_none_or(|state| state.attempt() != Some(attempt))
                }
                // A check of an earlier daemon; what else lies here, such as terminals, is not ours.
                None => crate::probe::is_check(&name),
            };
            if forgotten {
                let processes = self.world.processes.clone();
                let _tried_again_at_the_next_start = self.blocking(move || processes.end(&name)).await;
            }
        }
        Ok(())
    }

    /// Runs something that blocks.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self.runtime.spawn_blocking(work).await {
            Ok(done) => done,
            Err(failed) => std::panic::resume_unwind(failed.into_panic()),
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("private", &self.private).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Performer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Performer").finish_non_exhaustive()
    }
}

/// Somebody is looking after a run. A broken assumption on the way stops that run for a while, and nothing else.
struct Looking {
    performer: Performer,
    run: RunId,
}

impl Drop for Looking {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(run = %self.run, "a broken assumption in performing orders");
            lock(&self.performer.shared.busy).remove(&self.run);
            self.performer.look_later(self.run, BROKEN_PAUSE);
        }
    }
}

/// How many orders and runs are read at once.
const OWED_AT_ONCE: usize = 500;
const DUE_AT_ONCE: usize = 500;

/// The name under which an attempt's process is held.
pub(crate) fn name(run: RunId, attempt: Attempt) -> String {
    format!("{run}-{}", attempt.0)
}

/// Whose process a name means, if it is the name of one.
fn parse(name: &str) -> Option<(RunId, Attempt)> {
    let (run, attempt) = name.rsplit_once('-')?;
    Some((run.parse().ok()?, Attempt(attempt.parse().ok()?)))
}

/// The key under which an order's bytes are written. The highest bit tells it from positions in a process's speech.
fn key(number: EffectNumber) -> u64 {
    (1 << 63) | u64::from(number.0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a person asked for the end of the turn at work.
fn is_being_stopped(run: &Run) -> bool {
    matches!(run.state, RunState::Running(Working::Stopping(_)))
}
