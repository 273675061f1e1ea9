//! The daemon of the simulated world: the real [`RunService`], and a simulated executor that performs effects and reads
//! processes. Its state is lost in a crash; all other state must suffice for recovery.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use abide_daemon::{RequestOutcome, RunService};
use abide_domain::{
    effect::{Effect, PendingEffect},
    engine::{EngineInteractiveProfile, ProfileKind, RunAbilities},
    event::{LaunchRetry, ProcessAfterTurn, RunEvent, TurnOutcome},
    failure::{FailureCode, RunFailure},
    id::{DeliveryId, RunId, TurnId},
    process::{Attempt, ExitStatus, OutputPosition},
    run::{Run, RunState, RunningPhase},
    time::{Seconds, Timestamp},
};
use abide_ports::{
    clock::Clock,
    store::{PageRequest, StoreQueries},
};
use abide_store::memory::MemoryStore;
use abide_testkit::clock::FakeClock;

use crate::{
    checks::InvariantViolation,
    engine::{ProcessFate, SimFact, SimKeeper, SimLaunch, answer_of, handle},
    faults::{RuleFault, bent_rules},
    world::{HistoryHalt, SimWorld},
};

/// The state that is lost in a crash.
pub(crate) struct SimDaemon {
    pub(crate) desk: RunService,
    /// Number of facts read from each spool.
    read: BTreeMap<(RunId, Attempt), usize>,
    /// Pending effects that a faulty daemon has forgotten.
    forgotten: BTreeSet<(RunId, u32)>,
    started_at: Timestamp,
    /// Number of events since the start of the world.
    pub(crate) taken: u64,
    pub(crate) restarts: u64,
}

/// The position of a spool whose exit was reported too.
const HEARD_OUT: usize = usize::MAX / 2;

impl SimDaemon {
    pub(crate) fn start(store: &Arc<MemoryStore>, clock: &Arc<FakeClock>, slots: usize) -> Self {
        let desk = now(RunService::with_rules(store.clone(), clock.clone(), slots, bent_rules))
            .expect("memory can always be read");
        Self {
            desk,
            read: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            started_at: clock.now(),
            taken: 0,
            restarts: 0,
        }
    }
}

impl SimWorld {
    /// Starts a new daemon on the remaining state. Pending effects come first, because the old daemon may have executed
    /// them without a report. Then it reattaches to every process of a run. Only then does it accept new events.
    pub(crate) fn restart_daemon(&mut self) -> Result<(), InvariantViolation> {
        loop {
            self.note(|| "a new daemon starts".into());
            let (taken, restarts) = (self.daemon.taken, self.daemon.restarts + 1);
            self.daemon = SimDaemon::start(&self.store, &self.clock, self.slots);
            (self.daemon.taken, self.daemon.restarts) = (taken, restarts);
            let owed = now(self.store.pending_effects(None, usize::MAX)).expect("memory can always be read");
            if self.fault == Some(RuleFault::ForgetOwedAtRestart) {
                self.daemon.forgotten = owed.iter().map(|(run, owed)| (*run, owed.number.0)).collect();
            }
            match self.perform_everything().and_then(|()| self.reconcile()) {
                Ok(()) => return Ok(()),
                Err(HistoryHalt::Violated(violation)) => return Err(violation),
                // It crashed again during the start.
                Err(HistoryHalt::Crashed) => {}
            }
        }
    }

    fn reconcile(&mut self) -> Result<(), HistoryHalt> {
        for run in self.all_runs() {
            let held = run.live().map(|live| live.attempt);
            let gone = held.filter(|attempt| {
                let keeper = self.engines.keepers.get(&(run.run_id, *attempt));
                keeper.is_none_or(|keeper| keeper.fate == ProcessFate::Vanished && keeper.spool.is_empty())
            });
            if let Some(attempt) = gone {
                self.take(run.run_id, RunEvent::ProcessExited { attempt, exit: ExitStatus::Unknown })?;
            }
        }
        Ok(())
    }

