//! Carries out one order and says what became of it.

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
        let missed = RunEvent::EffectMissed { effect: number };
        if let Some(unheard) = self.unheard(run, &owed.effect).await {
            return unheard;
        }
        EffectResult::Told(match &owed.effect {
            Effect::Probe { .. } => return self.probe(run).await,
            Effect::Launch { attempt, .. } => return self.launch(run, *attempt),
            Effect::Say { attempt, turn_id, prompt } => {
                let (turn, prompt) = (*turn_id, prompt.clone());
                match self.write(run, *attempt, owed, move |talk| talk.say(turn, &prompt)).await {
                    StdinWriteOutcome::Yes => performed,
                    StdinWriteOutcome::Gone => missed,
                    // It was held although it cannot be: it is of no use.
                    StdinWriteOutcome::Unsupported => {
                        if self.end(run_id, *attempt).await.is_err() {
                            return EffectResult::NotBefore(self.next_look(owed.due_at));
                        }
                        RunEvent::ProcessExited { attempt: *attempt, exit: ExitStatus::Unseen }
                    }
                }
            }
            Effect::Answer { attempt, gate, text, verdict, .. } => {
                let (gate, text, verdict) = (gate.clone(), text.clone(), *verdict);
                let answer = move |talk: &mut ProcessSession| {
                    talk.answer(&GateAnswer { gate: &gate, text: &text, verdict })
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
            // The attempt's record gets its exit together with the end of the order. News of it may come from the
            // reader too, and the first one counts.
            Effect::Terminate { attempt } => match self.end(run_id, *attempt).await {
                Ok(exit) => RunEvent::ProcessExited { attempt: *attempt, exit },
                // It may still be at work, so the order stands until it has certainly ended (SECURITY 10).
                Err(ProcessNotEnded) => return EffectResult::NotBefore(self.next_look(owed.due_at)),
            },
            Effect::Recover { attempt, .. } => {
                let (processes, name) = (self.world.processes.clone(), name(run_id, *attempt));
                match self.blocking(move || processes.find(&name)).await {
                    ProcessLookup::Held(process) => RunEvent::ContactRestored { attempt: *attempt, process },
                    // It may answer again at any time; how long it is searched for is the domain's to say.
                    ProcessLookup::Silent => return EffectResult::NotBefore(self.next_look(owed.due_at)),
                    ProcessLookup::Gone | ProcessLookup::Never => RunEvent::RecoveryFailed {
                        attempt: *attempt,
                        reason: "the process and its output are gone".to_owned(),
                    },
                }
            }
            // There is no channel yet that could bring it.
            Effect::Deliver { delivery_id } => {
                RunEvent::DeliveryFailed { delivery_id: *delivery_id, certainty: DeliveryFailure::Failed }
            }
        })
    }

    /// When to look again for a process that is searched for since then: first soon, then less and less often.
    fn next_look(&self, since: Timestamp) -> Timestamp {
        let now = self.world.clock.stamp().at;
        let searched = Duration::from_micros(since.until(now).0);
        let pause = (searched / 2).clamp(SHORTEST_LOOK, LONGEST_LOOK);
        now.after(TimeSpan(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Whether something is to be said to a process that has not been heard as far as its run has: after a restart it is
    /// heard anew, and before that its interpreter knows of no gate, no session and no turn.
    async fn unheard(&self, run: &Run, effect: &Effect) -> Option<EffectResult> {
        let attempt = match effect {
            Effect::Say { attempt, .. }
            | Effect::Answer { attempt, .. }
            | Effect::Steer { attempt, .. }
            | Effect::Interrupt { attempt } => *attempt,
            Effect::Probe { .. }
            | Effect::Launch { .. }
            | Effect::Terminate { .. }
            | Effect::Recover { .. }
            | Effect::Deliver { .. } => return None,
        };
        // The order may come before anybody listens.
        self.listen(run).await;
        let live = run.live().filter(|live| live.attempt == attempt)?;
        let progress = lock(&*self.talk_of(run.run_id, attempt)?).progress();
        let unheard = *progress.borrow() < live.heard;
        unheard.then_some(EffectResult::Unheard(progress, live.heard))
    }

    /// Writes what an interpreter makes of something to its process, once for each order.
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
        let written =
            self.blocking(move || processes.write(&name, &StdinWrite { key, bytes: &bytes, ends: false }));
        if written.await.is_ok() { StdinWriteOutcome::Yes } else { StdinWriteOutcome::Gone }
    }

    async fn interrupt(&self, run: RunId, attempt: Attempt, key: u64) {
        let Some(talk) = self.talk_of(run, attempt) else { return };
        let stop = contained(|| lock(&talk).interrupt())
            .unwrap_or(InterruptMethod::Signal(ProcessSignal::Interrupt));
        let (processes, name) = (self.world.processes.clone(), name(run, attempt));
        // A process that cannot be told has its end coming; the domain has a deadline for the rest.
        let _noticed_by_its_exit = self
            .blocking(move || match stop {
                InterruptMethod::Write(bytes) => {
                    processes.write(&name, &StdinWrite { key, bytes: &bytes, ends: false })
                }
                InterruptMethod::Signal(signal) => processes.signal(&name, signal),
            })
            .await;
    }

    /// Asks a process to go if it has nothing in hand, and ends it if it does not. Returns how it ended.
    pub(super) async fn end(&self, run: RunId, attempt: Attempt) -> Result<ExitStatus, ProcessNotEnded> {
        let leave = self.talk_of(run, attempt).and_then(|talk| contained(|| lock(&talk).leave()).flatten());
        let (processes, name) = (self.world.processes.clone(), name(run, attempt));
        let ended = self
            .blocking(move || {
                match leave {
                    Some(ShutdownMethod::CloseInput) => {
                        let write = StdinWrite { key: LAST_INPUT, bytes: &[], ends: true };
                        if processes.write(&name, &write).is_ok() {
                            wait_for_exit(&*processes, &name);
                        }
                    }
                    Some(ShutdownMethod::Signal(signal)) => {
                        let _ended_below = processes.signal(&name, signal);
                    }
                    None => {}
                }
                processes.end(&name)
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

/// The process may still run; the reason is in the log.
#[derive(Debug)]
pub(super) struct ProcessNotEnded;

/// What became of bytes for a process.
enum StdinWriteOutcome {
    Yes,
    Gone,
    Unsupported,
}

/// How soon, and how late at the most, a process that does not answer is looked for again.
const SHORTEST_LOOK: Duration = Duration::from_millis(500);
const LONGEST_LOOK: Duration = Duration::from_secs(15);

/// The key of the end of input.
const LAST_INPUT: u64 = (1 << 63) | (1 << 40);

/// How long a process may take to go after its input has ended.
const LEAVING: Duration = Duration::from_secs(5);

fn wait_for_exit(processes: &dyn Processes, name: &str) {
    let Ok(mut follow) = processes.follow(name, OutputOffsets::END) else { return };
    loop {
        match follow.next(Some(LEAVING)) {
            Ok(ProcessOutput::Exited(_) | ProcessOutput::Missing(_) | ProcessOutput::Nothing) | Err(_) => {
                return;
            }
            Ok(ProcessOutput::Stdout(_) | ProcessOutput::Stderr(_)) => {}
        }
    }
}
