//! The actor of one run: owns its state, its inbox and its processes, and is the only writer of the run.
//!
//! A pure value. [`RunActor::handle`] takes one input and returns the actions that follow from it. The inbox is drained
//! into one commit, and the actions that depend on the commit are returned when it is durable. At most one commit and
//! one effect are in progress. The result of an effect is committed before further output and deadlines of the run
//! (decision 0002); requests of people may come between.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use abide_domain::{
    deadline::DeadlineKind,
    effect::{Effect, EffectNumber},
    event::{RunEvent, TurnOutcome},
    id::RunId,
    process::{Attempt, ExitStatus, OutputPosition},
    refused::RequestRefused,
    run::{self, ApplyOutcome, Run, RunState, RunStep, RunningPhase},
    settings::RunSettings,
    slots::SlotOccupancy,
    time::{EventStamp, Seconds, Timestamp},
};
use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    clock::Clock,
    engine::{GateAnswer, InterruptMethod, ProcessSignal, UnsupportedOperation},
    processes::{ProcessLookup, ProcessOutput, ProcessUnreachable},
    store::{JournalCommit, RunChange, StoreError},
};
use tokio::sync::oneshot;

use crate::{
    error::RequestError,
    executor::{LocatedProcess, MachineSurvey, Operation, OperationResult, ReadRequest},
    launch::{self, LaunchPreparation, LaunchSettings, process_name},
    log::EventLogLine,
    probe_cache::{ProbeCache, probe_event},
    process::{ProcessSession, SessionEnd, contained},
    scheduler::Scheduler,
};

/// The transition function of the domain. Always [`run::apply`], except in tests that break a rule to prove that it is
/// detected.
pub type TransitionRules = fn(Option<&Run>, &EventStamp, &RunEvent) -> Result<RunStep, RequestRefused>;

/// The outcome of a request that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The run was changed durably. The state is the one after the commit.
    Changed(Arc<Run>),
    /// The event was late or repeated; nothing changed.
    Absorbed,
    /// The same request was accepted before, and concerned this run.
    Repeated(RunId),
}

/// The response to a request. It is dropped unsent if the request could not be handled because of a bug.
pub type RequestReply = oneshot::Sender<Result<RequestOutcome, RequestError>>;

/// An input of a run's actor.
#[derive(Debug)]
pub enum RunInput {
    /// A request of a client.
    Request {
        event: RunEvent,
        reply: RequestReply,
    },
    Deadline(DeadlineKind),
    /// A slot is granted.
    Admit,
    /// The run of an earlier daemon is recovered: its effects are pending, or it holds a process.
    Recover,
    /// The result of [`RunAction::Load`].
    Loaded(Result<(Option<Arc<Run>>, MachineSurvey), StoreError>),
    /// The result of [`RunAction::Survey`].
    Surveyed(MachineSurvey),
    /// The result of [`RunAction::Commit`].
    Committed(Result<(), StoreError>),
    /// The result of [`RunAction::Execute`] or [`RunAction::Probe`].
    Executed(OperationResult),
    /// The result of [`RunAction::Locate`].
    Located(Result<LocatedProcess, StoreError>),
    /// The result of [`RunAction::Read`].
    Read {
        attempt: Attempt,
        output: Result<Vec<ProcessOutput>, ProcessUnreachable>,
    },
    /// The result of [`RunAction::StoreContents`].
    ContentsStored {
        attempt: Attempt,
        events: Vec<RunEvent>,
    },
    /// The result of [`RunAction::Write`].
    Written {
        attempt: Attempt,
    },
    /// The result of [`RunAction::CleanUp`].
    CleanedUp {
        attempt: Attempt,
    },
    /// The end of a pause.
    Resume(ActorPause),
    /// A long text may be committed now.
    Continue,
}

/// An action of a run's actor. Each down to [`Self::Pause`] is answered by one input.
#[derive(Debug)]
pub enum RunAction {
    /// Read the run from the store, and survey the machine for it.
    Load,
    /// Survey the machine for a run with these settings.
    Survey(Arc<RunSettings>),
    Commit(JournalCommit),
    /// Perform the effect with this number and name.
    Execute {
        number: EffectNumber,
        name: &'static str,
        operation: Operation,
    },
    /// Examine the engine, as the effect with this number.
    Probe {
        number: EffectNumber,
        entry: InstalledEngine,
    },
    /// Find the process of an attempt that an earlier daemon started.
    Locate {
        attempt: Attempt,
    },
    Read {
        attempt: Attempt,
        request: ReadRequest,
    },
    /// Store texts that are too long for a question, before the question is committed.
    StoreContents {
        attempt: Attempt,
        events: Vec<RunEvent>,
    },
    /// Write input that the protocol of the process requires.
    Write {
        attempt: Attempt,
        key: u64,
        bytes: Vec<u8>,
    },
    /// Remove an exited process.
    CleanUp {
        attempt: Attempt,
    },
    Pause {
        pause: ActorPause,
        duration: Duration,
    },
    /// Tell a process that has finished to exit.
    Dismiss {
        attempt: Attempt,
    },
    /// No further output of the process is read.
    StopReading {
        attempt: Attempt,
    },
    Reply {
        reply: RequestReply,
        result: Result<RequestOutcome, RequestError>,
    },
    /// The run, or the list of its processes, has changed.
    Announce(Option<Arc<Run>>),
}

/// The part of an actor that pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActorPause {
    Commit,
    Effect(EffectNumber),
    Attach,
}

/// The parts of the daemon that actors use.
pub(crate) struct ActorContext<'a> {
    pub(crate) rules: TransitionRules,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) catalogue: &'a dyn EngineLookup,
    pub(crate) private: &'a str,
    pub(crate) recovery_max: Seconds,
    pub(crate) output_buffer_bytes: u64,
    pub(crate) is_space_limited: bool,
    /// Whether this process may perform effects of the run.
    pub(crate) may_act: bool,
    /// Whether the daemon is shutting down. Then no process is started.
    pub(crate) is_closing: bool,
    pub(crate) scheduler: &'a mut Scheduler,
    pub(crate) probes: &'a ProbeCache,
}

/// Owns the state of one run.
#[derive(Debug)]
pub(crate) struct RunActor {
    run_id: RunId,
    known: KnownRun,
    /// The survey for the next commit.
    survey: Option<MachineSurvey>,
    // The inbox, in the order in which it is drained.
    settled: Vec<RunEvent>,
    outputs: VecDeque<SessionFacts>,
    requests: VecDeque<ActorRequest>,
    commit: Option<CommitInProgress>,
    is_loading: bool,
    /// Whether the run must be loaded although the inbox is empty.
    must_load: bool,
    operation: Option<(EffectNumber, Effect)>,
    attaching: Option<Attempt>,
    /// A process whose engine is not known any more.
    unreadable: Option<Attempt>,
    /// The processes that are being read. Usually one; the last process may be ending while the next one starts.
    sessions: BTreeMap<Attempt, AttemptSession>,
    paused: BTreeSet<ActorPause>,
    /// Whether the inbox is committed one by one, to find the input that fails.
    is_solo: bool,
    conflicts: usize,
}

