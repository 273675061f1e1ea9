//! Performs what runs owe to the world, and takes what engines say back to the desk.
//!
//! The orders of one run are carried out one after the other, each reported before anything else of that run is taken
//! (decision 0002): that is the run's lane. Every order may be carried out again after a crash. A process that is held
//! is started and read by a thread of its own; there are as many as there are slots.

mod examined;
mod guarded;
mod in_progress;
mod lane;
mod launch;
mod listen;
mod orders;
mod probe;
mod set_aside;
mod strangers;
mod threads;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use abide_domain::{
    deadline::DeadlineKind,
    effect::{Effect, EffectNumber},
    event::RunEvent,
    id::RunId,
    process::{Attempt, ExitStatus, OutputPosition},
    run::{Run, RunState, RunningPhase},
    time::{Seconds, Timestamp},
};
use abide_ports::{
    catalogue::EngineLookup,
    clock::Clock,
    contents::ContentStore,
    processes::{ProcessLookup, Processes},
    store::{Store, StoreError},
    workspace::Workspaces,
};
use examined::ProbeCache;
use guarded::{EFFECT, item};
use in_progress::RunInProgress;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    task::JoinSet,
};

use crate::{
    desk::{RequestOutcome, RunService},
    error::RequestError,
    failpoint::{self, DaemonFailpoint},
    guard::{CrashGuard, CrashGuardDecision},
    pressure::SpaceLimit,
    talk::ProcessSession,
};

/// What the performer works with.
#[derive(Clone)]
pub struct DaemonDeps {
    /// The one door to every run.
    pub desk: Arc<RunService>,
    /// Where runs are looked up.
    pub store: Arc<dyn Store>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Which engines there are.
    pub catalogue: Arc<dyn EngineLookup>,
    /// Who holds processes.
    pub processes: Arc<dyn Processes>,
    /// Who prepares the directories that runs work in.
    pub workspaces: Arc<dyn Workspaces>,
    /// The directory in which each run has its private one.
    pub private: String,
    /// How long a turn that is out of contact is searched for, over all losses of its process (E8).
    pub recovery_max: Seconds,
    /// Where texts are kept that are too long for a question.
    pub contents: Arc<dyn ContentStore>,
    /// How much disk space must be free for something new.
    pub space: SpaceLimit,
}

/// Performs orders. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct EffectExecutor {
    world: DaemonDeps,
    shared: Arc<ExecutorInner>,
    runtime: Handle,
}

type ProcessSessionMap = BTreeMap<(RunId, Attempt), Arc<Mutex<ProcessSession>>>;

struct ExecutorInner {
    lanes: lane::KeyedRunLocks,
    /// The processes that are being listened to.
    talks: Mutex<ProcessSessionMap>,
    threads: threads::ListenerThreads,
    /// Engines that need not be examined again.
    examined: Arc<ProbeCache>,
    /// Runs whose orders are being performed, and whether to look again afterwards.
    busy: Mutex<BTreeMap<RunId, RerunFlag>>,
    examinations: probe::ProbesInProgress,
    /// Runs that are left alone for a while.
    set_aside: set_aside::QuarantinedRuns,
    /// Decides which effects may be performed.
    guard: CrashGuard,
    /// Whether the daemon is about to go.
    closing: AtomicBool,
    /// Wakes whoever waits for something to change.
    changed: tokio::sync::watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RerunFlag {
    No,
    Yes,
}

/// What became of an order.
enum EffectResult {
    /// It was carried out, or cannot be: this says so.
    Told(RunEvent),
    /// It has to wait until then.
    NotBefore(Timestamp),
    /// It is a process that takes a while to start.
    Starts(Box<launch::PreparedLaunch>),
    /// It has to wait for the next daemon.
    Closing,
    /// It is for a process that has not been heard as far as its run has, so nobody knows yet how to speak to it.
    Unheard(watch::Receiver<OutputPosition>, OutputPosition),
}

/// How long to wait before an order is tried again that could not be reported.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long a run is left alone whose orders broke an assumption of ours.
const BROKEN_PAUSE: Duration = Duration::from_secs(30);

impl EffectExecutor {
    /// A performer on the present runtime, without a crash guard.
    pub fn new(world: DaemonDeps) -> Self {
        let guard = CrashGuard::none(world.clock.clone());
        Self::guarded(world, guard)
    }