    /// Sends the shutdown event to every run; a random part of the resulting effects is executed.
    pub(crate) fn shut_down(&mut self) -> Result<(), HistoryHalt> {
        for run in self.all_runs() {
            self.take(run.run_id, RunEvent::ShutdownRequested)?;
        }
        for _ in 0..self.dice.below(8) {
            self.perform_something()?;
            self.hear_something()?;
        }
        Ok(())
    }

    pub(crate) fn take(&mut self, run: RunId, event: RunEvent) -> Result<(), HistoryHalt> {
        self.take_all(run, vec![event])
    }

    fn take_all(&mut self, run: RunId, events: Vec<RunEvent>) -> Result<(), HistoryHalt> {
        self.before_the_desk();
        let name = events.iter().map(RunEvent::name).collect::<Vec<_>>().join(", ");
        if self.fault == Some(RuleFault::ActBeforeCommit) && self.store.has_pending_crash() {
            for event in &events {
                self.act_too_early(run, event);
            }
        }
        let outcome = now(self.daemon.desk.take_all(run, &events));
        self.note(|| match &outcome {
            Ok(RequestOutcome::Changed(run)) => format!("{name} makes {} {}", run.run_id, run.state.detail()),
            Ok(RequestOutcome::Absorbed) => format!("{name} is no news to {run}"),
            Ok(RequestOutcome::Repeated(_)) => format!("{name} was taken before by {run}"),
            Err(error) => format!("{name} is not taken by {run}: {error}"),
        });
        self.judge(outcome).map(|_| ())
    }

    // Execution of effects.

    pub(crate) fn perform_something(&mut self) -> Result<(), HistoryHalt> {
        let owed = self.first_owed();
        let Some((run, owed)) = self.dice.choose(&owed) else { return Ok(()) };
        self.perform(run, owed)
    }

    pub(crate) fn perform_everything(&mut self) -> Result<(), HistoryHalt> {
        for _ in 0..50 {
            let owed = self.first_owed();
            if owed.is_empty() {
                break;
            }
            for (run, owed) in owed {
                self.perform(run, owed)?;
            }
        }
        Ok(())
    }

    /// The first due effect of each run: the effects of a run are executed in order.
    fn first_owed(&mut self) -> Vec<(RunId, PendingEffect)> {
        let all = now(self.store.pending_effects(None, usize::MAX)).unwrap_or_default();
        let mut first: BTreeMap<RunId, PendingEffect> = BTreeMap::new();
        for (run, owed) in all {
            let known = !self.daemon.forgotten.contains(&(run, owed.number.0));
            if known && owed.due_at <= self.clock.now() {
                first.entry(run).or_insert(owed);
            }
        }
        first.into_iter().collect()
    }

    fn perform(&mut self, run: RunId, owed: PendingEffect) -> Result<(), HistoryHalt> {
        self.note(|| format!("the daemon performs {} for {run}", owed.effect.name()));
        let fact = self.carry_out(run, &owed);
        // The daemon may crash between the execution and its report.
        if self.dice.chance(3) && !self.people.behave {
            self.note(|| "the daemon is killed before it can say so".into());
            return Err(HistoryHalt::Crashed);
        }
        self.take(run, fact)
    }

