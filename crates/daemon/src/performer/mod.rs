//! Executes the pending effects of runs, and reports the output of engines.
//!
//! The effects of one run are executed in order. Each is reported before any other event of that run is taken (decision
//! 0002); a lock per run ensures this. Every effect may be executed again after a crash. Each process is started and
//! read by its own thread; their number is bounded by the slots.

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
use abide_os::failpoint;
use abide_ports::{
    catalogue::EngineLookup,
    clock::Clock,
    contents::ContentStore,
    engine::ProcessInterpreter,
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
    guard::{CrashGuard, CrashGuardDecision},
    pressure::SpaceLimit,
    talk::ProcessSession,
};

/// The dependencies of the daemon.
#[derive(Clone)]
pub struct DaemonDeps {
    /// Applies and commits events.
    pub desk: Arc<RunService>,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub catalogue: Arc<dyn EngineLookup>,
    /// Starts and controls processes that outlive the daemon.
    pub processes: Arc<dyn Processes>,
    /// Prepares the workspaces of runs.
    pub workspaces: Arc<dyn Workspaces>,
    /// The parent of the private directories of runs.
    pub private: String,
    /// Maximum total time of recovery attempts for a turn, over all losses of its process (E8).
    pub recovery_max: Seconds,
    /// Stores texts that are too long for a question.
    pub contents: Arc<dyn ContentStore>,
    /// Minimum of free disk space for new input.
    pub space: SpaceLimit,
}

/// Executes effects. Clones share the same state.
#[derive(Clone)]
pub struct EffectExecutor {
    world: DaemonDeps,
    shared: Arc<ExecutorInner>,
    runtime: Handle,
}

type ProcessSessionMap = BTreeMap<(RunId, Attempt), Arc<Mutex<ProcessSession>>>;

struct ExecutorInner {
    lanes: lane::KeyedRunLocks,
    /// The sessions of processes whose output is being read.
    talks: Mutex<ProcessSessionMap>,
    threads: threads::ListenerThreads,
    /// Results of engine probes.
    examined: Arc<ProbeCache>,
    /// Runs whose effects are being executed, and whether to check them again afterwards.
    busy: Mutex<BTreeMap<RunId, RerunFlag>>,
    examinations: probe::ProbesInProgress,
    /// Runs that are paused after an error.
    set_aside: set_aside::QuarantinedRuns,
    /// Decides which effects may be executed.
    guard: CrashGuard,
    /// Whether the daemon is shutting down.
    closing: AtomicBool,
    /// Notifies waiting tasks of changes.
    changed: tokio::sync::watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RerunFlag {
    No,
    Yes,
}

/// The result of an effect.
enum EffectResult {
    /// The event that reports the result.
    Told(RunEvent),
    /// The effect must wait until this time.
    NotBefore(Timestamp),
    /// A prepared launch, which a reader thread executes.
    Starts { launch: Box<launch::PreparedLaunch>, interpreter: Box<dyn ProcessInterpreter> },
    /// Left to the next daemon.
    Closing,
    /// The effect is for a process whose output has not been read as far as its run has. Until then, its interpreter
    /// cannot produce input.
    Unheard(watch::Receiver<OutputPosition>, OutputPosition),
}

/// Pause before an effect is retried whose report failed.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Pause of a run after a panic in one of its effects.
const BROKEN_PAUSE: Duration = Duration::from_secs(30);

impl EffectExecutor {
    /// Creates an executor on the current runtime, without a crash guard.
    pub fn new(world: DaemonDeps) -> Self {
        let guard = CrashGuard::none(world.clock.clone());
        Self::guarded(world, guard)
    }