/// The last committed state.
#[derive(Debug)]
enum KnownRun {
    Unknown,
    /// Fresh until something was decided from it. Another writer may have changed the run since.
    Known {
        run: Option<Arc<Run>>,
        is_fresh: bool,
    },
}

#[derive(Debug)]
enum ActorRequest {
    Client { event: RunEvent, reply: RequestReply },
    Deadline(DeadlineKind),
    Admit,
}

/// The facts of one read.
#[derive(Debug)]
struct SessionFacts {
    attempt: Attempt,
    events: Vec<RunEvent>,
    writes: Vec<(u64, Vec<u8>)>,
    /// False while long texts are being stored.
    is_ready: bool,
}

/// A process that is read.
#[derive(Debug)]
struct AttemptSession {
    session: ProcessSession,
    /// False while the process is being started.
    is_started: bool,
    /// Whether a read was requested before.
    is_followed: bool,
    is_reading: bool,
    /// Input to be written, in order.
    writes: VecDeque<(u64, Vec<u8>)>,
    is_writing: bool,
    end: Option<SessionEnd>,
    is_cleaning: bool,
}

/// A part of the inbox.
#[derive(Debug, Default)]
struct CommitBatch {
    settled: Vec<RunEvent>,
    outputs: Vec<SessionFacts>,
    requests: Vec<ActorRequest>,
}

/// The changes that a batch causes.
#[derive(Debug, Default)]
struct AppliedBatch {
    changes: Vec<RunChange>,
    /// For each request, whether it changed the run, or why not.
    outcomes: Vec<Result<ApplyOutcome, RequestError>>,
}

#[derive(Debug)]
struct CommitInProgress {
    batch: CommitBatch,
    outcomes: Vec<Result<ApplyOutcome, RequestError>>,
    after: Arc<Run>,
    log: Vec<EventLogLine>,
}

/// Changes of runs with more bytes of text are made one at a time.
const LONG_TEXT_BYTES: usize = 256 << 10;
/// Maximum number of attempts after conflicts with other writers.
const MAX_CONFLICTS: usize = 16;
/// Maximum number of events of a process in one commit. A single read may exceed it and is not split. Beyond it, the
/// process is not read.
const EVENTS_PER_COMMIT: usize = 256;
/// Maximum number of requests in one commit.
const REQUESTS_PER_COMMIT: usize = 64;
/// Pause after the store has failed.
const STORE_PAUSE: Duration = Duration::from_millis(500);
/// The same if another daemon has the store. This daemon does not get it back, but the events of its processes may be
/// requested.
const STORE_TAKEN_PAUSE: Duration = Duration::from_secs(60);
/// Pause before a launch is retried whose keeper does not answer, and before a lost process is searched for.
const SILENT_PAUSE: Duration = Duration::from_secs(2);
/// Pause of a run after a panic.
const BROKEN_PAUSE: Duration = Duration::from_secs(30);
/// Minimum and maximum interval of checks for a process that does not answer.
const MIN_SEARCH_PAUSE: Duration = Duration::from_millis(500);
const MAX_SEARCH_PAUSE: Duration = Duration::from_secs(15);

impl RunActor {
    pub(crate) fn new(run_id: RunId) -> Self {
        Self {
            run_id,
            known: KnownRun::Unknown,
            survey: None,
            settled: Vec::new(),
            outputs: VecDeque::new(),
            requests: VecDeque::new(),
            commit: None,
            is_loading: false,
            must_load: false,
            operation: None,
            attaching: None,
            unreadable: None,
            sessions: BTreeMap::new(),
            paused: BTreeSet::new(),
            is_solo: false,
            conflicts: 0,
        }
    }

    /// Handles one input: records it, and starts what is possible then.
    pub(crate) fn handle(&mut self, input: RunInput, context: &mut ActorContext<'_>) -> Vec<RunAction> {
        let mut actions = Vec::new();
        self.receive(input, context, &mut actions);
        self.start_commit(context, &mut actions);
        if self.commit.is_none() && !self.is_loading {
            self.start_effect(context, &mut actions);
            self.start_attach(context, &mut actions);
        }
        self.continue_sessions(context, &mut actions);
        actions
    }

