//! Routes inputs to the actors of runs and to the scheduler, and returns the actions that follow.
//!
//! A pure value: the same inputs lead to the same actions. The event loop performs the actions and feeds the results
//! back; the simulator does the same with simulated storage, time and processes. An actor exists while its run is
//! running, holds a process or has a pending effect. All other runs are only rows of the store.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use abide_domain::{
    deadline::Deadline,
    id::RunId,
    run::Run,
    slots::SlotOccupancy,
    time::{Seconds, Timestamp},
};
use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    clock::Clock,
    engine::EngineHealth,
    store::StoreError,
};
use tokio::sync::oneshot;

use crate::{
    executor::EffectResult,
    probe_cache::{ProbeCache, ProbedProgram},
    run_actor::{
        ActorContext, ActorNumber, ActorPause, BROKEN_PAUSE, RunAction, RunActor, RunInput, TransitionRules,
    },
    scheduler::{RunScheduler, SharedQueue},
};

/// An input of the daemon.
#[derive(Debug)]
pub enum DaemonInput {
    Run {
        run: RunId,
        /// The actor whose action has this result. None for requests of clients.
        actor: Option<ActorNumber>,
        input: RunInput,
    },
    /// Deadlines are checked, and runs that could not be admitted are tried again.
    Tick,
    /// The result of [`DaemonAction::ListDeadlines`].
    DeadlinesListed(Result<Vec<(RunId, Deadline)>, StoreError>),
    /// A client asks for the health of an engine. `program` is its program as it is now.
    Examine {
        entry: InstalledEngine,
        program: Option<ProbedProgram>,
        reply: oneshot::Sender<EngineHealth>,
    },
    /// The result of a probe.
    Probed {
        engine: String,
        result: ProbeOutcome,
    },
    Inspect(oneshot::Sender<DaemonActivity>),
    /// The daemon is shutting down: no run is admitted, and no process is started.
    Close,
    /// The event loop ends.
    End,
}

/// An action of the daemon.
#[derive(Debug)]
pub enum DaemonAction {
    Run {
        run: RunId,
        actor: ActorNumber,
        action: RunAction,
    },
    /// List this number of the earliest deadlines.
    ListDeadlines {
        limit: usize,
    },
    TickAfter(Duration),
    /// Examine an engine for clients, without a run.
    Probe(InstalledEngine),
}

/// The health of an engine, and the examined program if the result may be cached. Without a result, the pause before
/// runs try again.
pub type ProbeOutcome = Result<(Box<EngineHealth>, Option<ProbedProgram>), Duration>;

/// The work in progress.
#[derive(Clone, Debug, Default)]
pub struct DaemonActivity {
    /// The runs that have an actor and whose state is known: all that hold a process or have a pending effect.
    pub runs: Vec<ActiveRun>,
    /// Number of runs that are being loaded.
    pub loading: usize,
    /// Number of probes.
    pub probes: usize,
    /// Runs that are retried after a pause, with the reasons.
    pub quarantined: Vec<(RunId, String)>,
}

/// A run with an actor.
#[derive(Clone, Debug)]
pub struct ActiveRun {
    /// The last committed state.
    pub run: Arc<Run>,
    /// Whether a process of the run is being started or read.
    pub has_session: bool,
}

/// The values that the dispatcher uses. None of them blocks.
pub struct DispatcherConfig {
    pub rules: TransitionRules,
    pub clock: Arc<dyn Clock>,
    pub catalogue: Arc<dyn EngineLookup>,
    /// The parent of the private directories of runs.
    pub private: String,
    /// Maximum total time of recovery attempts for a turn, over all losses of its process (E8).
    pub recovery_max: Seconds,
    pub output_buffer_bytes: u64,
    /// Whether a minimum of free disk space is configured.
    pub is_space_limited: bool,
    /// Whether this process may perform effects. The one place that decides it: false as soon as another daemon has the
    /// store.
    pub may_act: Box<dyn Fn() -> bool + Send>,
}

/// Owns all actors and the scheduler.
#[derive(Debug)]
pub struct Dispatcher {
    config: DispatcherConfig,
    actors: BTreeMap<RunId, RunActor>,
    last_actor: ActorNumber,
    scheduler: RunScheduler,
    probes: ProbeCache,
    /// The engines that are being examined.
    probing: BTreeMap<String, ProbeWaiters>,
    is_closing: bool,
}

/// The runs and clients that wait for the result of a probe.
#[derive(Debug, Default)]
struct ProbeWaiters {
    runs: Vec<(RunId, ActorNumber)>,
    clients: Vec<oneshot::Sender<EngineHealth>>,
}

