//! The state of a run, and the values derived from it: status, slot, deadline and open question.
//!
//! Finished records (delivered turns, handled messages, answered questions) are dropped at the next event, because they
//! are in the ledger by then. The size of a run is therefore independent of its number of turns. Records that an event
//! does not change are shared between the old and the new state.

use alloc::{
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    approval::ApprovalVerdict,
    deadline::{Deadline, DeadlineKind},
    delivery::Delivery,
    effect::PendingEffect,
    engine::{EngineCommand, EngineInteractiveProfile, EngineSessionHandle, RunAbilities},
    failure::RunFailure,
    id::{InteractionId, RunId},
    inbound::Inbound,
    interaction::Interaction,
    process::{Attempt, LiveProcess},
    settings::RunSettings,
    slots::SlotOccupancy,
    time::{TimeSpan, Timestamp},
    turn::{Turn, TurnTrigger},
};

/// A task or conversation given to one engine in one workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub run_id: RunId,
    pub settings: Arc<RunSettings>,
    /// The number of applied events. Detects concurrent writers.
    pub revision: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub state: RunState,
    /// None before the engine was probed.
    pub profile: Option<EngineInteractiveProfile>,
    /// The engine's optional abilities.
    pub abilities: RunAbilities,
    /// The command for all turns (A9). None for runs of the first release, which follow the current configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<EngineCommand>,
    /// The version of the rules that it follows; see [`super::CURRENT_RULES_VERSION`].
    #[serde(default)]
    pub rules: u32,
    pub handle: Option<EngineSessionHandle>,
    /// Whether the engine has announced the session. Otherwise the handle is only the id that Abide chose.
    pub handle_announced: bool,
    /// Whether the engine's session contains a completed turn.
    pub has_history: bool,
    /// The index of the latest turn, 0 before the first.
    pub turn_index: u32,
    /// The number of the latest process launch, 0 before the first.
    pub last_attempt: Attempt,
    /// The number of the latest effect, 0 before the first.
    pub last_effect: u32,
    /// The reply of the latest completed turn.
    pub result: Option<String>,
    /// The number of questions that were decided without a person.
    pub auto_decision_count: u32,
    /// The number of such decisions since the last input of a person. Bounded, so that an unattended run ends.
    pub consecutive_auto_decisions: u32,
    /// The time of the last such decision.
    pub last_auto_decision_at: Option<Timestamp>,
    /// Unfinished messages, in order of arrival.
    pub inbox: Vec<Arc<Inbound>>,
    /// The latest turn, and earlier ones whose result is not delivered yet.
    pub turns: Vec<Arc<Turn>>,
    /// Questions that are open or were just closed. At most one is open.
    pub interactions: Vec<Arc<Interaction>>,
    /// Requests of the running turn that wait behind the open one.
    pub waiting_gates: Vec<Interaction>,
    /// Answered requests of the running turn, in case the engine repeats one after a reconnect.
    pub answered_gates: Vec<AnsweredGate>,
    /// Unfinished deliveries.
    pub deliveries: Vec<Delivery>,
    /// Effects that were not reported as performed yet.
    pub pending_effects: Vec<PendingEffect>,
}

/// The state of a run (SPEC section 4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The run has a turn to start and no slot yet.
    Queued {
        since: Timestamp,
        next: NextTurn,
    },
    /// The run holds a slot and has a running turn.
    Running(RunningPhase),
    /// An interaction is open.
    WaitingUser(UserWait),
    /// A chat between turns.
    Idle {
        /// The process that is held for the next turn, and until when. None if the session can be resumed.
        held: Option<(LiveProcess, Timestamp)>,
    },
    Finished(RunOutcome),
}

/// The final state of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// The engine completed the task.
    Succeeded,
    /// The run could not continue.
    Failed(RunFailure),
    /// The run was ended intentionally.
    Canceled(RunCancellation),
}

/// The reason why a run was ended intentionally.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCancellation {
    /// As an error for people.
    pub reason: RunFailure,
    /// The person who ended it; none if it was not a person.
    pub by: Option<String>,
}

/// The turn that a queued run will start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextTurn {
    pub trigger: TurnTrigger,
    pub prompt: String,
}

/// The phase of the running turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunningPhase {
    /// The engine is probed, once, before the first launch.
    Probing,
    /// A process was requested and not observed yet.
    Launching(LaunchingAttempt),
    /// The process is running.
    Active(ActiveAttempt),
    /// The process was told to stop.
    Stopping(StoppingAttempt),
    /// Contact with the process is lost.
    Recovering(RecoveringAttempt),
}

