//! Drives the daemon's dispatcher with simulated storage, time and processes. Every action waits until the dice choose
//! it, and so does its result. A crash loses both. Nothing of the daemon is implemented here.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use abide_daemon::{
    ActorNumber, CrashGuard, Daemon, DaemonAction, DaemonConfig, DaemonDeps, DaemonInput, DaemonParts,
    EffectOperation, EffectResult, MachineSurvey, ReadRequest, RequestError, RequestOutcome, RunAction,
    RunInput, SpaceLimit, is_orphan, process_name, read_available, runs_to_recover, turns_of_attempt,
};
use abide_domain::{
    effect::EffectNumber,
    event::RunEvent,
    id::{DeliveryId, RunId},
    process::ExitStatus,
    run::Run,
    settings::RunSettings,
    time::{Seconds, Timestamp},
};
use abide_ports::{
    catalogue::InstalledEngine,
    clock::Clock,
    processes::{OutputFollower, ProcessOutput, ProcessUnreachable, Processes},
    store::{Journal, JournalCommit, PageRequest, RunChange, StoreError, StoreQueries},
};
use abide_store::memory::MemoryStore;
use abide_testkit::{
    clock::FakeClock,
    fake_engine::{ContentsInMemory, NoopWorkspaces},
};

use crate::{
    adapter::SimCatalogue,
    checks::InvariantViolation,
    faults::{RuleFault, bent_rules},
    processes::{SimProcessKey, SimProcesses},
    world::{HistoryHalt, SimDisk, SimWorld},
};

/// The state that is lost in a crash.
pub(crate) struct SimDaemon {
    pub(crate) parts: DaemonParts,
    tasks: Vec<SimTask>,
    followers: BTreeMap<SimProcessKey, Box<dyn OutputFollower>>,
    /// The wall time at which it started.
    started_at: Timestamp,
}

/// A future request of a client.
pub(crate) type SimRequest = Pin<Box<dyn Future<Output = Result<RequestOutcome, RequestError>>>>;

/// A task of the event loop.
enum SimTask {
    /// An action that has not begun.
    Action(DaemonAction),
    /// The result of an action, which has not been delivered.
    Result(DaemonInput),
    /// An input at this monotonic time, in microseconds.
    Timer(u64, DaemonInput),
}

/// The result of an action that has been performed.
enum SimOutcome {
    Input(DaemonInput),
    Nothing,
    /// The process has no output yet.
    Blocked(DaemonAction),
}

impl SimDaemon {
    /// The daemon on this store, before it has recovered anything.
    pub(crate) fn assemble(
        store: &Arc<MemoryStore>,
        clock: &Arc<FakeClock>,
        processes: &SimProcesses,
        catalogue: &Arc<SimCatalogue>,
        disk: &Arc<SimDisk>,
        (slots, fault): (usize, Option<RuleFault>),
    ) -> Self {
        let deps = DaemonDeps {
            store: store.clone(),
            clock: clock.clone(),
            catalogue: catalogue.clone(),
            processes: Arc::new(processes.clone()),
            workspaces: Arc::new(NoopWorkspaces),
            private: "private".to_owned(),
            recovery_max: Seconds(300),
            contents: Arc::<ContentsInMemory>::default(),
            space: SpaceLimit { space: Some(disk.clone()), min_free_bytes: 1, home: "/".to_owned() },
        };
        let slots = slots + usize::from(fault == Some(RuleFault::AdmitOverLimit));
        let config = DaemonConfig { stall_after: Seconds(60), slots, workspaces: "w".to_owned() };
        let guard = CrashGuard::none(clock.clone());
        let parts = now(Daemon::parts(deps, config, guard, bent_rules)).expect("memory can always be read");
        Self { parts, tasks: vec![], followers: BTreeMap::new(), started_at: clock.now() }
    }
}

