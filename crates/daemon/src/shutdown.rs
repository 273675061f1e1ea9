//! The orderly shutdown: every process of a run is ended, and the domain decides the new state of each run.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use abide_domain::{
    effect::Effect,
    event::RunEvent,
    id::RunId,
    run::{Run, RunState, RunningPhase},
};
use tokio::sync::watch;

use crate::{
    dispatcher::ActiveRun,
    error::RequestError,
    service::{Daemon, LEAVE_TIMEOUT},
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
                self.request_shutdown(&mut before).await;
                let activity = self.activity().await;
                let is_held = |active: &ActiveRun| before.contains_key(&active.id()) && active.has_process();
                if activity.loading + activity.probes == 0 && !activity.runs.iter().any(is_held) {
                    return;
                }
                // The end of a process does not always cause a change. On timeout the processes are checked again.
                tokio::time::timeout(STOP_INTERVAL, changes.changed()).await.ok();
            }
        };
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("not every process could be ended in time");
        }
        if tokio::time::timeout(LEAVE_TIMEOUT, self.wait_for_ends(changes)).await.is_err() {
            tracing::warn!("some processes did not end in time; the next start ends them");
        }
        let activity = self.activity().await;
        let left: Vec<RunId> =
            activity.runs.iter().filter(|active| active.has_process()).map(ActiveRun::id).collect();
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
    async fn request_shutdown(&self, before: &mut BTreeMap<RunId, ActivityBeforeStop>) {
        let mut responses = Vec::new();
        for ActiveRun { run, .. } in self.activity().await.runs {
            if let Some(was) = ActivityBeforeStop::of(&run) {
                before.entry(run.run_id).or_insert(was);
                responses.push((run.run_id, self.request(run.run_id, RunEvent::ShutdownRequested)));
            }
        }
        // A run whose keeper does not answer delays only its own response.
        for (run_id, response) in responses {
            if let Err(error) = response.await {
                tracing::error!(run = %run_id, %error, "run not stopped");
            }
        }
    }

    /// Waits until all ending processes and their keepers have exited. A run that waits for a person holds no slot, but
    /// its last process may still be ending.
    async fn wait_for_ends(&self, mut changes: watch::Receiver<u64>) {
        loop {
            changes.mark_unchanged();
            let runs = self.activity().await.runs;
            if !runs.iter().any(|active| active.has_session || active.is_ending()) {
                return;
            }
            // On timeout the processes are checked again.
            tokio::time::timeout(STOP_INTERVAL, changes.changed()).await.ok();
        }
    }
}

impl ActiveRun {
    fn id(&self) -> RunId {
        self.run.run_id
    }

    /// Whether its process is held, being started or being ended.
    fn has_process(&self) -> bool {
        let is_starting = self.run.attempt().is_some() && self.has_session;
        self.run.live().is_some() || is_starting || self.is_ending()
    }

    fn is_ending(&self) -> bool {
        self.run.pending_effects.iter().any(|pending| matches!(pending.effect, Effect::Terminate { .. }))
    }
}
