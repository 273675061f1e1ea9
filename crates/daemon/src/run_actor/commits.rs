//! Commits of an actor: the inbox is drained into one transaction, and its outcome decides what follows.

use super::*;

impl RunActor {
    /// Drains the inbox into one commit. A run that is not known is loaded first.
    pub(super) fn start_commit(&mut self, context: &mut ActorContext<'_>, actions: &mut Vec<RunAction>) {
        while self.commit.is_none() && !self.is_loading {
            // Requests do not wait for facts that could not be committed.
            if self.paused.contains(&ActorPause::Commit) && self.requests.is_empty() {
                return;
            }
            let mut batch = self.drain();
            if batch.is_empty() && !self.must_load {
                return;
            }
            if let Some(needed) = self.needed_for(&batch, context) {
                self.restore(batch);
                self.is_loading = true;
                return actions.push(needed);
            }
            if batch.is_empty() {
                // The survey would be out of date at the next commit.
                (self.must_load, self.survey) = (false, None);
                return;
            }
            if self.text_bytes(&batch) > LONG_TEXT_BYTES && !context.scheduler.begin_long(self.run_id) {
                return self.restore(batch);
            }
            let changes = self.apply(&mut batch, context);
            self.commit(batch, changes, context, actions);
        }
    }

    /// Takes the part of the inbox that can be committed now.
    pub(super) fn drain(&mut self) -> CommitBatch {
        let (is_performing, is_paused) =
            (self.operation.is_some(), self.paused.contains(&ActorPause::Commit));
        let mut batch = CommitBatch::default();
        if !is_paused {
            batch.settled.append(&mut self.settled);
        }
        let mut events = 0;
        while !is_performing && !is_paused && events < EVENTS_PER_COMMIT {
            let Some(facts) = self.outputs.pop_front_if(|facts| facts.is_ready) else { break };
            events += facts.events.len();
            batch.outputs.push(facts);
        }
        // A repeated request is answered when the first one is durable.
        let mut claimed = BTreeSet::new();
        let mut waiting = VecDeque::new();
        for request in std::mem::take(&mut self.requests) {
            if self.is_premature(&request) {
                continue;
            }
            let is_repeated = request.claims().any(|claim| claimed.contains(&claim));
            if batch.requests.len() < REQUESTS_PER_COMMIT
                && !is_repeated
                && !(is_performing && request.follows_effects())
            {
                claimed.extend(request.claims());
                batch.requests.push(request);
            } else {
                waiting.push_back(request);
            }
        }
        self.requests = waiting;
        batch
    }

    /// Puts a batch back that was not committed.
    pub(super) fn restore(&mut self, batch: CommitBatch) {
        let CommitBatch { mut settled, outputs, requests, .. } = batch;
        settled.append(&mut self.settled);
        self.settled = settled;
        outputs.into_iter().rev().for_each(|facts| self.outputs.push_front(facts));
        requests.into_iter().rev().for_each(|request| self.requests.push_front(request));
    }

    /// The action whose result is needed before the batch can be applied, if any.
    pub(super) fn needed_for(&self, batch: &CommitBatch, context: &ActorContext<'_>) -> Option<RunAction> {
        let created = match batch.requests.first() {
            Some(ActorRequest::Client { event: RunEvent::RunCreated(new), .. }) => Some(new),
            Some(_) | None => None,
        };
        match (&self.known, created) {
            // A run that is being created is assumed not to exist; otherwise the store refuses the commit.
            (KnownRun::Unknown, Some(new)) if !self.must_load => {
                self.survey.is_none().then(|| RunAction::Survey(Arc::new(new.settings.clone())))
            }
            (KnownRun::Unknown, _) => Some(RunAction::Load),
            (KnownRun::Known { run, .. }, _) => {
                let is_waiting_row = run.as_ref().is_some_and(|run| run.live().is_none());
                let needs_space = |request: &ActorRequest| match request {
                    ActorRequest::Admit => true,
                    ActorRequest::Client { event: RunEvent::MessageArrived { .. }, .. } => true,
                    // The run is admitted in the same commit if a slot is free.
                    ActorRequest::Client { event: RunEvent::ReplyArrived { .. }, .. } => is_waiting_row,
                    ActorRequest::Client { .. } | ActorRequest::Deadline(_) => false,
                };
                let run = run.as_ref().filter(|run| context.is_space_limited || run.profile.is_none())?;
                let needs_survey = self.survey.is_none() && batch.requests.iter().any(needs_space);
                needs_survey.then(|| RunAction::Survey(run.settings.clone()))
            }
        }
    }

