//! A run during a transition, and the operations that several events share.

use alloc::{string::String, sync::Arc, vec, vec::Vec};

use super::{
    ActiveAttempt, ApplyOutcome, LaunchingAttempt, NextTurn, Run, RunCancellation, RunOutcome, RunState,
    RunStep, RunningPhase,
};
use crate::{
    delivery::{DeliveryContent, DeliveryNotice, DeliveryStatus},
    effect::{Effect, EffectNumber, LaunchSession, PendingEffect},
    engine::{ProbeDepth, ProfileKind, RunAbilities},
    event::{NewRun, RunEvent},
    failure::{FailureCode, RunFailure},
    id::{IdSeed, TurnId},
    inbound::{Inbound, InboundMessage, InboundStatus},
    interaction::CloseReason,
    process::{Attempt, ExitStatus, LiveProcess},
    settings::ExecutionMode,
    time::{EventStamp, Timestamp},
    turn::{AttemptRecord, ExecutionStatus, RuntimeStatus, Turn, TurnTrigger},
};

/// The maximum number of waiting messages per run.
pub const INBOX_LIMIT: usize = 100;
/// The maximum number of launches per turn.
pub const MAX_LAUNCHES_PER_TURN: u32 = 3;
/// The invariant behind `expect` calls for the latest turn.
const LATEST_TURN_INVARIANT: &str = "a run that has left the queue keeps its latest turn";

/// A run during a transition.
pub(super) struct RunTransition {
    pub(super) run: Run,
    pub(super) at: Timestamp,
    id_seed: IdSeed,
    used_seeds: u8,
    effects: Vec<PendingEffect>,
    /// See [`RunStep::follow_up`].
    pub(super) follow_up: Option<RunEvent>,
}

impl RunTransition {
    /// A new run: its task is received, and it waits for a slot.
    pub(super) fn create(stamp: &EventStamp, new: &NewRun) -> Self {
        let mut run = Run {
            run_id: new.run_id,
            settings: Arc::new(new.settings.clone()),
            revision: 1,
            created_at: stamp.at,
            updated_at: stamp.at,
            state: RunState::Queued { since: stamp.at, next: NextTurn::from_message(&new.message) },
            profile: None,
            abilities: RunAbilities::default(),
            command: None,
            rules: new.rules,
            handle: None,
            handle_announced: false,
            has_history: false,
            turn_index: 0,
            last_attempt: Attempt(0),
            last_effect: 0,
            result: None,
            auto_decision_count: 0,
            consecutive_auto_decisions: 0,
            last_auto_decision_at: None,
            inbox: Vec::new(),
            turns: Vec::new(),
            interactions: Vec::new(),
            waiting_gates: Vec::new(),
            answered_gates: Vec::new(),
            deliveries: Vec::new(),
            pending_effects: Vec::new(),
        };
        run.receive(&new.message, stamp.at);
        Self {
            run,
            at: stamp.at,
            id_seed: stamp.id_seed,
            used_seeds: 0,
            effects: Vec::new(),
            follow_up: None,
        }
    }

    /// A run that processes an event. Finished records are dropped, because the ledger has them.
    pub(super) fn begin(run: &Run, stamp: &EventStamp) -> Self {
        let mut run = run.clone();
        run.drop_settled_records();
        run.revision += 1;
        run.updated_at = stamp.at;
        Self {
            run,
            at: stamp.at,
            id_seed: stamp.id_seed,
            used_seeds: 0,
            effects: Vec::new(),
            follow_up: None,
        }
    }

    pub(super) fn into_step(self) -> RunStep {
        RunStep {
            run: self.run,
            effects: self.effects,
            outcome: ApplyOutcome::Changed,
            follow_up: self.follow_up,
        }
    }

    /// The seed of a new id.
    pub(super) fn next_id_seed(&mut self) -> IdSeed {
        let fresh = self.id_seed.nth(self.used_seeds);
        self.used_seeds += 1;
        fresh
    }

    // Effects.

    pub(super) fn request_effect(&mut self, effect: Effect) {
        self.request_effect_at(self.at, effect);
    }

    pub(super) fn request_effect_at(&mut self, due_at: Timestamp, effect: Effect) {
        self.run.last_effect += 1;
        let pending = PendingEffect { number: EffectNumber(self.run.last_effect), due_at, effect };
        self.run.pending_effects.push(pending.clone());
        self.effects.push(pending);
    }

    /// Removes pending effects that were settled or became obsolete. Returns whether there were any.
    pub(super) fn cancel_effects(&mut self, is_obsolete: impl Fn(&Effect) -> bool) -> bool {
        let before = self.run.pending_effects.len();
        self.run.pending_effects.retain(|pending| !is_obsolete(&pending.effect));
        self.effects.retain(|pending| !is_obsolete(&pending.effect));
        self.run.pending_effects.len() < before
    }

