//! The public handle of the daemon: requests, queries, recovery and shutdown.
//!
//! All clients (HTTP, the command line, chat) use a [`Daemon`]. A request becomes an input of the event loop, and its
//! response follows the commit. Queries read the store. Wire formats are in other crates.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use abide_domain::{
    event::{KeyClaim, NewRun, RunEvent},
    failure::RunFailure,
    id::RunId,
    inbound::InboundMessage,
    refused::RequestRefused,
    run::{self, Run, RunState, RunningPhase},
    settings::OnBusy,
    slots::SlotOccupancy,
    time::{EventStamp, Seconds, Timestamp},
};
use abide_ports::{
    catalogue::EngineLookup,
    clock::Clock,
    contents::ContentStore,
    engine::EngineHealth,
    processes::Processes,
    store::{ClaimHolder, Store, StoreError},
    workspace::{WorkspaceError, Workspaces},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
};

use crate::{
    dispatcher::{DaemonActivity, DaemonInput, Dispatcher, DispatcherConfig},
    error::RequestError,
    event_loop::{ActionTasks, DaemonSignals, EFFECT_PREFIX, EventLoop, blocking, effect_item},
    executor::EffectExecutor,
    guard::CrashGuard,
    launch::{parse_process_name, process_name},
    pressure::{DiskShortage, SpaceLimit},
    probe,
    probe_cache::ProbedProgram,
    run_actor::{RequestOutcome, RunInput, TransitionRules},
    scheduler::SharedQueue,
};

/// The dependencies of the daemon.
pub struct DaemonDeps {
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

/// A handle to the daemon. Clones share the same daemon, which ends with the last one.
#[derive(Clone)]
pub struct Daemon(Arc<DaemonInner>);

/// A daemon without its event loop. The inputs are passed to the dispatcher, and its actions are performed.
#[derive(Debug)]
pub struct DaemonParts {
    pub daemon: Daemon,
    pub dispatcher: Dispatcher,
    pub executor: EffectExecutor,
    pub inputs: mpsc::UnboundedReceiver<DaemonInput>,
}

struct DaemonInner {
    deps: Arc<DaemonDeps>,
    config: DaemonConfig,
    guard: CrashGuard,
    inputs: mpsc::UnboundedSender<DaemonInput>,
    queue: SharedQueue,
    signals: Arc<DaemonSignals>,
}

/// The configuration of the daemon.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// Time without output after which a running turn is reported as stalled. It has no other effect.
    pub stall_after: Seconds,
    /// Maximum number of turns that run at the same time.
    pub slots: usize,
    /// The parent directory of the workspaces of runs without an explicit one.
    pub workspaces: String,
}

/// Time limit of the recovery at start-up for keepers to answer.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of runs that are recovered concurrently.
const CONCURRENT_RECOVERIES: usize = 64;
/// Page size of pending effects.
const EFFECTS_PER_PAGE: usize = 500;
/// Delay of the first probes after the start, because waiting turns have priority.
const COLLECT_DELAY: Duration = Duration::from_millis(500);
/// Time limit of a client that waits for a probe.
const EXAMINE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for running probes, when the daemon exits and leaves the processes to the keepers.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks for running probes.
const LEAVE_INTERVAL: Duration = Duration::from_millis(20);

impl Daemon {
    /// Creates a daemon on the current runtime. Call [`Self::reconcile`] before requests are served.
    pub async fn open(deps: DaemonDeps, config: DaemonConfig) -> Result<Self, StoreError> {
        let guard = CrashGuard::none(deps.clock.clone());
        Self::guarded(deps, config, guard, run::apply).await
    }

    /// The same with a crash guard, which knows the crashes of earlier daemons, and with these transition rules.
    pub async fn guarded(
        deps: DaemonDeps,
        config: DaemonConfig,
        guard: CrashGuard,
        rules: TransitionRules,
    ) -> Result<Self, StoreError> {
        let DaemonParts { daemon, dispatcher, executor, inputs } =
            Self::parts(deps, config, guard, rules).await?;
        let event_loop = EventLoop {
            dispatcher,
            deps: daemon.0.deps.clone(),
            executor,
            guard: daemon.0.guard.clone(),
            inputs,
            sender: daemon.0.inputs.downgrade(),
            signals: daemon.0.signals.clone(),
            tasks: ActionTasks::default(),
            readers: BTreeMap::new(),
            next_tick: None,
        };
        tokio::spawn(event_loop.run());
        Ok(daemon)
    }

