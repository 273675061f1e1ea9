//! Faults: rules that are broken on purpose, each of which the checks must detect.
//!
//! A fault is at a boundary of the simulated world (executed effects, state at a restart, contents of the store), or
//! wraps the domain's transition function. The domain itself is not changed.

use std::{cell::Cell, sync::Arc};

use abide_domain::{
    approval::ApprovalVerdict,
    effect::Effect,
    event::RunEvent,
    interaction::{DecisionPolicy, InteractionOrigin, InteractionState, RuntimeQuestion},
    process::OutputPosition,
    refused::RequestRefused,
    run::{self, HeldProcess, Run, RunState, RunStep, RunningPhase, StopReason},
    settings::UnansweredPolicy,
    time::EventStamp,
};

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RuleFault {
    /// An answered question stays open and can be answered again.
    ConsumeReplyTwice,
    /// Deadlines that were set before a restart are not looked at after it.
    ForgetDeadlinesAtRestart,
    /// Effects that were pending before a restart are not executed after it.
    ForgetOwedAtRestart,
    /// Effects are executed before they are committed.
    ActBeforeCommit,
    /// A commit is acknowledged before it is durable.
    AcknowledgeTooEarly,
    /// Events of an old attempt are taken as events of the current one.
    IgnoreFence,
    /// Output that was processed before is processed again.
    ForgetWhatWasHeard,
    /// A waiting run keeps its slot.
    KeepSlotWhileWaiting,
    ApproveOnTimeout,
    /// A strict run is answered by a timeout.
    DecideForStrictRuns,
    /// Every try of a delivery has a key of its own.
    DeliverUnderNewKeys,
    /// A superseded turn's late answer counts.
    ShowSupersededTurns,
    /// A question is asked though the session cannot be resumed.
    AskWithoutHandle,
    /// A resume is believed whatever session the engine announces.
    BelieveAnyResume,
    /// A message that comes twice is taken twice.
    ForgetMessageKeys,
    /// A message brings a finished run back to life.
    LeaveFinishedStates,
    /// A turn that could not be started is tried again without an answer of a person.
    TryAgainWithoutAPerson,
    /// The tries of a launch are not counted.
    LaunchForEver,
    /// The scheduler has one slot too many.
    AdmitOverLimit,
    /// No tick is planned, so deadlines do not pass.
    NeverTick,
    /// Pauses do not end.
    ForgetPauses,
    /// Runs start although there is too little disk space.
    IgnoreShortage,
    /// Responses to requests are lost.
    ForgetReplies,
    /// A failed commit counts as written.
    AcknowledgeFailedCommits,
    /// The results of some effects are lost.
    LoseEffectResults,
    /// A process is reported as ended and is not ended.
    ReportWithoutTerminating,
    /// Every try of a write has a key of its own.
    WriteUnderNewKeys,
    /// A keeper that does not answer counts as gone.
    TakeSilentForGone,
    /// Processes of earlier daemons that belong to no run are left.
    LeaveOrphans,
    /// A part of the output is read twice.
    ReadTwice,
    /// A part of the output is not read.
    DropOutput,
    /// The exits of processes are not noticed.
    MissExits,
}

impl RuleFault {
    /// The check that was made for this fault.
    pub(crate) fn check(self) -> &'static str {
        match self {
            Self::ConsumeReplyTwice => "a waiting run has exactly one question that can be answered",
            Self::ForgetDeadlinesAtRestart | Self::NeverTick => "a deadline is kept",
            Self::ForgetOwedAtRestart | Self::LoseEffectResults | Self::ForgetPauses => {
                "pending effects are performed"
            }
            Self::ActBeforeCommit => "nothing is done that was not committed first",
            Self::AcknowledgeTooEarly | Self::AcknowledgeFailedCommits => "acknowledged input is stored",
            Self::IgnoreFence | Self::ForgetWhatWasHeard | Self::ReadTwice => {
                "output is recorded once and in order"
            }
            Self::KeepSlotWhileWaiting => "a resumable wait holds neither process nor slot",
            Self::ApproveOnTimeout => "only a person approves",
            Self::DecideForStrictRuns => "a strict resumable wait never ends by itself",
            Self::DeliverUnderNewKeys => "a result is shown once",
            Self::ShowSupersededTurns => "a superseded turn is never shown",
            Self::AskWithoutHandle => "a handle names a session that an engine has",
            Self::BelieveAnyResume => "a run continues in the session in which it began",
            Self::ForgetMessageKeys | Self::WriteUnderNewKeys => "a message is carried out once",
            Self::LeaveFinishedStates => "a finished state is never left",
            Self::TryAgainWithoutAPerson => "only a person has a turn tried again that could not be started",
            Self::LaunchForEver => "a turn costs a bounded number of launches",
            Self::AdmitOverLimit => "no more runs work than there are slots",
            Self::IgnoreShortage => "no run starts while there is too little space",
            Self::ForgetReplies => "every request is answered",
            Self::ReportWithoutTerminating | Self::TakeSilentForGone | Self::LeaveOrphans => {
                "no process is left behind"
            }
            Self::DropOutput => "no output is left out",
            Self::MissExits => "the daemon comes to rest",
        }
    }
}

thread_local! {
    /// The fault of this thread's rules. It is thread-local because the rules are a plain function pointer.
    static BROKEN: Cell<Option<RuleFault>> = const { Cell::new(None) };
}

/// Sets the fault of this thread's rules.
pub(crate) fn break_rules(fault: Option<RuleFault>) {
    BROKEN.set(fault);
}