    /// Creates an executor on the current runtime, and gives its cached probe results to [`RunService`].
    pub fn guarded(world: DaemonDeps, guard: CrashGuard) -> Self {
        let (catalogue, processes) = (world.catalogue.clone(), world.processes.clone());
        let examined = Arc::new(ProbeCache::new(catalogue, processes, world.clock.clone()));
        let known = examined.clone();
        world.desk.set_cached_probes(Arc::new(move |run| known.cached_result(run)));
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

    /// Recovers all runs at start-up: dead processes become events, living ones are followed, and pending effects are
    /// executed. A keeper that does not answer delays only its own run, which continues in the background.
    pub async fn reconcile(&self) -> Result<(), RequestError> {
        // Listed before any effect is executed, so that a probe started by this daemon is not taken for an orphan.
        let processes = self.world.processes.clone();
        let found = self.blocking(move || processes.names()).await;
        let at_once = Arc::new(Semaphore::new(RECONCILED_AT_ONCE));
        let mut tasks = JoinSet::new();
        for (run, _) in self.world.store.slot_occupancies().await? {
            let (performer, at_once) = (self.clone(), at_once.clone());
            tasks.spawn(async move {
                let _permit = at_once.acquire().await;
                performer.take_up(run).await
            });
        }
        let mut cursor = None;
        let mut items = BTreeSet::new();
        loop {
            let owed = self.world.store.pending_effects(cursor, OWED_AT_ONCE).await?;
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
                    tracing::error!(%error, "a run could not be recovered");
                }
            }
            // Now the processes of all runs are known.
            performer.forget_strangers(found).await
        });
        match tokio::time::timeout(RECONCILE_BOUND, all).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => {
                tracing::error!(%error, "not all runs could be recovered");
                Ok(())
            }
            Err(_) => {
                tracing::warn!("some keepers do not answer; their runs are recovered when they do");
                Ok(())
            }
        }
    }

    /// Recovers one run of an earlier daemon. A run that cannot be read is quarantined.
    async fn take_up(&self, run: RunId) {
        self.perform_owed(run).await;
        if let Err(error) = self.find_again(run).await {
            self.shared.set_aside.put(run, &error.to_string(), self.world.clock.stamp().at);
        }
    }

    /// Commits an event of a run, and executes the resulting effects. Requests of users go directly to [`RunService`],
    /// because they may come between an effect and its report; then call [`Self::follow_up`].
    pub async fn take(&self, run: RunId, event: RunEvent) -> Result<RequestOutcome, RequestError> {
        let outcome = {
            let _lane = self.shared.lanes.enter(run).await;
            self.world.desk.take(run, event).await?
        };
        self.follow_up(&outcome).await;
        Ok(outcome)
    }

    /// Starts waiting runs for which there is a slot and disk space.
    pub(crate) async fn admit(&self) {
        for run in self.world.desk.admit().await.unwrap_or_default() {
            self.look_after(run);
        }
    }

    /// Executes the effects of a committed outcome.
    pub async fn follow_up(&self, outcome: &RequestOutcome) {
        if let RequestOutcome::Changed(run) = outcome {
            if !run.pending_effects.is_empty() {
                self.look_after(run.run_id);
            }
            self.shared.changed.send_modify(|changes| *changes += 1);
        }
        self.admit().await;
    }

    /// Fires due deadlines, and executes the resulting effects. A turn that may have ended in time while no daemon was
    /// running is first read to its end. A run that cannot be changed is retried later, and does not stop the others.
    pub async fn ring(&self) -> Result<(), RequestError> {
        let now = self.world.clock.stamp().at;
        let set_aside = self.shared.set_aside.count();
        for (run, deadline) in self.world.store.runs_due(now, DUE_AT_ONCE.saturating_add(set_aside)).await? {
            if self.shared.set_aside.until(run).is_some_and(|until| until > now) {
                continue;
            }
            if let DeadlineKind::Turn(attempt) = deadline.kind
                && self.talk_of(run, attempt).is_some_and(|talk| lock(&talk).is_behind())
            {
                continue;
            }
            // On a separate task, so that a panic for one run does not stop the deadlines of others.
            let performer = self.clone();
            let passed = self.runtime.spawn(async move {
                performer.take(run, RunEvent::DeadlinePassed { deadline: deadline.kind }).await
            });
            let trouble = match passed.await {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => {
                    Some("handling its deadline failed because of a bug of Abide; see the log".to_owned())
                }
            };
            match trouble {
                Some(reason) => self.shared.set_aside.put(run, &reason, now),
                None => self.shared.set_aside.take_back(run),
            }
        }
        Ok(())
    }

    /// The time of the next deadline. A quarantined run counts with the end of its pause.
    pub(crate) async fn next_deadline(&self) -> Result<Option<Timestamp>, StoreError> {
        let most = self.shared.set_aside.count().saturating_add(1);
        let due = self.world.store.runs_due(Timestamp(i64::MAX), most).await?;
        let looks = due.iter().map(|(run, deadline)| match self.shared.set_aside.until(*run) {
            Some(until) => until.max(deadline.at),
            None => deadline.at,
        });
        Ok(looks.min())
    }

    /// The quarantined runs, with the reasons.
    pub(crate) fn set_aside(&self) -> Vec<(RunId, String)> {
        self.shared.set_aside.all()
    }

    /// Changes whenever a run changes.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Executes the pending effects of a run, now or after the one in progress.
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

    /// Executes the pending effects of a run in order, until none is due.
    async fn perform_owed(&self, run: RunId) {
        loop {
            let lane = self.shared.lanes.enter(run).await;
            let state = match self.world.desk.latest(run).await {
                Ok(Some(state)) => state,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%run, %error, "pending effects could not be read");
                    return self.look_later(run, RETRY_PAUSE);
                }
            };
            self.forget_settled(&state);
            let Some(owed) = state.pending_effects.first() else { return };
            if self.is_closing() && matches!(owed.effect, Effect::Launch { .. } | Effect::Probe { .. }) {
                return;
            }
            // The daemon that has the store executes them; this one stops.
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
            failpoint::reach("effect_started");
            match self.carry_out(&state, owed).await {
                EffectResult::Closing => return,
                EffectResult::NotBefore(at) => return self.look_later(run, self.wait_until(at)),
                // Reading needs the lock of the run, so it is not awaited here.
                EffectResult::Unheard(progress, wanted) => {
                    return self.look_when_heard(run, progress, wanted);
                }
                // The reader thread starts the process, reports the start, and continues with the pending effects. It
                // releases the lock after the report.
                EffectResult::Starts { launch, interpreter } => {
                    if !self.start_and_listen(&state, (*launch, interpreter), lane, performance) {
                        self.look_later(run, RETRY_PAUSE);
                    }
                    return;
                }
                EffectResult::Told(event) => {
                    performance.succeeded();
                    failpoint::reach("effect_performed");
                    let listens = matches!(event, RunEvent::ContactRestored { .. });
                    match self.world.desk.take(run, event).await {
                        Ok(outcome) => {
                            if listens && let RequestOutcome::Changed(run) = &outcome {
                                self.listen(run).await;
                            }
                            drop(lane);
                            self.announce(&outcome).await;
                        }
                        // The effect stays pending. It is idempotent.
                        Err(error) => {
                            tracing::warn!(%run, effect = owed.number.0, %error, "the result of an effect was not reported");
                            return self.look_later(run, RETRY_PAUSE);
                        }
                    }
                }
            }
        }
    }

    /// Like [`Self::follow_up`], for a run that is already in progress.
    async fn announce(&self, outcome: &RequestOutcome) {
        if let RequestOutcome::Changed(_) = outcome {
            self.shared.changed.send_modify(|changes| *changes += 1);
        }
        self.admit().await;
    }

    fn wait_until(&self, at: Timestamp) -> Duration {
        Duration::from_micros(self.world.clock.stamp().at.span_until(at).0)
    }

    fn look_later(&self, run: RunId, wait: Duration) {
        let performer = self.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(wait).await;
            performer.look_after(run);
        });
    }

    /// Continues with a run when its process has been read up to this position, or is no longer being read.
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

    /// Stops starting processes because of the shutdown. Effects for living processes are still executed.
    pub(crate) fn close(&self) {
        self.shared.closing.store(true, Ordering::Release);
    }

    /// Waits for the effect of this run that is in progress.
    pub(crate) async fn finish_order(&self, run: RunId) {
        drop(self.shared.lanes.enter(run).await);
    }

    fn is_closing(&self) -> bool {
        self.shared.closing.load(Ordering::Acquire)
    }

    /// Whether a process of these runs is held, being started or being ended, or any process is being ended.
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
            if state.pending_effects.iter().any(|owed| matches!(owed.effect, Effect::Terminate { .. })) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits, with a timeout, until all ending processes and their keepers have exited. A run that waits for a person
    /// holds no slot, but its last process may still be ending.
    pub(crate) async fn wait_for_ends(&self, timeout: Duration) -> Result<(), RequestError> {
        let mut changes = self.changes();
        let waited = tokio::time::timeout(timeout, async {
            loop {
                changes.mark_unchanged();
                if lock(&self.shared.talks).is_empty() && !self.owes_an_end().await? {
                    return Ok(());
                }
                // The sender is owned by `self`, so the channel stays open.
                changes.changed().await.ok();
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
            let owed = self.world.store.pending_effects(cursor, OWED_AT_ONCE).await?;
            let Some((run, last)) = owed.last() else { return Ok(false) };
            cursor = Some((*run, last.number));
            if owed.iter().any(|(_, owed)| matches!(owed.effect, Effect::Terminate { .. })) {
                return Ok(true);
            }
        }
    }

    /// Reattaches to the current process of a run, or reports that it is gone.
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
            // Output from before the death of its keeper counts (E7).
            ProcessLookup::Found(_) | ProcessLookup::Lost => self.listen(&run).await,
            ProcessLookup::Unresponsive => {
                let within = Some(self.world.recovery_max);
                self.take(run.run_id, RunEvent::ContactLost { attempt, search_timeout_sec: within }).await?;
            }
            ProcessLookup::NotStarted => {
                self.take(run.run_id, RunEvent::ProcessExited { attempt, exit: ExitStatus::Unknown }).await?;
            }
        }
        Ok(())
    }

    /// Runs a blocking function.
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

/// Time limit of the recovery at start-up for keepers to answer.
const RECONCILE_BOUND: Duration = Duration::from_secs(1);
/// Maximum number of runs that are recovered concurrently.
const RECONCILED_AT_ONCE: usize = 64;

/// Page sizes of pending effects and of deadlines.
const OWED_AT_ONCE: usize = 500;
const DUE_AT_ONCE: usize = 500;

/// The name of an attempt's process.
pub(crate) fn name(run: RunId, attempt: Attempt) -> String {
    format!("{run}-{}", attempt.0)
}

/// Parses the name of an attempt's process.
fn parse(name: &str) -> Option<(RunId, Attempt)> {
    let (run, attempt) = name.rsplit_once('-')?;
    Some((run.parse().ok()?, Attempt(attempt.parse().ok()?)))
}

/// The idempotency key of an effect's input. The highest bit distinguishes it from positions in the output.
fn key(number: EffectNumber) -> u64 {
    (1 << 63) | u64::from(number.0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the running turn is being stopped on request.
fn is_being_stopped(run: &Run) -> bool {
    matches!(run.state, RunState::Running(RunningPhase::Stopping(_)))
}