    /// The parts of a daemon without its event loop, for a simulator that performs the actions itself.
    pub async fn parts(
        deps: DaemonDeps,
        config: DaemonConfig,
        guard: CrashGuard,
        rules: TransitionRules,
    ) -> Result<DaemonParts, StoreError> {
        let occupancies = deps.store.slot_occupancies().await?;
        let deps = Arc::new(deps);
        let store = deps.store.clone();
        let dispatcher_config = DispatcherConfig {
            rules,
            clock: deps.clock.clone(),
            catalogue: deps.catalogue.clone(),
            private: deps.private.clone(),
            recovery_max: deps.recovery_max,
            output_buffer_bytes: deps.processes.output_buffer_bytes(),
            is_space_limited: deps.space.is_set(),
            may_act: Box::new(move || !matches!(store.health(), Err(StoreError::InUse { .. }))),
        };
        let dispatcher = Dispatcher::new(dispatcher_config, config.slots, occupancies);
        let queue = dispatcher.queue();
        let (sender, inputs) = mpsc::unbounded_channel();
        let executor = EffectExecutor::new(deps.clone());
        let signals = Arc::new(DaemonSignals::default());
        let daemon = Self(Arc::new(DaemonInner { deps, config, guard, inputs: sender, queue, signals }));
        Ok(DaemonParts { daemon, dispatcher, executor, inputs })
    }

    /// Recovers the state of an earlier daemon: dead processes become events, living ones are followed, and pending
    /// effects are executed. Then the daemon is ready. A keeper that does not answer delays only its own run, which
    /// continues in the background.
    pub async fn reconcile(&self) -> Result<(), RequestError> {
        // Listed before any effect is executed, so that a probe started by this daemon is not taken for an orphan.
        let processes = self.0.deps.processes.clone();
        let found = blocking(move || processes.names()).await;
        let (runs, items) = runs_to_recover(self.store()).await?;
        self.0.guard.forget(EFFECT_PREFIX, |item| items.contains(item));
        let recovered = tokio::spawn(recover(self.0.inputs.clone(), runs));
        if tokio::time::timeout(RECOVERY_TIMEOUT, recovered).await.is_err() {
            tracing::warn!("some keepers do not answer; their runs are recovered when they do");
        }
        self.end_orphans(found).await?;
        self.tick();
        for (run, what) in self.troubled().await? {
            tracing::error!(%run, %what, "this run cannot be processed; see `abide verify`");
        }
        self.0.guard.ready();
        let (held, queued) = self.occupancy();
        tracing::info!(held, queued, "reconciled");
        Ok(())
    }

    /// Ends processes that belong to no run. Their last events were committed, but the daemon stopped before it ended
    /// them.
    async fn end_orphans(&self, found: Vec<String>) -> Result<(), RequestError> {
        for name in found {
            if is_orphan(self.store(), &name).await? {
                let processes = self.0.deps.processes.clone();
                // In the background, because a keeper that does not answer takes seconds.
                drop(tokio::task::spawn_blocking(move || {
                    if let Err(error) = processes.terminate(&name) {
                        tracing::warn!(name, %error, "a process without a run is left until the next start");
                    }
                }));
            }
        }
        Ok(())
    }

    /// Checks deadlines now. The daemon does so by itself when the next one is due.
    pub fn tick(&self) {
        self.send(DaemonInput::Tick);
    }

    /// Whether recovery is complete and the store is available.
    pub fn is_ready(&self) -> bool {
        self.0.guard.is_ready() && !self.0.inputs.is_closed() && self.store().health().is_ok()
    }

