//! What a run is, and what can be read off it: its status, its slot, its deadline, its open question.
//!
//! Records that are finished (turns delivered, messages handled, questions answered) are dropped at the next
//! event: by then they are in the ledger, and a run of a thousand turns stays as small as one of two. Those that an event
//! leaves alone are shared between the run before it and the run after it.

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
    /// Its name.
    pub run_id: RunId,
    /// What it was asked to be.
    pub settings: Arc<RunSettings>,
    /// How many events made it what it is; the fence against two writers.
    pub revision: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// What it does now.
    pub state: RunState,
    /// How its engine waits, once that is known.
    pub profile: Option<EngineInteractiveProfile>,
    /// What its engine can do besides.
    pub abilities: RunAbilities,
    /// How its engine's program is called in every turn (A9). A run of the first release has none and follows the present
    /// configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<EngineCommand>,
    /// The rules that it follows; see [`super::RULES`].
    #[serde(default)]
    pub rules: u32,
    /// The engine's session.
    pub handle: Option<EngineSessionHandle>,
    /// Whether the engine itself has named that session, or it is only the name that we chose.
    pub handle_announced: bool,
    /// Whether the engine's session holds anything worth keeping: some turn of it was heard to its end.
    pub has_history: bool,
    /// The number of the latest turn, 0 before the first.
    pub turn_index: u32,
    /// The number of the latest process launch, 0 before the first.
    pub last_attempt: Attempt,
    /// The number of the latest order, 0 before the first.
    pub last_effect: u32,
    /// What the latest completed turn said.
    pub result: Option<String>,
    /// Questions decided without a person.
    pub auto_decision_count: u32,
    /// The same since a person last spoke; bounded, so that nobody's run talks to itself for ever.
    pub auto_decisions_in_a_row: u32,
    /// When that last happened.
    pub last_auto_decision_at: Option<Timestamp>,
    /// Messages that are not finished, in the order of arrival.
    pub inbox: Vec<Arc<Inbound>>,
    /// The latest turn, and older ones whose result is still on its way.
    pub turns: Vec<Arc<Turn>>,
    /// Questions that are open or were just closed. At most one is open.
    pub interactions: Vec<Arc<Interaction>>,
    /// Requests of the running turn that wait behind the open one.
    pub waiting_gates: Vec<Interaction>,
    /// Requests of the running turn that were answered, in case the engine says one again after a reconnect.
    pub answered_gates: Vec<AnsweredGate>,
    /// Deliveries that are not finished.
    pub deliveries: Vec<Delivery>,
    /// Orders that nobody has reported as carried out.
    pub owed: Vec<PendingEffect>,
}

/// What a run does now (SPEC section 4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It has something to do and no slot yet.
    Queued {
        /// Since when.
        since: Timestamp,
        /// What it will do.
        next: NextTurn,
    },
    /// It holds a slot and has a turn at work.
    Running(RunningPhase),
    /// An interaction is open.
    WaitingUser(UserWait),
    /// A chat between turns.
    Idle {
        /// The process that is held for the next turn, and until when. None where the session can be resumed.
        held: Option<(LiveProcess, Timestamp)>,
    },
    /// It is over.
    Finished(RunOutcome),
}

/// How a run ended. Never left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// The engine was done.
    Succeeded,
    /// It could not go on.
    Failed(RunFailure),
    /// It was ended on purpose.
    Canceled(RunCancellation),
}

/// Why a run was ended on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCancellation {
    /// The reason, as an error that people see.
    pub reason: RunFailure,
    /// Who, if it was a person.
    pub by: Option<String>,
}

/// The turn that a queued run will start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextTurn {
    /// What starts it.
    pub cause: TurnTrigger,
    /// What the engine will be told.
    pub prompt: String,
}

/// What the turn at work is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunningPhase {
    /// The engine is asked what it can do, once, before the first launch.
    Probing,
    /// A process is ordered and not seen yet.
    Launching(LaunchingAttempt),
    /// A process works.
    Active(ActiveAttempt),
    /// The process was told to stop.
    Stopping(StoppingAttempt),
    /// The process is out of contact.
    Recovering(RecoveringAttempt),
}

/// A process that is ordered and not seen yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchingAttempt {
    /// Which launch.
    pub attempt: Attempt,
    /// How many launches this turn has cost, this one included.
    pub tries: u32,
    /// Whether it must name the session that it was told to go on with before it is believed.
    pub must_confirm: bool,
}

/// A process at work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveAttempt {
    /// The process.
    pub live: LiveProcess,
    /// When the turn has worked long enough.
    pub turn_deadline: Option<Timestamp>,
}

/// A process that was told to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppingAttempt {
    /// The process.
    pub live: LiveProcess,
    /// Why.
    pub reason: StopReason,
    /// Who wanted it.
    pub by: String,
    /// When patience ends.
    pub until: Timestamp,
}

/// Why a turn was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// A person wants it stopped.
    Interrupted,
    /// A newer message, now first in the inbox, takes its place.
    Superseded,
    /// The daemon stops in order.
    Shutdown,
}

/// A process out of contact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveringAttempt {
    /// Which launch.
    pub attempt: Attempt,
    /// What was known of it; nothing if it was lost before it was seen.
    pub live: Option<LiveProcess>,
    /// When the search ends.
    pub until: Timestamp,
    /// How much longer the turn may work once it is found.
    pub work_left: Option<TimeSpan>,
    /// Since when. Not known of searches that began in an earlier version.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

impl RecoveringAttempt {
    /// The process as it is known once it is heard again at this time: how long it was searched for is not forgotten.
    pub(super) fn found(&self, at: Timestamp) -> Option<LiveProcess> {
        let mut live = self.live.clone()?;
        let searched = self.since.map_or(TimeSpan(0), |since| since.until(at));
        live.losses.searched = live.losses.searched.and(searched);
        Some(live)
    }
}

