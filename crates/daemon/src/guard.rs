//! The crash guard: a task that has crashed the daemon three times in a row no longer crashes the next one.
//!
//! Before an effect, a deletion or a notification is executed, its name is recorded ([`CrashLog`]). If a daemon died
//! with exactly one name on record, that task is blamed for the crash. Its completion clears the count. From the third
//! crash on, the task is quarantined: it is executed only by a daemon that is ready, alone, and after a pause that
//! grows from one minute to one hour. Nothing is dropped, and no run fails because of it.
//!
//! A crash with several names on record identifies no task. After three of those in a row, tasks are executed one at a
//! time for a while, so that the next crash identifies one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use abide_domain::time::{TimeSpan, Timestamp};
use abide_ports::{
    clock::Clock,
    crash_log::{CrashGuardState, CrashLog, CrashLogContents, CrashSuspect, MAX_CONSECUTIVE_DEATHS},
    operation_guard::{AdmissionFuture, GuardedOperation, OperationGuard},
};
use tokio::sync::watch;

/// The pauses of a quarantined task. Each further crash doubles the pause, up to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardPauses {
    /// The pause after the third crash.
    pub first: Duration,
    /// The maximum pause.
    pub last: Duration,
}

impl Default for GuardPauses {
    fn default() -> Self {
        Self { first: Duration::from_secs(60), last: Duration::from_secs(3_600) }
    }
}

/// Maximum wait for the exclusive lock. New tasks are blocked meanwhile.
const ALONE_WAIT: Duration = Duration::from_millis(500);
/// Pause before the next attempt to get the exclusive lock.
const CROWDED_PAUSE: Duration = Duration::from_secs(30);
/// Maximum time of exclusive execution. After that, other tasks run concurrently.
const ALONE_BOUND: Duration = Duration::from_secs(5);
/// Retry interval of quarantined tasks before the daemon is ready.
const READY_PAUSE: Duration = Duration::from_secs(1);
/// Uptime of a ready daemon after which unattributed crashes are forgotten.
const CALM_AFTER: Duration = Duration::from_secs(60);

/// Decides which tasks may be executed now. Clones share the same state.
#[derive(Clone)]
pub struct CrashGuard(Arc<CrashGuardInner>);

struct CrashGuardInner {
    log: Option<Arc<dyn CrashLog>>,
    clock: Arc<dyn Clock>,
    state: watch::Sender<CrashGuardMemory>,
}

#[derive(Default)]
struct CrashGuardMemory {
    suspects: BTreeMap<String, CrashSuspect>,
    crowded_deaths: u32,
    is_ready: bool,
    /// Number of tasks that are being executed.
    running: u64,
    /// The task that is executed alone or waits for that, by its number.
    alone: Option<u64>,
    last_alone: u64,
}

/// Whether a task may be executed.
#[derive(Debug)]
pub enum CrashGuardDecision {
    /// The task may be executed after [`GuardedEffect::begin`].
    Now(GuardedEffect),
    /// The task must wait at least this long.
    Later(Duration),
}

/// A task that is being executed. Dropping it removes the record and keeps the crash count. Its methods write to the
/// crash log, so they block.
#[must_use]
pub struct GuardedEffect {
    guard: CrashGuard,
    item: String,
    place: Option<usize>,
    /// The number of an exclusive execution.
    alone: Option<u64>,
}

impl CrashGuard {
    /// A guard that records nothing and admits every task.
    pub fn none(clock: Arc<dyn Clock>) -> Self {
        Self::new(None, clock, CrashGuardMemory::default())
    }

    /// Creates a guard from the records of earlier daemons.
    pub fn open(
        log: Arc<dyn CrashLog>,
        remains: CrashLogContents,
        clock: Arc<dyn Clock>,
        pauses: GuardPauses,
    ) -> Self {
        let CrashLogContents { in_flight, state } = remains;
        let mut memory = CrashGuardMemory {
            suspects: state.suspects.into_iter().map(|suspect| (suspect.item.clone(), suspect)).collect(),
            crowded_deaths: state.concurrent_deaths,
            ..CrashGuardMemory::default()
        };
        match in_flight.as_slice() {
            [] => {}
            [item] => memory.blame(item, clock.stamp().at, pauses),
            several => {
                memory.crowded_deaths = memory.crowded_deaths.saturating_add(1);
                let (count, deaths) = (several.len(), memory.crowded_deaths);
                tracing::warn!(count, deaths, "the last daemon died while it performed several effects");
            }
        }
        let guard = Self::new(Some(log), clock, memory);
        guard.save(&guard.0.state.borrow());
        for suspect in guard.set_aside() {
            let CrashSuspect { item, deaths, .. } = suspect;
            tracing::error!(
                item,
                deaths,
                "set aside, because daemons died during it; `abide doctor` shows it"
            );
        }
        guard
    }