/// A process that was requested and not observed yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchingAttempt {
    pub attempt: Attempt,
    /// The number of launches for this turn, including this one.
    pub tries: u32,
    /// Whether it must confirm the session that it was told to resume before its output is accepted.
    pub must_confirm_session: bool,
}

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveAttempt {
    pub live: LiveProcess,
    /// The time at which the turn exceeds its limit. None without a limit.
    pub turn_deadline: Option<Timestamp>,
}

/// A process that was told to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppingAttempt {
    pub live: LiveProcess,
    pub reason: StopReason,
    pub by: String,
    /// The time at which it is terminated if it has not stopped.
    pub terminate_at: Timestamp,
}

/// The reason for stopping a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// A person requested it.
    Interrupted,
    /// A newer message, now first in the inbox, replaces the turn.
    Superseded,
    /// The daemon is shutting down.
    Shutdown,
}

/// A process with which contact is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveringAttempt {
    pub attempt: Attempt,
    /// The process as last known. None if it was lost before it was observed.
    pub live: Option<LiveProcess>,
    /// The time at which the search ends.
    pub search_deadline: Timestamp,
    /// The remaining execution time of the turn after it is found.
    pub remaining_time: Option<TimeSpan>,
    /// The start of the search. None for searches that began in an earlier version.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

impl RecoveringAttempt {
    /// The process when it is found at this time, with the duration of the search added to its losses.
    pub(super) fn recovered_process(&self, at: Timestamp) -> Option<LiveProcess> {
        let mut live = self.live.clone()?;
        let searched = self.since.map_or(TimeSpan(0), |since| since.span_until(at));
        live.contact_losses.search_time = live.contact_losses.search_time.saturating_add(searched);
        Some(live)
    }
}

/// An open interaction and the process that is held for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserWait {
    /// The only open interaction of the run.
    pub interaction_id: InteractionId,
    pub held_process: HeldProcess,
    /// The time at which the wait ends without an answer. None for an unlimited wait.
    pub deadline: Option<Timestamp>,
}

/// The process that a waiting run holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldProcess {
    /// No process. The slot is free.
    None,
    /// The process of the session, between two turns.
    Session(LiveProcess),
    /// The process of the turn, which waits inside the turn.
    Turn {
        live: LiveProcess,
        /// The remaining execution time of the turn after the answer.
        remaining_time: Option<TimeSpan>,
    },
}

/// An answered request inside a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredGate {
    /// The engine's id of the request.
    pub gate: String,
    /// The interaction that was opened for it.
    pub interaction_id: InteractionId,
    pub text: String,
    /// The decision, if the request was for permission.
    pub verdict: Option<ApprovalVerdict>,
}

/// The name of a run's state, for people and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Waits for a slot.
    Queued,
    /// Holds a slot and has a running turn.
    Running,
    /// An interaction is open.
    WaitingUser,
    /// A chat between turns.
    Idle,
    /// The engine completed the task.
    Succeeded,
    /// The run could not continue.
    Failed,
    /// The run was ended intentionally.
    Canceled,
}

impl RunStatus {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::WaitingUser => "waiting_user",
            Self::Idle => "idle",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// Whether the status is final.
    pub fn is_final(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::WaitingUser | Self::Idle => false,
            Self::Succeeded | Self::Failed | Self::Canceled => true,
        }
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl RunState {
    /// The name of the state.
    pub fn status(&self) -> RunStatus {
        match self {
            Self::Queued { .. } => RunStatus::Queued,
            Self::Running(_) => RunStatus::Running,
            Self::WaitingUser(_) => RunStatus::WaitingUser,
            Self::Idle { .. } => RunStatus::Idle,
            Self::Finished(RunOutcome::Succeeded) => RunStatus::Succeeded,
            Self::Finished(RunOutcome::Failed(_)) => RunStatus::Failed,
            Self::Finished(RunOutcome::Canceled(_)) => RunStatus::Canceled,
        }
    }

    /// The state with its phase, for the table of transitions.
    pub fn detail(&self) -> String {
        let part = match self {
            Self::Running(RunningPhase::Probing) => ".probing",
            Self::Running(RunningPhase::Launching(_)) => ".launching",
            Self::Running(RunningPhase::Active(_)) => ".active",
            Self::Running(RunningPhase::Stopping(_)) => ".stopping",
            Self::Running(RunningPhase::Recovering(_)) => ".recovering",
            Self::WaitingUser(UserWait { held_process: HeldProcess::None, .. }) => ".free",
            Self::WaitingUser(UserWait { held_process: HeldProcess::Session(_), .. }) => ".session",
            Self::WaitingUser(UserWait { held_process: HeldProcess::Turn { .. }, .. }) => ".turn",
            Self::Idle { held: None } => ".free",
            Self::Idle { held: Some(_) } => ".session",
            Self::Queued { .. } | Self::Finished(_) => "",
        };
        self.status().name().to_string() + part
    }
}

impl Run {
    pub fn status(&self) -> RunStatus {
        self.state.status()
    }

