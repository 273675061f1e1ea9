//! Carries out one order and says what became of it.

use std::sync::{Arc, Mutex};

use abide_domain::{
    delivery::Certainty,
    effect::{Effect, Owed},
    event::Event,
    id::RunId,
    process::{Attempt, Exit},
    run::Run,
};
use abide_ports::{
    engine::{Answer, Leave, Stop, Unsupported},
    processes::{Found, Write},
};

use super::{Carried, Performer, key, lock, name};
use crate::talk::Talk;

impl Performer {
    pub(super) async fn carry_out(&self, run: &Run, owed: &Owed) -> Carried {
        let (run_id, number) = (run.run_id, owed.number);
        let performed = Event::EffectPerformed { effect: number };
        let missed = Event::EffectMissed { effect: number };
        Carried::Told(match &owed.effect {
            Effect::Probe { .. } => return self.probe(run).await,
            Effect::Launch { attempt, .. } => return self.launch(run, *attempt),
            Effect::Say { attempt, turn_id, prompt } => {
                let (turn, prompt) = (*turn_id, prompt.clone());
                match self.write(run, *attempt, owed, move |talk| talk.say(turn, &prompt)).await {
                    Written::Yes => performed,
                    Written::Gone => missed,
                    // It was held although it cannot be: it is of no use.
                    Written::Unsupported => {
                        self.end(run_id, *attempt).await;
                        Event::ProcessExited { attempt: *attempt, exit: Exit::Unseen }
                    }
                }
            }
            Effect::Answer { attempt, gate, text, verdict, .. } => {
                let (gate, text, verdict) = (gate.clone(), text.clone(), *verdict);
                let answer =
                    move |talk: &mut Talk| talk.answer(&Answer { gate: &gate, text: &text, verdict });
                match self.write(run, *attempt, owed, answer).await {
                    Written::Yes => performed,
                    Written::Gone | Written::Unsupported => missed,
                }
            }
            Effect::Steer { attempt, text, .. } => {
                let text = text.clone();
                match self.write(run, *attempt, owed, move |talk| talk.steer(&text)).await {
                    Written::Yes => performed,
                    Written::Gone | Written::Unsupported => missed,
                }
            }
            Effect::Interrupt { attempt } => {
                self.interrupt(run_id, *attempt, key(number)).await;
                performed
            }
            Effect::Terminate { attempt } => {
                self.end(run_id, *attempt).await;
                performed
            }
            Effect::Recover { attempt, .. } => {
                let (processes, name) = (self.world.processes.clone(), name(run_id, *attempt));
                match self.blocking(move || processes.find(&name)).await {
                    Found::Held(process) => Event::ContactRestored { attempt: *attempt, process },
                    Found::Gone | Found::Never => Event::RecoveryFailed {
                        attempt: *attempt,
                        reason: "the process and its output are gone".to_owned(),
                    },
                }
            }
            // There is no channel yet that could bring it.
            Effect::Deliver { delivery_id } => {
                Event::DeliveryFailed { delivery_id: *delivery_id, certainty: Certainty::Failed }
            }
        })
    }

    /// Writes what an interpreter makes of something to its process, once for each order.
    async fn write(
        &self,
        run: &Run,
        attempt: Attempt,
        owed: &Owed,
        make: impl FnOnce(&mut Talk) -> Result<Vec<u8>, Unsupported>,
    ) -> Written {
        // After a restart the order may come before anybody listens.
        self.listen(run).await;
        let Some(talk) = self.talk_of(run.run_id, attempt) else { return Written::Gone };
        let made = make(&mut lock(&talk));
        let Ok(bytes) = made else { return Written::Unsupported };
        let (processes, name, key) =
            (self.world.processes.clone(), name(run.run_id, attempt), key(owed.number));
        let written =
            self.blocking(move || processes.write(&name, &Write { key, bytes: &bytes, ends: false }));
        if written.await.is_ok() { Written::Yes } else { Written::Gone }
    }

    async fn interrupt(&self, run: RunId, attempt: Attempt, key: u64) {
        let Some(talk) = self.talk_of(run, attempt) else { return };
        let stop = lock(&talk).interrupt();
        let (processes, name) = (self.world.processes.clone(), name(run, attempt));
        // A process that cannot be told has its end coming; the domain has a deadline for the rest.
        let _noticed_by_its_exit = self
            .blocking(move || match stop {
                Stop::Write(bytes) => processes.write(&name, &Write { key, bytes: &bytes, ends: false }),
                Stop::Signal(signal) => processes.signal(&name, signal),
            })
            .await;
    }

    /// Asks a process to go if it has nothing in hand, and ends it if it does not.
    pub(super) async fn end(&self, run: RunId, attempt: Attempt) {
        let leave = self.talk_of(run, attempt).and_then(|talk| lock(&talk).leave());
        let (processes, name) = (self.world.processes.clone(), name(run, attempt));
        let _swept_at_the_next_start = self
            .blocking(move || {
                match leave {
                    Some(Leave::CloseInput) => {
                        let write = Write { key: LAST_INPUT, bytes: &[], ends: true };
                        if processes.write(&name, &write).is_ok() {
                            wait_for_exit(&*processes, &name);
                        }
                    }
                    Some(Leave::Signal(signal)) => {
                        let _ended_below = processes.signal(&name, signal);
                    }
                    None => {}
                }
                processes.end(&name)
            })
            .await;
    }

    fn talk_of(&self, run: RunId, attempt: Attempt) -> Option<Arc<Mutex<Talk>>> {
        lock(&self.shared.talks).get(&(run, attempt)).cloned()
    }
}

/// What became of bytes for a process.
enum Written {
    Yes,
    Gone,
    Unsupported,
}

/// The key of the end of input.
const LAST_INPUT: u64 = (1 << 63) | (1 << 40);

/// How long a process may take to go after its input has ended.
const LEAVING: std::time::Duration = std::time::Duration::from_secs(5);

fn wait_for_exit(processes: &dyn abide_ports::processes::Processes, name: &str) {
    let Ok(mut follow) = processes.follow(name) else { return };
    loop {
        match follow.next(Some(LEAVING)) {
            Ok(abide_ports::processes::Heard::Exited(_) | abide_ports::processes::Heard::Nothing)
            | Err(_) => return,
            Ok(_) => {}
        }
    }
}
