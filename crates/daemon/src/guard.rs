//! The crash guard: a task that has crashed the daemon three times in a row no longer crashes the next one.
//!
//! Before an effect, a deletion or a notification is executed, its name is recorded ([`CrashLog`]). If a daemon died
//! with exactly one name on record, that task is blamed for the crash. Its completion clears the count. From the third
//! crash on, the task is quarantined: it is executed only by a daemon that is ready, alone, and after a pause that
//! grows from one minute to one hour. Nothing is dropped, and no run fails because of it.
//!
//! A crash with several names on record identifies no task. After three of those in a row, tasks are executed one at a
//! time for a while, so that the next crash identifies one.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use abide_domain::time::{TimeSpan, Timestamp};
use abide_ports::{
    clock::Clock,
    crash_log::{CrashGuardState, CrashLog, CrashLogContents, CrashSuspect, MAX_CONSECUTIVE_DEATHS},
    operation_guard::{AdmissionFuture, GuardedOperation, OperationGuard},
};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

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
    /// Locked shared by all tasks, and exclusively by quarantined ones.
    gate: Arc<RwLock<()>>,
    memory: Mutex<CrashGuardMemory>,
    is_ready: AtomicBool,
}

#[derive(Default)]
struct CrashGuardMemory {
    suspects: BTreeMap<String, CrashSuspect>,
    crowded_deaths: u32,
}

/// Whether a task may be executed.
#[derive(Debug)]
pub enum CrashGuardDecision {
    /// The task is recorded and may be executed.
    Now(GuardedEffect),
    /// The task must wait at least this long.
    Later(Duration),
}

/// A task that is being executed. Dropping it removes the record and keeps the crash count.
#[must_use]
pub struct GuardedEffect {
    guard: CrashGuard,
    item: String,
    place: Option<usize>,
    _permit: CrashGuardPermit,
}

enum CrashGuardPermit {
    Shared { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: Arc<Mutex<Option<OwnedRwLockWriteGuard<()>>>> },
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
        guard.save(&guard.memory());
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
        let (gate, memory) = (Arc::default(), Mutex::new(memory));
        Self(Arc::new(CrashGuardInner { log, clock, gate, memory, is_ready: AtomicBool::new(false) }))
    }

    /// Records a task, if it may be executed now.
    pub async fn admit(&self, item: &str) -> CrashGuardDecision {
        let Some(log) = &self.0.log else {
            let permit = CrashGuardPermit::Shared { _guard: self.0.gate.clone().read_owned().await };
            return CrashGuardDecision::Now(self.performance(item, None, permit));
        };
        let (retry_at, is_careful) = {
            let memory = self.memory();
            let suspect = memory.suspects.get(item).filter(|suspect| suspect.is_set_aside());
            (suspect.map(|suspect| Timestamp(suspect.retry_at)), memory.is_careful())
        };
        let permit = match retry_at {
            Some(retry_at) => {
                let wait = Duration::from_micros(self.0.clock.stamp().at.span_until(retry_at).0);
                if !wait.is_zero() {
                    return CrashGuardDecision::Later(wait);
                }
                if !self.0.is_ready.load(Ordering::Acquire) {
                    return CrashGuardDecision::Later(READY_PAUSE);
                }
                match tokio::time::timeout(ALONE_WAIT, self.0.gate.clone().write_owned()).await {
                    Ok(gate) => {
                        tracing::warn!(item, "tried again, alone");
                        alone(gate)
                    }
                    Err(_) => return CrashGuardDecision::Later(CROWDED_PAUSE),
                }
            }
            None if is_careful => alone(self.0.gate.clone().write_owned().await),
            None => CrashGuardPermit::Shared { _guard: self.0.gate.clone().read_owned().await },
        };
        CrashGuardDecision::Now(self.performance(item, Some(log.begin(item)), permit))
    }

    fn performance(&self, item: &str, place: Option<usize>, permit: CrashGuardPermit) -> GuardedEffect {
        GuardedEffect { guard: self.clone(), item: item.to_owned(), place, _permit: permit }
    }

    /// Called when the daemon is ready: quarantined tasks may be retried.
    pub fn ready(&self) {
        self.0.is_ready.store(true, Ordering::Release);
        if self.memory().crowded_deaths > 0 {
            let guard = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(CALM_AFTER).await;
                guard.calm();
            });
        }
    }

    /// Called at a regular shutdown: tasks on record are not blamed for it.
    pub fn close(&self) {
        if let Some(log) = &self.0.log {
            self.calm();
            log.close();
        }
    }

    fn calm(&self) {
        let mut memory = self.memory();
        if memory.crowded_deaths > 0 {
            memory.crowded_deaths = 0;
            self.save(&memory);
        }
    }

    /// The quarantined tasks.
    pub fn set_aside(&self) -> Vec<CrashSuspect> {
        self.memory().suspects.values().filter(|suspect| suspect.is_set_aside()).cloned().collect()
    }

    /// Forgets tasks with this prefix that are no longer pending.
    pub fn forget(&self, prefix: &str, is_owed: impl Fn(&str) -> bool) {
        let mut memory = self.memory();
        let before = memory.suspects.len();
        memory.suspects.retain(|item, _| !item.starts_with(prefix) || is_owed(item));
        if memory.suspects.len() != before {
            self.save(&memory);
        }
    }

    /// Whether a task with this prefix has been blamed for a crash.
    pub fn suspects_any(&self, prefix: &str) -> bool {
        self.memory().suspects.keys().any(|item| item.starts_with(prefix))
    }

    fn succeeded(&self, item: &str) {
        let mut memory = self.memory();
        if let Some(suspect) = memory.suspects.remove(item) {
            let deaths = suspect.deaths;
            tracing::info!(item, deaths, "performed after earlier daemons had died during it");
            self.save(&memory);
        }
    }

    fn save(&self, memory: &CrashGuardMemory) {
        if let Some(log) = &self.0.log {
            let suspects = memory.suspects.values().cloned().collect();
            log.save(&CrashGuardState { suspects, concurrent_deaths: memory.crowded_deaths });
        }
    }

    fn memory(&self) -> MutexGuard<'_, CrashGuardMemory> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OperationGuard for CrashGuard {
    fn admit<'a>(&'a self, item: &'a str) -> AdmissionFuture<'a> {
        Box::pin(async move {
            match CrashGuard::admit(self, item).await {
                CrashGuardDecision::Now(operation) => Some(Box::new(operation) as Box<dyn GuardedOperation>),
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

    /// Whether tasks are executed one at a time.
    fn is_careful(&self) -> bool {
        self.crowded_deaths >= MAX_CONSECUTIVE_DEATHS
    }
}

/// Exclusive execution for a bounded time.
fn alone(gate: OwnedRwLockWriteGuard<()>) -> CrashGuardPermit {
    let held = Arc::new(Mutex::new(Some(gate)));
    let released = Arc::downgrade(&held);
    tokio::spawn(async move {
        tokio::time::sleep(ALONE_BOUND).await;
        if let Some(held) = released.upgrade() {
            held.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    });
    CrashGuardPermit::Alone { _guard: held }
}

impl GuardedEffect {
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
    }
}

impl fmt::Debug for CrashGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashGuard").finish_non_exhaustive()
    }
}

impl fmt::Debug for GuardedEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedEffect").field("item", &self.item).finish_non_exhaustive()
    }
}
