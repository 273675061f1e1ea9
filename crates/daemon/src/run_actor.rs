//! The actor of one run: owns its state, its inbox and its processes, and is the only writer of the run.
//!
//! A pure value. [`RunActor::handle`] takes one input and returns the actions that follow from it. The inbox is drained
//! into one commit, and the actions that depend on the commit are returned when it is durable. At most one commit and
//! one effect are in progress. The result of an effect is committed before further output and deadlines of the run
//! (decision 0002); requests of people may come between.

mod commits;
mod effects;
mod sessions;

pub(crate) use effects::NotPerformed;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
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
    engine::{EngineHealth, GateAnswer, InterruptMethod, ProcessSignal},
    processes::{ProcessLookup, ProcessOutput, ProcessUnreachable},
    store::{JournalCommit, RunChange, StoreError},
};
use tokio::sync::oneshot;

use crate::{
    dispatcher::ActiveRun,
    error::RequestError,
    executor::{EffectOperation, EffectResult, LocatedProcess, MachineSurvey, ReadRequest, input_key},
    launch,
    log::EventLogLine,
    probe_cache::{ProbeCache, probe_event},
    process::{ProcessSession, SessionEnd, contained},
    scheduler::RunScheduler,
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
        /// The run, if the client has just read it.
        run: Option<Arc<Run>>,
    },
    Deadline(DeadlineKind),
    /// A slot is granted.
    Admit,
    /// The run of an earlier daemon is recovered: its effects are pending, or it holds a process. The sender is dropped
    /// when the state is known and the process was searched for.
    Recover(Option<oneshot::Sender<()>>),
    /// The result of [`RunAction::Load`].
    Loaded(Result<(Option<Arc<Run>>, MachineSurvey), StoreError>),
    /// The result of [`RunAction::Survey`].
    Surveyed(MachineSurvey),
    /// The result of [`RunAction::Commit`].
    Committed(Result<(), StoreError>),
    /// The result of [`RunAction::Execute`], or a probe that has no result.
    Executed(EffectResult),
    /// The result of [`RunAction::Probe`].
    Probed(Box<EngineHealth>),
    /// The result of [`RunAction::Locate`].
    Located(Result<Box<LocatedProcess>, StoreError>),
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
        operation: EffectOperation,
    },
    /// Examine the engine, as the effect with this number.
    Probe {
        number: EffectNumber,
        entry: InstalledEngine,
    },
    /// Find the process of an attempt that an earlier daemon started, and which of these inputs it has received.
    Locate {
        attempt: Attempt,
        inputs: Vec<EffectNumber>,
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

/// Identifies one actor. A run whose actor is created again gets another number, so late results of the actions of the
/// former actor are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActorNumber(pub(crate) u64);

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
    pub(crate) scheduler: &'a mut RunScheduler,
    pub(crate) probes: &'a ProbeCache,
}

/// Owns the state of one run.
#[derive(Debug)]
pub(crate) struct RunActor {
    run_id: RunId,
    number: ActorNumber,
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
    /// Dropped at the end of the recovery.
    recovery: Option<oneshot::Sender<()>>,
    /// The effect that is being performed.
    operation: Option<EffectNumber>,
    attaching: Option<Attempt>,
    /// Launches whose failure is not committed yet.
    failed_launches: Vec<Attempt>,
    /// A process whose engine is not known any more.
    unreadable: Option<Attempt>,
    /// The processes that are being read. Usually one; the last process may be ending while the next one starts.
    sessions: BTreeMap<Attempt, ProcessSession>,
    paused: BTreeSet<ActorPause>,
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

/// A part of the inbox.
#[derive(Debug, Default)]
struct CommitBatch {
    settled: Vec<RunEvent>,
    outputs: Vec<SessionFacts>,
    requests: Vec<ActorRequest>,
    /// For each request, when the batch was applied: whether it changed the run, or why not.
    outcomes: Vec<Result<ApplyOutcome, RequestError>>,
}

#[derive(Debug)]
struct CommitInProgress {
    batch: CommitBatch,
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
/// Pause before a lost process is searched for.
const SILENT_PAUSE: Duration = Duration::from_secs(2);
/// Pause of a run after a panic.
pub(crate) const BROKEN_PAUSE: Duration = Duration::from_secs(30);
/// Minimum and maximum interval of checks for a process that does not answer.
const MIN_SEARCH_PAUSE: Duration = Duration::from_millis(500);
const MAX_SEARCH_PAUSE: Duration = Duration::from_secs(15);

impl RunActor {
    pub(crate) fn new(run_id: RunId, number: ActorNumber) -> Self {
        Self {
            run_id,
            number,
            known: KnownRun::Unknown,
            survey: None,
            settled: Vec::new(),
            outputs: VecDeque::new(),
            requests: VecDeque::new(),
            commit: None,
            is_loading: false,
            must_load: false,
            recovery: None,
            operation: None,
            attaching: None,
            failed_launches: Vec::new(),
            unreadable: None,
            sessions: BTreeMap::new(),
            paused: BTreeSet::new(),
            conflicts: 0,
        }
    }