    /// Drops the held, requested or lost process: cancels its pending effects and requests its termination.
    pub(super) fn end_process(&mut self) {
        if let Some(attempt) = self.run.attempt() {
            self.end_attempt(attempt);
        }
    }

    /// Like [`Self::end_process`], for a launch that the state no longer refers to.
    pub(super) fn end_attempt(&mut self, attempt: Attempt) {
        self.accept_steered_messages(attempt);
        self.cancel_effects(|effect| effect.attempt() == Some(attempt));
        self.request_effect(Effect::Terminate { attempt });
    }

    /// Records the exit of a process and cancels its pending effects. A later exit code replaces an unknown exit
    /// status.
    pub(super) fn record_exit(&mut self, attempt: Attempt, exit: ExitStatus) -> bool {
        let canceled = self.cancel_effects(|effect| effect.attempt() == Some(attempt));
        let (at, corrects) = (self.at, self.corrects_exits());
        let mut recorded = false;
        for turn in &mut self.run.turns {
            let is_new_exit = |record: &AttemptRecord| {
                let is_recorded = match record.exit {
                    Some(ExitStatus::Unknown) if corrects => exit == ExitStatus::Unknown,
                    Some(_) => true,
                    None => false,
                };
                record.attempt == attempt && !is_recorded
            };
            if !turn.attempts.iter().any(is_new_exit) {
                continue;
            }
            let turn = Arc::make_mut(turn);
            let Some(record) = turn.attempt_mut(attempt) else { continue };
            record.exit = Some(exit);
            record.ended_at.get_or_insert(at);
            turn.runtime_status = RuntimeStatus::Ended;
            recorded = true;
        }
        canceled || recorded
    }

    // Turns.

    /// The running turn, or the latest one.
    pub(super) fn turn(&mut self) -> &mut Turn {
        Arc::make_mut(self.run.turns.last_mut().expect(LATEST_TURN_INVARIANT))
    }

    pub(super) fn turn_id(&self) -> TurnId {
        self.run.turns.last().expect(LATEST_TURN_INVARIANT).turn_id
    }

    pub(super) fn has_running_turn(&self) -> bool {
        self.run.turns.last().is_some_and(|turn| !turn.execution_status.is_final())
    }

    /// Queues the run for the next turn.
    pub(super) fn queue(&mut self, next: NextTurn) {
        self.run.state = RunState::Queued { since: self.at, next };
    }

    /// Starts the next turn, in the held process or by launching one.
    pub(super) fn begin_turn(&mut self, next: NextTurn, live: Option<LiveProcess>) {
        let turn_id = TurnId(self.next_id_seed());
        for earlier in self.run.turns.iter_mut().filter(|earlier| earlier.superseded.is_some()) {
            if let Some(superseded) = &mut Arc::make_mut(earlier).superseded {
                superseded.by_turn.get_or_insert(turn_id);
            }
        }
        if let TurnTrigger::Message(key) = &next.trigger {
            let at = self.at;
            for inbound in self.run.inbox.iter_mut().filter(|inbound| inbound.message.key == *key) {
                let inbound = Arc::make_mut(inbound);
                (inbound.turn_id, inbound.accepted_at) = (Some(turn_id), Some(at));
                inbound.set_status(InboundStatus::Accepted, at);
            }
        }
        self.run.answered_gates = vec![];
        self.run.turn_index += 1;
        let held = live.as_ref().map(|live| AttemptRecord {
            attempt: live.attempt,
            session: None,
            process: Some(live.process.clone()),
            started_at: Some(self.at),
            ended_at: None,
            exit: None,
        });
        self.run.turns.push(Arc::new(Turn {
            turn_id,
            run_id: self.run.run_id,
            turn_index: self.run.turn_index,
            trigger: next.trigger,
            prompt: next.prompt.clone(),
            execution_status: ExecutionStatus::Running,
            runtime_status: if held.is_some() { RuntimeStatus::Active } else { RuntimeStatus::Starting },
            attempts: held.into_iter().collect(),
            reply: None,
            error: None,
            started_at: self.at,
            result_persisted_at: None,
            delivery_status: DeliveryStatus::NotReady,
            delivered_at: None,
            superseded: None,
        }));
        match live {
            Some(live) => {
                self.request_effect(Effect::SendPrompt {
                    attempt: live.attempt,
                    turn_id,
                    prompt: next.prompt,
                });
                self.run_turn_in(live);
            }
            None if self.run.profile.is_none() => {
                let depth = match self.run.settings.execution_mode {
                    ExecutionMode::Auto => ProbeDepth::Static,
                    ExecutionMode::Interactive | ExecutionMode::Chat => ProbeDepth::Dynamic,
                };
                self.run.state = RunState::Running(RunningPhase::Probing);
                self.request_effect(Effect::Probe { depth });
            }
            None => self.launch(1, self.at),
        }
    }

