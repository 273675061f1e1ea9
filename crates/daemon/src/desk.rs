//! The one door to every run: load it, apply the event, commit, and only then say so.
//!
//! Nothing is done to the world here. What a commit owes stands in the run and in the store until it is reported
//! as done, so whoever performs it may die at any time.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use abide_domain::{
    event::{KeyClaim, NewRun, RunEvent},
    id::RunId,
    inbound::InboundMessage,
    refused::RequestRefused,
    reply::{self, InteractionReply, ReplyAcceptance},
    run::{self, ApplyOutcome, Run, RunStep},
    settings::OnBusy,
    slots::{AdmissionQueue, SlotOccupancy},
    time::{EventStamp, Timestamp},
};
use abide_ports::{
    clock::Clock,
    store::{ClaimHolder, JournalCommit, RunChange, Store, StoreError},
};

use crate::{
    board::AdmissionControl,
    error::RequestError,
    failpoint::{self, DaemonFailpoint},
    lanes::StripedRunLocks,
    pressure::{DiskShortage, SpaceLimit},
    recent::RecentRuns,
    tell::EventLogLine,
};

/// The rules of the domain. Always [`run::apply`], except where a test breaks one to see that it is noticed.
pub type TransitionRules = fn(Option<&Run>, &EventStamp, &RunEvent) -> Result<RunStep, RequestRefused>;

/// What is known at once about what a run has just come to owe: an event that settles it, where nothing has to be done
/// to the world for that. Asked inside every change, so it answers without waiting.
pub type CachedProbeResult = Arc<dyn Fn(&Run) -> Option<RunEvent> + Send + Sync>;

/// Takes events for all runs.
pub struct RunService {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rules: TransitionRules,
    lanes: StripedRunLocks,
    board: AdmissionControl,
    recent: RecentRuns,
    foresight: RwLock<Option<CachedProbeResult>>,
    space: RwLock<SpaceLimit>,
}

/// What became of an event that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It changed the run, durably.
    Changed(Arc<Run>),
    /// It was late or repeated; nothing changed.
    Absorbed,
    /// The same request was taken before, and made or concerned this run.
    Repeated(RunId),
}

/// What a change is made from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunSource {
    /// What this desk committed last, if it remembers.
    Remembered,
    /// What the store has.
    Stored,
}

/// How often a change is made anew when another writer was faster.
const CONFLICT_TRIES: usize = 16;

impl RunService {
    /// Opens the desk: everyone who holds a slot or waits for one is known before the first event is taken.
    pub async fn open(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        slots: usize,
    ) -> Result<Self, RequestError> {
        Self::with_rules(store, clock, slots, run::apply).await
    }

