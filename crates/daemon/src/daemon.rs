//! The daemon as one thing: what people ask of it, what it does by itself, and how it stops.
//!
//! Everybody outside (HTTP, the command line, chat) holds a [`Daemon`]. Requests go through the desk and are followed up
//! by the performer; what is looked at comes from the store. How requests look on a wire is not known here.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use abide_domain::{
    event::{KeyClaim, NewRun, RUN_REQUESTS, RunEvent},
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
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    desk::RequestOutcome,
    error::RequestError,
    guard::CrashGuard,
    performer::{DaemonDeps, EffectExecutor, name},
    pressure::DiskShortage,
};

/// A handle to the daemon. Cheap to clone; all clones are one.
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

/// What can be set about the daemon as a whole.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// After how much silence a working turn is called stalled. Nothing is done about it.
    pub stall_after: Seconds,
    /// How many turns may work at a time.
    pub slots: usize,
    /// The directory in which runs without a workspace of their owner's get one of their own.
    pub workspaces: String,
}

/// What became of the runs when the daemon stopped in order.
#[derive(Clone, Debug, Default)]
pub struct ShutdownReport {
    /// Every run that held a process or was about to start one.
    pub runs: Vec<StoppedRun>,
}

/// What became of one run.
#[derive(Clone, Debug)]
pub struct StoppedRun {
    /// What it did before.
    pub was: ActivityBeforeStop,
    /// What it is now.
    pub run: Arc<Run>,
    /// Whether nothing of it holds a process any more. A process that could not be stopped in time is left to its keeper,
    /// and the next daemon takes it up.
    pub is_stopped: bool,
}

/// What a run did when the daemon was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityBeforeStop {
    /// A turn was at work.
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

/// How long to wait at the most before deadlines are looked at again, whatever is known of them.
const LONGEST_NAP: Duration = Duration::from_secs(60);
/// A new deadline is never nearer than this, so that not every change needs a look. One that has to wait for something
/// else is looked at again as often.
const SHORTEST_NAP: Duration = Duration::from_millis(100);
/// How long an orderly stop waits for processes to end: longer than a turn may take to obey, and its keeper to end it.
const STOP_PATIENCE: Duration = Duration::from_secs(40);
/// How long a daemon that leaves everything to the keepers waits for the end of its own checks.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
const LEAVE_LOOK: Duration = Duration::from_millis(20);
/// How often free space is looked for while runs wait.
const SPACE_LOOK: Duration = Duration::from_secs(2);
/// How often an orderly stop looks whether everything has ended, if nothing wakes it before.
const STOP_LOOK: Duration = Duration::from_millis(250);

impl Daemon {
    /// A daemon that has not looked at anything yet.
    pub fn new(world: DaemonDeps, habits: DaemonConfig) -> Self {
        let guard = CrashGuard::none(world.clock.clone());
        Self::guarded(world, habits, guard)
    }

    /// The same with a crash guard, which knows what earlier daemons died of.
    pub fn guarded(world: DaemonDeps, habits: DaemonConfig, guard: CrashGuard) -> Self {
        world.desk.limit_space(world.space.clone());
        let performer = EffectExecutor::guarded(world.clone(), guard.clone());
        Self(Arc::new(DaemonInner { world, performer, habits, guard, ready: AtomicBool::new(false) }))
    }

    /// Takes up everything that an earlier daemon left: what is found dead comes in as an event, what lives is listened
    /// to, what is owed is performed. Then it is ready.
    pub async fn reconcile(&self) -> Result<(), RequestError> {
        self.0.performer.reconcile().await?;
        self.0.performer.ring().await?;
        for run in self.0.world.desk.admit().await? {
            self.0.performer.look_after(run);
        }
        for (run, what) in self.troubled().await? {
            tracing::error!(%run, %what, "nothing can be done for this run; see `abide verify`");
        }
        self.0.ready.store(true, Ordering::Release);
        self.0.guard.ready();
        let (held, queued) = self.occupancy();
        tracing::info!(held, queued, "reconciled");
        Ok(())
    }