    /// Executes an effect and returns the event that reports it.
    fn carry_out(&mut self, run: RunId, owed: &PendingEffect) -> RunEvent {
        let performed = RunEvent::EffectPerformed { effect: owed.number };
        match &owed.effect {
            Effect::Probe { .. } => self.probe(run),
            Effect::Launch { attempt } => {
                let known = self.engines.keepers.contains_key(&(run, *attempt));
                let plan = self.plans[&run].clone();
                if !known && !self.people.behave && self.dice.chance(plan.refuses) {
                    let retry = if self.dice.chance(10) { LaunchRetry::Never } else { LaunchRetry::Later };
                    let failure = RunFailure::new(FailureCode::EngineNotFound, "it would not start");
                    return RunEvent::LaunchFailed { attempt: *attempt, failure, retry };
                }
                let state = now(self.store.run(run)).ok().flatten();
                let turn = state.as_ref().and_then(|state| state.turns.last());
                let record =
                    turn.and_then(|turn| turn.attempts.iter().find(|record| record.attempt == *attempt));
                let session = record.and_then(|record| record.session.as_ref());
                let (Some(turn), Some(session)) = (turn, session) else {
                    // The daemon also finds no parameters for a launch that its run does not expect.
                    let failure =
                        RunFailure::new(FailureCode::EngineFailed, "the ledger does not contain the launch");
                    return RunEvent::LaunchFailed { attempt: *attempt, failure, retry: LaunchRetry::Never };
                };
                let (turn_id, prompt) = (turn.turn_id, turn.prompt.as_str());
                let order = SimLaunch { run, attempt: *attempt, turn: turn_id, session, prompt };
                let keeper = self.engines.launch(&order, &plan, &mut self.dice);
                match keeper.fate {
                    ProcessFate::Vanished => {
                        RunEvent::ProcessExited { attempt: *attempt, exit: ExitStatus::Unknown }
                    }
                    ProcessFate::Alive | ProcessFate::Exited(_) => {
                        RunEvent::AttemptStarted { attempt: *attempt, process: keeper.process.clone() }
                    }
                }
            }
            Effect::SendPrompt { attempt, turn_id, prompt } => {
                let plan = self.plans[&run].clone();
                let at = (run, *attempt);
                self.engines.say(at, owed.number, *turn_id, prompt, &plan, &mut self.dice);
                performed
            }
            Effect::Answer { attempt, gate, text, verdict, .. } => {
                self.engines.answer((run, *attempt), owed.number, gate, (text, *verdict));
                performed
            }
            Effect::Steer { attempt, message, .. } => {
                let taken = self.engines.steer((run, *attempt), owed.number, &message.message_id);
                if taken { performed } else { RunEvent::EffectObsolete { effect: owed.number } }
            }
            Effect::Interrupt { attempt } => {
                self.engines.interrupt((run, *attempt), owed.number, &mut self.dice);
                performed
            }
            Effect::Terminate { attempt } => {
                self.engines.terminate((run, *attempt));
                performed
            }
            Effect::Recover { attempt, .. } => self.recover(run, *attempt),
            Effect::Deliver { delivery_id } => self.deliver(*delivery_id),
        }
    }

    fn probe(&mut self, run: RunId) -> RunEvent {
        if !self.people.behave && self.dice.chance(3) {
            let failure = RunFailure::new(FailureCode::EngineNotFound, "there is no such program");
            return RunEvent::EngineUnusable { failure };
        }
        let plan = &self.plans[&run];
        let chosen = plan.names_ours && plan.kind == ProfileKind::Resumable;
        RunEvent::ProfileResolved {
            profile: EngineInteractiveProfile {
                kind: plan.kind,
                reason: "so it is".into(),
                session_timeout_sec: Seconds(600),
            },
            abilities: RunAbilities { steer: plan.steers, recover: plan.reads_back },
            command: None,
            handle: chosen.then(|| handle(&format!("ours-{run}"))),
        }
    }

    fn recover(&mut self, run: RunId, attempt: Attempt) -> RunEvent {
        let Some(keeper) = self.engines.keepers.get(&(run, attempt)) else {
            return RunEvent::RecoveryFailed { attempt, reason: "there is no trace of it".into() };
        };
        // An exited process whose spool was read to the end has no more facts.
        let read = self.daemon.read.get(&(run, attempt)).copied().unwrap_or_default();
        let heard_out = keeper.fate != ProcessFate::Alive && read >= keeper.spool.len();
        // Sometimes a living process is not found.
        let missed = !self.people.behave && self.dice.chance(10);
        if heard_out || missed {
            RunEvent::RecoveryFailed { attempt, reason: "it is over and did not say how".into() }
        } else {
            RunEvent::ContactRestored { attempt, process: keeper.process.clone() }
        }
    }

