//! The orderly shutdown: every process of a run is ended, and the domain decides the new state of each run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use abide_domain::{
    effect::Effect,
    event::RunEvent,
    id::RunId,
    run::{Run, RunState, RunningPhase},
    slots::SlotOccupancy,
};
use tokio::sync::watch;

use crate::{
    error::RequestError,
    service::{Daemon, EFFECTS_PER_PAGE, LEAVE_TIMEOUT},
};

/// The result of a shutdown.
#[derive(Clone, Debug, Default)]
pub struct ShutdownReport {
    /// Every run that held a process or was about to start one.
    pub runs: Vec<StoppedRun>,
}

/// The result of a shutdown for one run.
#[derive(Clone, Debug)]
pub struct StoppedRun {
    pub was: ActivityBeforeStop,
    /// The run after the shutdown.
    pub run: Arc<Run>,
    /// False if a process could not be ended in time. Its keeper continues, and the next daemon reattaches to it.
    pub is_stopped: bool,
}

/// The activity of a run at the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityBeforeStop {
    /// A turn was running.
    Turn,
    /// A process waited for a person or for the next message.
    Wait,
    /// A turn had begun, but its process was not started.
    Start,
}

impl ActivityBeforeStop {
    fn of(run: &Run) -> Option<Self> {
        match &run.state {
            RunState::Running(
                RunningPhase::Active(_) | RunningPhase::Stopping(_) | RunningPhase::Recovering(_),
            ) => Some(Self::Turn),
            RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_)) => Some(Self::Start),
            RunState::WaitingUser(_) | RunState::Idle { .. } => run.live().map(|_| Self::Wait),
            RunState::Queued { .. } | RunState::Finished(_) => None,
        }
    }
}

/// Time limit of a shutdown for processes to end. It exceeds the time limits of a turn and of its keeper.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);
/// Maximum interval of checks during a shutdown.
const STOP_INTERVAL: Duration = Duration::from_millis(250);

impl Daemon {
    /// Shuts down: no process is started any more, and every process of a run is ended. The domain decides the new
    /// state of each run ([`RunEvent::ShutdownRequested`]). A daemon that leaves its processes to the keepers does not
    /// call this.
    pub async fn stop(&self) -> Result<ShutdownReport, RequestError> {
        self.close();
        let mut changes = self.changes();
        let mut before: BTreeMap<RunId, ActivityBeforeStop> = BTreeMap::new();
        let ended = async {
            loop {
                changes.mark_unchanged();
                self.request_shutdown(&mut before).await?;
                if self.activity().await.probes == 0
                    && self.with_processes(before.keys().copied()).await?.is_empty()
                {
                    return Ok::<(), RequestError>(());
                }
                // The end of a process does not always cause a change. On timeout the processes are checked again.
                tokio::time::timeout(STOP_INTERVAL, changes.changed()).await.ok();
            }
        };
        match tokio::time::timeout(STOP_TIMEOUT, ended).await {
            Ok(ended) => ended?,
            Err(_) => tracing::warn!("not every process could be ended in time"),
        }
        match tokio::time::timeout(LEAVE_TIMEOUT, self.wait_for_ends(changes)).await {
            Ok(ended) => ended?,
            Err(_) => tracing::warn!("some processes did not end in time; the next start ends them"),
        }
        let left = self.with_processes(before.keys().copied()).await?;
        let mut report = ShutdownReport::default();
        for (run_id, was) in before {
            let Some(run) = self.store().run(run_id).await? else { continue };
            let is_stopped = !left.contains(&run_id);
            report.runs.push(StoppedRun { was, run: Arc::new(run), is_stopped });
        }
        Ok(report)
    }

    /// Sends the shutdown event to every run that holds a process. Called repeatedly, because a process that was being
    /// started appears later. A run that cannot be changed is reported as not stopped.
    async fn request_shutdown(
        &self,
        before: &mut BTreeMap<RunId, ActivityBeforeStop>,
    ) -> Result<(), RequestError> {
        let mut responses = Vec::new();
        for (run_id, occupancy) in self.store().slot_occupancies().await? {
            if occupancy != SlotOccupancy::Holding {
                continue;
            }
            let Some(run) = self.store().run(run_id).await? else { continue };
            let Some(was) = ActivityBeforeStop::of(&run) else { continue };
            before.entry(run_id).or_insert(was);
            responses.push((run_id, self.request(run_id, RunEvent::ShutdownRequested)));
        }
        // A run whose keeper does not answer delays only its own response.
        for (run_id, response) in responses {
            if let Err(error) = response.await {
                tracing::error!(run = %run_id, %error, "run not stopped");
            }
        }
        Ok(())
    }

    /// Those of these runs whose process is held, being started or being ended.
    async fn with_processes(
        &self,
        runs: impl IntoIterator<Item = RunId>,
    ) -> Result<BTreeSet<RunId>, RequestError> {
        let starting = self.activity().await.with_process;
        let mut held = BTreeSet::new();
        for run_id in runs {
            let Some(run) = self.store().run(run_id).await? else { continue };
            let is_starting = run.attempt().is_some() && starting.contains(&run_id);
            let is_ending = run.pending_effects.iter().any(|pending| is_end(&pending.effect));
            if run.live().is_some() || is_starting || is_ending {
                held.insert(run_id);
            }
        }
        Ok(held)
    }

    /// Waits until all ending processes and their keepers have exited. A run that waits for a person holds no slot, but
    /// its last process may still be ending.
    async fn wait_for_ends(&self, mut changes: watch::Receiver<u64>) -> Result<(), RequestError> {
        loop {
            changes.mark_unchanged();
            if self.activity().await.with_process.is_empty() && !self.has_pending_end().await? {
                return Ok(());
            }
            // On timeout the processes are checked again.
            tokio::time::timeout(STOP_INTERVAL, changes.changed()).await.ok();
        }
    }

    async fn has_pending_end(&self) -> Result<bool, RequestError> {
        let mut cursor = None;
        loop {
            let pending = self.store().pending_effects(cursor, EFFECTS_PER_PAGE).await?;
            let Some((run, last)) = pending.last() else { return Ok(false) };
            cursor = Some((*run, last.number));
            if pending.iter().any(|(_, pending)| is_end(&pending.effect)) {
                return Ok(true);
            }
        }
    }
}

fn is_end(effect: &Effect) -> bool {
    matches!(effect, Effect::Terminate { .. })
}