    /// The size of the texts that have no small bound.
    pub(super) fn text_bytes(&self, batch: &CommitBatch) -> usize {
        let requests = batch.requests.iter().filter_map(|request| match request {
            ActorRequest::Client { event, .. } => Some(event),
            ActorRequest::Deadline(_) | ActorRequest::Admit => None,
        });
        let facts = batch.outputs.iter().flat_map(|facts| &facts.events);
        let run = self.run().map_or(0, |run| run_text_bytes(run));
        run + requests.chain(facts).map(event_text_bytes).sum::<usize>()
    }

    /// Applies a batch in order, and records the outcomes of its requests. An event that is refused or absorbed is
    /// skipped.
    pub(super) fn apply(
        &mut self,
        batch: &mut CommitBatch,
        context: &mut ActorContext<'_>,
    ) -> Vec<RunChange> {
        let before = self.run().cloned();
        let shortage = self.survey.as_ref().and_then(|survey| survey.shortage.clone());
        let mut changes = Vec::new();
        batch.outcomes.clear();
        if before.as_ref().is_some_and(|run| run.rules < run::CURRENT_RULES_VERSION) {
            let adopted = RunEvent::RulesAdopted { rules: run::CURRENT_RULES_VERSION };
            // No rule refuses it.
            append(&mut changes, before.as_deref(), adopted, context).ok();
        }
        // A run adopts newer rules only together with another event.
        let adopted = changes.len();
        for event in batch.settled.iter().chain(batch.outputs.iter().flat_map(|facts| &facts.events)) {
            // Facts are not refused.
            append(&mut changes, before.as_deref(), event.clone(), context).ok();
        }
        for request in &batch.requests {
            let count = changes.len();
            let outcome = match (request.event(), &shortage) {
                (
                    RunEvent::MessageArrived { .. } | RunEvent::RunCreated(_) | RunEvent::Admitted,
                    Some(shortage),
                ) => Err(RequestError::Shortage(shortage.clone())),
                (event, _) => {
                    append(&mut changes, before.as_deref(), event, context).map_err(RequestError::from)
                }
            };
            let is_changed = changes.len() > count;
            batch.outcomes.push(outcome.map(|()| match is_changed {
                true => ApplyOutcome::Changed,
                false => ApplyOutcome::Ignored,
            }));
        }
        if changes.len() == adopted {
            return Vec::new();
        }
        let latest = changes[changes.len() - 1].run.clone();
        // A slot is granted for the final state. Without a fresh survey, the scheduler admits the run later.
        let has_room = match &self.survey {
            Some(survey) => survey.shortage.is_none(),
            None => !context.is_space_limited && latest.profile.is_some(),
        };
        if has_room && context.scheduler.admit_if_next(before.as_deref(), &latest) {
            append(&mut changes, None, RunEvent::Admitted, context).ok();
        }
        if let Some(event) = self.cached_probe(&changes[changes.len() - 1].run, context) {
            append(&mut changes, None, event, context).ok();
        }
        changes
    }

    /// The event for a pending probe whose result is cached. It is committed together with the effect.
    pub(super) fn cached_probe(&self, run: &Run, context: &ActorContext<'_>) -> Option<RunEvent> {
        let Effect::Probe { .. } = run.pending_effects.first()?.effect else { return None };
        let program = self.survey.as_ref()?.program.as_ref()?;
        let entry = context.catalogue.engine(&run.settings.engine)?;
        let health = context.probes.get(program)?;
        Some(probe_event(&entry, health, &run.settings, context.clock.stamp().id_seed))
    }