    fn deliver(&mut self, delivery_id: DeliveryId) -> RunEvent {
        let Ok(Some(delivery)) = now(self.store.delivery(delivery_id)) else {
            return RunEvent::DeliveryConfirmed { delivery_id };
        };
        let turn = delivery.outcome_turn_id.and_then(|turn| now(self.store.turn(turn)).ok().flatten());
        let key = match self.fault {
            Some(RuleFault::DeliverUnderNewKeys) => DeliveryId(self.clock.stamp().id_seed),
            _ => delivery_id,
        };
        match self.channel.send(key, &delivery, turn.as_ref(), self.weather, &mut self.dice) {
            Ok(()) => RunEvent::DeliveryConfirmed { delivery_id },
            Err(certainty) => RunEvent::DeliveryFailed { delivery_id, certainty },
        }
    }

    /// Simulates a daemon that executes effects before it commits.
    fn act_too_early(&mut self, run: RunId, event: &RunEvent) {
        let before = now(self.store.run(run)).ok().flatten();
        if let Ok(step) = bent_rules(before.as_ref(), &self.clock.stamp(), event) {
            for owed in &step.effects {
                self.carry_out(run, owed);
            }
        }
    }

    // Reading of output.

    pub(crate) fn hear_something(&mut self) -> Result<(), HistoryHalt> {
        // Mostly a process with unread output, sometimes any process.
        let unread = |(at, keeper): (&(RunId, Attempt), &SimKeeper)| {
            let read = self.daemon.read.get(at).copied().unwrap_or_default();
            (read < keeper.spool.len()).then_some(*at)
        };
        let talking: Vec<_> = self.engines.keepers.iter().filter_map(unread).collect();
        let all: Vec<_> = self.engines.keepers.keys().copied().collect();
        let from = if self.dice.chance(70) && !talking.is_empty() { talking } else { all };
        let Some(at) = self.dice.choose(&from) else { return Ok(()) };
        self.hear(at)
    }

    pub(crate) fn hear_all(&mut self, at: (RunId, Attempt)) -> Result<(), HistoryHalt> {
        for _ in 0..20 {
            self.hear(at)?;
        }
        Ok(())
    }

    /// Reads the next facts from a process's spool, a random number of them. If none is left, reports the exit.
    fn hear(&mut self, at: (RunId, Attempt)) -> Result<(), HistoryHalt> {
        let (run, attempt) = at;
        let Some(keeper) = self.engines.keepers.get(&at) else { return Ok(()) };
        let read = self.daemon.read.get(&at).copied().unwrap_or_default();
        let repeats = !self.people.behave && read > 0 && self.dice.chance(5);
        let place = if repeats { self.dice.below(read) } else { read };
        if place < keeper.spool.len() {
            let at_once = if repeats { 1 } else { 1 + self.dice.below(3) };
            let heard = keeper.spool.iter().cloned().enumerate().skip(place).take(at_once);
            let exit = keeper.exit();
            let mut events: Vec<RunEvent> = heard
                .map(|(place, (turn_id, said))| {
                    fact((attempt, turn_id), OutputPosition(place as u64 + 1), said, exit)
                })
                .collect();
            if !repeats {
                let to = read + events.len();
                let last = to == keeper.spool.len();
                self.daemon.read.insert(at, to);
                if let Some(exit) = exit.filter(|_| last && self.dice.chance(50)) {
                    self.daemon.read.insert(at, HEARD_OUT);
                    events.push(RunEvent::ProcessExited { attempt, exit });
                    self.take_all(run, events)?;
                    return self.read_back(run, attempt);
                }
            }
            return self.take_all(run, events);
        }
        let Some(exit) = keeper.exit() else { return Ok(()) };
        // The spool was read to the end. The exit is reported once for each daemon; the turn may also be read back from
        // the engine's own files.
        if read >= HEARD_OUT {
            return Ok(());
        }
        self.daemon.read.insert(at, HEARD_OUT);
        self.take(run, RunEvent::ProcessExited { attempt, exit })?;
        self.read_back(run, attempt)
    }