    /// A performer on the present runtime. What it knows of engines is known to the desk from now on.
    pub fn guarded(world: DaemonDeps, guard: CrashGuard) -> Self {
        let (catalogue, processes) = (world.catalogue.clone(), world.processes.clone());
        let examined = Arc::new(ProbeCache::new(catalogue, processes, world.clock.clone()));
        let known = examined.clone();
        world.desk.foresee(Arc::new(move |run| known.foresee(run)));
        let shared = ExecutorInner {
            examined,
            threads: threads::ListenerThreads::default(),
            lanes: lane::KeyedRunLocks::default(),
            talks: Mutex::default(),
            busy: Mutex::default(),
            examinations: probe::ProbesInProgress::default(),
            set_aside: set_aside::QuarantinedRuns::default(),
            guard,
            closing: AtomicBool::new(false),
            changed: tokio::sync::watch::channel(0).0,
        };
        Self { world, shared: Arc::new(shared), runtime: Handle::current() }
    }

    /// Start-up is no special case: what is found dead comes in as an event, what lives is listened to, what is owed
    /// is performed. A keeper that does not answer costs its own run only: what is not done in time goes on meanwhile.
    pub async fn reconcile(&self) -> Result<(), RequestError> {
        // Before anything is performed: a check that this daemon begins is no stranger.
        let processes = self.world.processes.clone();
        let found = self.blocking(move || processes.names()).await;
        let at_once = Arc::new(Semaphore::new(RECONCILED_AT_ONCE));
        let mut tasks = JoinSet::new();
        for (run, _) in self.world.store.occupying().await? {
            let (performer, at_once) = (self.clone(), at_once.clone());
            tasks.spawn(async move {
                let _permit = at_once.acquire().await;
                performer.take_up(run).await
            });
        }
        let mut cursor = None;
        let mut items = BTreeSet::new();
        loop {
            let owed = self.world.store.owed(cursor, OWED_AT_ONCE).await?;
            let Some((run, last)) = owed.last() else { break };
            cursor = Some((*run, last.number));
            if self.shared.guard.suspects_any(EFFECT) {
                items.extend(owed.iter().map(|(run, owed)| item(*run, owed)));
            }
            let runs: BTreeSet<RunId> = owed.into_iter().map(|(run, _)| run).collect();
            for run in runs {
                self.look_after(run);
            }
        }
        self.shared.guard.forget(EFFECT, |item| items.contains(item));
        let performer = self.clone();
        let all = self.runtime.spawn(async move {
            while let Some(done) = tasks.join_next().await {
                if let Err(error) = done {
                    tracing::error!(%error, "a run could not be taken up");
                }
            }
            // Now it is known which processes runs still count on.
            performer.forget_strangers(found).await
        });
        match tokio::time::timeout(RECONCILE_BOUND, all).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => {
                tracing::error!(%error, "not everything could be taken up");
                Ok(())
            }
            Err(_) => {
                tracing::warn!("some keepers do not answer; their runs are taken up when they do");
                Ok(())
            }
        }
    }

    /// Takes up one run that an earlier daemon left. One that cannot be read is set aside.
    async fn take_up(&self, run: RunId) {
        self.perform_owed(run).await;
        if let Err(error) = self.find_again(run).await {
            self.shared.set_aside.put(run, &error.to_string(), self.world.clock.stamp().at);
        }
    }

    /// Takes news of a run to the desk, and performs what follows. Requests of people go to the desk directly: they may
    /// come between an order and its report, and then to [`Self::follow_up`].
    pub async fn take(&self, run: RunId, event: RunEvent) -> Result<RequestOutcome, RequestError> {
        let outcome = {
            let _lane = self.shared.lanes.enter(run).await;
            self.world.desk.take(run, event).await?
        };
        self.follow_up(&outcome).await;
        Ok(outcome)
    }

    /// Lets waiting runs begin for which there is a slot and space.
    pub(crate) async fn admit(&self) {
        for run in self.world.desk.admit().await.unwrap_or_default() {
            self.look_after(run);
        }
    }

    /// Performs what follows from something that the desk has taken.
    pub async fn follow_up(&self, outcome: &RequestOutcome) {
        if let RequestOutcome::Changed(run) = outcome {
            if !run.owed.is_empty() {
                self.look_after(run.run_id);
            }
            self.shared.changed.send_modify(|changes| *changes += 1);
        }
        self.admit().await;
    }