impl SimWorld {
    /// Starts a new daemon on the remaining state. Clients are connected at once.
    pub(crate) fn restart_daemon(&mut self) -> Result<(), InvariantViolation> {
        self.note(|| "a new daemon starts".into());
        self.restarts += 1;
        let limits = (self.slots, self.fault);
        if self.dice.chance(3) {
            let unknown = RunId(self.clock.stamp().id_seed);
            self.processes.table().engines.start_stray(unknown);
        }
        let (store, clock, disk) = (&self.store, &self.clock, &self.disk);
        self.daemon = SimDaemon::assemble(store, clock, &self.processes, &self.catalogue, disk, limits);
        self.people.lose_connections();
        let (mut runs, _) = now(runs_to_recover(&*self.store)).expect("memory can always be read");
        if self.fault == Some(RuleFault::ForgetOwedAtRestart) {
            runs.clear();
        }
        let names = self.processes.names();
        for run in runs {
            let input = RunInput::Recover(None);
            let started = self.deliver(DaemonInput::Run { run, actor: None, input });
            self.after(started)?;
        }
        for name in names {
            let is_left = self.fault == Some(RuleFault::LeaveOrphans);
            if !is_left && now(is_orphan(&*self.store, &name)).expect("memory can always be read") {
                self.note(|| format!("process {name} belongs to no run"));
                // A keeper that does not answer is tried at the next start.
                self.processes.terminate(&name).ok();
            }
        }
        let ticked = self.deliver(DaemonInput::Tick);
        self.after(ticked)
    }

    /// Passes an input to the dispatcher, and keeps the actions.
    fn deliver(&mut self, input: DaemonInput) -> Result<(), HistoryHalt> {
        let actions = self.daemon.parts.dispatcher.handle(input);
        for action in actions {
            self.accept(action)?;
        }
        Ok(())
    }

    /// Handles the actions that cannot be late; all others become tasks.
    fn accept(&mut self, action: DaemonAction) -> Result<(), HistoryHalt> {
        let now_micros = self.monotonic;
        let at = |delay: Duration| now_micros + u64::try_from(delay.as_micros()).unwrap_or(u64::MAX / 2);
        match action {
            DaemonAction::TickAfter(_) if self.fault == Some(RuleFault::NeverTick) => {}
            DaemonAction::TickAfter(delay) => {
                self.daemon.tasks.retain(|task| !matches!(task, SimTask::Timer(_, DaemonInput::Tick)));
                self.daemon.tasks.push(SimTask::Timer(at(delay), DaemonInput::Tick))
            }
            DaemonAction::Run { run, actor, action: RunAction::Pause { pause, duration } } => {
                if self.fault != Some(RuleFault::ForgetPauses) {
                    let input = RunInput::Resume(pause);
                    let resume = DaemonInput::Run { run, actor: Some(actor), input };
                    self.daemon.tasks.push(SimTask::Timer(at(duration), resume));
                }
            }
            DaemonAction::Run { action: RunAction::Reply { reply, result }, .. } => {
                // The client may have gone.
                if self.fault != Some(RuleFault::ForgetReplies) {
                    reply.send(result).ok();
                } else {
                    std::mem::forget(reply);
                }
            }
            DaemonAction::Run { action: RunAction::Announce(changed), .. } => {
                self.taken += 1;
                if let Some(run) = changed {
                    self.note(|| format!("{} is {}", run.run_id, run.state.detail()));
                    self.check_run(&run)?;
                }
            }
            DaemonAction::Run { run, action: RunAction::StopReading { attempt }, .. } => {
                self.daemon.followers.remove(&(run, attempt));
            }
            action @ (DaemonAction::Run { .. }
            | DaemonAction::ListDeadlines { .. }
            | DaemonAction::Probe(_)) => {
                self.daemon.tasks.push(SimTask::Action(action));
            }
        }
        Ok(())
    }

    /// Whether a task can continue now.
    fn is_ready(&self, task: &SimTask) -> bool {
        match task {
            SimTask::Action(DaemonAction::Run {
                run, action: RunAction::Read { attempt, request }, ..
            }) => request.timeout.is_some() || self.has_output(*run, *attempt, request),
            SimTask::Action(_) | SimTask::Result(_) => true,
            SimTask::Timer(at, _) => *at <= self.monotonic,
        }
    }

