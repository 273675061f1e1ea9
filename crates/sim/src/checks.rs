//! Invariants: some are checked after every commit, all of them at the end of a history.

use abide_domain::{
    delivery::{DeliveryContent, DeliveryStatus},
    engine::ProfileKind,
    event::RunEvent,
    id::{RunId, TurnId},
    inbound::InboundStatus,
    interaction::{InteractionOrigin, InteractionState, ResolutionMode, RuntimeQuestion},
    run::{HeldProcess, MAX_LAUNCHES_PER_TURN, Run, RunOutcome, RunState},
    settings::{ExecutionMode, UnansweredPolicy},
    slots::SlotOccupancy,
    turn::{ExecutionStatus, TurnTrigger},
};
use abide_ports::store::{Journal, JournalSeq, PageRequest, RunTables, StoreMaintenance, StoreQueries};

use crate::{
    daemon::now,
    engine::{ProcessFate, answer_of},
    world::{HistoryCounters, SimWorld},
};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvariantViolation {
    pub(crate) check: &'static str,
    pub(crate) detail: String,
}

fn broken(check: &'static str, detail: impl Into<String>) -> InvariantViolation {
    InvariantViolation { check, detail: detail.into() }
}

fn ensure(
    holds: bool,
    check: &'static str,
    detail: impl FnOnce() -> String,
) -> Result<(), InvariantViolation> {
    if holds { Ok(()) } else { Err(broken(check, detail())) }
}

impl SimWorld {
    /// Checks the invariants of a run after a commit.
    pub(crate) fn check_run(&mut self, run: &Run) -> Result<(), InvariantViolation> {
        let id = run.run_id;
        let open: Vec<_> = run.interactions.iter().filter(|question| question.is_open()).collect();
        let pending = run.pending_interaction_id();
        ensure(
            open.iter().map(|question| question.interaction_id).eq(pending),
            "a waiting run has exactly one question that can be answered",
            || format!("{id} is {} with {} open", run.state.detail(), open.len()),
        )?;
        if let RunState::WaitingUser(waiting) = &run.state {
            ensure(
                waiting.held_process != HeldProcess::None || run.handle.is_some() || !run.has_history,
                "a run waits without a process only if its session can be resumed",
                || format!("{id} has no handle"),
            )?;
            ensure(
                !matches!(waiting.held_process, HeldProcess::Session(_)) || self.is_sticky(run),
                "a resumable wait holds neither process nor slot",
                || format!("{id} holds a process"),
            )?;
            ensure(
                waiting.deadline.is_none() || self.must_end(run),
                "a strict resumable wait never ends by itself",
                || format!("{id} has a deadline"),
            )?;
        }
        if let (true, Some(handle)) = (run.has_history, &run.handle) {
            let table = self.processes.table();
            let mut sessions = table.engines.keepers.iter().filter(|((owner, _), _)| *owner == id);
            ensure(
                sessions.any(|(_, keeper)| keeper.session == handle.handle_value),
                "a handle names a session that an engine has",
                || format!("{id} has the handle {}", handle.handle_value),
            )?;
        }
        let strict = run.settings.unanswered == UnansweredPolicy::Strict;
        let auto = run.settings.execution_mode == ExecutionMode::Auto;
        ensure(
            !strict || auto || run.auto_decision_count == 0,
            "no policy decides for a strict run",
            || format!("{id} was decided for {} times", run.auto_decision_count),
        )?;
        let held = self.all_runs().iter().filter(|run| run.occupancy() == SlotOccupancy::Holding).count();
        ensure(held <= self.slots, "no more runs work than there are slots", || {
            format!("{held} of {} slots are held", self.slots)
        })?;
        let short = self.admitted_short.pop_first();
        ensure(short.is_none(), "no run starts while there is too little space", || format!("{short:?}"))?;
        let finished = self.finished.get(&id).copied().unwrap_or(run.status());
        ensure(finished == run.status(), "a finished state is never left", || {
            format!("{id} was {finished} and is {}", run.status())
        })?;
        if let RunState::Finished(_) = run.state {
            self.finished.insert(id, run.status());
        }
        Ok(())
    }

