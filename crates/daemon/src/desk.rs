//! The one door to every run: load it, apply the event, commit, and only then say so.
//!
//! Nothing is done to the world here. What a commit owes stands in the run and in the store until it is reported
//! as done, so whoever performs it may die at any time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_domain::{
    event::{Claim, Event, NewRun},
    id::RunId,
    inbound::Message,
    refused::Refused,
    reply::{self, Reply, Taken},
    run::{self, News, Run, Step},
    settings::OnBusy,
    slots::{Occupancy, Slots},
    time::{Stamp, Timestamp},
};
use abide_ports::{
    clock::Clock,
    store::{Change, Claimed, Commit, Store, StoreError},
};

use crate::{error::DeskError, lanes::Lanes};

/// The rules of the domain. Always [`run::apply`], except where a test breaks one to see that it is noticed.
pub type Rules = fn(Option<&Run>, &Stamp, &Event) -> Result<Step, Refused>;

/// Takes events for all runs.
pub struct Desk {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rules: Rules,
    lanes: Lanes,
    slots: Mutex<Slots>,
}

/// What became of an event that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It changed the run, durably.
    Changed(Box<Run>),
    /// It was late or repeated; nothing changed.
    Absorbed,
    /// The same request was taken before, and made or concerned this run.
    Repeated(RunId),
}

/// How often a change is made anew when another writer was faster.
const CONFLICT_TRIES: usize = 16;

impl Desk {
    /// Opens the desk: everyone who holds a slot or waits for one is known before the first event is taken.
    pub async fn open(store: Arc<dyn Store>, clock: Arc<dyn Clock>, slots: usize) -> Result<Self, DeskError> {
        Self::with_rules(store, clock, slots, run::apply).await
    }

    /// The same under other rules.
    pub async fn with_rules(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        slots: usize,
        rules: Rules,
    ) -> Result<Self, DeskError> {
        let mut slots = Slots::new(slots);
        for (run, occupancy) in store.occupying().await? {
            slots.observe(run, occupancy);
        }
        Ok(Self { store, clock, rules, lanes: Lanes::new(), slots: Mutex::new(slots) })
    }

    /// Creates a run, once for each idempotency key and each message.
    pub async fn create(&self, new: NewRun) -> Result<Outcome, DeskError> {
        let run_id = new.run_id;
        let event = Event::RunCreated(Box::new(new));
        let claims = event.claims();
        for Claim { scope, key, .. } in &claims {
            if let Some(holder) = self.store.claimed(scope, key).await? {
                return repetition(&claims, scope, key, holder);
            }
        }
        match self.take(run_id, event).await {
            // Somebody else was faster with the same key.
            Err(DeskError::Store(StoreError::Taken { scope, key, holder })) => {
                repetition(&claims, &scope, &key, holder)
            }
            taken => taken,
        }
    }

    /// Takes a message for a run, once. A message that we have already is answered as such, whatever became of
    /// its run since.
    pub async fn message(
        &self,
        run_id: RunId,
        message: Message,
        on_busy: Option<OnBusy>,
    ) -> Result<Outcome, DeskError> {
        let Claim { scope, key, .. } = Claim::of_message(&message.key);
        if let Some(Claimed { run_id, .. }) = self.store.claimed(&scope, &key).await? {
            return Ok(Outcome::Repeated(run_id));
        }
        match self.take(run_id, Event::MessageArrived { message, on_busy }).await {
            Err(DeskError::Store(StoreError::Taken { holder, .. })) => Ok(Outcome::Repeated(holder.run_id)),
            taken => taken,
        }
    }

    /// Takes a reply for the interaction that it names. A run forgets what was answered, the ledger does not: it
    /// tells a repeated reply from a late one.
    pub async fn reply(&self, reply: Reply) -> Result<Outcome, DeskError> {
        let interaction_id = reply.interaction_id;
        let stale = Refused::StaleInteraction { interaction_id };
        let Some(interaction) = self.store.interaction(interaction_id).await? else {
            return Err(stale.into());
        };
        let run_id = interaction.run_id;
        match self.take(run_id, Event::ReplyArrived { reply: reply.clone() }).await {
            Err(DeskError::Refused(refused)) if refused == stale => {
                let recorded = self.store.interaction(interaction_id).await?.unwrap_or(interaction);
                match reply::take(&recorded, &reply, self.clock.stamp().at)? {
                    Taken::Again => Ok(Outcome::Repeated(run_id)),
                    Taken::First(_) => Err(refused.into()),
                }
            }
            taken => taken,
        }
    }

    /// The conversation was heard from: whatever could not be brought to it gets its second chance.
    pub async fn conversation_spoke(&self, conversation_ref: &str) -> Result<(), DeskError> {
        for run in self.store.undelivered_to(conversation_ref).await? {
            self.take(run, Event::ConversationSpoke).await?;
        }
        Ok(())
    }