/// The domain's rules with the fault of this thread.
pub(crate) fn bent_rules(
    run: Option<&Run>,
    stamp: &EventStamp,
    event: &RunEvent,
) -> Result<RunStep, RequestRefused> {
    let (Some(fault), Some(before)) = (BROKEN.get(), run) else { return run::apply(run, stamp, event) };
    let mut run = before.clone();
    let mut event = event.clone();
    bend_before(fault, &mut run, &mut event);
    let mut step = run::apply(Some(&run), stamp, &event)?;
    if fault == RuleFault::DecideForStrictRuns {
        step.run.settings = before.settings.clone();
    }
    bend_after(fault, before, &event, &mut step);
    Ok(step)
}

fn bend_before(fault: RuleFault, run: &mut Run, event: &mut RunEvent) {
    if let (RuleFault::IgnoreFence, Some(current), Some(attempt)) = (fault, run.attempt(), attempt_of(event))
    {
        *attempt = current;
    }
    let deaf_to_order = matches!(fault, RuleFault::ForgetWhatWasHeard | RuleFault::IgnoreFence);
    if let (true, Some(live), Some(position)) = (deaf_to_order, run.live(), position_of(event)) {
        *position = OutputPosition(live.processed_position.0 + 1);
    }
    match (fault, &mut *event) {
        (RuleFault::BelieveAnyResume, RunEvent::HandleAnnounced { handle, .. }) => {
            if let Some(known) = &run.handle {
                handle.handle_value.clone_from(&known.handle_value);
            }
        }
        (RuleFault::AskWithoutHandle, RunEvent::TurnEnded { .. }) => {
            run.handle.get_or_insert_with(|| crate::engine::handle(&run.settings.engine, "made up"));
        }
        (RuleFault::LeaveFinishedStates, RunEvent::MessageArrived { .. }) => {
            if let RunState::Finished(_) = run.state {
                run.state = RunState::Idle { held: None };
            }
        }
        (RuleFault::DecideForStrictRuns, RunEvent::TurnEnded { .. } | RunEvent::DeadlinePassed { .. }) => {
            Arc::make_mut(&mut run.settings).unanswered = UnansweredPolicy::AutoDecide;
        }
        (RuleFault::TryAgainWithoutAPerson, RunEvent::DeadlinePassed { .. }) => {
            let parked = InteractionOrigin::Abide(RuntimeQuestion::FailedRepeatedly);
            for question in run.interactions.iter_mut().filter(|question| question.origin == parked) {
                Arc::make_mut(question).question.default_decision_policy = DecisionPolicy::EngineJudgement;
            }
        }
        (RuleFault::LaunchForEver, RunEvent::LaunchFailed { .. }) => {
            if let RunState::Running(RunningPhase::Launching(launching)) = &mut run.state {
                launching.tries = 1;
            }
        }
        (RuleFault::ShowSupersededTurns, RunEvent::TurnEnded { .. }) => {
            if let RunState::Running(RunningPhase::Stopping(stopping)) = &mut run.state {
                stopping.reason = StopReason::Interrupted;
                if let Some(turn) = run.turns.last_mut() {
                    Arc::make_mut(turn).execution_status = abide_domain::turn::ExecutionStatus::Running;
                }
            }
        }
        _ => {}
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a fault touches the few events that it names")]
fn bend_after(fault: RuleFault, before: &Run, event: &RunEvent, step: &mut RunStep) {
    match fault {
        RuleFault::ConsumeReplyTwice => {
            if let RunEvent::ReplyArrived { reply } = event {
                for interaction in &mut step.run.interactions {
                    if interaction.interaction_id == reply.interaction_id {
                        Arc::make_mut(interaction).state = InteractionState::Open;
                    }
                }
            }
        }
        RuleFault::KeepSlotWhileWaiting => {
            if let (RunState::WaitingUser(waiting), Some(live)) = (&mut step.run.state, before.live())
                && waiting.held_process == HeldProcess::None
            {
                waiting.held_process = HeldProcess::Session(live.clone());
            }
        }
        RuleFault::ApproveOnTimeout => {
            let by_policy = step.run.auto_decision_count > before.auto_decision_count;
            for owed in &mut step.run.pending_effects {
                if let (true, Effect::Answer { verdict, .. }) = (by_policy, &mut owed.effect) {
                    *verdict = verdict.map(|_| ApprovalVerdict::Approved);
                }
            }
        }
        _ => {}
    }
}

/// The attempt of an event, to be modified.
#[expect(clippy::wildcard_enum_match_arm, reason = "a fault touches the few events that it names")]
fn attempt_of(event: &mut RunEvent) -> Option<&mut abide_domain::process::Attempt> {
    match event {
        RunEvent::TurnEnded { attempt, .. }
        | RunEvent::GateRaised { attempt, .. }
        | RunEvent::ProcessExited { attempt, .. }
        | RunEvent::HandleAnnounced { attempt, .. } => Some(attempt),
        _ => None,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a fault touches the few events that it names")]
fn position_of(event: &mut RunEvent) -> Option<&mut OutputPosition> {
    match event {
        RunEvent::TurnEnded { position, .. }
        | RunEvent::GateRaised { position, .. }
        | RunEvent::HandleAnnounced { position, .. }
        | RunEvent::Progressed { position, .. } => Some(position),
        _ => None,
    }
}

/// Whether an event is a fact about a process, which may arrive late and repeatedly.
pub(crate) fn is_fact(event: &RunEvent) -> bool {
    matches!(
        event,
        RunEvent::AttemptStarted { .. }
            | RunEvent::LaunchFailed { .. }
            | RunEvent::ProcessExited { .. }
            | RunEvent::ContactLost { .. }
            | RunEvent::HandleAnnounced { .. }
            | RunEvent::Progressed { .. }
            | RunEvent::GateRaised { .. }
            | RunEvent::TurnEnded { .. }
    )
}
