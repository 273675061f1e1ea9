//! Effects of an actor: which operation performs a pending effect, and which fact settles it.

use super::*;

/// How an effect starts.
enum EffectStart {
    EffectOperation(EffectOperation),
    Probe(InstalledEngine),
    /// It needs no operation.
    Fact(RunEvent),
    NotBefore(Timestamp),
    /// It starts after a later input.
    Waits,
}

/// Input for a process.
enum EncodedInput {
    Bytes(Vec<u8>),
    Waits,
    NoProcess,
    Unsupported,
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
            EffectStart::Waits => {}
            EffectStart::Fact(event) => {
                self.settled.push(event);
                self.start_commit(context, actions);
            }
            EffectStart::NotBefore(at) => {
                let wait = Duration::from_micros(context.clock.stamp().at.span_until(at).0);
                self.pause(ActorPause::Effect(number), wait, actions);
            }
            EffectStart::Probe(entry) => {
                self.operation = Some((number, pending.effect.clone()));
                actions.push(RunAction::Probe { number, entry });
            }
            EffectStart::EffectOperation(operation) => {
                self.operation = Some((number, pending.effect.clone()));
                actions.push(RunAction::Execute { number, name: pending.effect.name(), operation });
            }
        }
    }

    fn operation_for(
        &mut self,
        run: &Run,
        number: EffectNumber,
        effect: &Effect,
        context: &ActorContext<'_>,
    ) -> EffectStart {
        let obsolete = || EffectStart::Fact(RunEvent::EffectObsolete { effect: number });
        let process = |attempt: &Attempt| process_name(run.run_id, *attempt);
        let operation = match effect {
            Effect::Probe { .. } => match context.catalogue.engine(&run.settings.engine) {
                Some(entry) => return EffectStart::Probe(entry),
                None => return EffectStart::Fact(unknown_engine(run, context.catalogue)),
            },
            Effect::Launch { attempt } => match launch::prepare(run, *attempt, launch_settings(context)) {
                LaunchPreparation::Impossible(event) => return EffectStart::Fact(event),
                LaunchPreparation::NotBefore(at) => return EffectStart::NotBefore(at),
                LaunchPreparation::Ready(launch, session) => {
                    self.sessions.insert(*attempt, AttemptSession::new(session, false));
                    EffectOperation::Launch(launch)
                }
            },
            Effect::SendPrompt { attempt, turn_id, prompt } => {
                match self.encode(run, *attempt, |session| session.say(*turn_id, prompt)) {
                    EncodedInput::Waits => return EffectStart::Waits,
                    EncodedInput::NoProcess => return obsolete(),
                    // The process was kept although it does not support further input, so it is ended.
                    EncodedInput::Unsupported => EffectOperation::Terminate {
                        process: process(attempt),
                        shutdown: self.shutdown_of(*attempt),
                    },
                    EncodedInput::Bytes(bytes) => write(process(attempt), number, bytes),
                }
            }
            Effect::Answer { attempt, gate, text, verdict, .. } => {
                let answer = GateAnswer { gate_id: gate, text, verdict: *verdict };
                match self.encode(run, *attempt, |session| session.answer(&answer)) {
                    EncodedInput::Waits => return EffectStart::Waits,
                    EncodedInput::NoProcess | EncodedInput::Unsupported => return obsolete(),
                    EncodedInput::Bytes(bytes) => write(process(attempt), number, bytes),
                }
            }
            Effect::Steer { attempt, text, .. } => {
                match self.encode(run, *attempt, |session| session.steer(text)) {
                    EncodedInput::Waits => return EffectStart::Waits,
                    EncodedInput::NoProcess | EncodedInput::Unsupported => return obsolete(),
                    EncodedInput::Bytes(bytes) => write(process(attempt), number, bytes),
                }
            }
            Effect::Interrupt { attempt } => {
                let mut method = InterruptMethod::Signal(ProcessSignal::Interrupt);
                let encoded = self.encode(run, *attempt, |session| {
                    method = session.interrupt();
                    Ok(Vec::new())
                });
                match (encoded, method) {
                    (EncodedInput::Waits, _) => return EffectStart::Waits,
                    (EncodedInput::NoProcess, _) => {
                        return EffectStart::Fact(RunEvent::EffectPerformed { effect: number });
                    }
                    (_, InterruptMethod::Write(bytes)) => write(process(attempt), number, bytes),
                    (_, InterruptMethod::Signal(signal)) => {
                        EffectOperation::Signal { process: process(attempt), signal }
                    }
                }
            }
            Effect::Terminate { attempt } => {
                EffectOperation::Terminate { process: process(attempt), shutdown: self.shutdown_of(*attempt) }
            }
            Effect::Recover { attempt, .. } => EffectOperation::Find { process: process(attempt) },
            Effect::Deliver { delivery_id } => EffectOperation::Deliver { delivery_id: *delivery_id },
        };
        EffectStart::EffectOperation(operation)
    }

    /// Encodes input for a process, when its output has been read as far as its run has.
    fn encode(
        &mut self,
        run: &Run,
        attempt: Attempt,
        encode: impl FnOnce(&mut ProcessSession) -> Result<Vec<u8>, UnsupportedOperation>,
    ) -> EncodedInput {
        let live = run.live().filter(|live| live.attempt == attempt);
        let Some(session) = self.sessions.get_mut(&attempt) else {
            let will_attach = live.is_some() && self.unreadable != Some(attempt);
            return if will_attach { EncodedInput::Waits } else { EncodedInput::NoProcess };
        };
        let committed = live.map_or_else(OutputPosition::default, |live| live.processed_position);
        let is_read = session.session.interpreted_position() >= committed || session.end.is_some();
        // The input of the protocol that results from earlier output comes first.
        if !is_read || !session.writes.is_empty() || session.is_writing {
            return EncodedInput::Waits;
        }
        match contained(|| encode(&mut session.session)) {
            Some(Ok(bytes)) => EncodedInput::Bytes(bytes),
            Some(Err(_)) | None => EncodedInput::Unsupported,
        }
    }

    /// How to ask an idle process to exit.
    pub(super) fn shutdown_of(&mut self, attempt: Attempt) -> Option<abide_ports::engine::ShutdownMethod> {
        let session = self.sessions.get_mut(&attempt)?;
        contained(|| session.session.leave()).flatten()
    }

    pub(super) fn on_executed(
        &mut self,
        result: OperationResult,
        context: &mut ActorContext<'_>,
        actions: &mut Vec<RunAction>,
    ) {
        let Some((number, effect)) = self.operation.take() else { return };
        let pause = match self.fact_of(number, &effect, result, context) {
            Ok(events) => return self.settled.extend(events),
            Err(pause) => pause,
        };
        // The effect stays pending. It is idempotent.
        self.pause(ActorPause::Effect(number), pause, actions);
    }

    /// The facts that settle an effect, or the pause before it is tried again.
    pub(super) fn fact_of(
        &mut self,
        number: EffectNumber,
        effect: &Effect,
        result: OperationResult,
        context: &ActorContext<'_>,
    ) -> Result<Vec<RunEvent>, Duration> {
        let performed = RunEvent::EffectPerformed { effect: number };
        let obsolete = RunEvent::EffectObsolete { effect: number };
        Ok(vec![match (result, effect) {
            (OperationResult::Later(pause), _) => {
                self.forget_start(effect);
                return Err(pause);
            }
            (OperationResult::Panicked, _) => {
                tracing::error!(run = %self.run_id, effect = effect.name(), "an effect panicked");
                self.forget_start(effect);
                return Err(BROKEN_PAUSE);
            }
            (OperationResult::Abandoned, _) => return Err(BROKEN_PAUSE),
            (OperationResult::Probed(health), _) => {
                let entry = self.run().and_then(|run| context.catalogue.engine(&run.settings.engine));
                let (Some(run), Some(entry)) = (self.run(), entry) else { return Err(BROKEN_PAUSE) };
                probe_event(&entry, &health, &run.settings, context.clock.stamp().id_seed)
            }
            (OperationResult::Started(Ok((process, warning))), Effect::Launch { attempt }) => {
                if let Some(session) = self.sessions.get_mut(attempt) {
                    session.is_started = true;
                }
                let started = RunEvent::AttemptStarted { attempt: *attempt, process };
                return Ok(std::iter::once(started).chain(warning).collect());
            }
            (OperationResult::Started(Err(failure)), Effect::Launch { attempt }) => {
                self.sessions.remove(attempt);
                // The launch is still pending. It can be cancelled meanwhile.
                let event = failure.into_event(*attempt).ok_or(SILENT_PAUSE)?;
                // The process never ran, or its keeper is dead. The next attempt has another name, so the remains of
                // this one are removed, after the commit: until then, they prove that it must not be started again.
                self.failed_launches.push(*attempt);
                event
            }
            (
                OperationResult::Sent(sent),
                Effect::SendPrompt { .. } | Effect::Answer { .. } | Effect::Steer { .. },
            ) => {
                if sent.is_ok() {
                    performed
                } else {
                    obsolete
                }
            }
            // A process that cannot be reached is exiting; the stop deadline covers the rest.
            (OperationResult::Sent(_), _) => performed,
            // The exit is recorded together with the end of the effect. The reader may report it too, and the first
            // report counts.
            (OperationResult::Ended(Ok(exit)), Effect::Terminate { attempt }) => {
                RunEvent::ProcessExited { attempt: *attempt, exit }
            }
            // The process was kept although it does not support further input.
            (OperationResult::Ended(Ok(_)), Effect::SendPrompt { attempt, .. }) => {
                RunEvent::ProcessExited { attempt: *attempt, exit: ExitStatus::Unknown }
            }
            // The process may still be running, so the effect stays pending until it has certainly ended (SECURITY 10).
            (OperationResult::Ended(Err(unreachable)), _) => {
                tracing::warn!(run = %self.run_id, reason = unreachable.reason, "process not ended");
                return Err(self.search_pause(number, context));
            }
            (OperationResult::Found(ProcessLookup::Found(process)), Effect::Recover { attempt, .. }) => {
                self.paused.remove(&ActorPause::Attach);
                RunEvent::ContactRestored { attempt: *attempt, process }
            }
            (OperationResult::Silent, _) => return Err(self.search_pause(number, context)),
            // The keeper may answer again; the domain limits the time of the search.
            (OperationResult::Found(ProcessLookup::Unresponsive), _) => {
                return Err(self.search_pause(number, context));
            }
            (OperationResult::Found(_), Effect::Recover { attempt, .. }) => RunEvent::RecoveryFailed {
                attempt: *attempt,
                reason: "the process and its output are gone".to_owned(),
            },
            (OperationResult::Delivered(delivered), Effect::Deliver { delivery_id }) => match delivered {
                Ok(()) => RunEvent::DeliveryConfirmed { delivery_id: *delivery_id },
                Err(certainty) => RunEvent::DeliveryFailed { delivery_id: *delivery_id, certainty },
            },
            (
                OperationResult::Started(_)
                | OperationResult::Ended(_)
                | OperationResult::Found(_)
                | OperationResult::Delivered(_),
                _,
            ) => performed,
        }])
    }

    /// A launch that was not tried has no session.
    pub(super) fn forget_start(&mut self, effect: &Effect) {
        if let Effect::Launch { attempt } = effect {
            self.sessions.remove(attempt);
        }
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

/// The write of an effect.
fn write(process: String, number: EffectNumber, bytes: Vec<u8>) -> EffectOperation {
    EffectOperation::Write { process, key: input_key(number), bytes }
}

fn unknown_engine(run: &Run, catalogue: &dyn EngineLookup) -> RunEvent {
    let names = catalogue.names().join(", ");
    let message = format!("there is no engine {}; there are {names}", run.settings.engine);
    let failure =
        abide_domain::failure::RunFailure::new(abide_domain::failure::FailureCode::EngineNotFound, message);
    RunEvent::EngineUnusable { failure }
}