    fn has_output(&self, run: RunId, attempt: abide_domain::process::Attempt, request: &ReadRequest) -> bool {
        if request.from.is_some() {
            return true;
        }
        let table = self.processes.table();
        let keeper = table.engines.keepers.get(&(run, attempt));
        keeper.is_none_or(|keeper| {
            let read = self.read.get(&(run, attempt)).copied().unwrap_or_default();
            keeper.is_silent
                || keeper.is_severed
                || keeper.is_removed
                || keeper.exit().is_some()
                || keeper.spool.len() > read
        })
    }

    /// Continues one task that the dice choose. Returns whether there was one.
    pub(crate) fn do_something(&mut self) -> Result<bool, HistoryHalt> {
        self.poll_requests()?;
        let ready: Vec<usize> =
            (0..self.daemon.tasks.len()).filter(|place| self.is_ready(&self.daemon.tasks[*place])).collect();
        let Some(place) = self.dice.choose(&ready) else { return Ok(false) };
        match self.daemon.tasks.swap_remove(place) {
            SimTask::Result(input) | SimTask::Timer(_, input) => self.deliver(input)?,
            SimTask::Action(action) => match self.perform(action) {
                SimOutcome::Nothing => {}
                SimOutcome::Blocked(action) => {
                    self.daemon.tasks.push(SimTask::Action(action));
                    // Only the time limit of the read is waited for.
                    return Ok(!self.people.behave);
                }
                SimOutcome::Input(input) => self.daemon.tasks.push(SimTask::Result(input)),
            },
        }
        self.poll_requests()?;
        Ok(true)
    }

    /// Continues until nothing can be done without the passage of time.
    pub(crate) fn do_everything(&mut self) -> Result<(), HistoryHalt> {
        for _ in 0..MAX_TASKS {
            if !self.do_something()? {
                return Ok(());
            }
        }
        let waiting: Vec<String> = self.daemon.tasks.iter().map(SimTask::describe).take(10).collect();
        let detail = format!("after {MAX_TASKS} tasks the daemon still has {waiting:?}");
        Err(InvariantViolation { check: "the daemon comes to rest", detail }.into())
    }

    /// Performs an action as the event loop would.
    fn perform(&mut self, action: DaemonAction) -> SimOutcome {
        match action {
            DaemonAction::ListDeadlines { limit } => {
                let mut listed = now(self.store.runs_due(Timestamp(i64::MAX), limit));
                if self.fault == Some(RuleFault::ForgetDeadlinesAtRestart)
                    && let Ok(deadlines) = &mut listed
                {
                    deadlines.retain(|(run, _)| {
                        let run = now(self.store.run(*run)).ok().flatten();
                        run.is_some_and(|run| self.restarts == 0 || run.updated_at > self.daemon.started_at)
                    });
                }
                SimOutcome::Input(DaemonInput::DeadlinesListed(listed))
            }
            DaemonAction::Probe(entry) => self.probe(&entry),
            DaemonAction::TickAfter(_) => SimOutcome::Nothing,
            DaemonAction::Run { run, actor, action } => self.perform_for(run, actor, action),
        }
    }

