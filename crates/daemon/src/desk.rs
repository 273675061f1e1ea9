//! The only way to change a run: load it, apply the event, commit, and then return the outcome.
//!
//! No effects are executed here. The pending effects of a commit are stored with the run until they are reported as
//! done, so the executor may crash at any time.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use abide_domain::{
    event::{KeyClaim, NewRun, RunEvent, TurnOutcome},
    id::RunId,
    inbound::InboundMessage,
    refused::RequestRefused,
    reply::{self, InteractionReply, ReplyAcceptance},
    run::{self, ApplyOutcome, Run, RunStep},
    settings::OnBusy,
    slots::{AdmissionQueue, SlotOccupancy},
    time::{EventStamp, Timestamp},
};
use abide_os::failpoint;
use abide_ports::{
    clock::Clock,
    store::{ClaimHolder, JournalCommit, RunChange, Store, StoreError},
};
use tokio::sync::Semaphore;

use crate::{
    board::AdmissionControl,
    error::RequestError,
    lanes::StripedRunLocks,
    pressure::{DiskShortage, SpaceLimit},
    recent::{self, RecentRuns},
    tell::EventLogLine,
};

/// The transition function of the domain. Always [`run::apply`], except in tests that break a rule to prove that it is
/// detected.
pub type TransitionRules = fn(Option<&Run>, &EventStamp, &RunEvent) -> Result<RunStep, RequestRefused>;

/// Returns the event that settles a newly requested effect, when the result is already cached and no I/O is needed. It
/// is called inside every change, so it must not block.
pub type CachedProbeResult = Arc<dyn Fn(&Run) -> Option<RunEvent> + Send + Sync>;

/// Applies and commits events for all runs.
pub struct RunService {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rules: TransitionRules,
    lanes: StripedRunLocks,
    board: AdmissionControl,
    recent: RecentRuns,
    /// Permit for a change with a long text. Its copies, as states and as rows, take several times its size.
    long_text: Semaphore,
    cached_probes: RwLock<Option<CachedProbeResult>>,
    space: RwLock<SpaceLimit>,
}

/// The outcome of an event that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The run was changed durably.
    Changed(Arc<Run>),
    /// The event was late or repeated; nothing changed.
    Absorbed,
    /// The same request was accepted before, and concerned this run.
    Repeated(RunId),
}

/// The base state of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunSource {
    /// The last committed state in the cache.
    Remembered,
    /// The state in the store.
    Stored,
}

/// Changes of runs with more bytes of text are made one at a time.
const LONG_TEXT_BYTES: usize = 256 << 10;

/// Maximum number of attempts after conflicts with other writers.
const CONFLICT_TRIES: usize = 16;

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

impl RunService {
    /// Opens the service. The runs that hold or wait for a slot are loaded before the first event.
    pub async fn open(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        slots: usize,
    ) -> Result<Self, RequestError> {
        Self::with_rules(store, clock, slots, run::apply).await
    }

    /// The same with other transition rules.
    pub async fn with_rules(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        slots: usize,
        rules: TransitionRules,
    ) -> Result<Self, RequestError> {
        let mut slots = AdmissionQueue::new(slots);
        for (run, occupancy) in store.slot_occupancies().await? {
            slots.observe(run, occupancy);
        }
        let (lanes, board) = (StripedRunLocks::new(), AdmissionControl::new(slots));
        Ok(Self {
            store,
            clock,
            rules,
            lanes,
            board,
            recent: RecentRuns::default(),
            long_text: Semaphore::new(1),
            cached_probes: RwLock::default(),
            space: RwLock::new(SpaceLimit::none()),
        })
    }

    /// Sets the function that settles new effects from cached results, in the same commit.
    pub fn set_cached_probes(&self, cached_probes: CachedProbeResult) {
        *self.cached_probes.write().unwrap_or_else(PoisonError::into_inner) = Some(cached_probes);
    }

