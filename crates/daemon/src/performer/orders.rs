//! Executes one effect and returns its result.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use abide_domain::{
    delivery::DeliveryFailure,
    effect::{Effect, PendingEffect},
    event::RunEvent,
    id::RunId,
    process::{Attempt, ExitStatus},
    run::Run,
    time::{TimeSpan, Timestamp},
};
use abide_ports::{
    engine::{GateAnswer, InterruptMethod, ProcessSignal, ShutdownMethod, UnsupportedOperation},
    processes::{OutputOffsets, ProcessLookup, ProcessOutput, Processes, StdinWrite},
};

use super::{EffectExecutor, EffectResult, key, listen::contained, lock, name};
use crate::talk::ProcessSession;

impl EffectExecutor {
    pub(super) async fn carry_out(&self, run: &Run, owed: &PendingEffect) -> EffectResult {
        let (run_id, number) = (run.run_id, owed.number);
        let performed = RunEvent::EffectPerformed { effect: number };
        let missed = RunEvent::EffectObsolete { effect: number };
        if let Some(unheard) = self.unheard(run, &owed.effect).await {
            return unheard;
        }
        EffectResult::Told(match &owed.effect {
            Effect::Probe { .. } => return self.probe(run).await,
            Effect::Launch { attempt } => return self.launch(run, *attempt),
            Effect::SendPrompt { attempt, turn_id, prompt } => {
                let (turn, prompt) = (*turn_id, prompt.clone());
                match self.write(run, *attempt, owed, move |talk| talk.say(turn, &prompt)).await {
                    StdinWriteOutcome::Yes => performed,
                    StdinWriteOutcome::Gone => missed,
                    // The process was kept although it does not support further input, so it is ended.
                    StdinWriteOutcome::Unsupported => {
                        if self.end(run_id, *attempt).await.is_err() {
                            return EffectResult::NotBefore(self.next_look(owed.due_at));
                        }
                        RunEvent::ProcessExited { attempt: *attempt, exit: ExitStatus::Unknown }
                    }
                }
            }
            Effect::Answer { attempt, gate, text, verdict, .. } => {
                let (gate, text, verdict) = (gate.clone(), text.clone(), *verdict);
                let answer = move |talk: &mut ProcessSession| {
                    talk.answer(&GateAnswer { gate_id: &gate, text: &text, verdict })
                };
                match self.write(run, *attempt, owed, answer).await {
                    StdinWriteOutcome::Yes => performed,
                    StdinWriteOutcome::Gone | StdinWriteOutcome::Unsupported => missed,
                }
            }
            Effect::Steer { attempt, text, .. } => {
                let text = text.clone();
                match self.write(run, *attempt, owed, move |talk| talk.steer(&text)).await {
                    StdinWriteOutcome::Yes => performed,
                    StdinWriteOutcome::Gone | StdinWriteOutcome::Unsupported => missed,
                }
            }
            Effect::Interrupt { attempt } => {
                self.interrupt(run_id, *attempt, key(number)).await;
                performed
            }
            // The exit is recorded together with the end of the effect. The reader may report it too, and the first
            // report counts.
            Effect::Terminate { attempt } => match self.end(run_id, *attempt).await {
                Ok(exit) => RunEvent::ProcessExited { attempt: *attempt, exit },
                // The process may still be running, so the effect stays pending until it has certainly ended (SECURITY
                // 10).
                Err(ProcessNotEnded) => return EffectResult::NotBefore(self.next_look(owed.due_at)),
            },
            Effect::Recover { attempt, .. } => {
                let (processes, name) = (self.world.processes.clone(), name(run_id, *attempt));
                match self.blocking(move || processes.find(&name)).await {
                    ProcessLookup::Found(process) => RunEvent::ContactRestored { attempt: *attempt, process },
                    // The keeper may answer again; the domain limits the time of the search.
                    ProcessLookup::Unresponsive => {
                        return EffectResult::NotBefore(self.next_look(owed.due_at));
                    }
                    ProcessLookup::Lost | ProcessLookup::NotStarted => RunEvent::RecoveryFailed {
                        attempt: *attempt,
                        reason: "the process and its output are gone".to_owned(),
                    },
                }
            }
            // No channel exists yet.
            Effect::Deliver { delivery_id } => {
                RunEvent::DeliveryFailed { delivery_id: *delivery_id, certainty: DeliveryFailure::Failed }
            }
        })
    }