    /// Lets deadlines pass, and performs what follows. A turn that may have ended in time, while nobody listened, is
    /// heard out first. A run that cannot be changed is tried again later, and stops no other.
    pub async fn ring(&self) -> Result<(), RequestError> {
        let now = self.world.clock.stamp().at;
        let set_aside = self.shared.set_aside.count();
        for (run, deadline) in self.world.store.due(now, DUE_AT_ONCE.saturating_add(set_aside)).await? {
            if self.shared.set_aside.until(run).is_some_and(|until| until > now) {
                continue;
            }
            if let DeadlineKind::Turn(attempt) = deadline.kind
                && self.talk_of(run, attempt).is_some_and(|talk| lock(&talk).is_behind())
            {
                continue;
            }
            // On a task of its own: a broken assumption about one run must not end the deadlines of all.
            let performer = self.clone();
            let passed = self.runtime.spawn(async move {
                performer.take(run, RunEvent::DeadlinePassed { deadline: deadline.kind }).await
            });
            let trouble = match passed.await {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("its deadline broke an assumption; the log says which".to_owned()),
            };
            match trouble {
                Some(reason) => self.shared.set_aside.put(run, &reason, now),
                None => self.shared.set_aside.take_back(run),
            }
        }
        Ok(())
    }

    /// When the next deadline is to be looked at, if there is one: that of a run that was set aside not before its time.
    pub(crate) async fn next_deadline(&self) -> Result<Option<Timestamp>, StoreError> {
        let most = self.shared.set_aside.count().saturating_add(1);
        let due = self.world.store.due(Timestamp(i64::MAX), most).await?;
        let looks = due.iter().map(|(run, deadline)| match self.shared.set_aside.until(*run) {
            Some(until) => until.max(deadline.at),
            None => deadline.at,
        });
        Ok(looks.min())
    }

    /// Runs that are left alone for a while because something could not be done for them, and why.
    pub(crate) fn set_aside(&self) -> Vec<(RunId, String)> {
        self.shared.set_aside.all()
    }