    /// Sets the minimum of free disk space for starting runs.
    pub fn limit_space(&self, limit: SpaceLimit) {
        *self.space.write().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    fn is_space_limited(&self) -> bool {
        self.space.read().unwrap_or_else(PoisonError::into_inner).is_set()
    }

    /// The path with too little disk space for a run in this workspace.
    pub(crate) fn shortage(&self, workspace: Option<&str>) -> Option<DiskShortage> {
        self.space.read().unwrap_or_else(PoisonError::into_inner).shortage(workspace)
    }

    /// Creates a run, once for each idempotency key and each message. Most requests are new, so the keys are not
    /// checked in advance: the commit detects a duplicate.
    pub async fn create(&self, new: NewRun) -> Result<RequestOutcome, RequestError> {
        let run_id = new.run_id;
        let event = RunEvent::RunCreated(Box::new(new));
        let claims = event.claims();
        match self.take(run_id, event).await {
            Err(RequestError::Store(StoreError::KeyTaken { scope, key, holder })) => {
                repetition(&claims, &scope, &key, holder)
            }
            // The same request with the same id.
            Err(RequestError::Refused(RequestRefused::RunExists)) => {
                for KeyClaim { scope, key, .. } in &claims {
                    if let Some(holder) = self.store.claim_holder(scope, key).await? {
                        return repetition(&claims, scope, key, holder);
                    }
                }
                Err(RequestRefused::RunExists.into())
            }
            taken => taken,
        }
    }

    /// Accepts a message for a run, once. A repeated message is reported as such, independent of the run's state.
    pub async fn message(
        &self,
        run_id: RunId,
        message: InboundMessage,
        on_busy: Option<OnBusy>,
    ) -> Result<RequestOutcome, RequestError> {
        let KeyClaim { scope, key, .. } = KeyClaim::for_message(&message.key);
        if let Some(ClaimHolder { run_id, .. }) = self.store.claim_holder(&scope, &key).await? {
            return Ok(RequestOutcome::Repeated(run_id));
        }
        match self.take(run_id, RunEvent::MessageArrived { message, on_busy }).await {
            Err(RequestError::Store(StoreError::KeyTaken { holder, .. })) => {
                Ok(RequestOutcome::Repeated(holder.run_id))
            }
            taken => taken,
        }
    }

    /// Accepts a reply to the interaction that it names. A run drops answered interactions, but the ledger keeps them.
    /// It distinguishes repeated from late replies.
    pub async fn reply(&self, reply: InteractionReply) -> Result<RequestOutcome, RequestError> {
        let interaction_id = reply.interaction_id;
        let stale = RequestRefused::StaleInteraction { interaction_id };
        let run_id = match self.recent.asker(interaction_id) {
            Some(run_id) => run_id,
            None => match self.store.interaction(interaction_id).await? {
                Some(interaction) => interaction.run_id,
                None => return Err(stale.into()),
            },
        };
        let event = RunEvent::ReplyArrived { reply };
        match self.take_all(run_id, std::slice::from_ref(&event)).await {
            Err(RequestError::Refused(refused)) if refused == stale => {
                let (Some(recorded), RunEvent::ReplyArrived { reply }) =
                    (self.store.interaction(interaction_id).await?, &event)
                else {
                    return Err(refused.into());
                };
                match reply::accept(&recorded, reply, self.clock.stamp().at)? {
                    ReplyAcceptance::Duplicate => Ok(RequestOutcome::Repeated(run_id)),
                    ReplyAcceptance::First(_) => Err(refused.into()),
                }
            }
            taken => taken,
        }
    }

    /// Retries the undelivered messages of a conversation after a message has arrived from it.
    pub async fn conversation_active(&self, conversation_ref: &str) -> Result<(), RequestError> {
        let mut trouble = None;
        for run in self.store.undelivered_to(conversation_ref).await? {
            let taken = self.take(run, RunEvent::ConversationActive).await;
            trouble = trouble.or(taken.err());
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Grants free slots to the longest-waiting runs, and returns these runs. An error of one run does not stop the
    /// others; the first error is returned at the end.
    pub async fn admit(&self) -> Result<Vec<RunId>, RequestError> {
        let (mut admitted, mut skipped, mut trouble) = (vec![], BTreeSet::new(), None);
        for run in self.board.doubtful() {
            trouble = trouble.or(self.look_again(run).await.err());
        }
        // With too little space in the home, all runs wait.
        if self.shortage(None).is_some() {
            return trouble.map_or(Ok(admitted), Err);
        }
        while let Some(grant) = self.board.grant_next(&skipped) {
            let run = grant.run;
            skipped.insert(run);
            let queued = if self.is_space_limited() { self.latest(run).await.ok().flatten() } else { None };
            if queued.is_some_and(|queued| self.shortage(Some(&queued.settings.workspace)).is_some()) {
                drop(grant);
                trouble = trouble.or(self.look_again(run).await.err());
                continue;
            }
            match self.take(run, RunEvent::Admitted).await {
                Ok(_) => {
                    grant.done();
                    admitted.push(run);
                }
                // The run was admitted or ended elsewhere.
                Err(RequestError::Refused(RequestRefused::NotQueued { .. } | RequestRefused::NoSuchRun)) => {
                    grant.done()
                }
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        trouble.map_or(Ok(admitted), Err)
    }

    /// Applies and commits an event for a run. If the run then waits for a slot and is the next in the queue, a free
    /// slot is granted in the same commit.
    pub async fn take(&self, run_id: RunId, event: RunEvent) -> Result<RequestOutcome, RequestError> {
        self.take_all(run_id, &[event]).await
    }

    /// Applies several events of a run in order, in one commit. Each is applied to the result of the ones before it. An
    /// event that is refused or absorbed is skipped. The first refusal is returned only if nothing changed.
    ///
    /// A slot is granted for the final state; intermediate queued states inside one batch do not take a slot.
    pub async fn take_all(&self, run_id: RunId, events: &[RunEvent]) -> Result<RequestOutcome, RequestError> {
        let _lane = self.lanes.enter(run_id).await;
        let mut basis = RunSource::Remembered;
        for _ in 1..CONFLICT_TRIES {
            match self.try_take(run_id, events, basis).await {
                Err(RequestError::Store(StoreError::Conflict { .. })) => basis = RunSource::Stored,
                taken => return taken,
            }
        }
        self.try_take(run_id, events, RunSource::Stored).await
    }

    async fn try_take(
        &self,
        run_id: RunId,
        events: &[RunEvent],
        basis: RunSource,
    ) -> Result<RequestOutcome, RequestError> {
        let pending_change = self.board.begin_change(run_id);
        let remembered = self.recent.take(run_id).filter(|_| basis == RunSource::Remembered);
        // A run that is being created is assumed not to exist; otherwise the store refuses the commit.
        let creates = basis == RunSource::Remembered && matches!(events, [RunEvent::RunCreated(_), ..]);
        let guessed = creates || remembered.is_some();
        let mut before = if guessed { remembered } else { self.stored(run_id).await? };
        let text_bytes = before.as_deref().map_or(0, recent::text_bytes)
            + events.iter().map(event_text_bytes).sum::<usize>();
        // The semaphore is never closed, so `acquire` does not fail.
        let _permit = if text_bytes > LONG_TEXT_BYTES { self.long_text.acquire().await.ok() } else { None };
        let mut changes = self.apply(before.as_deref(), events);
        if guessed && !matches!(&changes, Ok(changes) if !changes.is_empty()) {
            // Without a commit, a conflict with another writer would not be detected, so the store is read.
            before = self.stored(run_id).await?;
            changes = self.apply(before.as_deref(), events);
        }
        let mut changes = match changes {
            Ok(changes) if !changes.is_empty() => changes,
            no_change => {
                pending_change.settle(before.as_deref());
                if let Some(before) = before {
                    self.recent.put(before);
                }
                return no_change.map(|_| RequestOutcome::Absorbed).map_err(RequestError::from);
            }
        };
        let latest = &changes[changes.len() - 1].run;
        let waits = matches!(latest.occupancy(), SlotOccupancy::Queued(_));
        let grant = match waits && self.shortage(Some(&latest.settings.workspace)).is_none() {
            true => self.board.grant_if_next(before.as_deref(), latest),
            false => None,
        };
        if grant.is_some() {
            self.append(&mut changes, None, RunEvent::Admitted)?;
        }
        if let Some(event) = self.known(&changes[changes.len() - 1].run) {
            self.append(&mut changes, None, event)?;
        }
        let after = changes[changes.len() - 1].run.clone();
        let tales: Vec<EventLogLine> = changes.iter().map(|change| EventLogLine::of(&change.event)).collect();
        failpoint::reach("before_commit");
        match self.store.commit(JournalCommit { changes }).await {
            Ok(_) => {
                failpoint::reach("after_commit");
                if let Some(grant) = grant {
                    grant.done();
                }
                pending_change.settle(Some(&after));
                for tale in tales {
                    tale.tell(&after);
                }
                self.recent.put(after.clone());
                Ok(RequestOutcome::Changed(after))
            }
            // The commit may have been written. Only the store knows the state of the run, so the run stays dirty.
            Err(unknown @ StoreError::OutcomeUnknown { .. }) => Err(unknown.into()),
            Err(error) => {
                if let Some(grant) = grant {
                    grant.done();
                }
                pending_change.settle(before.as_deref());
                Err(error.into())
            }
        }
    }

    /// Stops granting slots because of the shutdown. Events are still accepted.
    pub fn close(&self) {
        self.board.close();
    }

    /// The changes that these events cause in order. If there are none, the result may be a refusal.
    fn apply(&self, before: Option<&Run>, events: &[RunEvent]) -> Result<Vec<RunChange>, RequestRefused> {
        let (mut changes, mut refusal): (Vec<RunChange>, Option<RequestRefused>) = (Vec::new(), None);
        if let Some(run) = before.filter(|run| run.rules < run::CURRENT_RULES_VERSION) {
            self.append(
                &mut changes,
                Some(run),
                RunEvent::RulesAdopted { rules: run::CURRENT_RULES_VERSION },
            )?;
        }
        // A run adopts newer rules only together with another event.
        let adopted = changes.len();
        for event in events {
            let taken = self.append(&mut changes, before, event.clone());
            refusal = refusal.or(taken.err());
        }
        match refusal {
            Some(refused) if changes.len() == adopted => Err(refused),
            Some(_) | None if changes.len() == adopted => Ok(Vec::new()),
            Some(_) | None => Ok(changes),
        }
    }

    /// Applies one event to the result of the earlier changes, and then the events that must follow it.
    fn append(
        &self,
        changes: &mut Vec<RunChange>,
        before: Option<&Run>,
        event: RunEvent,
    ) -> Result<(), RequestRefused> {
        let (mut next, mut at) = (Some(event), self.clock.stamp().at);
        while let Some(event) = next {
            let run = changes.last().map(|change| &*change.run).or(before);
            // A following event gets a time one microsecond later. So no time passes between a question and its
            // automatic answer, and no two events of a run have the same time.
            let stamp = EventStamp { at, ..self.clock.stamp() };
            at = Timestamp(at.0.saturating_add(1));
            let mut step = (self.rules)(run, &stamp, &event)?;
            next = step.follow_up.take();
            if step.outcome == ApplyOutcome::Changed {
                let change = RunChange::new(run, stamp, event, step);
                changes.push(change);
            }
        }
        Ok(())
    }

    fn known(&self, run: &Run) -> Option<RunEvent> {
        let cached_probes = self.cached_probes.read().unwrap_or_else(PoisonError::into_inner).clone();
        cached_probes.and_then(|known| known(run))
    }

    /// The last committed state of a run, from the cache or the store.
    pub(crate) async fn latest(&self, run: RunId) -> Result<Option<Arc<Run>>, StoreError> {
        match self.recent.look(run) {
            Some(known) => Ok(Some(known)),
            None => self.stored(run).await,
        }
    }

    async fn stored(&self, run: RunId) -> Result<Option<Arc<Run>>, StoreError> {
        Ok(self.store.run(run).await?.map(Arc::new))
    }

    /// Number of runs that hold a slot, and of those that wait.
    pub fn occupancy(&self) -> (usize, usize) {
        self.board.occupancy()
    }

    /// The position of a waiting run in the queue, from 1.
    pub fn queue_position(&self, run: RunId) -> Option<usize> {
        self.board.queue_position(run)
    }

    /// Re-reads a dirty run.
    async fn look_again(&self, run: RunId) -> Result<(), RequestError> {
        let _lane = self.lanes.enter(run).await;
        let pending_change = self.board.begin_change(run);
        let stored = self.store.run(run).await?;
        pending_change.settle(stored.as_ref());
        Ok(())
    }
}

/// The outcome for a reused key: the same request again, or an error for another one.
fn repetition(
    claims: &[KeyClaim],
    scope: &str,
    key: &str,
    holder: ClaimHolder,
) -> Result<RequestOutcome, RequestError> {
    let same = claims.iter().any(|claim| {
        (claim.scope.as_str(), claim.key.as_str(), &claim.fingerprint) == (scope, key, &holder.fingerprint)
    });
    if same {
        Ok(RequestOutcome::Repeated(holder.run_id))
    } else {
        Err(RequestError::KeyReused { key: key.to_owned(), run_id: holder.run_id })
    }
}

impl std::fmt::Debug for RunService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunService").field("board", &self.board).finish_non_exhaustive()
    }
}
