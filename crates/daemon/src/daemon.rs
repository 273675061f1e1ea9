//! The daemon as a whole: its requests, its background work, and its shutdown.
//!
//! All clients (HTTP, the command line, chat) use a [`Daemon`]. Requests are applied by [`crate::RunService`], and the
//! resulting effects are executed by [`EffectExecutor`]. Queries read the store. Wire formats are in other crates.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use abide_domain::{
    event::{KeyClaim, NewRun, RUN_REQUEST_SCOPE, RunEvent},
    failure::RunFailure,
    id::RunId,
    inbound::InboundMessage,
    interaction::{InteractionKind, InteractionOption, Question},
    reply::InteractionReply,
    run::{Run, RunState, RunningPhase},
    settings::OnBusy,
    slots::SlotOccupancy,
    time::{Seconds, Timestamp},
};
use abide_ports::{
    catalogue::EngineLookup,
    contents::ContentStore,
    engine::EngineHealth,
    store::{Store, StoreError},
    workspace::WorkspaceError,
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    desk::RequestOutcome,
    error::RequestError,
    guard::CrashGuard,
    performer::{DaemonDeps, EffectExecutor, name},
    pressure::DiskShortage,
};

/// A handle to the daemon. Clones share the same daemon.
#[derive(Clone, Debug)]
pub struct Daemon(Arc<DaemonInner>);

#[derive(Debug)]
struct DaemonInner {
    world: DaemonDeps,
    performer: EffectExecutor,
    habits: DaemonConfig,
    guard: CrashGuard,
    ready: AtomicBool,
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

/// The result of a shutdown.
#[derive(Clone, Debug, Default)]
pub struct ShutdownReport {
    /// Every run that held a process or was about to start one.
    pub runs: Vec<StoppedRun>,
}

/// The result of a shutdown for one run.
#[derive(Clone, Debug)]
pub struct StoppedRun {
    pub was: ActivityBeforeStop,
    /// The run after the shutdown.
    pub run: Arc<Run>,
    /// False if a process could not be ended in time. Its keeper continues, and the next daemon reattaches to it.
    pub is_stopped: bool,
}

/// The activity of a run at the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityBeforeStop {
    /// A turn was running.
    Turn,
    /// A process waited for a person or for the next message.
    Wait,
    /// A turn had begun, but its process was not started.
    Start,
}

impl ActivityBeforeStop {
    fn of(run: &Run) -> Option<Self> {
        match &run.state {
            RunState::Running(
                RunningPhase::Active(_) | RunningPhase::Stopping(_) | RunningPhase::Recovering(_),
            ) => Some(Self::Turn),
            RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_)) => Some(Self::Start),
            RunState::WaitingUser(_) | RunState::Idle { .. } => run.live().map(|_| Self::Wait),
            RunState::Queued { .. } | RunState::Finished(_) => None,
        }
    }
}

/// Maximum interval of checks for deadlines.
const LONGEST_NAP: Duration = Duration::from_secs(60);
/// Minimum interval of checks for deadlines. A new deadline is never nearer, so not every change needs a check.
const SHORTEST_NAP: Duration = Duration::from_millis(100);
/// Time limit of a shutdown for processes to end. It exceeds the time limits of a turn and of its keeper.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);
/// Time limit for running probes, when the daemon exits and leaves the processes to the keepers.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
const LEAVE_LOOK: Duration = Duration::from_millis(20);
/// Interval of checks for free disk space while runs wait.
const SPACE_LOOK: Duration = Duration::from_secs(2);
/// Maximum interval of checks during a shutdown.
const STOP_LOOK: Duration = Duration::from_millis(250);

impl Daemon {
    /// Creates a daemon. Call [`Self::reconcile`] before requests are served.
    pub fn new(world: DaemonDeps, habits: DaemonConfig) -> Self {
        let guard = CrashGuard::none(world.clock.clone());
        Self::guarded(world, habits, guard)
    }

    /// The same with a crash guard, which knows the crashes of earlier daemons.
    pub fn guarded(world: DaemonDeps, habits: DaemonConfig, guard: CrashGuard) -> Self {
        world.desk.limit_space(world.space.clone());
        let performer = EffectExecutor::guarded(world.clone(), guard.clone());
        Self(Arc::new(DaemonInner { world, performer, habits, guard, ready: AtomicBool::new(false) }))
    }