/// An open interaction and what is held for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserWait {
    /// The interaction, of which there is exactly one.
    pub interaction_id: InteractionId,
    /// What is held.
    pub hold: HeldProcess,
    /// When the wait ends without an answer.
    pub deadline: Option<Timestamp>,
}

/// What a waiting run holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldProcess {
    /// Nothing: the process has ended and the slot is free.
    Nothing,
    /// The process of the session, between two turns.
    Session(LiveProcess),
    /// The process of the turn, which waits inside it.
    Turn {
        /// The process.
        live: LiveProcess,
        /// How much longer the turn may work after the answer.
        work_left: Option<TimeSpan>,
    },
}

/// A request inside a turn that has its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredGate {
    /// The engine's name for the request.
    pub gate: String,
    /// The question that it became.
    pub interaction_id: InteractionId,
    /// What was answered.
    pub text: String,
    /// What that means, if permission was asked for.
    pub verdict: Option<ApprovalVerdict>,
}

/// A run's state in one word, as people and programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// No slot yet.
    Queued,
    /// Holds a slot and works.
    Running,
    /// An interaction is open.
    WaitingUser,
    /// A chat between turns.
    Idle,
    /// Over, as wanted.
    Succeeded,
    /// Over, badly.
    Failed,
    /// Over, on purpose.
    Canceled,
}

impl RunStatus {
    /// The word itself.
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

    /// Never left.
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
    /// The state in one word.
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

    /// The state in detail, for the table of transitions.
    pub fn detail(&self) -> String {
        let part = match self {
            Self::Running(RunningPhase::Probing) => ".probing",
            Self::Running(RunningPhase::Launching(_)) => ".launching",
            Self::Running(RunningPhase::Active(_)) => ".active",
            Self::Running(RunningPhase::Stopping(_)) => ".stopping",
            Self::Running(RunningPhase::Recovering(_)) => ".recovering",
            Self::WaitingUser(UserWait { hold: HeldProcess::Nothing, .. }) => ".free",
            Self::WaitingUser(UserWait { hold: HeldProcess::Session(_), .. }) => ".session",
            Self::WaitingUser(UserWait { hold: HeldProcess::Turn { .. }, .. }) => ".turn",
            Self::Idle { held: None } => ".free",
            Self::Idle { held: Some(_) } => ".session",
            Self::Queued { .. } | Self::Finished(_) => "",
        };
        self.status().name().to_string() + part
    }
}

impl Run {
    /// The state in one word.
    pub fn status(&self) -> RunStatus {
        self.state.status()
    }

    /// Whether the run holds a slot or waits for one. A slot is held while the state holds a process or is about to
    /// have one; a process that was ordered to end has seconds to live and is not counted.
    pub fn occupancy(&self) -> SlotOccupancy {
        match &self.state {
            RunState::Queued { since, .. } => SlotOccupancy::Queued(*since),
            RunState::Running(_) | RunState::Idle { held: Some(_) } => SlotOccupancy::Holding,
            RunState::WaitingUser(waiting) => match waiting.hold {
                HeldProcess::Nothing => SlotOccupancy::None,
                HeldProcess::Session(_) | HeldProcess::Turn { .. } => SlotOccupancy::Holding,
            },
            RunState::Idle { held: None } | RunState::Finished(_) => SlotOccupancy::None,
        }
    }

    /// The one point in time that the run waits for, if it waits for one.
    pub fn deadline(&self) -> Option<Deadline> {
        match &self.state {
            RunState::Running(RunningPhase::Active(ActiveAttempt { live, turn_deadline })) => {
                turn_deadline.map(|at| Deadline { at, kind: DeadlineKind::Turn(live.attempt) })
            }
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                Some(Deadline { at: stopping.until, kind: DeadlineKind::Stop(stopping.live.attempt) })
            }
            RunState::Running(RunningPhase::Recovering(recovering)) => {
                Some(Deadline { at: recovering.until, kind: DeadlineKind::Recovery(recovering.attempt) })
            }
            RunState::WaitingUser(waiting) => {
                let kind = DeadlineKind::Answer(waiting.interaction_id);
                waiting.deadline.map(|at| Deadline { at, kind })
            }
            RunState::Idle { held: Some((live, until)) } => {
                Some(Deadline { at: *until, kind: DeadlineKind::Idling(live.attempt) })
            }
            RunState::Queued { .. }
            | RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Idle { held: None }
            | RunState::Finished(_) => None,
        }
    }

    /// The attempt whose news counts, if any does.
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

    /// The process that the run holds and can hear.
    pub fn live(&self) -> Option<&LiveProcess> {
        match &self.state {
            RunState::Running(RunningPhase::Active(active)) => Some(&active.live),
            RunState::Running(RunningPhase::Stopping(stopping)) => Some(&stopping.live),
            RunState::Running(RunningPhase::Recovering(recovering)) => recovering.live.as_ref(),
            RunState::WaitingUser(waiting) => match &waiting.hold {
                HeldProcess::Nothing => None,
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
            RunState::WaitingUser(waiting) => match &mut waiting.hold {
                HeldProcess::Nothing => None,
                HeldProcess::Session(live) | HeldProcess::Turn { live, .. } => Some(live),
            },
            RunState::Idle { held } => held.as_mut().map(|(live, _)| live),
            RunState::Queued { .. }
            | RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Finished(_) => None,
        }
    }

    /// The open question, if the run waits.
    pub fn pending_interaction_id(&self) -> Option<InteractionId> {
        match &self.state {
            RunState::WaitingUser(waiting) => Some(waiting.interaction_id),
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => None,
        }
    }

    /// Why the run failed or was canceled.
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
