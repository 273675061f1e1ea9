//! The daemon as one thing: what people ask of it, what it does by itself, and how it stops.
//!
//! Everybody outside (HTTP, the command line, chat) holds a [`Daemon`]. Requests go through the desk and are followed up
//! by the performer; what is looked at comes from the store. How requests look on a wire is not known here.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use abide_domain::{
    event::{Event, NewRun},
    id::RunId,
    inbound::Message,
    reply::Reply,
    run::{Run, RunState, Working},
    settings::OnBusy,
    slots::Occupancy,
    time::{Seconds, Timestamp},
};
use abide_ports::{
    catalogue::Catalogue,
    engine::Health,
    store::{Store, StoreError},
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    desk::Outcome,
    error::DeskError,
    performer::{Performer, World, name},
};

/// A handle to the daemon. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Daemon(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    world: World,
    performer: Performer,
    habits: Habits,
    ready: AtomicBool,
}

/// What can be set about the daemon as a whole.
#[derive(Clone, Debug)]
pub struct Habits {
    /// After how much silence a working turn is called stalled. Nothing is done about it.
    pub stall_after: Seconds,
    /// How many turns may work at a time.
    pub slots: usize,
    /// The directory in which runs without a workspace of their owner's get one of their own.
    pub workspaces: String,
}

/// What an orderly stop ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Runs whose turn was stopped.
    pub turns: Vec<RunId>,
    /// Runs whose process waited for a person or for the next message.
    pub waits: Vec<RunId>,
}

/// How long to wait at the most before deadlines are looked at again, whatever is known of them.
const LONGEST_NAP: Duration = Duration::from_secs(60);
/// A new deadline is never nearer than this, so that not every change needs a look.
const SHORTEST_NAP: Duration = Duration::from_millis(100);
/// How long an orderly stop waits for turns to stop, beyond the patience that the domain has with them.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

impl Daemon {
    /// A daemon that has not looked at anything yet.
    pub fn new(world: World, habits: Habits) -> Self {
        let performer = Performer::new(world.clone());
        Self(Arc::new(Inner { world, performer, habits, ready: AtomicBool::new(false) }))
    }

    /// Takes up everything that an earlier daemon left: what is found dead comes in as an event, what lives is listened
    /// to, what is owed is performed. Then it is ready.
    pub async fn reconcile(&self) -> Result<(), DeskError> {
        self.0.performer.reconcile().await?;
        self.0.performer.ring().await?;
        for run in self.0.world.desk.admit().await? {
            self.0.performer.look_after(run);
        }
        self.0.ready.store(true, Ordering::Release);
        let (held, queued) = self.occupancy();
        tracing::info!(held, queued, "reconciled");
        Ok(())
    }

    /// Whether everything that was found at start-up has been taken up.
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire)
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
            let nap = match self.next_deadline().await {
                Ok(Some(at)) => Duration::from_micros(self.now().until(at).0).min(LONGEST_NAP),
                Ok(None) => LONGEST_NAP,
                Err(_) => SHORTEST_NAP,
            };
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                _ = changes.changed() => tokio::time::sleep(SHORTEST_NAP.min(nap)).await,
            }
        }
    }

    async fn next_deadline(&self) -> Result<Option<Timestamp>, StoreError> {
        let due = self.0.world.store.due(Timestamp(i64::MAX), 1).await?;
        Ok(due.first().map(|(_, deadline)| deadline.at))
    }

    /// Creates a run, once for each idempotency key and message.
    pub async fn create(&self, new: NewRun) -> Result<Outcome, DeskError> {
        let outcome = self.0.world.desk.create(new).await?;
        self.followed_up(outcome).await
    }

    /// Says something to a run, once for each message.
    pub async fn message(
        &self,
        run: RunId,
        message: Message,
        on_busy: Option<OnBusy>,
    ) -> Result<Outcome, DeskError> {
        let outcome = self.0.world.desk.message(run, message, on_busy).await?;
        self.followed_up(outcome).await
    }

    /// Answers a question. The first answer counts.
    pub async fn reply(&self, reply: Reply) -> Result<Outcome, DeskError> {
        let outcome = self.0.world.desk.reply(reply).await?;
        self.followed_up(outcome).await
    }

    /// Stops the turn at work.
    pub async fn interrupt(&self, run: RunId, by: &str) -> Result<Outcome, DeskError> {
        let outcome = self.0.world.desk.take(run, Event::InterruptRequested { by: by.to_owned() }).await?;
        self.followed_up(outcome).await
    }

    /// Ends a run.
    pub async fn cancel(&self, run: RunId, by: &str) -> Result<Outcome, DeskError> {
        let outcome = self.0.world.desk.take(run, Event::CancelRequested { by: by.to_owned() }).await?;
        self.followed_up(outcome).await
    }

    async fn followed_up(&self, outcome: Outcome) -> Result<Outcome, DeskError> {
        self.0.performer.follow_up(&outcome).await;
        Ok(outcome)
    }

    /// Where everything is looked up.
    pub fn store(&self) -> &dyn Store {
        &*self.0.world.store
    }

    /// Which engines there are.
    pub fn catalogue(&self) -> &dyn Catalogue {
        &*self.0.world.catalogue
    }

    /// Whether an engine can be used, and what for.
    pub async fn examine(&self, engine: &str) -> Option<Health> {
        let entry = self.0.world.catalogue.engine(engine)?;
        Some(self.0.performer.examine(&entry, "/").await)
    }

    /// Something that changes whenever a run does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.performer.changes()
    }

    /// What time it is, and a number that never comes again.
    pub fn stamp(&self) -> abide_domain::time::Stamp {
        self.0.world.clock.stamp()
    }

    /// What can be set about it.
    pub fn habits(&self) -> &Habits {
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
        let RunState::Running(Working::Active(active)) = &run.state else { return None };
        let heard = self.0.world.processes.last_heard(&name(run.run_id, active.live.attempt))?;
        (self.now().since(heard) >= self.0.habits.stall_after).then_some(heard)
    }

    /// The workspace of a run whose owner named none.
    pub fn own_workspace(&self, run: RunId) -> String {
        format!("{}/{run}", self.0.habits.workspaces)
    }

    /// Stops in order: nothing new is begun, turns are interrupted and waited for, waiting processes are ended. Who only
    /// wants to go and leave everything to the keepers need not call this.
    pub async fn stop(&self) -> Result<Stopped, DeskError> {
        self.0.world.desk.close();
        let mut changes = self.changes();
        let mut stopped = Stopped::default();
        for (run, occupancy) in self.0.world.store.occupying().await? {
            if occupancy != Occupancy::Holding {
                continue;
            }
            if self.interrupt(run, SHUTDOWN).await.is_ok() {
                stopped.turns.push(run);
            } else {
                stopped.waits.push(run);
            }
        }
        let waited = tokio::time::timeout(STOP_PATIENCE, async {
            while self.works().await? {
                let _the_daemon_itself_keeps_it_open = changes.changed().await;
            }
            Ok::<(), DeskError>(())
        });
        if let Ok(Err(error)) = waited.await {
            return Err(error);
        }
        self.0.performer.end_held().await?;
        Ok(stopped)
    }

    /// Whether any turn is at work.
    async fn works(&self) -> Result<bool, DeskError> {
        for (run, _) in self.0.world.store.occupying().await? {
            let run = self.0.world.store.run(run).await?;
            if run.is_some_and(|run| matches!(run.state, RunState::Running(_))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn now(&self) -> Timestamp {
        self.stamp().at
    }
}

/// Who stops turns when the daemon is stopped.
const SHUTDOWN: &str = "shutdown";