    /// Lets every deadline pass that is due, and says how many were.
    pub async fn ring(&self, now: Timestamp, limit: usize) -> Result<usize, DeskError> {
        let due = self.store.due(now, limit).await?;
        for (run, deadline) in &due {
            self.take(*run, Event::DeadlinePassed { deadline: deadline.kind }).await?;
        }
        Ok(due.len())
    }

    /// Grants free slots to the longest-waiting runs until there are no more of either.
    pub async fn admit(&self) -> Result<usize, DeskError> {
        let mut admitted = 0;
        while let Some(run) = self.reserve_next() {
            match self.take(run, Event::Admitted).await {
                Ok(_) => admitted += 1,
                Err(error) => {
                    self.look_again(run).await?;
                    // It was admitted or ended elsewhere; that is all we wanted to know.
                    if !matches!(error, DeskError::Refused(Refused::NotQueued { .. } | Refused::NoSuchRun)) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(admitted)
    }

    /// Takes any event for a run: applies it, commits it, and grants a free slot in the same commit if the run
    /// now waits for one and is the next in line.
    pub async fn take(&self, run_id: RunId, event: Event) -> Result<Outcome, DeskError> {
        let _lane = self.lanes.enter(run_id).await;
        for _ in 1..CONFLICT_TRIES {
            match self.try_take(run_id, event.clone()).await {
                Err(DeskError::Store(StoreError::Conflict { .. })) => {}
                taken => return taken,
            }
        }
        self.try_take(run_id, event).await
    }

    async fn try_take(&self, run_id: RunId, event: Event) -> Result<Outcome, DeskError> {
        let before = self.store.run(run_id).await?;
        let stamp = self.clock.stamp();
        let step = (self.rules)(before.as_ref(), &stamp, &event)?;
        if step.news == News::Absorbed {
            return Ok(Outcome::Absorbed);
        }
        let mut changes = vec![Change::new(before.as_ref(), stamp, event, step)];
        let reserved = self.reserve(&changes[0].run);
        if reserved {
            let queued = &changes[0].run;
            let stamp = self.clock.stamp();
            let step = (self.rules)(Some(queued), &stamp, &Event::Admitted)?;
            let admitted = Change::new(Some(queued), stamp, Event::Admitted, step);
            changes.push(admitted);
        }
        let after = changes[changes.len() - 1].run.clone();
        match self.store.commit(Commit { changes }).await {
            Ok(_) => {
                self.observe(run_id, Some(&after));
                Ok(Outcome::Changed(Box::new(after)))
            }
            // It may have been written: only the store knows what the run is now.
            Err(unknown @ StoreError::OutcomeUnknown { .. }) => {
                self.look_again(run_id).await?;
                Err(unknown.into())
            }
            Err(error) => {
                self.observe(run_id, before.as_ref());
                Err(error.into())
            }
        }
    }

    // Slots.

    /// How many runs hold a slot, and how many wait.
    pub fn occupancy(&self) -> (usize, usize) {
        let slots = self.slots();
        (slots.held(), slots.queued())
    }

    /// Takes a slot for a run that is the next in line, before its admission is committed.
    fn reserve(&self, run: &Run) -> bool {
        let mut slots = self.slots();
        let Occupancy::Queued(_) = run.occupancy() else { return false };
        slots.observe(run.run_id, run.occupancy());
        let is_next = slots.next() == Some(run.run_id);
        if is_next {
            slots.observe(run.run_id, Occupancy::Holding);
        }
        is_next
    }

    fn reserve_next(&self) -> Option<RunId> {
        let mut slots = self.slots();
        let next = slots.next()?;
        slots.observe(next, Occupancy::Holding);
        Some(next)
    }

    async fn look_again(&self, run: RunId) -> Result<(), DeskError> {
        let stored = self.store.run(run).await?;
        self.observe(run, stored.as_ref());
        Ok(())
    }

    fn observe(&self, run_id: RunId, run: Option<&Run>) {
        self.slots().observe(run_id, run.map_or(Occupancy::None, Run::occupancy));
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key that was used before: for the same request, or by mistake for another one.
fn repetition(claims: &[Claim], scope: &str, key: &str, holder: Claimed) -> Result<Outcome, DeskError> {
    let same = claims.iter().any(|claim| {
        (claim.scope.as_str(), claim.key.as_str(), &claim.fingerprint) == (scope, key, &holder.fingerprint)
    });
    if same {
        Ok(Outcome::Repeated(holder.run_id))
    } else {
        Err(DeskError::KeyReused { key: key.to_owned(), run_id: holder.run_id })
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("slots", &*self.slots()).finish_non_exhaustive()
    }
}