    /// Probes the engines of this machine in the background, one after the other, so that most runs need not wait (A3).
    pub fn collect_capabilities(&self) -> JoinHandle<()> {
        let daemon = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(COLLECT_DELAY).await;
            for name in daemon.catalogue().names() {
                let Some(health) = daemon.examine(&name).await else { continue };
                let (version, resume) = (health.version.unwrap_or_default(), health.resume.supported);
                let missing = health.failure.is_some();
                tracing::debug!(engine = name, version, resume, missing, "engine examined");
            }
        })
    }

    /// Stops the daemon's own work and leaves all processes to the keepers.
    pub async fn leave(&self) {
        self.close();
        let left = async {
            while self.activity().await.probes > 0 {
                tokio::time::sleep(LEAVE_INTERVAL).await;
            }
        };
        // Remaining probes are ended at the next start.
        tokio::time::timeout(LEAVE_TIMEOUT, left).await.ok();
    }

    /// Ends the event loop and cancels its tasks. Output that they have not committed is read again by the next daemon.
    pub async fn end(&self) {
        self.send(DaemonInput::End);
        self.0.inputs.closed().await;
    }

    pub(crate) fn close(&self) {
        self.0.signals.is_closing.store(true, Ordering::Release);
        self.send(DaemonInput::Close);
    }

    /// The loop ends before its clients at a shutdown only.
    fn send(&self, input: DaemonInput) {
        self.0.inputs.send(input).ok();
    }

    pub(crate) async fn activity(&self) -> DaemonActivity {
        let (reply, activity) = oneshot::channel();
        self.send(DaemonInput::Inspect(reply));
        activity.await.unwrap_or_default()
    }

    /// Runs that cannot be processed, by id, with the reason: their row cannot be read, or an event could not be
    /// committed.
    pub async fn troubled(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let damaged = self.store().damaged_runs().await?.into_iter().map(|run| (run.run_id, run.detail));
        let quarantined = self.activity().await.quarantined.into_iter();
        Ok(quarantined.map(|(run, reason)| (run.to_string(), reason)).chain(damaged).collect())
    }

    /// Stores texts that are too long for a question.
    pub fn contents(&self) -> Arc<dyn ContentStore> {
        self.0.deps.contents.clone()
    }

    /// Creates a run, once for each idempotency key and message. The workspace is a resolved path, or the one of
    /// [`Self::own_workspace`]. Most requests are new, so the keys are not checked in advance: the commit detects a
    /// duplicate.
    pub async fn create(&self, new: NewRun) -> Result<RequestOutcome, RequestError> {
        self.check_workspace(&new).await?;
        let run_id = new.run_id;
        let event = RunEvent::RunCreated(Box::new(new));
        let claims = event.claims();
        match self.request(run_id, event).await {
            Err(RequestError::Store(StoreError::KeyTaken { scope, key, holder })) => {
                repetition(&claims, &scope, &key, holder)
            }
            // The same request with the same id, or a repeated one while there is too little disk space.
            Err(refused @ (RequestError::Refused(RequestRefused::RunExists) | RequestError::Shortage(_))) => {
                for KeyClaim { scope, key, .. } in &claims {
                    if let Some(holder) = self.store().claim_holder(scope, key).await? {
                        return repetition(&claims, scope, key, holder);
                    }
                }
                Err(refused)
            }
            created => created,
        }
    }

    /// Sends a request to the actor of a run at once. The response follows the commit. A client that goes away meanwhile does
    /// not affect the request.
    pub(crate) fn request(
        &self,
        run: RunId,
        event: RunEvent,
    ) -> impl Future<Output = Result<RequestOutcome, RequestError>> + Send + use<> {
        self.request_for(run, event, None)
    }

    /// The same for a run that the caller has just read.
    pub(crate) fn request_for(
        &self,
        run: RunId,
        event: RunEvent,
        state: Option<Arc<Run>>,
    ) -> impl Future<Output = Result<RequestOutcome, RequestError>> + Send + use<> {
        let (reply, response) = oneshot::channel();
        let input = RunInput::Request { event, reply, run: state };
        self.send(DaemonInput::Run { run, actor: None, input });
        let ended = || "the request was not handled: the daemon is shutting down, or see the log".to_owned();
        async move { response.await.unwrap_or_else(|_| Err(StoreError::Unavailable { reason: ended() }.into())) }
    }

    async fn check_workspace(&self, new: &NewRun) -> Result<(), RequestError> {
        let (workspace, skill) = (new.settings.workspace.clone(), new.settings.skill.clone());
        let is_own = workspace == self.own_workspace(new.run_id);
        if is_own && skill.is_none() {
            return Ok(());
        }
        let workspaces = self.0.deps.workspaces.clone();
        let check = move || {
            if !is_own {
                workspaces.check(&workspace)?;
            }
            skill.map_or(Ok(()), |skill| workspaces.check_skill(&workspace, &skill))
        };
        let checked = tokio::task::spawn_blocking(check).await;
        let panicked = |_| WorkspaceError("the workspace could not be checked".to_owned());
        Ok(checked.map_err(panicked)??)
    }

    /// Sends a message to a run, once for each message. A repeated message is reported as such, independent of the run's
    /// state.
    pub async fn message(
        &self,
        run: RunId,
        message: InboundMessage,
        on_busy: Option<OnBusy>,
    ) -> Result<RequestOutcome, RequestError> {
        let KeyClaim { scope, key, .. } = KeyClaim::for_message(&message.key);
        if let Some(ClaimHolder { run_id, .. }) = self.store().claim_holder(&scope, &key).await? {
            return Ok(RequestOutcome::Repeated(run_id));
        }
        match self.request(run, RunEvent::MessageArrived { message, on_busy }).await {
            Err(RequestError::Store(StoreError::KeyTaken { holder, .. })) => {
                Ok(RequestOutcome::Repeated(holder.run_id))
            }
            accepted => accepted,
        }
    }

    /// The path with too little disk space, of the home and this workspace. New input is refused meanwhile.
    pub async fn shortage(&self, workspace: Option<&str>) -> Option<DiskShortage> {
        let (deps, workspace) = (self.0.deps.clone(), workspace.map(str::to_owned));
        blocking(move || deps.space.shortage(workspace.as_deref())).await
    }

    /// Retries the undelivered messages of a conversation after a message has arrived from it.
    pub async fn conversation_active(&self, conversation_ref: &str) -> Result<(), RequestError> {
        let mut first_error = None;
        for run in self.store().undelivered_to(conversation_ref).await? {
            first_error = first_error.or(self.request(run, RunEvent::ConversationActive).await.err());
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Interrupts the running turn.
    pub async fn interrupt(&self, run: RunId, by: &str) -> Result<RequestOutcome, RequestError> {
        self.request(run, RunEvent::InterruptRequested { by: by.to_owned() }).await
    }

    pub async fn cancel(&self, run: RunId, by: &str) -> Result<RequestOutcome, RequestError> {
        self.request(run, RunEvent::CancelRequested { by: by.to_owned() }).await
    }

    /// Reports that the stored engine session of a waiting run was deleted.
    pub async fn session_lost(
        &self,
        run: RunId,
        failure: RunFailure,
    ) -> Result<RequestOutcome, RequestError> {
        self.request(run, RunEvent::SessionLost { failure }).await
    }

    pub fn store(&self) -> &dyn Store {
        &*self.0.deps.store
    }

    pub fn catalogue(&self) -> &dyn EngineLookup {
        &*self.0.deps.catalogue
    }

    /// Whether an engine can be used, and its abilities. None if there is no such engine, or the daemon is shutting
    /// down. A probe that takes longer continues, and its result is cached.
    pub async fn examine(&self, engine: &str) -> Option<EngineHealth> {
        let entry = self.0.deps.catalogue.engine(engine)?;
        let (processes, examined) = (self.0.deps.processes.clone(), entry.clone());
        let program = blocking(move || ProbedProgram::read(&*processes, &examined)).await;
        let (reply, health) = oneshot::channel();
        self.send(DaemonInput::Examine { entry: entry.clone(), program, reply });
        match tokio::time::timeout(EXAMINE_TIMEOUT, health).await {
            Ok(health) => health.ok(),
            Err(_) => Some(probe::unanswered(&entry)),
        }
    }

    /// Changes whenever a run changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.signals.changes.subscribe()
    }

    /// The current time and a unique number.
    pub fn stamp(&self) -> EventStamp {
        self.0.deps.clock.stamp()
    }

    pub fn config(&self) -> &DaemonConfig {
        &self.0.config
    }

    /// Number of runs that hold a slot, and of those that wait.
    pub fn occupancy(&self) -> (usize, usize) {
        let queue = self.0.queue.lock();
        (queue.held(), queue.queued())
    }

    /// The position of a waiting run in the queue, from 1.
    pub fn queue_position(&self, run: RunId) -> Option<usize> {
        self.0.queue.lock().position(run)
    }

    /// The time of the last output, if a running turn counts as stalled.
    pub async fn stalled_since(&self, run: &Run) -> Option<Timestamp> {
        let RunState::Running(RunningPhase::Active(active)) = &run.state else { return None };
        let (processes, process) =
            (self.0.deps.processes.clone(), process_name(run.run_id, active.live.attempt));
        let last_output = blocking(move || processes.last_output_at(&process)).await?;
        (self.now().seconds_since(last_output) >= self.0.config.stall_after).then_some(last_output)
    }

    /// The workspace of a run without an explicit one.
    pub fn own_workspace(&self, run: RunId) -> String {
        format!("{}/{run}", self.0.config.workspaces)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.stamp().at
    }
}