    /// Commits the changes of a batch. Nothing is acknowledged before [`Self::on_committed`].
    pub(super) fn commit(
        &mut self,
        batch: CommitBatch,
        changes: Vec<RunChange>,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some(after) = changes.last().map(|change| change.run.clone()) else {
            // Without a commit, a conflict with another writer would not be detected, so the store is read. If that
            // fails, it is read again, because the run may have a process or a pending effect.
            if matches!(self.known, KnownRun::Known { is_fresh: false, .. }) && !batch.requests.is_empty() {
                (self.known, self.must_load) = (KnownRun::Unknown, true);
                context.scheduler.end_long(self.run_id);
                return self.restore(batch);
            }
            let run = self.run().cloned();
            return self.conclude(batch, run, context, actions);
        };
        let log = changes.iter().map(|change| EventLogLine::of(&change.event)).collect();
        self.commit = Some(CommitInProgress { batch, after, log });
        actions.push(RunAction::Commit(JournalCommit { changes }));
    }

    /// The one place at which a commit has an outcome.
    pub(super) fn on_committed(
        &mut self,
        result: Result<(), StoreError>,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some(CommitInProgress { mut batch, after, log }) = self.commit.take() else { return };
        match result {
            Ok(()) => {
                log.into_iter().for_each(|line| line.write(&after));
                actions.push(RunAction::Announce(Some(after.clone())));
                self.conflicts = 0;
                self.conclude(batch, Some(after), context, actions);
            }
            Err(StoreError::Conflict { .. }) if self.conflicts < MAX_CONFLICTS => {
                self.conflicts += 1;
                self.restore(batch);
                self.forget_state(context);
            }
            // The request repeats an earlier one. The others are committed without it.
            Err(StoreError::KeyTaken { scope, key, holder })
                if let Some(place) = batch.position_of_claim(&scope, &key) =>
            {
                let repeated = batch.requests.remove(place);
                self.restore(batch);
                self.release(context);
                let error = StoreError::KeyTaken { scope, key, holder };
                self.fail_requests(vec![repeated], error, context, actions);
            }
            Err(error) => {
                self.conflicts = 0;
                if let StoreError::OutcomeUnknown { .. } | StoreError::Conflict { .. } = error {
                    // The commit may have been written. Only the store knows the state of the run.
                    (self.known, self.must_load) = (KnownRun::Unknown, true);
                    self.pause(ActorPause::Commit, STORE_PAUSE, actions);
                } else {
                    self.release(context);
                }
                // Facts must not be dropped.
                if batch.has_facts() {
                    tracing::warn!(run = %self.run_id, %error, "facts were not committed");
                    let is_taken = matches!(error, StoreError::InUse { .. });
                    let pause = if is_taken { STORE_TAKEN_PAUSE } else { STORE_PAUSE };
                    self.pause(ActorPause::Commit, pause, actions);
                }
                let requests = std::mem::take(&mut batch.requests);
                self.restore(batch);
                self.fail_requests(requests, error, context, actions);
            }
        }
        context.scheduler.end_long(self.run_id);
        self.survey = None;
    }

    /// Records that the commit was certainly not written. The run keeps its place in the queue.
    pub(super) fn release(&mut self, context: &mut ActorContext<'_>) {
        self.settle_slot(self.run().map(|run| &**run), context);
    }

    /// Reports the state of the run to the scheduler. A granted slot stays held until the grant itself is handled.
    pub(super) fn settle_slot(&self, run: Option<&Run>, context: &mut ActorContext<'_>) {
        if !self.requests.iter().any(|request| matches!(request, ActorRequest::Admit)) {
            context.scheduler.settle(self.run_id, run);
        }
    }

    /// Another writer has changed the run.
    pub(super) fn forget_state(&mut self, context: &mut ActorContext<'_>) {
        self.release(context);
        self.known = KnownRun::Unknown;
        self.must_load = true;
    }

    /// The state after a batch is durable: requests are answered, and input is written to the processes.
    pub(super) fn conclude(
        &mut self,
        batch: CommitBatch,
        run: Option<Arc<Run>>,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        context.scheduler.end_long(self.run_id);
        self.settle_slot(run.as_deref(), context);
        if !batch.settled.is_empty() {
            let failed = std::mem::take(&mut self.failed_launches).into_iter();
            actions.extend(failed.map(|attempt| RunAction::CleanUp { attempt }));
        }
        for (request, outcome) in batch.requests.into_iter().zip(batch.outcomes) {
            match (request, outcome) {
                (ActorRequest::Client { reply, .. }, outcome) => {
                    let result = outcome.map(|outcome| match (outcome, &run) {
                        (ApplyOutcome::Changed, Some(run)) => RequestOutcome::Changed(run.clone()),
                        (ApplyOutcome::Changed, None) | (ApplyOutcome::Ignored, _) => {
                            RequestOutcome::Absorbed
                        }
                    });
                    actions.push(RunAction::Reply { reply, result });
                }
                (ActorRequest::Deadline(_), Ok(_)) => context.scheduler.end_quarantine(self.run_id),
                (ActorRequest::Deadline(_), Err(error)) => self.quarantine(&error.to_string(), context),
                (ActorRequest::Admit, Err(RequestError::Shortage(_))) => context.scheduler.skip(self.run_id),
                // If it was refused, the run was admitted or ended elsewhere.
                (ActorRequest::Admit, _) => {}
            }
        }
        for facts in batch.outputs {
            if let Some(session) = self.sessions.get_mut(&facts.attempt) {
                session.writes.extend(facts.writes);
            }
        }
        self.known = KnownRun::Known { run, is_fresh: false };
        self.survey = None;
    }

