//! Finds out what an engine's program can do, at start-up and before a run's first turn (A3), where that is not known
//! already. How it is examined is [`crate::probe`]'s trade, what is remembered of that is in `examined.rs`.

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

/// Examinations that are under way, one at a time for each engine.
#[derive(Debug, Default)]
pub(super) struct ProbesInProgress {
    engines: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<LatestProbe>>>>,
    /// How many there are.
    count: AtomicUsize,
}

/// How many examinations of an engine have ended, and the result of the last one.
#[derive(Debug, Default)]
struct LatestProbe {
    ended: u64,
    result: Option<(EngineInstallation, EngineHealth)>,
}

/// How long the engines are left alone after a start: turns that wait for the daemon come first.
const COLLECT_AFTER: Duration = Duration::from_millis(500);

/// How long a check may take whose result a person waits for.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// How long that person waits for another examination of the same engine.
const SHARED_WITHIN: Duration = Duration::from_secs(5);

/// Counts one examination for as long as it exists, also if the request that wanted it is dropped.
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
        // Somebody else's run may have had the same engine examined meanwhile.
        if let Some(known) = self.shared.examined.foresee(run) {
            return EffectResult::Told(known);
        }
        let Some(entry) = self.world.catalogue.engine(&settings.engine) else {
            let known = self.world.catalogue.names().join(", ");
            let message = format!("there is no engine {}; there are {known}", settings.engine);
            return unusable(RunFailure::new(FailureCode::EngineNotFound, message));
        };
        // Where it is asked makes no difference; whether the workspace can be used shows when a turn is launched in it.
        let Some(health) = self.examine(&entry, None).await else { return EffectResult::Closing };
        EffectResult::Told(match health.trouble {
            Some(trouble) => RunEvent::EngineUnusable { failure: trouble },
            None => self.shared.examined.resolved(&entry, &health, settings),
        })
    }

    /// Examines every engine, one after the other, so that most runs need not wait for that (A3).
    pub(crate) async fn collect_capabilities(&self) {
        tokio::time::sleep(COLLECT_AFTER).await;
        for name in self.world.catalogue.names() {
            let Some(entry) = self.world.catalogue.engine(&name) else { continue };
            if self.shared.examined.known(&entry).is_some() {
                continue;
            }
            let Some(health) = self.examine(&entry, None).await else { return };
            let (version, resume) = (health.version.unwrap_or_default(), health.resume.supported);
            let missing = health.trouble.is_some();
            tracing::debug!(engine = name, version, resume, missing, "engine examined");
        }
    }

    /// What is known of an engine, or found out while somebody waits.
    pub(crate) async fn health(&self, entry: &InstalledEngine) -> Option<EngineHealth> {
        match self.shared.examined.known(entry) {
            Some(known) => Some(known),
            None => self.examine(entry, Some(SHOWN_WITHIN)).await,
        }
    }

    /// Runs an engine's checks and judges them. A result that came while this waited for another examination of the same
    /// engine is taken as it is. None if the daemon is about to go.
    async fn examine(&self, entry: &InstalledEngine, patience: Option<Duration>) -> Option<EngineHealth> {
        let name = entry.engine.name();
        let latest = lock(&self.shared.examinations.engines).entry(name.to_owned()).or_default().clone();
        let ended_before = latest.try_lock().map(|latest| latest.ended).ok();
        let mut latest = match patience {
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
        let health = self.examine_now(entry, patience).await?;
        latest.ended += 1;
        latest.result = Some((entry.installation.clone(), health.clone()));
        Some(health)
    }

    async fn examine_now(&self, entry: &InstalledEngine, patience: Option<Duration>) -> Option<EngineHealth> {
        let (processes, shared, entry) = (self.world.processes.clone(), self.shared.clone(), entry.clone());
        let stamp = self.world.clock.stamp().fresh;
        let under_way = ProbeCounter::begin(&shared);
        let health = self
            .blocking(move || {
                let _until_it_is_over = under_way;
                let unique = stamp.to_string();
                let cancel = &shared.closing;
                let examination = ProbeRequest { directory: "/", unique: &unique, patience, cancel };
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

    /// Whether an engine is being examined.
    pub(crate) fn examines(&self) -> bool {
        self.shared.examinations.count.load(Ordering::Acquire) > 0
    }
}

fn unusable(failure: RunFailure) -> EffectResult {
    EffectResult::Told(RunEvent::EngineUnusable { failure })
}