    fn new(log: Option<Arc<dyn CrashLog>>, clock: Arc<dyn Clock>, memory: CrashGuardMemory) -> Self {
        Self(Arc::new(CrashGuardInner { log, clock, state: watch::channel(memory).0 }))
    }

    /// Records a task, if it may be executed now.
    pub async fn admit(&self, item: &str) -> CrashGuardDecision {
        let (retry_at, is_ready, is_careful) = {
            let memory = self.0.state.borrow();
            let suspect = memory.suspects.get(item).filter(|suspect| suspect.is_set_aside());
            let is_careful = memory.crowded_deaths >= MAX_CONSECUTIVE_DEATHS;
            (suspect.map(|suspect| Timestamp(suspect.retry_at)), memory.is_ready, is_careful)
        };
        let alone = match retry_at {
            Some(retry_at) => {
                let wait = Duration::from_micros(self.0.clock.stamp().at.span_until(retry_at).0);
                if !wait.is_zero() {
                    return CrashGuardDecision::Later(wait);
                }
                if !is_ready {
                    return CrashGuardDecision::Later(READY_PAUSE);
                }
                let Ok(alone) = tokio::time::timeout(ALONE_WAIT, self.begin_alone()).await else {
                    return CrashGuardDecision::Later(CROWDED_PAUSE);
                };
                tracing::warn!(item, "tried again, alone");
                Some(alone)
            }
            None if is_careful => Some(self.begin_alone().await),
            None => {
                self.begin_shared().await;
                None
            }
        };
        CrashGuardDecision::Now(GuardedEffect {
            guard: self.clone(),
            item: item.to_owned(),
            place: None,
            alone,
        })
    }

    /// Waits until no task is executed alone.
    async fn begin_shared(&self) {
        self.begin(|memory| {
            memory.alone.is_none() && {
                memory.running += 1;
                true
            }
        })
        .await;
    }

    /// Waits until no task is executed. New tasks wait meanwhile. The exclusive execution is bounded in time; after
    /// that, other tasks run concurrently.
    async fn begin_alone(&self) -> u64 {
        let mut number = 0;
        self.begin(|memory| {
            memory.alone.is_none() && {
                memory.last_alone += 1;
                number = memory.last_alone;
                memory.alone = Some(number);
                true
            }
        })
        .await;
        let waiting = AloneIntent { guard: self, number };
        self.begin(|memory| {
            memory.running == 0 && {
                memory.running += 1;
                true
            }
        })
        .await;
        std::mem::forget(waiting);
        let guard = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ALONE_BOUND).await;
            guard.end_alone(number);
        });
        number
    }

    /// Waits until `try_begin` changes the state and returns true.
    async fn begin(&self, mut try_begin: impl FnMut(&mut CrashGuardMemory) -> bool) {
        let mut changes = self.0.state.subscribe();
        while !self.0.state.send_if_modified(&mut try_begin) {
            // The sender is owned by `self`, so the channel stays open.
            changes.changed().await.ok();
        }
    }

    fn end_alone(&self, number: u64) {
        self.0.state.send_if_modified(|memory| memory.alone.take_if(|alone| *alone == number).is_some());
    }

    /// Called when the daemon is ready: quarantined tasks may be retried.
    pub fn ready(&self) {
        self.0.state.send_modify(|memory| memory.is_ready = true);
        if self.0.state.borrow().crowded_deaths > 0 {
            let guard = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(CALM_AFTER).await;
                guard.calm();
            });
        }
    }

    /// Whether [`Self::ready`] was called.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.state.borrow().is_ready
    }

    /// Called at a regular shutdown: tasks on record are not blamed for it.
    pub fn close(&self) {
        if let Some(log) = &self.0.log {
            self.calm();
            log.close();
        }
    }

    fn calm(&self) {
        self.update(|memory| std::mem::take(&mut memory.crowded_deaths) > 0);
    }

    /// The quarantined tasks.
    pub fn set_aside(&self) -> Vec<CrashSuspect> {
        self.0.state.borrow().suspects.values().filter(|suspect| suspect.is_set_aside()).cloned().collect()
    }

    /// Forgets tasks with this prefix that are no longer pending.
    pub fn forget(&self, prefix: &str, is_owed: impl Fn(&str) -> bool) {
        self.update(|memory| {
            let before = memory.suspects.len();
            memory.suspects.retain(|item, _| !item.starts_with(prefix) || is_owed(item));
            memory.suspects.len() != before
        });
    }

    /// Whether a task with this prefix has been blamed for a crash.
    pub fn suspects_any(&self, prefix: &str) -> bool {
        self.0.state.borrow().suspects.keys().any(|item| item.starts_with(prefix))
    }

    fn succeeded(&self, item: &str) {
        self.update(|memory| {
            let Some(suspect) = memory.suspects.remove(item) else { return false };
            tracing::info!(
                item,
                deaths = suspect.deaths,
                "performed after earlier daemons had died during it"
            );
            true
        });
    }

    /// Saves the state if `change` returns true.
    fn update(&self, change: impl FnOnce(&mut CrashGuardMemory) -> bool) {
        self.0.state.send_if_modified(|memory| {
            let is_changed = change(memory);
            if is_changed {
                self.save(memory);
            }
            is_changed
        });
    }

    fn save(&self, memory: &CrashGuardMemory) {
        if let Some(log) = &self.0.log {
            let suspects = memory.suspects.values().cloned().collect();
            log.save(&CrashGuardState { suspects, concurrent_deaths: memory.crowded_deaths });
        }
    }
}