    fn must_end(&self, run: &Run) -> bool {
        self.is_sticky(run) || run.settings.unanswered == UnansweredPolicy::AutoDecide
    }

    /// Uses the real behaviour of the engine, not the run's profile.
    fn is_sticky(&self, run: &Run) -> bool {
        let plans = self.catalogue.plans();
        plans.get(&run.settings.engine).is_some_and(|plan| plan.kind == ProfileKind::StickyProcess)
    }

    /// Checks all invariants, after the world is quiescent.
    pub(crate) fn check_the_end(&mut self) -> Result<(), InvariantViolation> {
        let runs = self.all_runs();
        self.check_journal()?;
        self.check_messages()?;
        self.check_replies()?;
        for run in &runs {
            self.check_tables(run.run_id)?;
            self.check_turns(run.run_id)?;
            self.check_launches(run)?;
            self.check_sessions(run)?;
        }
        self.check_shown()?;
        self.check_output(&runs)?;
        self.check_actors()?;
        for run in &runs {
            self.check_at_rest(run)?;
        }
        self.check_processes(&runs)?;
        self.check_slots(&runs)
    }

    fn check_at_rest(&self, run: &Run) -> Result<(), InvariantViolation> {
        let id = run.run_id;
        ensure(run.pending_effects.is_empty(), "pending effects are performed", || {
            let names: Vec<_> = run.pending_effects.iter().map(|owed| owed.effect.name()).collect();
            format!("{id} ({}) still owes {names:?}", run.state.detail())
        })?;
        let overdue = run.deadline().is_some_and(|deadline| deadline.at < self.clock.now());
        ensure(!overdue, "a deadline is kept", || format!("{id} is {} past it", run.state.detail()))?;
        let resting = matches!(run.state, RunState::Finished(_) | RunState::Idle { .. });
        ensure(resting, "every run comes to rest", || format!("{id} is {}", run.state.detail()))
    }

    /// Every request has a response, and a run that is only a row has no actor.
    fn check_actors(&self) -> Result<(), InvariantViolation> {
        let open = self.people.requests.len();
        ensure(open == 0, "every request is answered", || format!("{open} requests are not answered"))?;
        let active: Vec<RunId> = self.daemon.parts.dispatcher.active_runs().collect();
        let holds = |run: &RunId| {
            let run = now(self.store.run(*run)).ok().flatten();
            run.is_some_and(|run| run.occupancy() == SlotOccupancy::Holding)
        };
        ensure(active.iter().all(holds), "a run that rests has no actor", || format!("{active:?}"))
    }