    /// Recovers the state of an earlier daemon: dead processes become events, living ones are followed, and pending
    /// effects are executed. Then the daemon is ready.
    pub async fn reconcile(&self) -> Result<(), RequestError> {
        self.0.performer.reconcile().await?;
        self.0.performer.ring().await?;
        for run in self.0.world.desk.admit().await? {
            self.0.performer.look_after(run);
        }
        for (run, what) in self.troubled().await? {
            tracing::error!(%run, %what, "this run cannot be processed; see `abide verify`");
        }
        self.0.ready.store(true, Ordering::Release);
        self.0.guard.ready();
        let (held, queued) = self.occupancy();
        tracing::info!(held, queued, "reconciled");
        Ok(())
    }

    /// Whether recovery is complete and the store is available.
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire) && self.0.world.store.health().is_ok()
    }

    /// Probes the engines of this machine in the background (A3).
    pub fn collect_capabilities(&self) -> JoinHandle<()> {
        let daemon = self.clone();
        tokio::spawn(async move { daemon.0.performer.collect_capabilities().await })
    }

    /// Stops the daemon's own work and leaves all processes to the keepers.
    pub async fn leave(&self) {
        self.0.performer.close();
        let left = async {
            while self.0.performer.examines() {
                tokio::time::sleep(LEAVE_LOOK).await;
            }
        };
        // Remaining probes are ended at the next start.
        tokio::time::timeout(LEAVE_TIMEOUT, left).await.ok();
    }

    /// Fires deadlines while the task lives.
    pub fn keep_time(&self) -> JoinHandle<()> {
        let daemon = self.clone();
        tokio::spawn(async move { daemon.ring_for_ever().await })
    }

    async fn ring_for_ever(&self) {
        let mut changes = self.changes();
        loop {
            // A deadline stays due while the store is unavailable.
            if let Err(error) = self.0.performer.ring().await {
                tracing::warn!(%error, "deadlines were not checked");
            }
            // Space may have been freed, and there is no notification for it.
            let queued = self.occupancy().1 > 0;
            if queued && self.0.world.space.is_set() {
                self.0.performer.admit().await;
            }
            let nap = match self.0.performer.next_deadline().await {
                Ok(Some(at)) => {
                    Duration::from_micros(self.now().span_until(at).0).clamp(SHORTEST_NAP, LONGEST_NAP)
                }
                Ok(None) => LONGEST_NAP,
                Err(_) => SHORTEST_NAP,
            };
            let nap = if queued { nap.min(SPACE_LOOK) } else { nap };
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                _ = changes.changed() => tokio::time::sleep(SHORTEST_NAP.min(nap)).await,
            }
        }
    }

    /// Runs that cannot be processed, by id, with the reason: their row cannot be read, or an event could not be
    /// committed.
    pub async fn troubled(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let damaged =
            self.0.world.store.damaged_runs().await?.into_iter().map(|run| (run.run_id, run.detail));
        let set_aside = self.0.performer.set_aside().into_iter().map(|(run, why)| (run.to_string(), why));
        Ok(set_aside.chain(damaged).collect())
    }

    /// Stores texts that are too long for a question.
    pub fn contents(&self) -> Arc<dyn ContentStore> {
        self.0.world.contents.clone()
    }

    /// Creates a run, once for each idempotency key and message. The workspace is a resolved path, or the one of
    /// [`Self::own_workspace`].
    pub async fn create(&self, new: NewRun) -> Result<RequestOutcome, RequestError> {
        self.check_workspace(&new).await?;
        if let Some(shortage) = self.shortage(Some(&new.settings.workspace)) {
            let key = new
                .idempotency
                .as_ref()
                .map(|idempotency| (RUN_REQUEST_SCOPE.to_owned(), idempotency.key.clone()));
            self.take_only_known(key, shortage).await?;
        }
        let outcome = self.0.world.desk.create(new).await?;
        self.followed_up(outcome).await
    }

    async fn check_workspace(&self, new: &NewRun) -> Result<(), RequestError> {
        let (workspace, skill) = (new.settings.workspace.clone(), new.settings.skill.clone());
        let is_own = workspace == self.own_workspace(new.run_id);
        if is_own && skill.is_none() {
            return Ok(());
        }
        let workspaces = self.0.world.workspaces.clone();
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

    /// Sends a message to a run, once for each message.
    pub async fn message(
        &self,
        run: RunId,
        message: InboundMessage,
        on_busy: Option<OnBusy>,
    ) -> Result<RequestOutcome, RequestError> {
        let known = self.0.world.desk.latest(run).await?;
        let workspace = known.as_ref().map(|run| run.settings.workspace.as_str());
        if let Some(shortage) = self.shortage(workspace) {
            let KeyClaim { scope, key, .. } = KeyClaim::for_message(&message.key);
            self.take_only_known(Some((scope, key)), shortage).await?;
        }
        let outcome = self.0.world.desk.message(run, message, on_busy).await?;
        self.followed_up(outcome).await
    }

    /// The path with too little disk space, of the home and this workspace. New input is refused meanwhile.
    pub fn shortage(&self, workspace: Option<&str>) -> Option<DiskShortage> {
        self.0.world.space.shortage(workspace)
    }

    /// Refuses new requests. A repeated request gets its original response.
    async fn take_only_known(
        &self,
        key: Option<(String, String)>,
        shortage: DiskShortage,
    ) -> Result<(), RequestError> {
        if let Some((scope, key)) = key
            && self.0.world.store.claim_holder(&scope, &key).await?.is_some()
        {
            return Ok(());
        }
        Err(RequestError::Shortage(shortage))
    }

    /// Answers a question. The first answer counts. It is accepted even with too little disk space, because it is small
    /// and lets a run finish.
    pub async fn reply(&self, mut reply: InteractionReply) -> Result<RequestOutcome, RequestError> {
        if let Some(number) = only_number(&reply.text)
            && let Some(question) = self.store().interaction(reply.interaction_id).await?
            && let Some(label) = chosen_label(&question.question, number)
        {
            reply.text = label;
        }
        let outcome = self.0.world.desk.reply(reply).await?;
        self.followed_up(outcome).await
    }

    /// Interrupts the running turn.
    pub async fn interrupt(&self, run: RunId, by: &str) -> Result<RequestOutcome, RequestError> {
        let outcome = self.0.world.desk.take(run, RunEvent::InterruptRequested { by: by.to_owned() }).await?;
        self.followed_up(outcome).await
    }

    pub async fn cancel(&self, run: RunId, by: &str) -> Result<RequestOutcome, RequestError> {
        let outcome = self.0.world.desk.take(run, RunEvent::CancelRequested { by: by.to_owned() }).await?;
        self.followed_up(outcome).await
    }

    /// Reports that the stored engine session of a waiting run was deleted.
    pub async fn session_lost(
        &self,
        run: RunId,
        failure: RunFailure,
    ) -> Result<RequestOutcome, RequestError> {
        let outcome = self.0.world.desk.take(run, RunEvent::SessionLost { failure }).await?;
        self.followed_up(outcome).await
    }

    async fn followed_up(&self, outcome: RequestOutcome) -> Result<RequestOutcome, RequestError> {
        self.0.performer.follow_up(&outcome).await;
        Ok(outcome)
    }

    pub fn store(&self) -> &dyn Store {
        &*self.0.world.store
    }

    pub fn catalogue(&self) -> &dyn EngineLookup {
        &*self.0.world.catalogue
    }

    /// Whether an engine can be used, and its abilities. None if there is no such engine, or the daemon is shutting
    /// down.
    pub async fn examine(&self, engine: &str) -> Option<EngineHealth> {
        let entry = self.0.world.catalogue.engine(engine)?;
        self.0.performer.health(&entry).await
    }

    /// Changes whenever a run changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.performer.changes()
    }

    /// The current time and a unique number.
    pub fn stamp(&self) -> abide_domain::time::EventStamp {
        self.0.world.clock.stamp()
    }

    pub fn habits(&self) -> &DaemonConfig {
        &self.0.habits
    }

    /// Number of runs that hold a slot, and of those that wait.
    pub fn occupancy(&self) -> (usize, usize) {
        self.0.world.desk.occupancy()
    }

    /// The position of a waiting run in the queue, from 1.
    pub fn queue_position(&self, run: RunId) -> Option<usize> {
        self.0.world.desk.queue_position(run)
    }

    /// The time of the last output, if a running turn counts as stalled.
    pub fn stalled_since(&self, run: &Run) -> Option<Timestamp> {
        let RunState::Running(RunningPhase::Active(active)) = &run.state else { return None };
        let heard = self.0.world.processes.last_output_at(&name(run.run_id, active.live.attempt))?;
        (self.now().seconds_since(heard) >= self.0.habits.stall_after).then_some(heard)
    }

    /// The workspace of a run without an explicit one.
    pub fn own_workspace(&self, run: RunId) -> String {
        format!("{}/{run}", self.0.habits.workspaces)
    }

    /// Shuts down: no process is started any more, and every process of a run is ended. The domain decides the new
    /// state of each run ([`RunEvent::ShutdownRequested`]). A daemon that leaves its processes to the keepers does not
    /// call this.
    pub async fn stop(&self) -> Result<ShutdownReport, RequestError> {
        self.0.world.desk.close();
        self.0.performer.close();
        let mut changes = self.changes();
        let mut before: BTreeMap<RunId, ActivityBeforeStop> = BTreeMap::new();
        let ended = async {
            loop {
                changes.mark_unchanged();
                self.request_shutdown(&mut before).await?;
                let busy = self.0.performer.examines();
                if !busy && !self.0.performer.holds_processes(before.keys().copied()).await? {
                    return Ok::<(), RequestError>(());
                }
                // The end of a process does not always cause a change. On timeout the processes are checked again.
                tokio::time::timeout(STOP_LOOK, changes.changed()).await.ok();
            }
        };
        match tokio::time::timeout(STOP_TIMEOUT, ended).await {
            Ok(ended) => ended?,
            Err(_) => tracing::warn!("not every process could be ended in time"),
        }
        self.0.performer.wait_for_ends(LEAVE_TIMEOUT).await?;
        let mut stopped = ShutdownReport::default();
        for (run_id, was) in before {
            let Some(run) = self.0.world.desk.latest(run_id).await? else { continue };
            let is_stopped = !self.0.performer.holds_processes([run_id]).await?;
            stopped.runs.push(StoppedRun { was, run, is_stopped });
        }
        Ok(stopped)
    }

    /// Sends the shutdown event to every run that holds a process. Called repeatedly, because a process that was being
    /// started appears later. A run that cannot be changed is reported as not stopped.
    async fn request_shutdown(
        &self,
        before: &mut BTreeMap<RunId, ActivityBeforeStop>,
    ) -> Result<(), RequestError> {
        for (run_id, occupancy) in self.0.world.store.slot_occupancies().await? {
            if occupancy != SlotOccupancy::Holding {
                continue;
            }
            let Some(run) = self.0.world.desk.latest(run_id).await? else { continue };
            let Some(was) = ActivityBeforeStop::of(&run) else { continue };
            before.entry(run_id).or_insert(was);
            if was == ActivityBeforeStop::Start {
                // Its process may be starting now; no further one is started after that.
                self.0.performer.finish_order(run_id).await;
            }
            match self.0.world.desk.take(run_id, RunEvent::ShutdownRequested).await {
                Ok(outcome) => self.0.performer.follow_up(&outcome).await,
                Err(error) => tracing::error!(run = %run_id, %error, "run not stopped"),
            }
        }
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.stamp().at
    }
}

/// The number of which a text consists, if it has one to three digits.
fn only_number(text: &str) -> Option<usize> {
    let digits = text.trim();
    let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// The label of the option with this number, from 1 (I66). A number that is itself a label is not translated.
fn chosen_label(question: &Question, number: usize) -> Option<String> {
    let is_label = |choice: &InteractionOption| choice.label.trim() == number.to_string();
    if question.kind != InteractionKind::ChooseOne || question.options.iter().any(is_label) {
        return None;
    }
    let choice = question.options.get(number.checked_sub(1)?)?;
    Some(choice.label.clone())
}