/// The intent to execute a task alone. It ends if the wait is cancelled.
struct AloneIntent<'a> {
    guard: &'a CrashGuard,
    number: u64,
}

impl Drop for AloneIntent<'_> {
    fn drop(&mut self) {
        self.guard.end_alone(self.number);
    }
}

impl OperationGuard for CrashGuard {
    fn admit<'a>(&'a self, item: &'a str) -> AdmissionFuture<'a> {
        Box::pin(async move {
            match CrashGuard::admit(self, item).await {
                CrashGuardDecision::Now(mut operation) => {
                    operation.begin();
                    Some(Box::new(operation) as Box<dyn GuardedOperation>)
                }
                CrashGuardDecision::Later(_) => None,
            }
        })
    }

    fn forget(&self, prefix: &str, is_pending: &dyn Fn(&str) -> bool) {
        CrashGuard::forget(self, prefix, is_pending);
    }
}

impl GuardedOperation for GuardedEffect {
    fn succeeded(self: Box<Self>) {
        GuardedEffect::succeeded(*self);
    }
}

impl CrashGuardMemory {
    /// Blames a task for a crash.
    fn blame(&mut self, item: &str, now: Timestamp, pauses: GuardPauses) {
        let earlier = self.suspects.get(item).map_or(0, |suspect| suspect.deaths);
        let deaths = earlier.saturating_add(1);
        let doubled = deaths.saturating_sub(MAX_CONSECUTIVE_DEATHS).min(16);
        let pause = pauses.first.saturating_mul(1 << doubled).min(pauses.last);
        let pause = TimeSpan(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX));
        tracing::warn!(item, deaths, "the last daemon died during this effect");
        let suspect = CrashSuspect { item: item.to_owned(), deaths, retry_at: now.add_span(pause).0 };
        self.suspects.insert(item.to_owned(), suspect);
    }
}

impl GuardedEffect {
    /// Records that the task begins.
    pub fn begin(&mut self) {
        self.place = self.guard.0.log.as_ref().map(|log| log.begin(&self.item));
    }

    /// Records the completion of the task, with any result.
    pub fn succeeded(self) {
        self.guard.succeeded(&self.item);
    }
}

impl Drop for GuardedEffect {
    fn drop(&mut self) {
        if let (Some(log), Some(place)) = (&self.guard.0.log, self.place) {
            log.end(place);
        }
        self.guard.0.state.send_modify(|memory| memory.running -= 1);
        if let Some(number) = self.alone {
            self.guard.end_alone(number);
        }
    }
}