impl ProbeWaiters {
    fn len(&self) -> usize {
        self.runs.len() + self.clients.len()
    }
}

impl Dispatcher {
    /// `occupancies` are the runs that hold a slot or wait for one.
    pub fn new(config: DispatcherConfig, slots: usize, occupancies: Vec<(RunId, SlotOccupancy)>) -> Self {
        Self {
            config,
            actors: BTreeMap::new(),
            last_actor: ActorNumber(0),
            scheduler: RunScheduler::new(slots, occupancies),
            probes: ProbeCache::default(),
            probing: BTreeMap::new(),
            is_closing: false,
        }
    }

    pub(crate) fn queue(&self) -> SharedQueue {
        self.scheduler.queue()
    }

    /// Number of runs that hold a slot, and of those that wait.
    pub fn occupancy(&self) -> (usize, usize) {
        let queue = self.scheduler.queue();
        let queue = queue.lock();
        (queue.held(), queue.queued())
    }

    /// The runs that have an actor.
    pub fn active_runs(&self) -> impl Iterator<Item = RunId> {
        self.actors.keys().copied()
    }

    /// Handles one input, and returns the actions that follow. Then the scheduler admits the runs for which there is a
    /// slot.
    pub fn handle(&mut self, input: DaemonInput) -> Vec<DaemonAction> {
        let mut actions = Vec::new();
        match input {
            DaemonInput::Run { run, actor, input } => self.handle_run(run, actor, input, &mut actions),
            DaemonInput::Tick => {
                let limit = self.scheduler.begin_tick();
                actions.push(DaemonAction::ListDeadlines { limit });
            }
            DaemonInput::DeadlinesListed(listed) => self.on_deadlines(listed, &mut actions),
            DaemonInput::Examine { entry, program, reply } => {
                match program.as_ref().and_then(|program| self.probes.get(program)) {
                    // The client may have gone.
                    Some(health) => drop(reply.send(health.clone())),
                    None => {
                        let waiters = self.probing.entry(entry.engine.name().to_owned()).or_default();
                        waiters.clients.push(reply);
                        if waiters.len() == 1 {
                            actions.push(DaemonAction::Probe(entry));
                        }
                    }
                }
            }
            DaemonInput::Probed { engine, result } => self.on_probed(&engine, result, &mut actions),
            DaemonInput::Inspect(reply) => drop(reply.send(self.activity())),
            // The event loop ends without passing it on.
            DaemonInput::End => {}
            DaemonInput::Close => {
                self.is_closing = true;
                self.scheduler.close();
            }
        }
        while let Some(run) = self.scheduler.admit_next() {
            self.handle_run(run, None, RunInput::Admit, &mut actions);
        }
        while let Some(run) = self.scheduler.next_long() {
            self.handle_run(run, None, RunInput::Continue, &mut actions);
        }
        let now = self.config.clock.stamp().at;
        if let Some(at) = self.scheduler.retry_skipped_at(now) {
            self.plan_tick(at, &mut actions);
        }
        actions
    }

    fn plan_tick(&mut self, at: Timestamp, actions: &mut Vec<DaemonAction>) {
        let now = self.config.clock.stamp().at;
        actions.extend(self.scheduler.plan_tick(at, now).map(DaemonAction::TickAfter));
    }

    /// Passes an input to the actor of a run, and creates the actor for inputs that need one. A panic affects only this
    /// run: its actor is dropped and created again later. Results for a former actor are dropped.
    fn handle_run(
        &mut self,
        run: RunId,
        addressee: Option<ActorNumber>,
        input: RunInput,
        actions: &mut Vec<DaemonAction>,
    ) {
        let needs_actor = matches!(
            input,
            RunInput::Request { .. } | RunInput::Deadline(_) | RunInput::Admit | RunInput::Recover(_)
        );
        // The pause after a panic ends with a new actor.
        let is_retry = matches!(input, RunInput::Resume(ActorPause::Commit));
        let actor = match self.actors.entry(run) {
            Entry::Occupied(actor) => actor.into_mut(),
            Entry::Vacant(vacant) if needs_actor => {
                self.last_actor.0 += 1;
                vacant.insert(RunActor::new(run, self.last_actor))
            }
            Entry::Vacant(_) if is_retry => {
                return self.handle_run(run, None, RunInput::Recover(None), actions);
            }
            Entry::Vacant(_) => return,
        };
        let number = actor.number();
        if addressee.is_some_and(|addressee| addressee != number) {
            return;
        }
        let mut context = ActorContext {
            rules: self.config.rules,
            clock: &*self.config.clock,
            catalogue: &*self.config.catalogue,
            private: &self.config.private,
            recovery_max: self.config.recovery_max,
            output_buffer_bytes: self.config.output_buffer_bytes,
            is_space_limited: self.config.is_space_limited,
            may_act: (self.config.may_act)(),
            is_closing: self.is_closing,
            scheduler: &mut self.scheduler,
            probes: &self.probes,
        };
        let handled = catch_unwind(AssertUnwindSafe(|| actor.handle(input, &mut context)));
        let Ok(follow_ups) = handled else { return self.on_panic(run, actions) };
        if actor.is_idle() {
            self.actors.remove(&run);
            self.scheduler.end_long(run);
        }
        for action in follow_ups {
            self.on_run_action(run, number, action, actions);
        }
    }