    /// Whether the run is only a row: it holds no process, has no pending effect, and nothing is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        let is_row = match &self.known {
            KnownRun::Unknown => !self.must_load,
            KnownRun::Known { run: None, .. } => true,
            KnownRun::Known { run: Some(run), .. } => {
                run.pending_effects.is_empty() && run.occupancy() != SlotOccupancy::Holding
            }
        };
        is_row && self.has_empty_inbox() && self.commit.is_none() && !self.is_loading && self.is_at_rest()
    }

    /// Whether the recovery is complete: the state is known, and its process was searched for.
    pub(crate) fn is_recovered(&self) -> bool {
        let is_known =
            matches!(self.known, KnownRun::Known { .. }) || self.paused.contains(&ActorPause::Commit);
        is_known && !self.is_loading && self.attaching.is_none()
    }

    fn is_at_rest(&self) -> bool {
        self.operation.is_none() && self.attaching.is_none() && self.sessions.is_empty()
    }

    fn has_empty_inbox(&self) -> bool {
        self.settled.is_empty() && self.outputs.is_empty() && self.requests.is_empty()
    }

    /// Whether a process of the run is being started or read.
    pub(crate) fn has_session(&self) -> bool {
        !self.sessions.is_empty()
    }

    fn run(&self) -> Option<&Arc<Run>> {
        match &self.known {
            KnownRun::Unknown => None,
            KnownRun::Known { run, .. } => run.as_ref(),
        }
    }

    fn pause(&mut self, pause: ActorPause, duration: Duration, actions: &mut Vec<RunAction>) {
        if self.paused.insert(pause) {
            actions.push(RunAction::Pause { pause, duration });
        }
    }

    // 1. Inputs.

    fn receive(&mut self, input: RunInput, context: &mut ActorContext<'_>, actions: &mut Vec<RunAction>) {
        match input {
            RunInput::Request { event, reply } => {
                self.requests.push_back(ActorRequest::Client { event, reply });
            }
            RunInput::Deadline(kind) => self.on_deadline(kind),
            RunInput::Admit => self.requests.push_back(ActorRequest::Admit),
            RunInput::Recover => self.must_load = true,
            RunInput::Loaded(loaded) => self.on_loaded(loaded, context, actions),
            RunInput::Surveyed(survey) => {
                self.is_loading = false;
                self.survey = Some(survey);
            }
            RunInput::Committed(result) => self.on_committed(result, context, actions),
            RunInput::Executed(result) => self.on_executed(result, context, actions),
            RunInput::Located(located) => self.on_located(located, context, actions),
            RunInput::Read { attempt, output } => self.on_read(attempt, output, context, actions),
            RunInput::ContentsStored { attempt, events } => {
                let waiting =
                    self.outputs.iter_mut().find(|facts| facts.attempt == attempt && !facts.is_ready);
                if let Some(facts) = waiting {
                    (facts.events, facts.is_ready) = (events, true);
                }
            }
            RunInput::Written { attempt } => {
                if let Some(session) = self.sessions.get_mut(&attempt) {
                    session.is_writing = false;
                }
            }
            RunInput::CleanedUp { attempt } => {
                self.sessions.remove(&attempt);
                actions.push(RunAction::Announce(None));
            }
            RunInput::Resume(pause) => {
                self.paused.remove(&pause);
            }
            RunInput::Continue => {}
        }
    }

    fn on_deadline(&mut self, kind: DeadlineKind) {
        let is_same =
            |request: &ActorRequest| matches!(request, ActorRequest::Deadline(queued) if *queued == kind);
        if !self.requests.iter().any(is_same) {
            self.requests.push_back(ActorRequest::Deadline(kind));
        }
    }

    /// A turn that may have ended in time while no daemon was running is first read to its end. Its deadline stays due.
    fn is_premature(&self, request: &ActorRequest) -> bool {
        let ActorRequest::Deadline(DeadlineKind::Turn(attempt)) = request else { return false };
        match self.sessions.get(attempt) {
            Some(session) => session.session.is_behind(),
            None => self.unreadable != Some(*attempt) && self.run().is_some_and(|run| run.live().is_some()),
        }
    }

    fn on_loaded(
        &mut self,
        loaded: Result<(Option<Arc<Run>>, MachineSurvey), StoreError>,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        self.is_loading = false;
        match loaded {
            Ok((run, survey)) => {
                if std::mem::take(&mut self.must_load) {
                    context.scheduler.end_quarantine(self.run_id);
                }
                // A grant stays in force until its own commit.
                if !self.requests.iter().any(|request| matches!(request, ActorRequest::Admit)) {
                    context.scheduler.settle(self.run_id, run.as_deref());
                }
                self.known = KnownRun::Known { run, is_fresh: true };
                self.survey = Some(survey);
            }
            Err(error) => {
                let requests: Vec<ActorRequest> = self.requests.drain(..).collect();
                let admits = requests.iter().any(|request| matches!(request, ActorRequest::Admit));
                self.must_load |= admits || !self.has_empty_inbox();
                if self.must_load {
                    let now = context.clock.stamp().at;
                    let pause = match &error {
                        StoreError::Damaged { detail } => {
                            context.scheduler.quarantine(self.run_id, detail, now)
                        }
                        _ => STORE_PAUSE,
                    };
                    self.pause(ActorPause::Commit, pause, actions);
                }
                self.fail_requests(requests, error, context, actions);
            }
        }
    }

    fn on_executed(
        &mut self,
        result: OperationResult,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some((number, effect)) = self.operation.take() else { return };
        let pause = match self.fact_of(number, &effect, result, context, actions) {
            Ok(events) => return self.settled.extend(events),
            Err(pause) => pause,
        };
        // The effect stays pending. It is idempotent.
        self.pause(ActorPause::Effect(number), pause, actions);
    }

    /// The facts that settle an effect, or the pause before it is tried again.
    fn fact_of(
        &mut self,
        number: EffectNumber,
        effect: &Effect,
        result: OperationResult,
        context: &ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) -> Result<Vec<RunEvent>, Duration> {
        let performed = RunEvent::EffectPerformed { effect: number };
        let obsolete = RunEvent::EffectObsolete { effect: number };
        Ok(vec![match (result, effect) {
            (OperationResult::Later(pause), _) => {
                self.forget_start(effect);
                return Err(pause);
            }
            (OperationResult::Panicked, _) => {
                tracing::error!(run = %self.run_id, effect = effect.name(), "an effect panicked");
                self.forget_start(effect);
                return Err(BROKEN_PAUSE);
            }
            (OperationResult::Abandoned, _) => return Err(BROKEN_PAUSE),
            (OperationResult::Probed(health), _) => {
                let entry = self.run().and_then(|run| context.catalogue.engine(&run.settings.engine));
                let (Some(run), Some(entry)) = (self.run(), entry) else { return Err(BROKEN_PAUSE) };
                probe_event(&entry, &health, &run.settings, context.clock.stamp().id_seed)
            }
            (OperationResult::Started(Ok((process, warning))), Effect::Launch { attempt }) => {
                if let Some(session) = self.sessions.get_mut(attempt) {
                    session.is_started = true;
                }
                let started = RunEvent::AttemptStarted { attempt: *attempt, process };
                return Ok(std::iter::once(started).chain(warning).collect());
            }
            (OperationResult::Started(Err(failure)), Effect::Launch { attempt }) => {
                self.sessions.remove(attempt);
                // The launch is still pending. It can be cancelled meanwhile.
                let event = failure.into_event(*attempt).ok_or(SILENT_PAUSE)?;
                // The process never ran, or its keeper is dead. The next attempt has another name, so the remains of
                // this one are removed.
                actions.push(RunAction::CleanUp { attempt: *attempt });
                event
            }
            (
                OperationResult::Sent(sent),
                Effect::SendPrompt { .. } | Effect::Answer { .. } | Effect::Steer { .. },
            ) => {
                if sent.is_ok() {
                    performed
                } else {
                    obsolete
                }
            }
            // A process that cannot be reached is exiting; the stop deadline covers the rest.
            (OperationResult::Sent(_), _) => performed,
            // The exit is recorded together with the end of the effect. The reader may report it too, and the first
            // report counts.
            (OperationResult::Ended(Ok(exit)), Effect::Terminate { attempt }) => {
                RunEvent::ProcessExited { attempt: *attempt, exit }
            }
            // The process was kept although it does not support further input.
            (OperationResult::Ended(Ok(_)), Effect::SendPrompt { attempt, .. }) => {
                RunEvent::ProcessExited { attempt: *attempt, exit: ExitStatus::Unknown }
            }
            // The process may still be running, so the effect stays pending until it has certainly ended (SECURITY 10).
            (OperationResult::Ended(Err(unreachable)), _) => {
                tracing::warn!(run = %self.run_id, reason = unreachable.reason, "process not ended");
                return Err(self.search_pause(number, context));
            }
            (OperationResult::Found(ProcessLookup::Found(process)), Effect::Recover { attempt, .. }) => {
                self.paused.remove(&ActorPause::Attach);
                RunEvent::ContactRestored { attempt: *attempt, process }
            }
            (OperationResult::Silent, _) => return Err(self.search_pause(number, context)),
            // The keeper may answer again; the domain limits the time of the search.
            (OperationResult::Found(ProcessLookup::Unresponsive), _) => {
                return Err(self.search_pause(number, context));
            }
            (OperationResult::Found(_), Effect::Recover { attempt, .. }) => RunEvent::RecoveryFailed {
                attempt: *attempt,
                reason: "the process and its output are gone".to_owned(),
            },
            (OperationResult::Delivered(delivered), Effect::Deliver { delivery_id }) => match delivered {
                Ok(()) => RunEvent::DeliveryConfirmed { delivery_id: *delivery_id },
                Err(certainty) => RunEvent::DeliveryFailed { delivery_id: *delivery_id, certainty },
            },
            (
                OperationResult::Started(_)
                | OperationResult::Ended(_)
                | OperationResult::Found(_)
                | OperationResult::Delivered(_),
                _,
            ) => performed,
        }])
    }

    /// A launch that was not tried has no session.
    fn forget_start(&mut self, effect: &Effect) {
        if let Effect::Launch { attempt } = effect {
            self.sessions.remove(attempt);
        }
    }

    /// The pause before the next search for a process that does not answer. It grows with the time of the search.
    fn search_pause(&self, number: EffectNumber, context: &ActorContext<'_>) -> Duration {
        let effects = self.run().map_or(&[][..], |run| &run.pending_effects);
        let since = effects.iter().find(|pending| pending.number == number).map(|pending| pending.due_at);
        let now = context.clock.stamp().at;
        let searched = since.map_or(Duration::ZERO, |since| Duration::from_micros(since.span_until(now).0));
        (searched / 2).clamp(MIN_SEARCH_PAUSE, MAX_SEARCH_PAUSE)
    }

    /// Reattaches to the process of an earlier daemon, or reports that it is gone.
    fn on_located(
        &mut self,
        located: Result<LocatedProcess, StoreError>,
        context: &ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some(attempt) = self.attaching.take() else { return };
        let live = self.run().and_then(|run| run.live()).filter(|live| live.attempt == attempt);
        let (Some(run), Some(committed)) = (self.run(), live.map(|live| live.processed_position)) else {
            return;
        };
        let located = match located {
            Ok(located) => located,
            Err(error) => {
                tracing::warn!(run = %self.run_id, %error, "the turns of a process could not be read");
                return self.pause(ActorPause::Attach, STORE_PAUSE, actions);
            }
        };
        match located.lookup {
            // Output from before the death of its keeper counts (E7).
            ProcessLookup::Found(_) | ProcessLookup::Lost => {}
            ProcessLookup::Unresponsive => {
                let search_timeout_sec = Some(context.recovery_max);
                self.settled.push(RunEvent::ContactLost { attempt, search_timeout_sec });
                return self.pause(ActorPause::Attach, SILENT_PAUSE, actions);
            }
            ProcessLookup::NotStarted => {
                let exit = ExitStatus::Unknown;
                self.settled.push(RunEvent::ProcessExited { attempt, exit });
                return self.pause(ActorPause::Attach, SILENT_PAUSE, actions);
            }
        }
        let turns = located.turns.as_ref().map(|(first, ids)| (first, ids.clone()));
        let session =
            turns.and_then(|turns| launch::session_of(run, attempt, turns, launch_settings(context)));
        let Some(mut session) = session else {
            tracing::warn!(run = %self.run_id, attempt = attempt.0, "the engine of a process is not known any more");
            self.unreadable = Some(attempt);
            return;
        };
        session.reattach(located.checkpoint.as_deref(), committed);
        if matches!(run.state, RunState::Running(RunningPhase::Stopping(_))) {
            contained(|| session.interrupt());
        }
        self.sessions.insert(attempt, AttemptSession::new(session, true));
    }

    fn on_read(
        &mut self,
        attempt: Attempt,
        read: Result<Vec<ProcessOutput>, ProcessUnreachable>,
        context: &ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some(session) = self.sessions.get_mut(&attempt) else { return };
        session.is_reading = false;
        let output = session.session.on_read(read, context.recovery_max);
        session.end = output.end;
        if output.is_lingering {
            actions.push(RunAction::Dismiss { attempt });
        }
        if output.end == Some(SessionEnd::Lost) {
            self.pause(ActorPause::Attach, SILENT_PAUSE, actions);
        }
        if output.events.is_empty() && output.writes.is_empty() {
            return;
        }
        let mut facts =
            SessionFacts { attempt, events: output.events, writes: output.writes, is_ready: true };
        if facts.events.iter().any(has_question) {
            facts.is_ready = false;
            actions.push(RunAction::StoreContents { attempt, events: std::mem::take(&mut facts.events) });
        }
        self.outputs.push_back(facts);
    }

    // 2. Commits.

    /// Drains the inbox into one commit. A run that is not known is loaded first.
    fn start_commit(&mut self, context: &mut ActorContext<'_>, actions: &mut Vec<RunAction>) {
        while self.commit.is_none() && !self.is_loading {
            // Requests do not wait for facts that could not be committed.
            if self.paused.contains(&ActorPause::Commit) && self.requests.is_empty() {
                return;
            }
            let batch = self.drain();
            if batch.is_empty() && !self.must_load {
                return;
            }
            if let Some(needed) = self.needed_for(&batch, context) {
                self.restore(batch);
                self.is_loading = true;
                return actions.push(needed);
            }
            if batch.is_empty() {
                self.must_load = false;
                return;
            }
            if self.text_bytes(&batch) > LONG_TEXT_BYTES && !context.scheduler.begin_long(self.run_id) {
                return self.restore(batch);
            }
            let applied = catch_unwind(AssertUnwindSafe(|| self.apply(&batch, context)));
            match applied {
                Err(_) => self.on_panic(batch, context, actions),
                Ok(applied) => self.commit(batch, applied, context, actions),
            }
        }
    }

    /// Takes the part of the inbox that can be committed now.
    fn drain(&mut self) -> CommitBatch {
        let (is_performing, is_paused) =
            (self.operation.is_some(), self.paused.contains(&ActorPause::Commit));
        let mut batch = CommitBatch::default();
        if !is_paused {
            batch.settled.append(&mut self.settled);
        }
        let mut events = 0;
        while !is_performing && !is_paused && events < EVENTS_PER_COMMIT {
            let Some(facts) = self.outputs.pop_front_if(|facts| facts.is_ready) else { break };
            events += facts.events.len();
            batch.outputs.push(facts);
        }
        let room = match (self.is_solo, batch.is_empty()) {
            (true, true) => 1,
            (true, false) => 0,
            (false, _) => REQUESTS_PER_COMMIT,
        };
        let mut waiting = VecDeque::new();
        for request in std::mem::take(&mut self.requests) {
            if self.is_premature(&request) {
                continue;
            }
            if batch.requests.len() < room && !(is_performing && request.follows_effects()) {
                batch.requests.push(request);
            } else {
                waiting.push_back(request);
            }
        }
        self.requests = waiting;
        batch
    }

    /// Puts a batch back that was not committed.
    fn restore(&mut self, batch: CommitBatch) {
        let CommitBatch { mut settled, outputs, requests } = batch;
        settled.append(&mut self.settled);
        self.settled = settled;
        outputs.into_iter().rev().for_each(|facts| self.outputs.push_front(facts));
        requests.into_iter().rev().for_each(|request| self.requests.push_front(request));
    }

    /// What must be known before the batch is applied.
    fn needed_for(&self, batch: &CommitBatch, context: &ActorContext<'_>) -> Option<RunAction> {
        let created = match batch.requests.first() {
            Some(ActorRequest::Client { event: RunEvent::RunCreated(new), .. }) => Some(new),
            Some(_) | None => None,
        };
        match (&self.known, created) {
            // A run that is being created is assumed not to exist; otherwise the store refuses the commit.
            (KnownRun::Unknown, Some(new)) if !self.must_load => {
                self.survey.is_none().then(|| RunAction::Survey(Arc::new(new.settings.clone())))
            }
            (KnownRun::Unknown, _) => Some(RunAction::Load),
            (KnownRun::Known { run, .. }, _) => {
                let needs_space = |request: &ActorRequest| match request {
                    ActorRequest::Admit => true,
                    ActorRequest::Client { event, .. } => matches!(event, RunEvent::MessageArrived { .. }),
                    ActorRequest::Deadline(_) => false,
                };
                let run = run.as_ref().filter(|run| context.is_space_limited || run.profile.is_none())?;
                let needs_survey = self.survey.is_none() && batch.requests.iter().any(needs_space);
                needs_survey.then(|| RunAction::Survey(run.settings.clone()))
            }
        }
    }

    /// The size of the texts that have no small bound.
    fn text_bytes(&self, batch: &CommitBatch) -> usize {
        let requests = batch.requests.iter().filter_map(|request| match request {
            ActorRequest::Client { event, .. } => Some(event),
            ActorRequest::Deadline(_) | ActorRequest::Admit => None,
        });
        let facts = batch.outputs.iter().flat_map(|facts| &facts.events);
        let run = self.run().map_or(0, |run| run_text_bytes(run));
        run + requests.chain(facts).map(event_text_bytes).sum::<usize>()
    }

    /// Applies a batch in order. An event that is refused or absorbed is skipped.
    fn apply(&mut self, batch: &CommitBatch, context: &mut ActorContext<'_>) -> AppliedBatch {
        let before = self.run().cloned();
        let shortage = self.survey.as_ref().and_then(|survey| survey.shortage.clone());
        let mut applied = AppliedBatch::default();
        let changes = &mut applied.changes;
        if before.as_ref().is_some_and(|run| run.rules < run::CURRENT_RULES_VERSION) {
            let adopted = RunEvent::RulesAdopted { rules: run::CURRENT_RULES_VERSION };
            // No rule refuses it.
            append(changes, before.as_deref(), adopted, context).ok();
        }
        // A run adopts newer rules only together with another event.
        let adopted = changes.len();
        for event in batch.settled.iter().chain(batch.outputs.iter().flat_map(|facts| &facts.events)) {
            // Facts are not refused.
            append(changes, before.as_deref(), event.clone(), context).ok();
        }
        for request in &batch.requests {
            let count = changes.len();
            let outcome = match (request.event(), &shortage) {
                (
                    RunEvent::MessageArrived { .. } | RunEvent::RunCreated(_) | RunEvent::Admitted,
                    Some(shortage),
                ) => Err(RequestError::Shortage(shortage.clone())),
                (event, _) => append(changes, before.as_deref(), event, context).map_err(RequestError::from),
            };
            let is_changed = changes.len() > count;
            applied.outcomes.push(outcome.map(|()| match is_changed {
                true => ApplyOutcome::Changed,
                false => ApplyOutcome::Ignored,
            }));
        }
        if changes.len() == adopted {
            changes.clear();
            return applied;
        }
        let latest = changes[changes.len() - 1].run.clone();
        // A slot is granted for the final state. Without a fresh survey, the scheduler admits the run later.
        let has_room = match &self.survey {
            Some(survey) => survey.shortage.is_none(),
            None => !context.is_space_limited && latest.profile.is_some(),
        };
        if has_room && context.scheduler.admit_if_next(before.as_deref(), &latest) {
            append(changes, None, RunEvent::Admitted, context).ok();
        }
        if let Some(event) = self.cached_probe(&changes[changes.len() - 1].run, context) {
            append(changes, None, event, context).ok();
        }
        applied
    }

    /// The event for a pending probe whose result is cached. It is committed together with the effect.
    fn cached_probe(&self, run: &Run, context: &ActorContext<'_>) -> Option<RunEvent> {
        let Effect::Probe { .. } = run.pending_effects.first()?.effect else { return None };
        let program = self.survey.as_ref()?.program.as_ref()?;
        let entry = context.catalogue.engine(&run.settings.engine)?;
        let health = context.probes.get(program)?;
        Some(probe_event(&entry, health, &run.settings, context.clock.stamp().id_seed))
    }

    /// Commits the changes of a batch. Nothing is acknowledged before [`Self::on_committed`].
    fn commit(
        &mut self,
        batch: CommitBatch,
        applied: AppliedBatch,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let AppliedBatch { changes, outcomes } = applied;
        let Some(after) = changes.last().map(|change| change.run.clone()) else {
            // Without a commit, a conflict with another writer would not be detected, so the store is read.
            if matches!(self.known, KnownRun::Known { is_fresh: false, .. }) && !batch.requests.is_empty() {
                self.known = KnownRun::Unknown;
                return self.restore(batch);
            }
            let run = self.run().cloned();
            return self.conclude(batch, outcomes, run, context, actions);
        };
        let log = changes.iter().map(|change| EventLogLine::of(&change.event)).collect();
        self.commit = Some(CommitInProgress { batch, outcomes, after, log });
        actions.push(RunAction::Commit(JournalCommit { changes }));
    }

    /// The one place at which a commit has an outcome.
    fn on_committed(
        &mut self,
        result: Result<(), StoreError>,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some(CommitInProgress { mut batch, outcomes, after, log }) = self.commit.take() else { return };
        match result {
            Ok(()) => {
                log.into_iter().for_each(|line| line.write(&after));
                actions.push(RunAction::Announce(Some(after.clone())));
                (self.conflicts, self.is_solo) = (0, self.is_solo && !self.requests.is_empty());
                self.conclude(batch, outcomes, Some(after), context, actions);
            }
            Err(StoreError::Conflict { .. }) if self.conflicts < MAX_CONFLICTS => {
                self.conflicts += 1;
                self.forget_state(context);
                self.restore(batch);
            }
            // One of several requests repeats an earlier one. They are committed one by one, to find it.
            Err(StoreError::KeyTaken { .. }) if batch.len() > 1 => {
                self.is_solo = true;
                self.release(context);
                self.restore(batch);
            }
            Err(error) => {
                (self.conflicts, self.is_solo) = (0, false);
                match &error {
                    // The commit may have been written. Only the store knows the state of the run.
                    StoreError::OutcomeUnknown { .. } | StoreError::Conflict { .. } => {
                        self.must_load = true;
                        self.known = KnownRun::Unknown;
                        self.pause(ActorPause::Commit, STORE_PAUSE, actions);
                    }
                    _ => self.release(context),
                }
                // Facts must not be dropped.
                if batch.has_facts() {
                    tracing::warn!(run = %self.run_id, %error, "facts were not committed");
                    let is_taken = matches!(error, StoreError::InUse { .. });
                    let pause = if is_taken { STORE_TAKEN_PAUSE } else { STORE_PAUSE };
                    self.pause(ActorPause::Commit, pause, actions);
                }
                let requests = std::mem::take(&mut batch.requests);
                self.restore(batch);
                self.fail_requests(requests, error, context, actions);
            }
        }
        context.scheduler.end_long(self.run_id);
        self.survey = None;
    }

    /// Records that the commit was certainly not written. The run keeps its place in the queue.
    fn release(&mut self, context: &mut ActorContext<'_>) {
        context.scheduler.settle(self.run_id, self.run().map(|run| &**run));
    }

    /// Another writer has changed the run.
    fn forget_state(&mut self, context: &mut ActorContext<'_>) {
        self.release(context);
        self.known = KnownRun::Unknown;
        self.must_load = true;
    }

    /// The state after a batch is durable: requests are answered, and input is written to the processes.
    fn conclude(
        &mut self,
        batch: CommitBatch,
        outcomes: Vec<Result<ApplyOutcome, RequestError>>,
        run: Option<Arc<Run>>,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        context.scheduler.end_long(self.run_id);
        context.scheduler.settle(self.run_id, run.as_deref());
        for (request, outcome) in batch.requests.into_iter().zip(outcomes) {
            match (request, outcome) {
                (ActorRequest::Client { reply, .. }, outcome) => {
                    let result = outcome.and_then(|outcome| match (outcome, &run) {
                        (ApplyOutcome::Changed, Some(run)) => Ok(RequestOutcome::Changed(run.clone())),
                        (ApplyOutcome::Changed, None) | (ApplyOutcome::Ignored, _) => {
                            Ok(RequestOutcome::Absorbed)
                        }
                    });
                    actions.push(RunAction::Reply { reply, result });
                }
                (ActorRequest::Deadline(_), Ok(_)) => context.scheduler.end_quarantine(self.run_id),
                (ActorRequest::Deadline(_), Err(error)) => self.quarantine(&error.to_string(), context),
                (ActorRequest::Admit, Err(RequestError::Shortage(_))) => context.scheduler.skip(self.run_id),
                // If it was refused, the run was admitted or ended elsewhere.
                (ActorRequest::Admit, _) => {}
            }
        }
        for facts in batch.outputs {
            if let Some(session) = self.sessions.get_mut(&facts.attempt) {
                session.writes.extend(facts.writes);
            }
        }
        self.known = KnownRun::Known { run, is_fresh: false };
        self.survey = None;
    }

    fn quarantine(&mut self, reason: &str, context: &mut ActorContext<'_>) {
        let now = context.clock.stamp().at;
        context.scheduler.quarantine(self.run_id, reason, now);
    }

    /// Answers requests that failed. Only one of them gets the error itself.
    fn fail_requests(
        &mut self,
        requests: Vec<ActorRequest>,
        error: StoreError,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let reason = error.to_string();
        let mut error = Some(error);
        for request in requests {
            match request {
                ActorRequest::Client { reply, .. } => {
                    let unavailable = || StoreError::Unavailable { reason: reason.clone() };
                    let result = Err(RequestError::Store(error.take().unwrap_or_else(unavailable)));
                    actions.push(RunAction::Reply { reply, result });
                }
                ActorRequest::Deadline(_) => self.quarantine(&reason, context),
                ActorRequest::Admit => {
                    context.scheduler.skip(self.run_id);
                    // Of a run that cannot be read, only the queue knows that it waits.
                    context.scheduler.release_grant(self.run_id);
                }
            }
        }
    }

    /// The rules panicked. The inputs are applied one by one, and the one that panics is dropped if it is a request.
    /// Facts are retried after a pause. No other run is affected.
    fn on_panic(
        &mut self,
        mut batch: CommitBatch,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        context.scheduler.end_long(self.run_id);
        self.release(context);
        if batch.len() > 1 && !self.is_solo {
            self.is_solo = true;
            return self.restore(batch);
        }
        self.is_solo = !self.requests.is_empty();
        tracing::error!(run = %self.run_id, "the rules of a run panicked");
        if batch.has_facts() {
            self.pause(ActorPause::Commit, BROKEN_PAUSE, actions);
        }
        for request in std::mem::take(&mut batch.requests) {
            match request {
                // The dropped reply reports the bug.
                ActorRequest::Client { .. } => {}
                ActorRequest::Deadline(_) => {
                    self.quarantine(
                        "handling its deadline failed because of a bug of Abide; see the log",
                        context,
                    );
                }
                ActorRequest::Admit => context.scheduler.skip(self.run_id),
            }
        }
        self.restore(batch);
    }

    // 3. Effects.

    /// Starts the first pending effect. The effects of a run are performed in order.
    fn start_effect(&mut self, context: &mut ActorContext<'_>, actions: &mut Vec<RunAction>) {
        // A settled effect leaves the list with the commit of its fact.
        if self.operation.is_some() || !self.settled.is_empty() || !context.may_act {
            return;
        }
        let Some(run) = self.run().cloned() else { return };
        let Some(pending) = run.pending_effects.first() else { return };
        let number = pending.number;
        if self.paused.contains(&ActorPause::Effect(number)) {
            return;
        }
        if context.is_closing && matches!(pending.effect, Effect::Launch { .. } | Effect::Probe { .. }) {
            return;
        }
        let wait = context.clock.stamp().at.span_until(pending.due_at);
        if wait.0 > 0 {
            return self.pause(ActorPause::Effect(number), Duration::from_micros(wait.0), actions);
        }
        match self.operation_for(&run, number, &pending.effect, context) {
            EffectStart::Waits => {}
            EffectStart::Fact(event) => {
                self.settled.push(event);
                self.start_commit(context, actions);
            }
            EffectStart::NotBefore(at) => {
                let wait = Duration::from_micros(context.clock.stamp().at.span_until(at).0);
                self.pause(ActorPause::Effect(number), wait, actions);
            }
            EffectStart::Probe(entry) => {
                self.operation = Some((number, pending.effect.clone()));
                actions.push(RunAction::Probe { number, entry });
            }
            EffectStart::Operation(operation) => {
                self.operation = Some((number, pending.effect.clone()));
                actions.push(RunAction::Execute { number, name: pending.effect.name(), operation });
            }
        }
    }

    fn operation_for(
        &mut self,
        run: &Run,
        number: EffectNumber,
        effect: &Effect,
        context: &ActorContext<'_>,
    ) -> EffectStart {
        let obsolete = || EffectStart::Fact(RunEvent::EffectObsolete { effect: number });
        let process = |attempt: &Attempt| process_name(run.run_id, *attempt);
        let operation = match effect {
            Effect::Probe { .. } => match context.catalogue.engine(&run.settings.engine) {
                Some(entry) => return EffectStart::Probe(entry),
                None => return EffectStart::Fact(unknown_engine(run, context.catalogue)),
            },
            Effect::Launch { attempt } => match launch::prepare(run, *attempt, launch_settings(context)) {
                LaunchPreparation::Impossible(event) => return EffectStart::Fact(event),
                LaunchPreparation::NotBefore(at) => return EffectStart::NotBefore(at),
                LaunchPreparation::Ready(launch, session) => {
                    self.sessions.insert(*attempt, AttemptSession::new(session, false));
                    Operation::Launch(launch)
                }
            },
            Effect::SendPrompt { attempt, turn_id, prompt } => {
                match self.encode(run, *attempt, |session| session.say(*turn_id, prompt)) {
                    EncodedInput::Waits => return EffectStart::Waits,
                    EncodedInput::NoProcess => return obsolete(),
                    // The process was kept although it does not support further input, so it is ended.
                    EncodedInput::Unsupported => Operation::Terminate {
                        process: process(attempt),
                        shutdown: self.shutdown_of(*attempt),
                    },
                    EncodedInput::Bytes(bytes) => write(process(attempt), number, bytes),
                }
            }
            Effect::Answer { attempt, gate, text, verdict, .. } => {
                let answer = GateAnswer { gate_id: gate, text, verdict: *verdict };
                match self.encode(run, *attempt, |session| session.answer(&answer)) {
                    EncodedInput::Waits => return EffectStart::Waits,
                    EncodedInput::NoProcess | EncodedInput::Unsupported => return obsolete(),
                    EncodedInput::Bytes(bytes) => write(process(attempt), number, bytes),
                }
            }
            Effect::Steer { attempt, text, .. } => {
                match self.encode(run, *attempt, |session| session.steer(text)) {
                    EncodedInput::Waits => return EffectStart::Waits,
                    EncodedInput::NoProcess | EncodedInput::Unsupported => return obsolete(),
                    EncodedInput::Bytes(bytes) => write(process(attempt), number, bytes),
                }
            }
            Effect::Interrupt { attempt } => {
                let mut method = InterruptMethod::Signal(ProcessSignal::Interrupt);
                let encoded = self.encode(run, *attempt, |session| {
                    method = session.interrupt();
                    Ok(Vec::new())
                });
                match (encoded, method) {
                    (EncodedInput::Waits, _) => return EffectStart::Waits,
                    (EncodedInput::NoProcess, _) => {
                        return EffectStart::Fact(RunEvent::EffectPerformed { effect: number });
                    }
                    (_, InterruptMethod::Write(bytes)) => write(process(attempt), number, bytes),
                    (_, InterruptMethod::Signal(signal)) => {
                        Operation::Signal { process: process(attempt), signal }
                    }
                }
            }
            Effect::Terminate { attempt } => {
                Operation::Terminate { process: process(attempt), shutdown: self.shutdown_of(*attempt) }
            }
            Effect::Recover { attempt, .. } => Operation::Find { process: process(attempt) },
            Effect::Deliver { delivery_id } => Operation::Deliver { delivery_id: *delivery_id },
        };
        EffectStart::Operation(operation)
    }

    /// Encodes input for a process, when its output has been read as far as its run has.
    fn encode(
        &mut self,
        run: &Run,
        attempt: Attempt,
        encode: impl FnOnce(&mut ProcessSession) -> Result<Vec<u8>, UnsupportedOperation>,
    ) -> EncodedInput {
        let live = run.live().filter(|live| live.attempt == attempt);
        let Some(session) = self.sessions.get_mut(&attempt) else {
            let will_attach = live.is_some() && self.unreadable != Some(attempt);
            return if will_attach { EncodedInput::Waits } else { EncodedInput::NoProcess };
        };
        let committed = live.map_or_else(OutputPosition::default, |live| live.processed_position);
        let is_read = session.session.interpreted_position() >= committed || session.end.is_some();
        // The input of the protocol that results from earlier output comes first.
        if !is_read || !session.writes.is_empty() || session.is_writing {
            return EncodedInput::Waits;
        }
        match contained(|| encode(&mut session.session)) {
            Some(Ok(bytes)) => EncodedInput::Bytes(bytes),
            Some(Err(_)) | None => EncodedInput::Unsupported,
        }
    }

    /// How to ask an idle process to exit.
    fn shutdown_of(&mut self, attempt: Attempt) -> Option<abide_ports::engine::ShutdownMethod> {
        let session = self.sessions.get_mut(&attempt)?;
        contained(|| session.session.leave()).flatten()
    }

    // 4. Processes.

    /// Searches for the process that the run holds, if it is not read, unless the next effect finds, starts or ends it.
    fn start_attach(&mut self, context: &ActorContext<'_>, actions: &mut Vec<RunAction>) {
        let Some(run) = self.run() else { return };
        let Some(attempt) = run.live().map(|live| live.attempt) else { return };
        let is_found_by_effect = matches!(
            run.pending_effects.first().map(|pending| &pending.effect),
            Some(Effect::Recover { .. } | Effect::Terminate { .. } | Effect::Launch { .. })
        );
        if is_found_by_effect
            || self.unreadable == Some(attempt)
            || !context.may_act
            || self.attaching.is_some()
            || !self.settled.is_empty()
            || self.operation.is_some()
            || self.sessions.contains_key(&attempt)
            || self.paused.contains(&ActorPause::Attach)
        {
            return;
        }
        self.attaching = Some(attempt);
        actions.push(RunAction::Locate { attempt });
    }

    /// Continues to write to and to read each process. A process is not read while too much of its output is not
    /// committed.
    fn continue_sessions(&mut self, context: &ActorContext<'_>, actions: &mut Vec<RunAction>) {
        let live = self.run().and_then(|run| run.live()).map(|live| (live.attempt, live.processed_position));
        let in_commit = |attempt| {
            let batch = self.commit.iter().flat_map(|commit| &commit.batch.outputs);
            batch.chain(&self.outputs).filter(move |facts| facts.attempt == attempt)
        };
        let backlog: BTreeMap<Attempt, (bool, bool)> = (self.sessions.keys())
            .map(|attempt| {
                let is_full = in_commit(*attempt).any(|facts| !facts.is_ready)
                    || in_commit(*attempt).map(|facts| facts.events.len()).sum::<usize>()
                        >= EVENTS_PER_COMMIT;
                (*attempt, (in_commit(*attempt).next().is_some(), is_full))
            })
            .collect();
        let mut lost = Vec::new();
        for (attempt, session) in &mut self.sessions {
            let (attempt, (has_backlog, is_full)) = (*attempt, backlog[attempt]);
            if !session.is_writing
                && session.end != Some(SessionEnd::Lost)
                && let Some((key, bytes)) = session.writes.pop_front()
            {
                session.is_writing = true;
                actions.push(RunAction::Write { attempt, key, bytes });
            }
            match session.end {
                None if !session.is_started || session.is_reading || is_full => {}
                None => {
                    let buffer_bytes = context.output_buffer_bytes;
                    let mut checkpoint = None;
                    if session.session.is_checkpoint_due(buffer_bytes)
                        && let Some((_, committed)) = live.filter(|live| live.0 == attempt)
                    {
                        // Everything before a checkpoint is committed and written.
                        if has_backlog || session.is_writing || !session.writes.is_empty() {
                            continue;
                        }
                        checkpoint = session.session.next_checkpoint(committed, buffer_bytes);
                    }
                    session.is_reading = true;
                    let from =
                        (!std::mem::replace(&mut session.is_followed, true)).then(|| session.session.fed());
                    let timeout = session.session.read_timeout();
                    let request = ReadRequest { from, timeout, checkpoint };
                    actions.push(RunAction::Read { attempt, request });
                }
                Some(SessionEnd::Lost) if !has_backlog => lost.push(attempt),
                // The session stays listed until the process is removed, because a shutdown waits for its keeper.
                Some(SessionEnd::Exited) if !has_backlog && !session.is_writing && !session.is_cleaning => {
                    session.is_cleaning = true;
                    actions.push(RunAction::CleanUp { attempt });
                }
                Some(_) => {}
            }
        }
        for attempt in lost {
            self.sessions.remove(&attempt);
            actions.push(RunAction::StopReading { attempt });
        }
    }
}