/// The runs that hold a process or have pending effects, and the names of these effects in the crash guard's record.
pub async fn runs_to_recover(store: &dyn Store) -> Result<(BTreeSet<RunId>, BTreeSet<String>), StoreError> {
    let is_held = |(run, occupancy)| (occupancy == SlotOccupancy::Holding).then_some(run);
    let mut runs: BTreeSet<RunId> = store.slot_occupancies().await?.into_iter().filter_map(is_held).collect();
    let (mut items, mut cursor) = (BTreeSet::new(), None);
    loop {
        let pending = store.pending_effects(cursor, EFFECTS_PER_PAGE).await?;
        let Some((run, last)) = pending.last() else { return Ok((runs, items)) };
        cursor = Some((*run, last.number));
        for (run, pending) in pending {
            runs.insert(run);
            items.insert(effect_item(run, pending.number.0, pending.effect.name()));
        }
    }
}

/// Recovers runs of an earlier daemon, a bounded number at a time.
async fn recover(inputs: mpsc::UnboundedSender<DaemonInput>, runs: BTreeSet<RunId>) {
    let mut recoveries = JoinSet::new();
    for run in runs {
        if recoveries.len() >= CONCURRENT_RECOVERIES {
            recoveries.join_next().await;
        }
        let (recovery, recovered) = oneshot::channel();
        let input = RunInput::Recover(Some(recovery));
        // The loop has ended if this fails.
        inputs.send(DaemonInput::Run { run, actor: None, input }).ok();
        recoveries.spawn(recovered);
    }
    recoveries.join_all().await;
}