    pub(crate) fn number(&self) -> ActorNumber {
        self.number
    }

    /// Handles one input: records it, and starts what is possible then.
    pub(crate) fn handle(&mut self, input: RunInput, context: &mut ActorContext<'_>) -> Vec<RunAction> {
        let mut actions = Vec::new();
        self.receive(input, context, &mut actions);
        // Output that arrives without a pause does not delay an effect.
        if self.commit.is_none() && !self.is_loading {
            self.start_effect(context, &mut actions);
        }
        self.start_commit(context, &mut actions);
        if self.commit.is_none() && !self.is_loading {
            self.start_effect(context, &mut actions);
            self.start_attach(context, &mut actions);
        }
        self.continue_sessions(context, &mut actions);
        let is_known =
            matches!(self.known, KnownRun::Known { .. }) || self.paused.contains(&ActorPause::Commit);
        if is_known && !self.is_loading && self.attaching.is_none() {
            self.recovery = None;
        }
        actions
    }

    /// Whether nothing is in progress for the run, which is only a row.
    pub(crate) fn is_idle(&self) -> bool {
        let is_unused = matches!(self.known, KnownRun::Unknown) && !self.must_load;
        (is_unused || self.is_row())
            && self.has_empty_inbox()
            && self.commit.is_none()
            && !self.is_loading
            && self.is_at_rest()
    }

    /// Whether the run is known to hold no process and to have no pending effect.
    pub(crate) fn is_row(&self) -> bool {
        let KnownRun::Known { run, .. } = &self.known else { return false };
        run.as_ref()
            .is_none_or(|run| run.pending_effects.is_empty() && run.occupancy() != SlotOccupancy::Holding)
    }

    fn is_at_rest(&self) -> bool {
        self.operation.is_none() && self.attaching.is_none() && self.sessions.is_empty()
    }

    fn has_empty_inbox(&self) -> bool {
        self.settled.is_empty() && self.outputs.is_empty() && self.requests.is_empty()
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading
    }

    /// None while the state of the run is not known.
    pub(crate) fn activity(&self) -> Option<ActiveRun> {
        Some(ActiveRun { run: self.run()?.clone(), has_session: !self.sessions.is_empty() })
    }

    pub(crate) fn run(&self) -> Option<&Arc<Run>> {
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

    fn receive(&mut self, input: RunInput, context: &mut ActorContext<'_>, actions: &mut Vec<RunAction>) {
        match input {
            RunInput::Request { event, reply, run } => {
                // The commit fails if the run has changed since.
                if matches!(self.known, KnownRun::Unknown)
                    && run.is_some()
                    && !self.must_load
                    && !self.is_loading
                {
                    self.known = KnownRun::Known { run, is_fresh: true };
                }
                self.requests.push_back(ActorRequest::Client { event, reply });
            }
            RunInput::Deadline(kind) => self.on_deadline(kind),
            RunInput::Admit => self.requests.push_back(ActorRequest::Admit),
            RunInput::Recover(recovery) => (self.must_load, self.recovery) = (true, recovery),
            RunInput::Loaded(loaded) => self.on_loaded(loaded, context, actions),
            RunInput::Surveyed(survey) => {
                self.is_loading = false;
                self.survey = Some(survey);
            }
            RunInput::Committed(result) => self.on_committed(result, context, actions),
            RunInput::Executed(result) => self.on_executed(result, context, actions),
            RunInput::Probed(health) => self.on_probed(&health, context, actions),
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
            Some(session) => session.is_behind,
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
                self.settle_slot(run.as_deref(), context);
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
                        StoreError::Conflict { .. }
                        | StoreError::KeyTaken { .. }
                        | StoreError::Unavailable { .. }
                        | StoreError::OutcomeUnknown { .. }
                        | StoreError::Full { .. }
                        | StoreError::InputLost { .. }
                        | StoreError::FilesGone { .. }
                        | StoreError::InUse { .. }
                        | StoreError::IncompatibleVersion { .. }
                        | StoreError::Unsupported { .. }
                        | StoreError::Invalid { .. } => STORE_PAUSE,
                    };
                    self.pause(ActorPause::Commit, pause, actions);
                }
                self.fail_requests(requests, error, context, actions);
            }
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

    /// The scopes and keys that the request claims.
    fn claims(&self) -> impl Iterator<Item = (String, String)> + use<> {
        let claims = match self {
            Self::Client { event, .. } => event.claims(),
            Self::Deadline(_) | Self::Admit => Vec::new(),
        };
        claims.into_iter().map(|claim| (claim.scope, claim.key))
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

    /// The place of the request that claims this key.
    fn position_of_claim(&self, scope: &str, key: &str) -> Option<usize> {
        let is_claim = |claim: (String, String)| claim.0 == scope && claim.1 == key;
        self.requests.iter().position(|request| request.claims().any(is_claim))
    }

    fn has_facts(&self) -> bool {
        !self.settled.is_empty() || !self.outputs.is_empty()
    }
}
