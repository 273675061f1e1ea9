//! Probes engines at start-up and before the first turn of a run (A3), unless the result is cached. The probe itself is
//! in [`crate::probe`], the cache in `examined.rs`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use abide_domain::{
    event::RunEvent,
    failure::{FailureCode, RunFailure},
    run::Run,
};
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{EngineHealth, EngineInstallation},
};

use super::{EffectExecutor, EffectResult, lock};
use crate::probe::{self, ProbeRequest};

/// Running probes, one at a time for each engine.
#[derive(Debug, Default)]
pub(super) struct ProbesInProgress {
    engines: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<LatestProbe>>>>,
    /// Number of running probes.
    count: AtomicUsize,
}

/// Number of completed probes of an engine, and the last result.
#[derive(Debug, Default)]
struct LatestProbe {
    ended: u64,
    result: Option<(EngineInstallation, EngineHealth)>,
}

/// Delay of the first probes after the start, because waiting turns have priority.
const COLLECT_AFTER: Duration = Duration::from_millis(500);

/// Time limit of a probe whose result a user waits for.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// Time limit of that user's wait for another probe of the same engine.
const SHARED_WITHIN: Duration = Duration::from_secs(5);

/// Counts a running probe until it is dropped, even if the request for it is dropped earlier.
struct ProbeCounter(Arc<super::ExecutorInner>);

impl ProbeCounter {
    fn begin(shared: &Arc<super::ExecutorInner>) -> Self {
        shared.examinations.count.fetch_add(1, Ordering::AcqRel);
        Self(shared.clone())
    }
}

impl Drop for ProbeCounter {
    fn drop(&mut self) {
        self.0.examinations.count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl EffectExecutor {
    pub(super) async fn probe(&self, run: &Run) -> EffectResult {
        let settings = &run.settings;
        // The engine may have been probed for another run meanwhile.
        if let Some(known) = self.shared.examined.cached_result(run) {
            return EffectResult::Told(known);
        }
        let Some(entry) = self.world.catalogue.engine(&settings.engine) else {
            let known = self.world.catalogue.names().join(", ");
            let message = format!("there is no engine {}; there are {known}", settings.engine);
            return unusable(RunFailure::new(FailureCode::EngineNotFound, message));
        };
        // The directory does not affect the result. The launch of a turn checks the workspace.
        let Some(health) = self.examine(&entry, None).await else { return EffectResult::Closing };
        EffectResult::Told(match health.failure {
            Some(trouble) => RunEvent::EngineUnusable { failure: trouble },
            None => self.shared.examined.resolved(&entry, &health, settings),
        })
    }

    /// Probes all engines, one after the other, so that most runs need not wait (A3).
    pub(crate) async fn collect_capabilities(&self) {
        tokio::time::sleep(COLLECT_AFTER).await;
        for name in self.world.catalogue.names() {
            let Some(entry) = self.world.catalogue.engine(&name) else { continue };
            if self.shared.examined.known(&entry).is_some() {
                continue;
            }
            let Some(health) = self.examine(&entry, None).await else { return };
            let (version, resume) = (health.version.unwrap_or_default(), health.resume.supported);
            let missing = health.failure.is_some();
            tracing::debug!(engine = name, version, resume, missing, "engine examined");
        }
    }

    /// The cached result for an engine, or the result of a probe with a time limit.
    pub(crate) async fn health(&self, entry: &InstalledEngine) -> Option<EngineHealth> {
        match self.shared.examined.known(entry) {
            Some(known) => Some(known),
            None => self.examine(entry, Some(SHOWN_WITHIN)).await,
        }
    }

    /// Probes an engine and evaluates the result. If another probe of the same engine completes while this one waits,
    /// its result is used. None if the daemon is shutting down.
    async fn examine(&self, entry: &InstalledEngine, timeout: Option<Duration>) -> Option<EngineHealth> {
        let name = entry.engine.name();
        let latest = lock(&self.shared.examinations.engines).entry(name.to_owned()).or_default().clone();
        let ended_before = latest.try_lock().map(|latest| latest.ended).ok();
        let mut latest = match timeout {
            None => latest.lock().await,
            Some(_) => match tokio::time::timeout(SHARED_WITHIN, latest.lock()).await {
                Ok(latest) => latest,
                Err(_) => return Some(probe::unanswered(entry)),
            },
        };
        if let Some((installation, health)) = &latest.result
            && ended_before != Some(latest.ended)
            && *installation == entry.installation
        {
            return Some(health.clone());
        }
        let health = self.examine_now(entry, timeout).await?;
        latest.ended += 1;
        latest.result = Some((entry.installation.clone(), health.clone()));
        Some(health)
    }

    async fn examine_now(&self, entry: &InstalledEngine, timeout: Option<Duration>) -> Option<EngineHealth> {
        let (processes, shared, entry) = (self.world.processes.clone(), self.shared.clone(), entry.clone());
        let stamp = self.world.clock.stamp().id_seed;
        let under_way = ProbeCounter::begin(&shared);
        let health = self
            .blocking(move || {
                // Counts the probe until the blocking work is done.
                let _counter = under_way;
                let unique = stamp.to_string();
                let cancel = &shared.closing;
                let examination = ProbeRequest { directory: "/", unique: &unique, timeout, cancel };
                let program = shared.examined.program(&entry);
                let (health, lasts) = probe::look(&*processes, &entry, &examination);
                if let Some(program) = program.filter(|_| lasts) {
                    shared.examined.remember(program, health.clone());
                }
                health
            })
            .await;
        (!self.is_closing()).then_some(health)
    }

    /// Whether a probe is running.
    pub(crate) fn examines(&self) -> bool {
        self.shared.examinations.count.load(Ordering::Acquire) > 0
    }
}

fn unusable(failure: RunFailure) -> EffectResult {
    EffectResult::Told(RunEvent::EngineUnusable { failure })
}