    /// Something that changes whenever a run does.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Sees to it that what a run owes is performed, now or right after what is being performed.
    pub fn look_after(&self, run: RunId) {
        let mut busy = lock(&self.shared.busy);
        if let Some(again) = busy.get_mut(&run) {
            *again = RerunFlag::Yes;
            return;
        }
        busy.insert(run, RerunFlag::No);
        let looking = RunInProgress { performer: self.clone(), run };
        self.runtime.spawn(async move {
            let performer = &looking.performer;
            loop {
                performer.perform_owed(run).await;
                let mut busy = lock(&performer.shared.busy);
                match busy.get(&run) {
                    Some(RerunFlag::Yes) => busy.insert(run, RerunFlag::No),
                    Some(RerunFlag::No) | None => {
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
            self.forget_settled(&state);
            let Some(owed) = state.owed.first() else { return };
            if self.is_closing() && matches!(owed.effect, Effect::Launch { .. } | Effect::Probe { .. }) {
                return;
            }
            // The daemon that has the store performs it; this one does nothing more.
            if matches!(self.world.store.health(), Err(StoreError::InUse { .. })) {
                return;
            }
            let wait = self.wait_until(owed.due_at);
            if !wait.is_zero() {
                return self.look_later(run, wait);
            }
            let performance = match self.shared.guard.admit(&item(run, owed)).await {
                CrashGuardDecision::Now(performance) => performance,
                CrashGuardDecision::Later(wait) => return self.look_later(run, wait),
            };
            failpoint::reach(DaemonFailpoint::EffectBegun);
            match self.carry_out(&state, owed).await {
                EffectResult::Closing => return,
                EffectResult::NotBefore(at) => return self.look_later(run, self.wait_until(at)),
                // Listening needs the lane, so it is not waited for here.
                EffectResult::Unheard(progress, wanted) => {
                    return self.look_when_heard(run, progress, wanted);
                }
                // Who starts a process listens to it, tells both, and sees to what is owed then. The lane is free again
                // when that is told.
                EffectResult::Starts(starting) => {
                    if !self.start_and_listen(&state, *starting, lane, performance) {
                        self.look_later(run, RETRY_PAUSE);
                    }
                    return;
                }
                EffectResult::Told(event) => {
                    performance.succeeded();
                    failpoint::reach(DaemonFailpoint::OrderCarriedOut);
                    let listens = matches!(event, RunEvent::ContactRestored { .. });
                    match self.world.desk.take(run, event).await {
                        Ok(outcome) => {
                            if listens && let RequestOutcome::Changed(run) = &outcome {
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
    async fn announce(&self, outcome: &RequestOutcome) {
        if let RequestOutcome::Changed(_) = outcome {
            self.shared.changed.send_modify(|changes| *changes += 1);
        }
        self.admit().await;
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
    fn look_when_heard(
        &self,
        run: RunId,
        mut progress: watch::Receiver<OutputPosition>,
        wanted: OutputPosition,
    ) {
        let performer = self.clone();
        self.runtime.spawn(async move {
            if progress.wait_for(|heard| *heard >= wanted).await.is_err() {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            performer.look_after(run);
        });
    }

    /// From now on no process is started: the daemon is about to go. What is owed to processes that live is still done.
    pub(crate) fn close(&self) {
        self.shared.closing.store(true, Ordering::Release);
    }

    /// Waits until the order of this run that is being carried out is done.
    pub(crate) async fn finish_order(&self, run: RunId) {
        drop(self.shared.lanes.enter(run).await);
    }

    fn is_closing(&self) -> bool {
        self.shared.closing.load(Ordering::Acquire)
    }

    /// Whether a process of these runs is held, being started or being ended, or one of any run is being ended.
    pub(crate) async fn holds_processes(
        &self,
        runs: impl IntoIterator<Item = RunId>,
    ) -> Result<bool, RequestError> {
        for run in runs {
            let Some(state) = self.world.desk.latest(run).await? else { continue };
            let starting = |attempt| lock(&self.shared.talks).contains_key(&(run, attempt));
            if state.live().is_some() || state.attempt().is_some_and(starting) {
                return Ok(true);
            }
            if state.owed.iter().any(|owed| matches!(owed.effect, Effect::Terminate { .. })) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits, for a bounded time, until every process that is being ended is gone with its keeper. A run that waits for a
    /// person holds no slot, but its last process may still be on its way out.
    pub(crate) async fn wait_for_ends(&self, patience: Duration) -> Result<(), RequestError> {
        let mut changes = self.changes();
        let waited = tokio::time::timeout(patience, async {
            loop {
                changes.mark_unchanged();
                if lock(&self.shared.talks).is_empty() && !self.owes_an_end().await? {
                    return Ok(());
                }
                let _the_performer_itself_keeps_it_open = changes.changed().await;
            }
        });
        waited.await.unwrap_or_else(|_| {
            tracing::warn!("some processes did not end in time; the next start ends them");
            Ok(())
        })
    }

    async fn owes_an_end(&self) -> Result<bool, RequestError> {
        let mut cursor = None;
        loop {
            let owed = self.world.store.owed(cursor, OWED_AT_ONCE).await?;
            let Some((run, last)) = owed.last() else { return Ok(false) };
            cursor = Some((*run, last.number));
            if owed.iter().any(|(_, owed)| matches!(owed.effect, Effect::Terminate { .. })) {
                return Ok(true);
            }
        }
    }

    /// A process that a run still counts on is listened to, or reported gone.
    async fn find_again(&self, run: RunId) -> Result<(), RequestError> {
        let Some(run) = self.world.store.run(run).await? else { return Ok(()) };
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
            // What it said before its keeper died counts (E7).
            ProcessLookup::Held(_) | ProcessLookup::Gone => self.listen(&run).await,
            ProcessLookup::Silent => {
                let within = Some(self.world.recovery_max);
                self.take(run.run_id, RunEvent::ContactLost { attempt, within }).await?;
            }
            ProcessLookup::Never => {
                self.take(run.run_id, RunEvent::ProcessExited { attempt, exit: ExitStatus::Unseen }).await?;
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

impl std::fmt::Debug for DaemonDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DaemonDeps").field("private", &self.private).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for EffectExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EffectExecutor").finish_non_exhaustive()
    }
}

/// How long start-up waits for keepers.
const RECONCILE_BOUND: Duration = Duration::from_secs(1);
/// How many runs are taken up at the same time.
const RECONCILED_AT_ONCE: usize = 64;

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
    matches!(run.state, RunState::Running(RunningPhase::Stopping(_)))
}