    /// Progress is recorded once and in order.
    fn check_output(&self, runs: &[Run]) -> Result<(), InvariantViolation> {
        for run in runs {
            let entries =
                now(self.store.entries_of(run.run_id, JournalSeq(0), usize::MAX)).unwrap_or_default();
            let mut texts: Vec<(u32, u32)> = Vec::new();
            for entry in &entries {
                if let RunEvent::Progressed { attempt, text, .. } = &entry.event
                    && let Some(number) = text.strip_prefix("step ").and_then(|number| number.parse().ok())
                {
                    texts.push((attempt.0, number));
                }
            }
            let once = texts.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].1 < pair[1].1);
            ensure(once, "output is recorded once and in order", || format!("{} has {texts:?}", run.run_id))?;
            let gapless = texts.windows(2).all(|pair| {
                pair[0].0 != pair[1].0 || self.is_next_progress(run.run_id, pair[0].1, pair[1].1)
            });
            ensure(gapless, "no output is left out", || format!("{} has {texts:?}", run.run_id))?;
        }
        Ok(())
    }

    /// Whether a process has made no other progress between these two steps.
    fn is_next_progress(&self, run: RunId, first: u32, second: u32) -> bool {
        let table = self.processes.table();
        let own = table.engines.keepers.iter().filter(|((owner, _), _)| *owner == run);
        own.map(|(_, keeper)| String::from_utf8_lossy(&keeper.spool)).all(|spool| {
            let has = |number: u32| spool.contains(&format!("\"step {number}\""));
            !has(first) || !(first + 1..second).any(has)
        })
    }

    fn check_tables(&self, run: RunId) -> Result<(), InvariantViolation> {
        let entries = now(self.store.entries_of(run, JournalSeq(0), usize::MAX)).unwrap_or_default();
        let live = now(self.store.tables_of(run)).unwrap_or_default();
        // The reading of the journal has the same fault, so this check would detect every fault and hide the others.
        if self.fault.is_some() {
            return Ok(());
        }
        let derived = RunTables::derive(&entries)
            .map_err(|difference| broken("the journal adds up to the tables", difference.to_string()))?;
        let differing = derived.differing_tables(&live);
        ensure(differing.is_empty(), "the journal adds up to the tables", || {
            format!("{run} differs in {differing:?}")
        })
    }

    fn check_journal(&self) -> Result<(), InvariantViolation> {
        let entries = now(self.store.entries(JournalSeq(0), usize::MAX)).unwrap_or_default();
        let gapless = entries.iter().zip(1..).all(|(entry, place)| entry.seq == JournalSeq(place));
        ensure(gapless, "the journal has no gaps", || "a sequence number is missing".into())
    }

    /// A turn reaches an engine once, and its records belong to it.
    fn check_turns(&self, run: RunId) -> Result<(), InvariantViolation> {
        let table = self.processes.table();
        let engines = &table.engines;
        let tables = now(self.store.tables_of(run)).unwrap_or_default();
        let early = engines.uncommitted.first();
        ensure(early.is_none(), "nothing is done that was not committed first", || format!("{early:?}"))?;
        for turn in tables.turns.values() {
            let times = engines.executed.get(&turn.turn_id).map_or(0, |executed| executed.times);
            ensure(times <= 1, "a turn is carried out once", || {
                format!("{} was carried out {times} times", turn.turn_id)
            })?;
            let own = turn.reply.as_ref().is_none_or(|reply| *reply == answer_of(turn.turn_id));
            ensure(own, "a turn's answer is its own", || format!("{} says {:?}", turn.turn_id, turn.reply))?;
            let done = turn.execution_status == ExecutionStatus::Completed;
            ensure(!done || times == 1, "a completed turn was carried out", || {
                format!("{} was not", turn.turn_id)
            })?;
        }
        let mut causes: Vec<_> = tables.turns.values().map(|turn| turn.trigger.clone()).collect();
        let all = causes.len();
        causes.sort_by_key(|cause| format!("{cause:?}"));
        causes.dedup();
        ensure(causes.len() == all, "a message or reply starts one turn", || {
            format!("{run} has {all} turns for {} causes", causes.len())
        })?;
        for (turn, executed) in engines.executed.iter().filter(|(_, executed)| executed.run == run) {
            ensure(tables.turns.contains_key(turn), "nothing is done that was not committed first", || {
                format!("{turn} ({}) is in no ledger", executed.prompt)
            })?;
        }
        Ok(())
    }

    /// The number of launches of a turn is bounded. When they are used up a person is asked, and only a person can have
    /// it retried.
    fn check_launches(&self, run: &Run) -> Result<(), InvariantViolation> {
        let table = self.processes.table();
        let engines = &table.engines;
        let tables = now(self.store.tables_of(run.run_id)).unwrap_or_default();
        let parks =
            |asker: &InteractionOrigin| *asker == InteractionOrigin::Abide(RuntimeQuestion::FailedRepeatedly);
        for turn in tables.turns.values() {
            let launches = turn.attempts.iter().filter(|attempt| attempt.session.is_some()).count();
            ensure(
                launches <= MAX_LAUNCHES_PER_TURN as usize,
                "a turn costs a bounded number of launches",
                || format!("{} cost {launches}", turn.turn_id),
            )?;
            let TurnTrigger::Reply(id) = &turn.trigger else { continue };
            let Some(asked) = tables.interactions.get(id).filter(|it| parks(&it.origin)) else { continue };
            let by_person = matches!(&asked.state, InteractionState::Answered(answer)
                if answer.resolution_mode == ResolutionMode::UserReply);
            ensure(by_person, "only a person has a turn tried again that could not be started", || {
                format!("{} was begun after {:?}", turn.turn_id, asked.state)
            })?;
        }
        for asked in tables.interactions.values().filter(|it| parks(&it.origin)) {
            let times = engines.executed.get(&asked.turn_id).map_or(0, |executed| executed.times);
            let auto = run.settings.execution_mode == ExecutionMode::Auto;
            ensure(times == 0 && !auto, "only a turn that did nothing may be tried again", || {
                format!("{} was carried out {times} times", asked.turn_id)
            })?;
        }
        Ok(())
    }

    /// A run continues in the session in which it began.
    fn check_sessions(&self, run: &Run) -> Result<(), InvariantViolation> {
        let table = self.processes.table();
        let engines = &table.engines;
        let Some(handle) = &run.handle else { return Ok(()) };
        if let RunState::Finished(RunOutcome::Failed(_) | RunOutcome::Canceled(_)) = run.state {
            return Ok(());
        }
        let tables = now(self.store.tables_of(run.run_id)).unwrap_or_default();
        for turn in tables.turns.values().filter(|turn| turn.execution_status == ExecutionStatus::Completed) {
            for attempt in &turn.attempts {
                let Some(keeper) = engines.keepers.get(&(run.run_id, attempt.attempt)) else { continue };
                ensure(
                    keeper.session == handle.handle_value,
                    "a run continues in the session in which it began",
                    || {
                        format!(
                            "{} ran in {} and not in {}",
                            turn.turn_id, keeper.session, handle.handle_value
                        )
                    },
                )?;
            }
        }
        Ok(())
    }

    /// An acknowledged message is stored, and was executed once or has a stated reason.
    fn check_messages(&self) -> Result<(), InvariantViolation> {
        let table = self.processes.table();
        let engines = &table.engines;
        for (key, run) in &self.people.acknowledged {
            let prompts = engines.executed.values().filter(|executed| executed.prompt == key.message_id);
            // If the outcome of the turn is unknown, the message was never accepted, and it gets its own turn (E5).
            let is_unknown = |turn: &&TurnId| {
                let turn = now(self.store.turn(**turn)).ok().flatten();
                turn.is_some_and(|turn| turn.execution_status == ExecutionStatus::RecoveryRequired)
            };
            let steered = engines.steered.get(&key.message_id).map_or(&[][..], Vec::as_slice);
            let steered = steered.iter().filter(|turn| !is_unknown(turn)).count();
            let times = prompts.map(|executed| executed.times as usize).sum::<usize>() + steered;
            ensure(times <= 1, "a message is carried out once", || {
                format!("{} was carried out {times} times", key.message_id)
            })?;
            if self.fault == Some(crate::faults::RuleFault::ForgetMessageKeys) {
                continue;
            }
            let inbound = now(self.store.inbound(key.clone())).ok().flatten();
            let Some(inbound) = inbound else {
                return Err(broken("acknowledged input is stored", format!("{} is gone", key.message_id)));
            };
            ensure(inbound.is_settled(), "every message comes to an end", || {
                format!("{} of {run} is {:?}", key.message_id, inbound.execution_status)
            })?;
            let done = inbound.execution_status == InboundStatus::Completed;
            ensure(!done || times == 1, "a completed message was carried out", || {
                format!("{} was carried out {times} times", key.message_id)
            })?;
        }
        Ok(())
    }

    /// A question is answered once, by the recorded person, and only people grant permission.
    fn check_replies(&self) -> Result<(), InvariantViolation> {
        let table = self.processes.table();
        let engines = &table.engines;
        for (id, text) in &self.people.taken_replies {
            let recorded = now(self.store.interaction(*id)).ok().flatten();
            let state = recorded.map(|interaction| interaction.state);
            let kept = matches!(&state, Some(InteractionState::Answered(answer))
                if answer.text == *text && answer.resolution_mode == ResolutionMode::UserReply);
            ensure(kept, "an accepted reply is the recorded answer", || {
                format!("{id}: {text} became {state:?}")
            })?;
        }
        for (at, keeper) in &engines.keepers {
            for (gate, answers) in &keeper.answers {
                ensure(answers.len() == 1, "a question is answered once", || {
                    format!("{gate} was answered {answers:?}")
                })?;
                if answers.iter().any(|(_, approved)| *approved) {
                    ensure(self.person_approved(at.0, gate), "only a person approves", || {
                        format!("{gate} was approved by no person")
                    })?;
                }
            }
        }
        Ok(())
    }

    fn person_approved(&self, run: RunId, gate: &str) -> bool {
        let tables = now(self.store.tables_of(run)).unwrap_or_default();
        tables.interactions.values().any(|interaction| {
            let of_gate =
                matches!(&interaction.origin, InteractionOrigin::Gate { gate: its, .. } if its == gate);
            let by_person = matches!(&interaction.state, InteractionState::Answered(answer)
                if answer.resolution_mode == ResolutionMode::UserReply && answer.text == "yes");
            of_gate && by_person
        })
    }

    /// Every living process belongs to a run that holds it.
    fn check_processes(&self, runs: &[Run]) -> Result<(), InvariantViolation> {
        let table = self.processes.table();
        let engines = &table.engines;
        for ((run, attempt), keeper) in &engines.keepers {
            let held = runs.iter().any(|it| it.run_id == *run && it.attempt() == Some(*attempt));
            ensure(held || keeper.fate != ProcessFate::Alive, "no process is left behind", || {
                format!("process {run}/{} lives without a keeper", attempt.0)
            })?;
        }
        Ok(())
    }

    fn check_slots(&self, runs: &[Run]) -> Result<(), InvariantViolation> {
        let held = runs.iter().filter(|run| run.occupancy() == SlotOccupancy::Holding).count();
        let known = self.daemon.parts.dispatcher.occupancy();
        ensure(known == (held, 0), "no slot leaks", || format!("{known:?} are counted, {held} are held"))
    }

    /// Shown deliveries were intended and have one key; a finished delivery was shown or is reported as unavailable.
    fn check_shown(&self) -> Result<(), InvariantViolation> {
        for shown in &self.channel.shown {
            ensure(!shown.superseded, "a superseded turn is never shown", || format!("{shown:?}"))?;
            if let DeliveryContent::Result(turn) = &shown.content {
                let keys = self.channel.shown.iter().filter(|other| other.content == shown.content).count();
                ensure(keys == 1, "a result is shown once", || {
                    format!("{turn} was shown under {keys} keys")
                })?;
                let own = shown.text.as_ref().is_none_or(|text| *text == answer_of(*turn));
                ensure(own, "the shown progress belongs to the turn", || format!("{shown:?}"))?;
            }
        }
        for run in self.all_runs().iter().filter(|run| run.settings.conversation_ref.is_some()) {
            let tables = now(self.store.tables_of(run.run_id)).unwrap_or_default();
            for turn in tables.turns.values() {
                let shown = self.channel.shown.iter().any(|shown| shown.carries == Some(turn.turn_id));
                let delivered = turn.delivery_status == DeliveryStatus::Delivered;
                ensure(shown || !delivered, "delivered means shown", || format!("{} was not", turn.turn_id))?;
                let finished = turn.execution_status == ExecutionStatus::Completed
                    && matches!(turn.trigger, TurnTrigger::Message(_));
                let told = turn.delivery_status != DeliveryStatus::Pending
                    && turn.delivery_status != DeliveryStatus::NotReady;
                let kept_back =
                    turn.delivery_status == DeliveryStatus::Suppressed && turn.superseded.is_none();
                let auto = run.settings.execution_mode == ExecutionMode::Auto;
                ensure(auto || !finished || !kept_back, "a result is not kept back", || {
                    format!("{} is suppressed", turn.turn_id)
                })?;
                ensure(!finished || told, "a result is delivered or called undelivered", || {
                    format!("{} is {:?}", turn.turn_id, turn.delivery_status)
                })?;
            }
        }
        Ok(())
    }

    /// Counts the events of this history.
    pub(crate) fn tally(&self) -> HistoryCounters {
        let runs = self.all_runs();
        let questions = now(self.store.open_interactions(PageRequest::first(1)));
        debug_assert!(questions.is_ok_and(|open| open.items.is_empty()), "at rest nothing is open");
        HistoryCounters {
            events: self.taken,
            crashes: self.restarts,
            runs: runs.len() as u64,
            replies: self.people.taken_replies.len() as u64,
            auto_decisions: runs.iter().map(|run| u64::from(run.auto_decision_count)).sum(),
            deliveries: self.channel.shown.len() as u64,
        }
    }
}