    /// Requests a process for the turn, in the run's existing engine session or in a new one.
    pub(super) fn launch(&mut self, tries: u32, due_at: Timestamp) {
        if self.run.is_sticky() && !self.run.has_history {
            // A session that existed only in the lost process is gone.
            (self.run.handle, self.run.handle_announced) = (None, false);
        }
        let session = match (self.run.handle.clone(), self.run.has_history) {
            (_, true) if self.run.is_sticky() => {
                let code = self.lost_session_code();
                return self.fail(RunFailure::new(
                    code,
                    "the engine's process is gone and its session cannot be resumed",
                ));
            }
            (None, true) => {
                return self.fail(RunFailure::new(
                    FailureCode::SessionResumeFailed,
                    "the engine never named its session, so it cannot be resumed",
                ));
            }
            (None, false) => LaunchSession::New,
            (Some(handle), true) => LaunchSession::Resumed(handle),
            (Some(handle), false) if self.run.handle_announced => LaunchSession::Resumed(handle),
            (Some(handle), false) => LaunchSession::Named(handle),
        };
        let attempt = Attempt(self.run.last_attempt.0 + 1);
        self.run.last_attempt = attempt;
        let must_confirm_session = matches!(session, LaunchSession::Resumed(_));
        let turn = self.turn();
        turn.runtime_status = RuntimeStatus::Starting;
        turn.attempts.push(AttemptRecord {
            attempt,
            session: Some(session),
            process: None,
            started_at: None,
            ended_at: None,
            exit: None,
        });
        self.run.state = RunState::Running(RunningPhase::Launching(LaunchingAttempt {
            attempt,
            tries,
            must_confirm_session,
        }));
        self.request_effect_at(due_at, Effect::Launch { attempt });
    }

    /// The turn runs in this process until its deadline.
    pub(super) fn run_turn_in(&mut self, live: LiveProcess) {
        let turn_deadline = self.run.settings.turn_timeout_sec.map(|span| self.at.add_seconds(span));
        self.turn().execution_status = ExecutionStatus::Running;
        self.run.state = RunState::Running(RunningPhase::Active(ActiveAttempt { live, turn_deadline }));
    }

    /// Ends the running turn, once, and updates its message.
    pub(super) fn end_turn(&mut self, status: ExecutionStatus) {
        let at = self.at;
        let turn = self.turn();
        if turn.execution_status.is_final() {
            return;
        }
        turn.execution_status = status;
        turn.result_persisted_at.get_or_insert(at);
        let turn_id = turn.turn_id;
        if status == ExecutionStatus::RecoveryRequired {
            self.keep_session_of_lost_process();
        }
        let message_status = status.message_status();
        for inbound in self.run.inbox.iter_mut().filter(|inbound| inbound.turn_id == Some(turn_id)) {
            Arc::make_mut(inbound).set_status(message_status, at);
        }
    }

    /// A lost process may have created a session with the id chosen by Abide. Creating it again would be refused or
    /// repeat the work. It is resumed from now on; if it was never created, resuming fails with an error (A11).
    fn keep_session_of_lost_process(&mut self) {
        let unannounced = self.run.handle.is_some() && !self.run.handle_announced;
        let may_have_run = |record: &AttemptRecord| record.process.is_some() || record.exit.is_some();
        if unannounced && self.resumes_lost_sessions() && self.turn().attempts.iter().any(may_have_run) {
            self.run.handle_announced = true;
        }
    }

    /// Continues after a turn: with the next message, by idling, or by ending the run.
    pub(super) fn continue_or_finish(&mut self, live: Option<LiveProcess>) {
        if let Some(next) = self.run.next_message() {
            return match live {
                Some(live) => self.begin_turn(next, Some(live)),
                None => self.queue(next),
            };
        }
        match self.run.settings.execution_mode {
            ExecutionMode::Chat => self.idle(live),
            ExecutionMode::Auto | ExecutionMode::Interactive => {
                if let Some(live) = live {
                    self.end_attempt(live.attempt);
                }
                self.finish(RunOutcome::Succeeded);
            }
        }
    }

    /// A chat becomes idle. A process whose session cannot be resumed is kept until a deadline.
    pub(super) fn idle(&mut self, live: Option<LiveProcess>) {
        let until = self.at.add_seconds(self.run.session_timeout());
        self.run.state = RunState::Idle { held: live.map(|live| (live, until)) };
    }

    // The end of a run.