    /// An engine that supports it may still know the outcome of a lost turn.
    fn read_back(&mut self, run: RunId, attempt: Attempt) -> Result<(), HistoryHalt> {
        let Ok(Some(state)) = now(self.store.run(run)) else { return Ok(()) };
        let RunState::Running(RunningPhase::Recovering(_)) = state.state else { return Ok(()) };
        if state.attempt() != Some(attempt) || self.dice.chance(50) {
            return Ok(());
        }
        let Some(turn) = state.turns.last() else { return Ok(()) };
        if !self.engines.executed.contains_key(&turn.turn_id) {
            return Ok(());
        }
        let (turn_id, position) = (turn.turn_id, OutputPosition(u64::MAX));
        let ending = TurnOutcome::Completed { text: answer_of(turn_id) };
        let aftermath = ProcessAfterTurn::Exited(ExitStatus::Unknown);
        self.take(
            run,
            RunEvent::TurnEnded { attempt, turn_id, position, outcome: ending, process_after: aftermath },
        )
    }

    pub(crate) fn contact_is_lost(&mut self) -> Result<(), HistoryHalt> {
        let all: Vec<_> = self.engines.keepers.keys().copied().collect();
        let Some(at @ (run, attempt)) = self.dice.choose(&all) else { return Ok(()) };
        if let Some(keeper) =
            self.engines.keepers.get_mut(&at).filter(|keeper| keeper.fate == ProcessFate::Alive)
        {
            keeper.repeat_open_gate();
        }
        self.take(run, RunEvent::ContactLost { attempt, search_timeout_sec: None })
    }

    // Deadlines and slots.

    pub(crate) fn ring(&mut self) -> Result<(), HistoryHalt> {
        let due = now(self.store.runs_due(self.clock.now(), 100)).unwrap_or_default();
        for (run, deadline) in due {
            let forgets = self.fault == Some(RuleFault::ForgetDeadlinesAtRestart);
            let set_before = now(self.store.run(run)).ok().flatten();
            let set_before = set_before.is_some_and(|run| run.updated_at <= self.daemon.started_at);
            if !(forgets && self.daemon.restarts > 0 && set_before) {
                self.take(run, RunEvent::DeadlinePassed { deadline: deadline.kind })?;
            }
        }
        Ok(())
    }

    pub(crate) fn admit(&mut self) -> Result<(), HistoryHalt> {
        let outcome = now(self.daemon.desk.admit());
        if let Ok(admitted) = &outcome {
            self.daemon.taken += admitted.len() as u64;
        }
        self.judge(outcome.map(|_| RequestOutcome::Absorbed)).map(|_| ())
    }

    pub(crate) fn all_runs(&self) -> Vec<Run> {
        now(self.store.runs(None, PageRequest::first(usize::MAX))).map(|runs| runs.items).unwrap_or_default()
    }
}

fn fact(
    (attempt, turn_id): (Attempt, TurnId),
    position: OutputPosition,
    said: SimFact,
    exit: Option<ExitStatus>,
) -> RunEvent {
    match said {
        SimFact::Session(session) => {
            RunEvent::HandleAnnounced { attempt, position, handle: handle(&session) }
        }
        SimFact::Progress => RunEvent::Progressed { attempt, position, text: "…".into() },
        SimFact::Gate { gate, purpose, question } => {
            RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question }
        }
        SimFact::Withdrawn { gate } => RunEvent::GateWithdrawn { attempt, position, gate },
        SimFact::End(ending) => {
            let aftermath = exit.map_or(ProcessAfterTurn::Alive, ProcessAfterTurn::Exited);
            RunEvent::TurnEnded { attempt, turn_id, position, outcome: ending, process_after: aftermath }
        }
    }
}

/// Polls a future that is always ready in this world.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("nothing in the simulated world waits"),
    }
}