/// How an effect starts.
enum EffectStart {
    Operation(Operation),
    Probe(InstalledEngine),
    /// It needs no operation.
    Fact(RunEvent),
    NotBefore(Timestamp),
    /// It starts after a later input.
    Waits,
}

/// Input for a process.
enum EncodedInput {
    Bytes(Vec<u8>),
    Waits,
    NoProcess,
    Unsupported,
}

impl AttemptSession {
    fn new(session: ProcessSession, is_started: bool) -> Self {
        Self {
            session,
            is_started,
            is_followed: false,
            is_reading: false,
            writes: VecDeque::new(),
            is_writing: false,
            end: None,
            is_cleaning: false,
        }
    }
}

impl ActorRequest {
    fn event(&self) -> RunEvent {
        match self {
            Self::Client { event, .. } => event.clone(),
            Self::Deadline(kind) => RunEvent::DeadlinePassed { deadline: *kind },
            Self::Admit => RunEvent::Admitted,
        }
    }

    /// Whether the request waits for the effect in progress. A shutdown waits because its process may be starting.
    fn follows_effects(&self) -> bool {
        match self {
            Self::Client { event, .. } => matches!(event, RunEvent::ShutdownRequested),
            Self::Deadline(_) => true,
            Self::Admit => false,
        }
    }
}