    /// Ends the run with a failure.
    pub(super) fn fail(&mut self, failure: RunFailure) {
        let failure = self.normalize_failure_code(failure);
        self.end_process();
        self.close_questions(CloseReason::RunFailed);
        if self.has_running_turn() {
            self.turn().error = Some(failure.clone());
            self.end_turn(ExecutionStatus::Failed);
            let turn_id = self.turn_id();
            self.deliver(DeliveryContent::Result(turn_id), Some(turn_id));
        } else {
            self.deliver(DeliveryContent::Notice(DeliveryNotice::RunEnded(failure.message.clone())), None);
        }
        self.finish(RunOutcome::Failed(failure));
    }

    /// Ends a chat whose engine has exited, without a failure.
    pub(super) fn finish_exited_chat(&mut self, notice: &str) {
        self.deliver(DeliveryContent::Notice(DeliveryNotice::RunEnded(String::from(notice))), None);
        self.finish(RunOutcome::Succeeded);
    }

    /// Ends the run intentionally.
    pub(super) fn cancel(&mut self, cancellation: RunCancellation, closing: CloseReason) {
        self.end_process();
        self.close_questions(closing);
        // Results of earlier turns are still delivered.
        if self.has_running_turn() {
            self.end_turn(ExecutionStatus::Interrupted);
            self.suppress_turn();
        }
        // A person who ended the run knows about it. Otherwise a notice is delivered.
        if cancellation.by.is_none() {
            let notice = DeliveryNotice::RunEnded(cancellation.reason.message.clone());
            self.deliver(DeliveryContent::Notice(notice), None);
        }
        self.finish(RunOutcome::Canceled(cancellation));
    }

    /// Finishes the run. Only terminations and deliveries remain pending.
    pub(super) fn finish(&mut self, finished: RunOutcome) {
        let (at, unprocessed_status) = match &finished {
            RunOutcome::Succeeded | RunOutcome::Failed(_) => (self.at, InboundStatus::Failed),
            RunOutcome::Canceled(_) => (self.at, InboundStatus::Canceled),
        };
        for inbound in self.run.inbox.iter_mut().filter(|inbound| !inbound.is_settled()) {
            Arc::make_mut(inbound).set_status(unprocessed_status, at);
        }
        self.cancel_effects(|effect| !matches!(effect, Effect::Terminate { .. } | Effect::Deliver { .. }));
        (self.run.waiting_gates, self.run.answered_gates) = (vec![], vec![]);
        self.run.state = RunState::Finished(finished);
    }
}

impl NextTurn {
    /// The turn that a message starts.
    pub(super) fn from_message(message: &InboundMessage) -> Self {
        Self { trigger: TurnTrigger::Message(message.key.clone()), prompt: message.text.clone() }
    }
}

impl Run {
    /// Adds a message to the inbox.
    pub(super) fn receive(&mut self, message: &InboundMessage, at: Timestamp) {
        self.inbox.push(Arc::new(Inbound {
            message: message.clone(),
            run_id: self.run_id,
            turn_id: None,
            created_at: at,
            updated_at: at,
            accepted_at: None,
            execution_status: InboundStatus::Received,
        }));
    }

    /// The turn that the oldest waiting message would start.
    pub(super) fn next_message(&self) -> Option<NextTurn> {
        let received = |inbound: &&Arc<Inbound>| inbound.execution_status == InboundStatus::Received;
        self.inbox.iter().find(received).map(|inbound| NextTurn::from_message(&inbound.message))
    }

    /// Whether the engine's session exists in one process only. Engines that were not probed yet are assumed to be
    /// resumable.
    pub(super) fn is_sticky(&self) -> bool {
        self.profile.as_ref().is_some_and(|profile| profile.kind == ProfileKind::StickyProcess)
    }

    pub(super) fn session_timeout(&self) -> crate::time::Seconds {
        self.profile.as_ref().map_or(self.settings.session_timeout_sec, |profile| profile.session_timeout_sec)
    }

    fn drop_settled_records(&mut self) {
        self.inbox.retain(|inbound| !inbound.is_settled());
        self.interactions.retain(|interaction| interaction.is_open());
        self.deliveries.retain(|delivery| !delivery.is_settled());
        let (latest, deliveries, pending) = (self.turn_index, &self.deliveries, &self.pending_effects);
        self.turns.retain(|turn| {
            let has_pending_delivery =
                deliveries.iter().any(|delivery| delivery.outcome_turn_id == Some(turn.turn_id));
            let is_terminating = turn.attempts.iter().any(|record| {
                pending.iter().any(|pending| pending.effect == Effect::Terminate { attempt: record.attempt })
            });
            turn.turn_index == latest
                || has_pending_delivery
                || is_terminating
                || !turn.execution_status.is_final()
        });
    }
}

/// The reason of a cancellation by a person.
pub(super) fn canceled_by(by: &str) -> RunCancellation {
    RunCancellation {
        reason: RunFailure::new(FailureCode::CanceledByUser, "the run was canceled"),
        by: Some(String::from(by)),
    }
}