    fn perform_for(&mut self, run: RunId, actor: ActorNumber, action: RunAction) -> SimOutcome {
        let executor = self.daemon.parts.executor.clone();
        let input = |input| SimOutcome::Input(DaemonInput::Run { run, actor: Some(actor), input });
        match action {
            RunAction::Load => {
                if self.store_fails() {
                    let reason = "it cannot be read now".to_owned();
                    return input(RunInput::Loaded(Err(StoreError::Unavailable { reason })));
                }
                let loaded = now(self.store.run(run)).expect("memory can always be read").map(Arc::new);
                let survey = self.survey(run, loaded.as_ref().map(|run| &*run.settings));
                input(RunInput::Loaded(Ok((loaded, survey))))
            }
            RunAction::Survey(settings) => input(RunInput::Surveyed(self.survey(run, Some(&settings)))),
            RunAction::Commit(commit) => input(RunInput::Committed(self.commit(run, commit))),
            RunAction::Execute { number, name, operation } => {
                self.note(|| format!("the daemon performs {name} for {run}"));
                let result = self.execute(run, number, operation);
                match self.fault {
                    Some(RuleFault::LoseEffectResults) if self.dice.chance(20) => SimOutcome::Nothing,
                    _ => input(RunInput::Executed(result)),
                }
            }
            RunAction::Probe { entry, .. } => self.probe(&entry),
            RunAction::Locate { attempt, inputs } => {
                let turns = now(turns_of_attempt(&*self.store, run, attempt));
                let located = turns.map(|turns| executor.locate(run, attempt, &inputs, turns));
                input(RunInput::Located(located))
            }
            RunAction::Read { attempt, request } => self.read((run, attempt), actor, request),
            RunAction::StoreContents { attempt, mut events } => {
                executor.store_contents(run, &mut events).expect("there is room");
                input(RunInput::ContentsStored { attempt, events })
            }
            RunAction::Write { attempt, key, bytes } => {
                executor.write(&process_name(run, attempt), key, &bytes);
                input(RunInput::Written { attempt })
            }
            RunAction::CleanUp { attempt } => {
                self.daemon.followers.remove(&(run, attempt));
                executor.clean_up(&process_name(run, attempt));
                input(RunInput::CleanedUp { attempt })
            }
            RunAction::Dismiss { attempt } => {
                executor.dismiss(&process_name(run, attempt));
                SimOutcome::Nothing
            }
            RunAction::Pause { .. }
            | RunAction::StopReading { .. }
            | RunAction::Reply { .. }
            | RunAction::Announce(_) => SimOutcome::Nothing,
        }
    }

    /// Whether the store fails now, without a crash.
    fn store_fails(&mut self) -> bool {
        !self.people.behave && self.dice.chance(2)
    }

    fn survey(&mut self, run: RunId, settings: Option<&RunSettings>) -> MachineSurvey {
        self.surveyed_short.insert(run, self.disk.is_short());
        match self.fault {
            Some(RuleFault::IgnoreShortage) => MachineSurvey::default(),
            _ => self.daemon.parts.executor.survey(settings),
        }
    }

    /// Writes a commit, unless the store fails: before the write, or after it with an unknown outcome.
    fn commit(&mut self, run: RunId, commit: JournalCommit) -> Result<(), StoreError> {
        if self.fault == Some(RuleFault::ActBeforeCommit) {
            self.act_too_early(run, &commit.changes);
        }
        if self.fault == Some(RuleFault::AcknowledgeTooEarly) {
            self.on_disk = Some(self.store.copy());
        }
        let admits = commit.changes.iter().any(|change| change.event == RunEvent::Admitted);
        if admits && self.surveyed_short.get(&run).copied().unwrap_or(false) {
            self.admitted_short.insert(run);
        }
        let names: Vec<&str> = commit.changes.iter().map(|change| change.event.name()).collect();
        let names = names.join(", ");
        let failure = if self.store_fails() { self.dice.below(3) } else { 3 };
        let reason = "as the history wants".to_owned();
        let result = match failure {
            0 => Err(StoreError::Unavailable { reason }),
            1 => Err(StoreError::Full { reason }),
            2 => {
                let written = now(self.store.commit(commit));
                written.and(Err(StoreError::OutcomeUnknown { reason }))
            }
            _ => now(self.store.commit(commit)).map(|_| ()),
        };
        self.note(|| match &result {
            Ok(()) => format!("committed for {run}: {names}"),
            Err(error) => format!("not committed for {run}: {names}: {error}"),
        });
        match self.fault {
            Some(RuleFault::AcknowledgeFailedCommits) if failure < 2 => Ok(()),
            _ => result,
        }
    }

    /// Performs the effects of a commit before the commit.
    fn act_too_early(&mut self, run: RunId, changes: &[RunChange]) {
        let Some(last) = changes.last() else { return };
        for pending in &last.run.pending_effects {
            if let abide_domain::effect::Effect::Launch { attempt } = pending.effect {
                let stored = now(self.store.run(run)).ok().flatten();
                if stored.is_none_or(|stored| stored.last_attempt < attempt) {
                    let early = format!("process {run}/{} was started", attempt.0);
                    self.processes.table().engines.uncommitted.push(early);
                }
            }
        }
    }