    /// A panic of the rules affects only its run. The actor is dropped with its inbox: the dropped replies report the
    /// bug, and a new actor finds the facts again. Deadlines of the run are checked after a pause.
    fn on_panic(&mut self, run: RunId, actions: &mut Vec<DaemonAction>) {
        let Some(actor) = self.actors.remove(&run) else { return };
        let reason = "handling its input failed because of a bug of Abide; see the log";
        self.scheduler.quarantine(run, reason, self.config.clock.stamp().at);
        self.scheduler.end_long(run);
        if actor.is_row() {
            self.scheduler.settle(run, actor.run().map(|run| &**run));
            self.scheduler.skip(run);
        } else {
            let action = RunAction::Pause { pause: ActorPause::Commit, duration: BROKEN_PAUSE };
            actions.push(DaemonAction::Run { run, actor: actor.number(), action });
        }
    }

    /// Handles the actions that concern other runs, and passes the others on.
    fn on_run_action(
        &mut self,
        run: RunId,
        actor: ActorNumber,
        action: RunAction,
        actions: &mut Vec<DaemonAction>,
    ) {
        if let RunAction::Announce(Some(changed)) = &action
            && let Some(deadline) = changed.deadline()
        {
            self.plan_tick(deadline.at, actions);
        }
        // One probe of an engine serves all runs that wait for it.
        if let RunAction::Probe { entry, .. } = &action {
            let waiters = self.probing.entry(entry.engine.name().to_owned()).or_default();
            waiters.runs.push((run, actor));
            if waiters.len() > 1 {
                return;
            }
        }
        actions.push(DaemonAction::Run { run, actor, action });
    }

    fn on_deadlines(
        &mut self,
        listed: Result<Vec<(RunId, Deadline)>, StoreError>,
        actions: &mut Vec<DaemonAction>,
    ) {
        let now = self.config.clock.stamp().at;
        let next = match listed {
            Ok(deadlines) => {
                let (due, next) = self.scheduler.due(&deadlines, now);
                for (run, kind) in due {
                    self.handle_run(run, None, RunInput::Deadline(kind), actions);
                }
                next
            }
            // A deadline stays due while the store is unavailable.
            Err(error) => {
                tracing::warn!(%error, "deadlines were not checked");
                Some(RunScheduler::after_error(now))
            }
        };
        // Without a deadline, the clock is checked again after the longest delay.
        self.plan_tick(next.unwrap_or(Timestamp(i64::MAX)), actions);
    }

    fn on_probed(&mut self, engine: &str, result: ProbeOutcome, actions: &mut Vec<DaemonAction>) {
        let ProbeWaiters { runs, clients } = self.probing.remove(engine).unwrap_or_default();
        // Without a result, the dropped reply tells the client.
        if let Ok((health, program)) = &result {
            clients.into_iter().for_each(|reply| drop(reply.send((**health).clone())));
            if let Some(program) = program {
                self.probes.insert(program.clone(), (**health).clone());
            }
        }
        for (run, actor) in runs {
            let input = match &result {
                Ok((health, _)) => RunInput::Probed(health.clone()),
                Err(pause) => RunInput::Executed(EffectResult::Later(*pause)),
            };
            self.handle_run(run, Some(actor), input, actions);
        }
    }

    fn activity(&self) -> DaemonActivity {
        DaemonActivity {
            runs: self.actors.values().filter_map(RunActor::activity).collect(),
            loading: self.actors.values().filter(|actor| actor.is_loading()).count(),
            probes: self.probing.len(),
            quarantined: self.scheduler.quarantined(),
        }
    }
}