    pub(super) fn quarantine(&mut self, reason: &str, context: &mut ActorContext<'_>) {
        let now = context.clock.stamp().at;
        context.scheduler.quarantine(self.run_id, reason, now);
    }

    /// Answers requests that failed. Only one of them gets the error itself.
    pub(super) fn fail_requests(
        &mut self,
        requests: Vec<ActorRequest>,
        error: StoreError,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let reason = error.to_string();
        let mut error = Some(error);
        for request in requests {
            match request {
                ActorRequest::Client { reply, .. } => {
                    let unavailable = || StoreError::Unavailable { reason: reason.clone() };
                    let result = Err(RequestError::Store(error.take().unwrap_or_else(unavailable)));
                    actions.push(RunAction::Reply { reply, result });
                }
                ActorRequest::Deadline(_) => self.quarantine(&reason, context),
                ActorRequest::Admit => {
                    context.scheduler.skip(self.run_id);
                    // Of a run that cannot be read, only the queue knows that it waits.
                    context.scheduler.release_grant(self.run_id);
                }
            }
        }
    }
}

/// Applies one event to the result of the earlier changes, and then the events that must follow it.
fn append(
    changes: &mut Vec<RunChange>,
    before: Option<&Run>,
    event: RunEvent,
    context: &ActorContext<'_>,
) -> Result<(), RequestRefused> {
    let (mut next, mut at) = (Some(event), context.clock.stamp().at);
    while let Some(event) = next {
        let run = changes.last().map(|change| &*change.run).or(before);
        // A following event gets a time one microsecond later. So no time passes between a question and its automatic
        // answer, and no two events of a run have the same time.
        let stamp = EventStamp { at, ..context.clock.stamp() };
        at = Timestamp(at.0.saturating_add(1));
        let mut step = (context.rules)(run, &stamp, &event)?;
        next = step.follow_up.take();
        if step.outcome == ApplyOutcome::Changed {
            let change = RunChange::new(run, stamp, event, step);
            changes.push(change);
        }
    }
    Ok(())
}

/// The size of the text of an event that has no small bound.
fn event_text_bytes(event: &RunEvent) -> usize {
    if let RunEvent::RunCreated(new) = event {
        return new.message.text.len();
    }
    if let RunEvent::MessageArrived { message, .. } = event {
        return message.text.len();
    }
    if let RunEvent::TurnEnded {
        outcome: TurnOutcome::Completed { text } | TurnOutcome::Asked { text, .. },
        ..
    } = event
    {
        return text.len();
    }
    0
}

/// The size of the texts of a run that have no small bound.
fn run_text_bytes(run: &Run) -> usize {
    let turns = run.turns.iter().map(|turn| turn.prompt.len() + turn.reply.as_ref().map_or(0, String::len));
    let messages = run.inbox.iter().map(|inbound| inbound.message.text.len());
    let questions = run.interactions.iter().map(|interaction| interaction.question.prompt.len());
    let requests = run.waiting_gates.iter().map(|interaction| interaction.question.prompt.len());
    let next_prompt = match &run.state {
        RunState::Queued { next, .. } => next.prompt.len(),
        RunState::Running(_) | RunState::WaitingUser(_) | RunState::Idle { .. } | RunState::Finished(_) => 0,
    };
    let result = run.result.as_ref().map_or(0, String::len);
    turns.chain(messages).chain(questions).chain(requests).sum::<usize>() + next_prompt + result
}