    fn execute(&mut self, run: RunId, number: EffectNumber, operation: EffectOperation) -> EffectResult {
        let settled = |event| EffectResult::Settled(vec![event]);
        // The fact that is reported instead of the silence of a keeper.
        let mut gone = None;
        let operation = match (self.fault, operation) {
            (_, EffectOperation::Deliver { delivery_id }) => {
                return settled(match self.show(delivery_id) {
                    Ok(()) => RunEvent::DeliveryConfirmed { delivery_id },
                    Err(certainty) => RunEvent::DeliveryFailed { delivery_id, certainty },
                });
            }
            (Some(RuleFault::ReportWithoutTerminating), EffectOperation::Terminate { attempt, .. }) => {
                return settled(RunEvent::ProcessExited { attempt, exit: ExitStatus::Code(0) });
            }
            (Some(RuleFault::WriteUnderNewKeys), EffectOperation::Write { attempt, bytes, .. }) => {
                EffectOperation::Write { attempt, key: self.clock.stamp().id_seed.0 as u64, bytes }
            }
            (Some(RuleFault::TakeSilentForGone), operation) => {
                gone = match &operation {
                    EffectOperation::Terminate { attempt, .. } => {
                        Some(RunEvent::ProcessExited { attempt: *attempt, exit: ExitStatus::Unknown })
                    }
                    EffectOperation::Find { attempt } => {
                        Some(RunEvent::RecoveryFailed { attempt: *attempt, reason: "it is silent".into() })
                    }
                    EffectOperation::Launch(_)
                    | EffectOperation::Write { .. }
                    | EffectOperation::Interrupt { .. }
                    | EffectOperation::Deliver { .. } => None,
                };
                operation
            }
            (_, operation) => operation,
        };
        let result = self.daemon.parts.executor.execute(run, number, operation);
        self.note(|| format!("for {run}: {result:?}"));
        match (result, gone) {
            (EffectResult::Unreachable, Some(gone)) => settled(gone),
            (result, _) => result,
        }
    }

    fn show(&mut self, delivery_id: DeliveryId) -> Result<(), abide_domain::delivery::DeliveryFailure> {
        let Ok(Some(delivery)) = now(self.store.delivery(delivery_id)) else { return Ok(()) };
        // A newer message may have suppressed it since the effect started (E9). A channel checks that before it sends.
        if delivery.is_settled() {
            return Ok(());
        }
        let turn = delivery.outcome_turn_id.and_then(|turn| now(self.store.turn(turn)).ok().flatten());
        let key = match self.fault {
            Some(RuleFault::DeliverUnderNewKeys) => DeliveryId(self.clock.stamp().id_seed),
            _ => delivery_id,
        };
        self.channel.send(key, &delivery, turn.as_ref(), self.weather, &mut self.dice)
    }

    fn probe(&mut self, entry: &InstalledEngine) -> SimOutcome {
        let engine = entry.engine.name().to_owned();
        let mut health = entry.engine.assess_health(&[]);
        if !self.people.behave && self.dice.chance(3) {
            let code = abide_domain::failure::FailureCode::EngineNotFound;
            health.failure = Some(abide_domain::failure::RunFailure::new(code, "there is no such program"));
        }
        let result = Ok((Box::new(health), None));
        SimOutcome::Input(DaemonInput::Probed { engine, result })
    }