    /// Whether the run holds a slot or waits for one. A slot is held while the state has a process or is about to have
    /// one. A process whose termination was requested does not count, because it exits within seconds.
    pub fn occupancy(&self) -> SlotOccupancy {
        match &self.state {
            RunState::Queued { since, .. } => SlotOccupancy::Queued(*since),
            RunState::Running(_) | RunState::Idle { held: Some(_) } => SlotOccupancy::Holding,
            RunState::WaitingUser(waiting) => match waiting.held_process {
                HeldProcess::None => SlotOccupancy::None,
                HeldProcess::Session(_) | HeldProcess::Turn { .. } => SlotOccupancy::Holding,
            },
            RunState::Idle { held: None } | RunState::Finished(_) => SlotOccupancy::None,
        }
    }

    /// The deadline of the current state, if it has one.
    pub fn deadline(&self) -> Option<Deadline> {
        match &self.state {
            RunState::Running(RunningPhase::Active(ActiveAttempt { live, turn_deadline })) => {
                turn_deadline.map(|at| Deadline { at, kind: DeadlineKind::Turn(live.attempt) })
            }
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                Some(Deadline { at: stopping.terminate_at, kind: DeadlineKind::Stop(stopping.live.attempt) })
            }
            RunState::Running(RunningPhase::Recovering(recovering)) => Some(Deadline {
                at: recovering.search_deadline,
                kind: DeadlineKind::Recovery(recovering.attempt),
            }),
            RunState::WaitingUser(waiting) => {
                let kind = DeadlineKind::Answer(waiting.interaction_id);
                waiting.deadline.map(|at| Deadline { at, kind })
            }
            RunState::Idle { held: Some((live, until)) } => {
                Some(Deadline { at: *until, kind: DeadlineKind::Idle(live.attempt) })
            }
            RunState::Queued { .. }
            | RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Idle { held: None }
            | RunState::Finished(_) => None,
        }
    }

    /// The attempt whose events are accepted, if any.
    pub fn attempt(&self) -> Option<Attempt> {
        match &self.state {
            RunState::Running(RunningPhase::Launching(launching)) => Some(launching.attempt),
            RunState::Running(RunningPhase::Recovering(recovering)) => Some(recovering.attempt),
            RunState::Running(RunningPhase::Probing) | RunState::Queued { .. } | RunState::Finished(_) => {
                None
            }
            RunState::Running(RunningPhase::Active(_) | RunningPhase::Stopping(_))
            | RunState::WaitingUser(_)
            | RunState::Idle { .. } => self.live().map(|live| live.attempt),
        }
    }

    /// The process that the run holds and has contact with.
    pub fn live(&self) -> Option<&LiveProcess> {
        match &self.state {
            RunState::Running(RunningPhase::Active(active)) => Some(&active.live),
            RunState::Running(RunningPhase::Stopping(stopping)) => Some(&stopping.live),
            RunState::Running(RunningPhase::Recovering(recovering)) => recovering.live.as_ref(),
            RunState::WaitingUser(waiting) => match &waiting.held_process {
                HeldProcess::None => None,
                HeldProcess::Session(live) | HeldProcess::Turn { live, .. } => Some(live),
            },
            RunState::Idle { held } => held.as_ref().map(|(live, _)| live),
            RunState::Queued { .. }
            | RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Finished(_) => None,
        }
    }

    pub(super) fn live_mut(&mut self) -> Option<&mut LiveProcess> {
        match &mut self.state {
            RunState::Running(RunningPhase::Active(active)) => Some(&mut active.live),
            RunState::Running(RunningPhase::Stopping(stopping)) => Some(&mut stopping.live),
            RunState::Running(RunningPhase::Recovering(recovering)) => recovering.live.as_mut(),
            RunState::WaitingUser(waiting) => match &mut waiting.held_process {
                HeldProcess::None => None,
                HeldProcess::Session(live) | HeldProcess::Turn { live, .. } => Some(live),
            },
            RunState::Idle { held } => held.as_mut().map(|(live, _)| live),
            RunState::Queued { .. }
            | RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Finished(_) => None,
        }
    }

    /// The open question, if the run waits for an answer.
    pub fn pending_interaction_id(&self) -> Option<InteractionId> {
        match &self.state {
            RunState::WaitingUser(waiting) => Some(waiting.interaction_id),
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => None,
        }
    }

    /// The reason of a failure or cancellation.
    pub fn error(&self) -> Option<&RunFailure> {
        match &self.state {
            RunState::Finished(RunOutcome::Failed(failure)) => Some(failure),
            RunState::Finished(RunOutcome::Canceled(cancellation)) => Some(&cancellation.reason),
            RunState::Finished(RunOutcome::Succeeded)
            | RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. } => None,
        }
    }
}