    /// Whether everything that was found at start-up has been taken up, and the store is still there.
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire) && self.0.world.store.health().is_ok()
    }

    /// Finds out what the engines of this machine can do, in the background (A3).
    pub fn collect_capabilities(&self) -> JoinHandle<()> {
        let daemon = self.clone();
        tokio::spawn(async move { daemon.0.performer.collect_capabilities().await })
    }

    /// Stops what the daemon does for itself and leaves everything else to the keepers.
    pub async fn leave(&self) {
        self.0.performer.close();
        let left = async {
            while self.0.performer.examines() {
                tokio::time::sleep(LEAVE_LOOK).await;
            }
        };
        // What is left of a check is ended by the next start.
        let _in_time = tokio::time::timeout(LEAVE_PATIENCE, left).await;
    }

    /// Lets deadlines pass, for as long as the task lives.
    pub fn keep_time(&self) -> JoinHandle<()> {
        let daemon = self.clone();
        tokio::spawn(async move { daemon.ring_for_ever().await })
    }

    async fn ring_for_ever(&self) {
        let mut changes = self.changes();
        loop {
            // A store that is away for a moment loses no deadline: it is still due when it is back.
            if let Err(error) = self.0.performer.ring().await {
                tracing::warn!(%error, "deadlines not looked at");
            }
            // Space may have been freed, which nobody tells.
            let queued = self.occupancy().1 > 0;
            if queued && self.0.world.space.is_set() {
                self.0.performer.admit().await;
            }
            let nap = match self.0.performer.next_deadline().await {
                Ok(Some(at)) => {
                    Duration::from_micros(self.now().until(at).0).clamp(SHORTEST_NAP, LONGEST_NAP)
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

    /// Runs for which nothing can be done at present, by id, each with the reason: their row cannot be read, or an event
    /// of theirs could not be committed.
    pub async fn troubled(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let damaged = self.0.world.store.damaged().await?.into_iter().map(|run| (run.run_id, run.what));
        let set_aside = self.0.performer.set_aside().into_iter().map(|(run, why)| (run.to_string(), why));
        Ok(set_aside.chain(damaged).collect())
    }

    /// Where texts are kept that are too long for a question.
    pub fn contents(&self) -> Arc<dyn ContentStore> {
        self.0.world.contents.clone()
    }

    /// Creates a run, once for each idempotency key and message.
    pub async fn create(&self, new: NewRun) -> Result<RequestOutcome, RequestError> {
        if let Some(shortage) = self.shortage(Some(&new.settings.workspace)) {
            let key = new
                .idempotency
                .as_ref()
                .map(|idempotency| (RUN_REQUESTS.to_owned(), idempotency.key.clone()));
            self.take_only_known(key, shortage).await?;
        }
        let outcome = self.0.world.desk.create(new).await?;
        self.followed_up(outcome).await
    }

    /// Says something to a run, once for each message.
    pub async fn message(
        &self,
        run: RunId,
        message: InboundMessage,
        on_busy: Option<OnBusy>,
    ) -> Result<RequestOutcome, RequestError> {
        let known = self.0.world.desk.latest(run).await?;
        let workspace = known.as_ref().map(|run| run.settings.workspace.as_str());
        if let Some(shortage) = self.shortage(workspace) {
            let KeyClaim { scope, key, .. } = KeyClaim::of_message(&message.key);
            self.take_only_known(Some((scope, key)), shortage).await?;
        }
        let outcome = self.0.world.desk.message(run, message, on_busy).await?;
        self.followed_up(outcome).await
    }

    /// The place that has too little disk space, of the home and this workspace: nothing new is taken meanwhile.
    pub fn shortage(&self, workspace: Option<&str>) -> Option<DiskShortage> {
        self.0.world.space.shortage(workspace)
    }

    /// Refuses what is new. What was taken before is answered as it always is.
    async fn take_only_known(
        &self,
        key: Option<(String, String)>,
        shortage: DiskShortage,
    ) -> Result<(), RequestError> {
        if let Some((scope, key)) = key
            && self.0.world.store.claimed(&scope, &key).await?.is_some()
        {
            return Ok(());
        }
        Err(RequestError::Shortage(shortage))
    }

    /// Answers a question. The first answer counts. It is taken also where there is too little space for anything new:
    /// it is small, and it lets something end.
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

    /// Stops the turn at work.
    pub async fn interrupt(&self, run: RunId, by: &str) -> Result<RequestOutcome, RequestError> {
        let outcome = self.0.world.desk.take(run, RunEvent::InterruptRequested { by: by.to_owned() }).await?;
        self.followed_up(outcome).await
    }

    /// Ends a run.
    pub async fn cancel(&self, run: RunId, by: &str) -> Result<RequestOutcome, RequestError> {
        let outcome = self.0.world.desk.take(run, RunEvent::CancelRequested { by: by.to_owned() }).await?;
        self.followed_up(outcome).await
    }

    /// What the engine of a waiting run keeps of its session was deleted.
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

    /// Where everything is looked up.
    pub fn store(&self) -> &dyn Store {
        &*self.0.world.store
    }

    /// Which engines there are.
    pub fn catalogue(&self) -> &dyn EngineLookup {
        &*self.0.world.catalogue
    }

    /// Whether an engine can be used, and what for. None if there is no such engine, or the daemon is about to go.
    pub async fn examine(&self, engine: &str) -> Option<EngineHealth> {
        let entry = self.0.world.catalogue.engine(engine)?;
        self.0.performer.health(&entry).await
    }

    /// Something that changes whenever a run does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.performer.changes()
    }

    /// What time it is, and a number that never comes again.
    pub fn stamp(&self) -> abide_domain::time::EventStamp {
        self.0.world.clock.stamp()
    }

    /// What can be set about it.
    pub fn habits(&self) -> &DaemonConfig {
        &self.0.habits
    }

    /// How many runs hold a slot, and how many wait for one.
    pub fn occupancy(&self) -> (usize, usize) {
        self.0.world.desk.occupancy()
    }

    /// A run's place among those that wait for a slot, 1 being next.
    pub fn queue_position(&self, run: RunId) -> Option<usize> {
        self.0.world.desk.queue_position(run)
    }

    /// Since when a working turn has said nothing, if that is long enough to be worth a look.
    pub fn stalled_since(&self, run: &Run) -> Option<Timestamp> {
        let RunState::Running(RunningPhase::Active(active)) = &run.state else { return None };
        let heard = self.0.world.processes.last_heard(&name(run.run_id, active.live.attempt))?;
        (self.now().since(heard) >= self.0.habits.stall_after).then_some(heard)
    }

    /// The workspace of a run whose owner named none.
    pub fn own_workspace(&self, run: RunId) -> String {
        format!("{}/{run}", self.0.habits.workspaces)
    }

    /// Stops in order: no process is started any more, and every process that a run holds is ended. What becomes of each
    /// run is the domain's to say ([`RunEvent::ShutdownRequested`]). A daemon that leaves everything to the keepers does not
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
                // The end of a process is not always followed by a change.
                let _or_after_a_moment = tokio::time::timeout(STOP_LOOK, changes.changed()).await;
            }
        };
        match tokio::time::timeout(STOP_PATIENCE, ended).await {
            Ok(ended) => ended?,
            Err(_) => tracing::warn!("not every process could be ended in time"),
        }
        self.0.performer.wait_for_ends(LEAVE_PATIENCE).await?;
        let mut stopped = ShutdownReport::default();
        for (run_id, was) in before {
            let Some(run) = self.0.world.desk.latest(run_id).await? else { continue };
            let is_stopped = !self.0.performer.holds_processes([run_id]).await?;
            stopped.runs.push(StoppedRun { was, run, is_stopped });
        }
        Ok(stopped)
    }

    /// Tells every run that holds a process that the daemon stops. Asked again, because a process that was being started
    /// shows up a moment later. A run that cannot be changed is reported as not stopped.
    async fn request_shutdown(
        &self,
        before: &mut BTreeMap<RunId, ActivityBeforeStop>,
    ) -> Result<(), RequestError> {
        for (run_id, occupancy) in self.0.world.store.occupying().await? {
            if occupancy != SlotOccupancy::Holding {
                continue;
            }
            let Some(run) = self.0.world.desk.latest(run_id).await? else { continue };
            let Some(was) = ActivityBeforeStop::of(&run) else { continue };
            before.entry(run_id).or_insert(was);
            if was == ActivityBeforeStop::Start {
                // Its process may be started at this moment; after that nothing starts it any more.
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

/// The number that a text consists of, if it is one that a person would choose by.
fn only_number(text: &str) -> Option<usize> {
    let digits = text.trim();
    let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// The label of the option with this number, from 1 (I66). A number that is itself a label stays what it is.
fn chosen_label(question: &Question, number: usize) -> Option<String> {
    let is_label = |choice: &InteractionOption| choice.label.trim() == number.to_string();
    if question.kind != InteractionKind::ChooseOne || question.options.iter().any(is_label) {
        return None;
    }
    let choice = question.options.get(number.checked_sub(1)?)?;
    Some(choice.label.clone())
}