    /// Reads the output that is available.
    fn read(&mut self, at: SimProcessKey, actor: ActorNumber, mut request: ReadRequest) -> SimOutcome {
        let name = process_name(at.0, at.1);
        let mut output = Ok(vec![]);
        if let Some(from) = request.from.take() {
            match self.processes.follow(&name, from) {
                Ok(follower) => drop(self.daemon.followers.insert(at, follower)),
                Err(lost) => output = Err(lost),
            }
            self.read.insert(at, usize::try_from(from.stdout).expect("offsets are small"));
        }
        if output.is_ok() {
            output = match self.daemon.followers.get_mut(&at) {
                Some(follower) => read_available(&mut **follower, &request),
                None => Err(ProcessUnreachable { reason: "it is not followed".to_owned() }),
            };
            request.checkpoint = None;
        }
        let is_empty = output.as_ref().is_ok_and(|pieces| *pieces == [ProcessOutput::TimedOut]);
        // A time limit passes at a moment that the dice choose.
        if is_empty && (request.timeout.is_none() || (!self.people.behave && self.dice.chance(70))) {
            let action = RunAction::Read { attempt: at.1, request };
            return SimOutcome::Blocked(DaemonAction::Run { run: at.0, actor, action });
        }
        if let Ok(pieces) = &mut output {
            for piece in pieces.iter() {
                if let ProcessOutput::Stdout(bytes) = piece {
                    *self.read.entry(at).or_default() += bytes.len();
                }
            }
            match self.fault {
                Some(RuleFault::ReadTwice) if self.dice.chance(20) => {
                    let again = pieces.clone();
                    pieces.splice(
                        0..0,
                        again.into_iter().filter(|piece| matches!(piece, ProcessOutput::Stdout(_))),
                    );
                }
                Some(RuleFault::DropOutput) if self.dice.chance(20) => {
                    pieces.retain(|piece| !matches!(piece, ProcessOutput::Stdout(_)));
                    pieces.push(ProcessOutput::TimedOut);
                }
                Some(RuleFault::MissExits) => {
                    pieces.retain(|piece| !matches!(piece, ProcessOutput::Exited(_)));
                    pieces.push(ProcessOutput::TimedOut);
                }
                _ => {}
            }
        }
        let input = RunInput::Read { attempt: at.1, output };
        SimOutcome::Input(DaemonInput::Run { run: at.0, actor: Some(actor), input })
    }

    // Clients.

    /// Sends an event that no client waits for.
    pub(crate) fn send_event(&mut self, run: RunId, event: RunEvent) -> Result<(), HistoryHalt> {
        let (reply, _) = tokio::sync::oneshot::channel();
        self.deliver(DaemonInput::Run {
            run,
            actor: None,
            input: RunInput::Request { event, reply, run: None },
        })
    }

    /// Continues all requests of clients, and passes their inputs to the dispatcher.
    pub(crate) fn poll_requests(&mut self) -> Result<(), HistoryHalt> {
        let mut requests = std::mem::take(&mut self.people.requests);
        let mut answered = vec![];
        requests.retain_mut(|(request, future)| match poll(future.as_mut()) {
            None => true,
            Some(outcome) => {
                answered.push((request.clone(), outcome));
                false
            }
        });
        self.people.requests.extend(requests);
        for (request, outcome) in answered {
            self.on_answer(request, outcome)?;
        }
        while let Ok(input) = self.daemon.parts.inputs.try_recv() {
            self.deliver(input)?;
        }
        Ok(())
    }

    /// Sends the shutdown event to every run; a random part of what follows happens.
    pub(crate) fn shut_down(&mut self) -> Result<(), HistoryHalt> {
        self.deliver(DaemonInput::Close)?;
        for run in self.all_runs() {
            self.send_event(run.run_id, RunEvent::ShutdownRequested)?;
        }
        for _ in 0..self.dice.below(40) {
            self.do_something()?;
        }
        Ok(())
    }

    pub(crate) fn all_runs(&self) -> Vec<Run> {
        now(self.store.runs(None, PageRequest::first(usize::MAX))).map(|runs| runs.items).unwrap_or_default()
    }
}

/// Maximum number of tasks without the passage of time.
const MAX_TASKS: usize = 20_000;

impl SimTask {
    fn describe(&self) -> String {
        let text = match self {
            Self::Action(action) => format!("{action:?}"),
            Self::Result(input) => format!("{input:?}"),
            Self::Timer(at, input) => format!("at {at}: {input:?}"),
        };
        text.chars().take(120).collect()
    }
}

fn poll<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// The result of a future that is always ready in this world.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    poll(pin!(future)).expect("memory answers at once")
}
