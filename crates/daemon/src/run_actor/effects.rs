//! Effects of an actor: which operation performs a pending effect, and which fact settles it.

use super::*;

/// Why no operation performs an effect now.
pub(crate) enum NotPerformed {
    /// The fact settles the effect without one.
    Fact(Box<RunEvent>),
    /// It waits for the probe of the run's engine.
    Probe(Box<InstalledEngine>),
    NotBefore(Timestamp),
    /// It starts after a later input.
    Waits,
}

impl RunActor {
    /// Starts the first pending effect. The effects of a run are performed in order.
    pub(super) fn start_effect(&mut self, context: &mut ActorContext<'_>, actions: &mut Vec<RunAction>) {
        // A settled effect leaves the list with the commit of its fact.
        if self.operation.is_some() || !self.settled.is_empty() || !context.may_act {
            return;
        }
        let Some(run) = self.run().cloned() else { return };
        let Some(pending) = run.pending_effects.first() else { return };
        let number = pending.number;
        if self.paused.contains(&ActorPause::Effect(number)) {
            return;
        }
        if context.is_closing && matches!(pending.effect, Effect::Launch { .. } | Effect::Probe { .. }) {
            return;
        }
        let wait = pending.remaining_delay(context.clock.stamp().at);
        if wait.0 > 0 {
            return self.pause(ActorPause::Effect(number), Duration::from_micros(wait.0), actions);
        }
        match self.operation_for(&run, number, &pending.effect, context) {
            Ok(operation) => {
                self.operation = Some(number);
                actions.push(RunAction::Execute { number, name: pending.effect.name(), operation });
            }
            Err(NotPerformed::Probe(entry)) => {
                self.operation = Some(number);
                actions.push(RunAction::Probe { number, entry: *entry });
            }
            Err(NotPerformed::Fact(event)) => {
                self.settled.push(*event);
                self.start_commit(context, actions);
            }
            Err(NotPerformed::NotBefore(at)) => {
                let wait = Duration::from_micros(context.clock.stamp().at.span_until(at).0);
                self.pause(ActorPause::Effect(number), wait, actions);
            }
            Err(NotPerformed::Waits) => {}
        }
    }

    fn operation_for(
        &mut self,
        run: &Run,
        number: EffectNumber,
        effect: &Effect,
        context: &ActorContext<'_>,
    ) -> Result<EffectOperation, NotPerformed> {
        let fact = |event| NotPerformed::Fact(Box::new(event));
        let obsolete = || fact(RunEvent::EffectObsolete { effect: number });
        let write = |attempt, bytes| EffectOperation::Write { attempt, key: input_key(number), bytes };
        Ok(match effect {
            Effect::Probe { .. } => {
                return Err(match context.catalogue.engine(&run.settings.engine) {
                    Some(entry) => NotPerformed::Probe(Box::new(entry)),
                    None => fact(unknown_engine(run, context.catalogue)),
                });
            }
            Effect::Launch { attempt } => {
                let (launch, session) = launch::prepare(run, *attempt, context)?;
                self.sessions.insert(*attempt, session);
                EffectOperation::Launch(launch)
            }
            Effect::SendPrompt { attempt, turn_id, prompt } => {
                let session = self.input_session(run, *attempt)?.ok_or_else(obsolete)?;
                match contained(|| session.say(*turn_id, prompt)) {
                    Some(Ok(bytes)) => write(*attempt, bytes),
                    // The process was kept although it does not support further input, so it is ended.
                    Some(Err(_)) | None => EffectOperation::Terminate {
                        attempt: *attempt,
                        shutdown: self.shutdown_of(*attempt),
                        recorded_exit: Some(ExitStatus::Unknown),
                    },
                }
            }
            Effect::Answer { attempt, gate, text, verdict, .. } => {
                let session = self.input_session(run, *attempt)?.ok_or_else(obsolete)?;
                let answer = GateAnswer { gate_id: gate, text, verdict: *verdict };
                let bytes = contained(|| session.interpreter.encode_answer(&answer)).and_then(Result::ok);
                write(*attempt, bytes.ok_or_else(obsolete)?)
            }
            Effect::Steer { attempt, text, .. } => {
                let session = self.input_session(run, *attempt)?.ok_or_else(obsolete)?;
                let bytes = contained(|| session.interpreter.encode_steer(text)).and_then(Result::ok);
                write(*attempt, bytes.ok_or_else(obsolete)?)
            }
            Effect::Interrupt { attempt } => {
                let is_over = || fact(RunEvent::EffectPerformed { effect: number });
                let session = self.input_session(run, *attempt)?.ok_or_else(is_over)?;
                let method = contained(|| session.interrupt());
                let method = method.unwrap_or(InterruptMethod::Signal(ProcessSignal::Interrupt));
                EffectOperation::Interrupt { attempt: *attempt, method }
            }
            Effect::Terminate { attempt } => {
                let shutdown = self.shutdown_of(*attempt);
                EffectOperation::Terminate { attempt: *attempt, shutdown, recorded_exit: None }
            }
            Effect::Recover { attempt, .. } => EffectOperation::Find { attempt: *attempt },
            Effect::Deliver { delivery_id } => EffectOperation::Deliver { delivery_id: *delivery_id },
        })
    }