    /// The same under other rules.
    pub async fn with_rules(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        slots: usize,
        rules: TransitionRules,
    ) -> Result<Self, RequestError> {
        let mut slots = AdmissionQueue::new(slots);
        for (run, occupancy) in store.occupying().await? {
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
            foresight: RwLock::default(),
            space: RwLock::new(SpaceLimit::none()),
        })
    }

    /// From now on, what this knows about a run's orders is committed with the change that makes them.
    pub fn foresee(&self, foresight: CachedProbeResult) {
        *self.foresight.write().unwrap_or_else(PoisonError::into_inner) = Some(foresight);
    }

    /// From now on no run starts where less space is free than this.
    pub fn limit_space(&self, limit: SpaceLimit) {
        *self.space.write().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    fn is_space_limited(&self) -> bool {
        self.space.read().unwrap_or_else(PoisonError::into_inner).is_set()
    }

    /// The place that has too little space for a run in this workspace to start.
    pub(crate) fn shortage(&self, workspace: Option<&str>) -> Option<DiskShortage> {
        self.space.read().unwrap_or_else(PoisonError::into_inner).shortage(workspace)
    }

    /// Creates a run, once for each idempotency key and each message. Most requests are new, so nobody asks before
    /// whether the keys are free: the commit does.
    pub async fn create(&self, new: NewRun) -> Result<RequestOutcome, RequestError> {
        let run_id = new.run_id;
        let event = RunEvent::RunCreated(Box::new(new));
        let claims = event.claims();
        match self.take(run_id, event).await {
            Err(RequestError::Store(StoreError::Taken { scope, key, holder })) => {
                repetition(&claims, &scope, &key, holder)
            }
            // The very same request, under the same id.
            Err(RequestError::Refused(RequestRefused::RunExists)) => {
                for KeyClaim { scope, key, .. } in &claims {
                    if let Some(holder) = self.store.claimed(scope, key).await? {
                        return repetition(&claims, scope, key, holder);
                    }
                }
                Err(RequestRefused::RunExists.into())
            }
            taken => taken,
        }
    }

    /// Takes a message for a run, once. A message that we have already is answered as such, whatever became of
    /// its run since.
    pub async fn message(
        &self,
        run_id: RunId,
        message: InboundMessage,
        on_busy: Option<OnBusy>,
    ) -> Result<RequestOutcome, RequestError> {
        let KeyClaim { scope, key, .. } = KeyClaim::of_message(&message.key);
        if let Some(ClaimHolder { run_id, .. }) = self.store.claimed(&scope, &key).await? {
            return Ok(RequestOutcome::Repeated(run_id));
        }
        match self.take(run_id, RunEvent::MessageArrived { message, on_busy }).await {
            Err(RequestError::Store(StoreError::Taken { holder, .. })) => {
                Ok(RequestOutcome::Repeated(holder.run_id))
            }
            taken => taken,
        }
    }

    /// Takes a reply for the interaction that it names. A run forgets what was answered, the ledger does not: it
    /// tells a repeated reply from a late one.
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
                match reply::take(&recorded, reply, self.clock.stamp().at)? {
                    ReplyAcceptance::Again => Ok(RequestOutcome::Repeated(run_id)),
                    ReplyAcceptance::First(_) => Err(refused.into()),
                }
            }
            taken => taken,
        }
    }

    /// The conversation was heard from: whatever could not be brought to it gets its second chance.
    pub async fn conversation_spoke(&self, conversation_ref: &str) -> Result<(), RequestError> {
        let mut trouble = None;
        for run in self.store.undelivered_to(conversation_ref).await? {
            let taken = self.take(run, RunEvent::ConversationSpoke).await;
            trouble = trouble.or(taken.err());
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Grants free slots to the longest-waiting runs until there are no more of either, and says who got one. Trouble
    /// with one run stops no other; the first is reported at the end.
    pub async fn admit(&self) -> Result<Vec<RunId>, RequestError> {
        let (mut admitted, mut skipped, mut trouble) = (vec![], BTreeSet::new(), None);
        for run in self.board.doubtful() {
            trouble = trouble.or(self.look_again(run).await.err());
        }
        // With too little space in the home, everybody waits.
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
                // It was admitted or ended elsewhere; that is all we wanted to know.
                Err(RequestError::Refused(RequestRefused::NotQueued { .. } | RequestRefused::NoSuchRun)) => {
                    grant.done()
                }
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        trouble.map_or(Ok(admitted), Err)
    }

    /// Takes any event for a run: applies it, commits it, and grants a free slot in the same commit if the run
    /// now waits for one and is the next in line.
    pub async fn take(&self, run_id: RunId, event: RunEvent) -> Result<RequestOutcome, RequestError> {
        self.take_all(run_id, &[event]).await
    }

    /// Takes several events for a run, in their order, in one commit: all of them are durable then, or none is. Each
    /// is applied to what the ones before it made of the run; one that is refused or no news is passed over, as if it
    /// had come alone. Only where nothing changed is the first refusal the answer.
    ///
    /// A slot is granted at the end, to what the run is then: a wait that began and ended within the commit was none.
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
        let doubt = self.board.doubt(run_id);
        let remembered = self.recent.take(run_id).filter(|_| basis == RunSource::Remembered);
        // What is to be created is not there; if it is, the store will not have it a second time.
        let creates = basis == RunSource::Remembered && matches!(events, [RunEvent::RunCreated(_), ..]);
        let guessed = creates || remembered.is_some();
        let mut before = if guessed { remembered } else { self.stored(run_id).await? };
        let mut changes = self.apply(before.as_deref(), events);
        if guessed && !matches!(&changes, Ok(changes) if !changes.is_empty()) {
            // No commit will show whether another writer has been there, so the store is asked.
            before = self.stored(run_id).await?;
            changes = self.apply(before.as_deref(), events);
        }
        let mut changes = match changes {
            Ok(changes) if !changes.is_empty() => changes,
            no_change => {
                doubt.settle(before.as_deref());
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
        failpoint::reach(DaemonFailpoint::BeforeCommit);
        match self.store.commit(JournalCommit { changes }).await {
            Ok(_) => {
                failpoint::reach(DaemonFailpoint::AfterCommit);
                if let Some(grant) = grant {
                    grant.done();
                }
                doubt.settle(Some(&after));
                for tale in tales {
                    tale.tell(&after);
                }
                self.recent.put(after.clone());
                Ok(RequestOutcome::Changed(after))
            }
            // It may have been written: only the store knows what the run is now, and the doubt stays.
            Err(unknown @ StoreError::OutcomeUnknown { .. }) => Err(unknown.into()),
            Err(error) => {
                if let Some(grant) = grant {
                    grant.done();
                }
                doubt.settle(before.as_deref());
                Err(error.into())
            }
        }
    }

    /// From now on nobody is granted a slot: the daemon is about to go. What comes in is still taken.
    pub fn close(&self) {
        self.board.close();
    }

    /// What these events do to a run, one after the other. Nothing at all may be a refusal.
    fn apply(&self, before: Option<&Run>, events: &[RunEvent]) -> Result<Vec<RunChange>, RequestRefused> {
        let (mut changes, mut refusal): (Vec<RunChange>, Option<RequestRefused>) = (Vec::new(), None);
        if let Some(run) = before.filter(|run| run.rules < run::RULES) {
            self.append(&mut changes, Some(run), RunEvent::RulesAdopted { rules: run::RULES })?;
        }
        // A run goes on under newer rules only together with something that happens to it.
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

    /// Applies one event to what the changes before it made of the run, and every event that must follow it.
    fn append(
        &self,
        changes: &mut Vec<RunChange>,
        before: Option<&Run>,
        event: RunEvent,
    ) -> Result<(), RequestRefused> {
        let (mut next, mut at) = (Some(event), self.clock.stamp().at);
        while let Some(event) = next {
            let run = changes.last().map(|change| &*change.run).or(before);
            // What follows happens a microsecond later: no time passes between a question and its automatic answer, and no
            // two events of a run have the same time.
            let stamp = EventStamp { at, ..self.clock.stamp() };
            at = Timestamp(at.0.saturating_add(1));
            let mut step = (self.rules)(run, &stamp, &event)?;
            next = step.then.take();
            if step.news == ApplyOutcome::Changed {
                let change = RunChange::new(run, stamp, event, step);
                changes.push(change);
            }
        }
        Ok(())
    }

    fn known(&self, run: &Run) -> Option<RunEvent> {
        let foresight = self.foresight.read().unwrap_or_else(PoisonError::into_inner).clone();
        foresight.and_then(|known| known(run))
    }

    /// A run as this desk committed it last, or else as it is stored.
    pub(crate) async fn latest(&self, run: RunId) -> Result<Option<Arc<Run>>, StoreError> {
        match self.recent.look(run) {
            Some(known) => Ok(Some(known)),
            None => self.stored(run).await,
        }
    }

    async fn stored(&self, run: RunId) -> Result<Option<Arc<Run>>, StoreError> {
        Ok(self.store.run(run).await?.map(Arc::new))
    }

    /// How many runs hold a slot, and how many wait.
    pub fn occupancy(&self) -> (usize, usize) {
        self.board.occupancy()
    }

    /// At which place a run waits for a slot, if it does; 1 is next.
    pub fn queue_position(&self, run: RunId) -> Option<usize> {
        self.board.queue_position(run)
    }

    /// Clears a doubt up.
    async fn look_again(&self, run: RunId) -> Result<(), RequestError> {
        let _lane = self.lanes.enter(run).await;
        let doubt = self.board.doubt(run);
        let stored = self.store.run(run).await?;
        doubt.settle(stored.as_ref());
        Ok(())
    }
}

/// A key that was used before: for the same request, or by mistake for another one.
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