    /// The time of the next check for a process that has been missing since `since`. The interval grows.
    fn next_look(&self, since: Timestamp) -> Timestamp {
        let now = self.world.clock.stamp().at;
        let searched = Duration::from_micros(since.span_until(now).0);
        let pause = (searched / 2).clamp(SHORTEST_LOOK, LONGEST_LOOK);
        now.add_span(TimeSpan(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Whether the effect needs input for a process whose output has not been read as far as its run has. After a
    /// restart the output is read again; before that, its interpreter knows no gate, session or turn.
    async fn unheard(&self, run: &Run, effect: &Effect) -> Option<EffectResult> {
        let attempt = match effect {
            Effect::SendPrompt { attempt, .. }
            | Effect::Answer { attempt, .. }
            | Effect::Steer { attempt, .. }
            | Effect::Interrupt { attempt } => *attempt,
            Effect::Probe { .. }
            | Effect::Launch { .. }
            | Effect::Terminate { .. }
            | Effect::Recover { .. }
            | Effect::Deliver { .. } => return None,
        };
        // The effect may come before the reader has started.
        self.listen(run).await;
        let live = run.live().filter(|live| live.attempt == attempt)?;
        let progress = lock(&*self.talk_of(run.run_id, attempt)?).progress();
        let unheard = *progress.borrow() < live.processed_position;
        unheard.then_some(EffectResult::Unheard(progress, live.processed_position))
    }

    /// Writes the interpreter's bytes to its process, once for each effect.
    async fn write(
        &self,
        run: &Run,
        attempt: Attempt,
        owed: &PendingEffect,
        make: impl FnOnce(&mut ProcessSession) -> Result<Vec<u8>, UnsupportedOperation>,
    ) -> StdinWriteOutcome {
        let Some(talk) = self.talk_of(run.run_id, attempt) else { return StdinWriteOutcome::Gone };
        let made = contained(|| make(&mut lock(&talk)));
        let Some(Ok(bytes)) = made else { return StdinWriteOutcome::Unsupported };
        let (processes, name, key) =
            (self.world.processes.clone(), name(run.run_id, attempt), key(owed.number));
        let written = self
            .blocking(move || processes.write(&name, &StdinWrite { key, bytes: &bytes, close_after: false }));
        if written.await.is_ok() { StdinWriteOutcome::Yes } else { StdinWriteOutcome::Gone }
    }

    async fn interrupt(&self, run: RunId, attempt: Attempt, key: u64) {
        let Some(talk) = self.talk_of(run, attempt) else { return };
        let stop = contained(|| lock(&talk).interrupt())
            .unwrap_or(InterruptMethod::Signal(ProcessSignal::Interrupt));
        let (processes, name) = (self.world.processes.clone(), name(run, attempt));
        // A process that cannot be reached is exiting; the stop deadline covers the rest.
        self.blocking(move || match stop {
            InterruptMethod::Write(bytes) => {
                processes.write(&name, &StdinWrite { key, bytes: &bytes, close_after: false })
            }
            InterruptMethod::Signal(signal) => processes.signal(&name, signal),
        })
        .await
        .ok();
    }

    /// Asks an idle process to exit, and ends it if it does not. Returns its exit status.
    pub(super) async fn end(&self, run: RunId, attempt: Attempt) -> Result<ExitStatus, ProcessNotEnded> {
        let leave = self.talk_of(run, attempt).and_then(|talk| contained(|| lock(&talk).leave()).flatten());
        let (processes, name) = (self.world.processes.clone(), name(run, attempt));
        let ended = self
            .blocking(move || {
                match leave {
                    Some(ShutdownMethod::CloseInput) => {
                        let write = StdinWrite { key: LAST_INPUT, bytes: &[], close_after: true };
                        if processes.write(&name, &write).is_ok() {
                            wait_for_exit(&*processes, &name);
                        }
                    }
                    Some(ShutdownMethod::Signal(signal)) => {
                        // `end` below terminates it in any case.
                        processes.signal(&name, signal).ok();
                    }
                    None => {}
                }
                processes.terminate(&name)
            })
            .await;
        ended.map_err(|lost| {
            tracing::warn!(%run, attempt = attempt.0, reason = lost.reason, "process not ended");
            ProcessNotEnded
        })
    }

    pub(super) fn talk_of(&self, run: RunId, attempt: Attempt) -> Option<Arc<Mutex<ProcessSession>>> {
        lock(&self.shared.talks).get(&(run, attempt)).cloned()
    }
}

/// The process may still be running; the reason is in the log.
#[derive(Debug)]
pub(super) struct ProcessNotEnded;

/// The result of a write to a process.
enum StdinWriteOutcome {
    Yes,
    Gone,
    Unsupported,
}

/// Minimum and maximum interval of checks for a process that does not answer.
const SHORTEST_LOOK: Duration = Duration::from_millis(500);
const LONGEST_LOOK: Duration = Duration::from_secs(15);

/// The idempotency key for closing the input.
const LAST_INPUT: u64 = (1 << 63) | (1 << 40);

/// Time limit for a process to exit after its input was closed.
const LEAVING: Duration = Duration::from_secs(5);

fn wait_for_exit(processes: &dyn Processes, name: &str) {
    let Ok(mut follow) = processes.follow(name, OutputOffsets::END) else { return };
    loop {
        match follow.next(Some(LEAVING)) {
            Ok(ProcessOutput::Exited(_) | ProcessOutput::Gap(_) | ProcessOutput::TimedOut) | Err(_) => {
                return;
            }
            Ok(ProcessOutput::Stdout(_) | ProcessOutput::Stderr(_)) => {}
        }
    }
}