    /// The session that encodes input for a process, when its output has been read as far as its run has. None if there
    /// is no process.
    fn input_session(
        &mut self,
        run: &Run,
        attempt: Attempt,
    ) -> Result<Option<&mut ProcessSession>, NotPerformed> {
        let live = run.live().filter(|live| live.attempt == attempt);
        let Some(session) = self.sessions.get_mut(&attempt) else {
            let will_attach = live.is_some() && self.unreadable != Some(attempt);
            return if will_attach { Err(NotPerformed::Waits) } else { Ok(None) };
        };
        let committed = live.map_or_else(OutputPosition::default, |live| live.processed_position);
        let is_read = session.interpreted >= committed || session.end.is_some();
        // The input of the protocol that results from earlier output comes first.
        if !is_read || !session.writes.is_empty() || session.is_writing {
            return Err(NotPerformed::Waits);
        }
        Ok(Some(session))
    }

    /// How to ask an idle process to exit.
    pub(super) fn shutdown_of(&mut self, attempt: Attempt) -> Option<abide_ports::engine::ShutdownMethod> {
        let session = self.sessions.get_mut(&attempt)?;
        contained(|| session.leave()).flatten()
    }

    pub(super) fn on_executed(
        &mut self,
        result: EffectResult,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some(number) = self.operation.take() else { return };
        let pause = match result {
            EffectResult::Settled(events) => return self.settle_effect(events),
            EffectResult::Unreachable => self.search_pause(number, context),
            EffectResult::Later(pause) => pause,
        };
        // The effect stays pending. It is idempotent. A launch that failed has no session.
        self.sessions.retain(|_, session| session.is_started);
        self.pause(ActorPause::Effect(number), pause, actions);
    }

    fn settle_effect(&mut self, events: Vec<RunEvent>) {
        for event in &events {
            if let RunEvent::AttemptStarted { attempt, .. } = event
                && let Some(session) = self.sessions.get_mut(attempt)
            {
                session.is_started = true;
            }
            if let RunEvent::ContactRestored { .. } = event {
                self.paused.remove(&ActorPause::Attach);
            }
        }
        // The process never ran, or its keeper is dead. The next attempt has another name, so the remains of this one
        // are removed, after the commit: until then, they prove that it must not be started again.
        let failed = self.sessions.extract_if(.., |_, session| !session.is_started);
        self.failed_launches.extend(failed.map(|(attempt, _)| attempt));
        self.settled.extend(events);
    }

    /// The examination of the run's engine is complete.
    pub(super) fn on_probed(
        &mut self,
        health: &EngineHealth,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let entry = self.run().and_then(|run| context.catalogue.engine(&run.settings.engine));
        let result = match (self.run(), entry) {
            (Some(run), Some(entry)) => {
                let id_seed = context.clock.stamp().id_seed;
                EffectResult::Settled(vec![probe_event(&entry, health, &run.settings, id_seed)])
            }
            _ => EffectResult::Later(BROKEN_PAUSE),
        };
        self.on_executed(result, context, actions);
    }

    /// The pause before the next search for a process that does not answer. It grows with the time of the search.
    pub(super) fn search_pause(&self, number: EffectNumber, context: &ActorContext<'_>) -> Duration {
        let effects = self.run().map_or(&[][..], |run| &run.pending_effects);
        let since = effects.iter().find(|pending| pending.number == number).map(|pending| pending.due_at);
        let now = context.clock.stamp().at;
        let searched = since.map_or(Duration::ZERO, |since| Duration::from_micros(since.span_until(now).0));
        (searched / 2).clamp(MIN_SEARCH_PAUSE, MAX_SEARCH_PAUSE)
    }
}

fn unknown_engine(run: &Run, catalogue: &dyn EngineLookup) -> RunEvent {
    let names = catalogue.names().join(", ");
    let message = format!("there is no engine {}; there are {names}", run.settings.engine);
    let failure =
        abide_domain::failure::RunFailure::new(abide_domain::failure::FailureCode::EngineNotFound, message);
    RunEvent::EngineUnusable { failure }
}