/// Whether the process with this name belongs to no run.
pub async fn is_orphan(store: &dyn Store, name: &str) -> Result<bool, StoreError> {
    // A probe of an earlier daemon. Other keepers, such as terminals, are not touched.
    let Some((run, attempt)) = parse_process_name(name) else { return Ok(probe::is_check(name)) };
    match store.run(run).await {
        Ok(Some(state)) => Ok(state.attempt() != Some(attempt)),
        // A restored or truncated store may lack runs that the keepers have.
        Ok(None) => {
            tracing::warn!(%run, attempt = attempt.0, "ending the process of a run that the store does not know");
            Ok(true)
        }
        // The run cannot be read, so the process may still belong to it.
        Err(StoreError::Damaged { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The outcome for a reused key: the same request again, or an error for another one.
fn repetition(
    claims: &[KeyClaim],
    scope: &str,
    key: &str,
    holder: ClaimHolder,
) -> Result<RequestOutcome, RequestError> {
    let is_same = claims.iter().any(|claim| {
        (claim.scope.as_str(), claim.key.as_str(), &claim.fingerprint) == (scope, key, &holder.fingerprint)
    });
    if is_same {
        Ok(RequestOutcome::Repeated(holder.run_id))
    } else {
        Err(RequestError::KeyReused { key: key.to_owned(), run_id: holder.run_id })
    }
}

impl Drop for DaemonInner {
    fn drop(&mut self) {
        // The loop has ended if this fails.
        self.inputs.send(DaemonInput::End).ok();
    }
}