impl CommitBatch {
    fn is_empty(&self) -> bool {
        !self.has_facts() && self.requests.is_empty()
    }

    fn has_facts(&self) -> bool {
        !self.settled.is_empty() || !self.outputs.is_empty()
    }

    fn len(&self) -> usize {
        let outputs = self.outputs.iter().map(|facts| facts.events.len()).sum::<usize>();
        self.settled.len() + outputs + self.requests.len()
    }
}

/// Applies one event to the result of the earlier changes, and then the events that must follow it.
fn append(
    changes: &mut Vec<RunChange>,
    before: Option<&Run>,
    event: RunEvent,
    context: &ActorContext<'_>,
) -> Result<(), RequestRefused> {
    let (mut next, mut at) = (Some(event), context.clock.stamp().at);
    while let Some(event) = next {
        let run = changes.last().map(|change| &*change.run).or(before);
        // A following event gets a time one microsecond later. So no time passes between a question and its automatic
        // answer, and no two events of a run have the same time.
        let stamp = EventStamp { at, ..context.clock.stamp() };
        at = Timestamp(at.0.saturating_add(1));
        let mut step = (context.rules)(run, &stamp, &event)?;
        next = step.follow_up.take();
        if step.outcome == ApplyOutcome::Changed {
            let change = RunChange::new(run, stamp, event, step);
            changes.push(change);
        }
    }
    Ok(())
}

fn launch_settings<'a>(context: &'a ActorContext<'_>) -> LaunchSettings<'a> {
    LaunchSettings { catalogue: context.catalogue, private: context.private, now: context.clock.stamp().at }
}

/// A write of an effect. The highest bit of the key distinguishes it from positions in the output.
fn write(process: String, number: EffectNumber, bytes: Vec<u8>) -> Operation {
    Operation::Write { process, key: (1 << 63) | u64::from(number.0), bytes }
}

fn unknown_engine(run: &Run, catalogue: &dyn EngineLookup) -> RunEvent {
    let names = catalogue.names().join(", ");
    let message = format!("there is no engine {}; there are {names}", run.settings.engine);
    let failure =
        abide_domain::failure::RunFailure::new(abide_domain::failure::FailureCode::EngineNotFound, message);
    RunEvent::EngineUnusable { failure }
}

/// Whether the event has a question, which may be too long to be shown.
fn has_question(event: &RunEvent) -> bool {
    matches!(
        event,
        RunEvent::GateRaised { .. } | RunEvent::TurnEnded { outcome: TurnOutcome::Asked { .. }, .. }
    )
}

/// The size of the text of an event that has no small bound.
fn event_text_bytes(event: &RunEvent) -> usize {
    if let RunEvent::RunCreated(new) = event {
        return new.message.text.len();
    }
    if let RunEvent::MessageArrived { message, .. } = event {
        return message.text.len();
    }
    if let RunEvent::TurnEnded {
        outcome: TurnOutcome::Completed { text } | TurnOutcome::Asked { text, .. },
        ..
    } = event
    {
        return text.len();
    }
    0
}

/// The size of the texts of a run that have no small bound.
fn run_text_bytes(run: &Run) -> usize {
    let turns = run.turns.iter().map(|turn| turn.prompt.len() + turn.reply.as_ref().map_or(0, String::len));
    let messages = run.inbox.iter().map(|inbound| inbound.message.text.len());
    let questions = run.interactions.iter().map(|interaction| interaction.question.prompt.len());
    let requests = run.waiting_gates.iter().map(|interaction| interaction.question.prompt.len());
    let next_prompt = match &run.state {
        RunState::Queued { next, .. } => next.prompt.len(),
        RunState::Running(_) | RunState::WaitingUser(_) | RunState::Idle { .. } | RunState::Finished(_) => 0,
    };
    let result = run.result.as_ref().map_or(0, String::len);
    turns.chain(messages).chain(questions).chain(requests).sum::<usize>() + next_prompt + result
}
