//! Listens to one process until it is over, on a thread of its own.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use abide_domain::{event::Event, id::RunId, process::Attempt, run::Run, turn::Turn};
use abide_ports::{
    processes::{Follow, Heard, Lost, Write},
    store::Page,
};

use super::{Performer, is_being_stopped, lock, name};
use crate::{
    desk::Outcome,
    performer::launch::Launched,
    talk::{Deed, Talk},
};

/// How long a process may take to go after its last word. Some wait for their own children or for telemetry.
const LINGER: Duration = Duration::from_secs(10);
/// How long to wait before news that could not be committed is offered again.
const PAUSE: Duration = Duration::from_millis(500);
/// How many turns one process may have been given.
const TURNS_AT_ONCE: usize = 10_000;

impl Performer {
    /// Begins to listen to the process that a run counts on, from its first byte. Listening twice is listening once.
    pub(super) async fn listen(&self, run: &Run) {
        let Some(attempt) = run.live().map(|live| live.attempt) else { return };
        let key = (run.run_id, attempt);
        if lock(&self.shared.talks).contains_key(&key) {
            return;
        }
        let Some(mut talk) = self.talk(run, attempt).await else { return };
        if is_being_stopped(run) {
            let _was_told_before = talk.interrupt();
        }
        let talk = Arc::new(Mutex::new(talk));
        lock(&self.shared.talks).insert(key, talk.clone());
        let listener = Listener { performer: self.clone(), run: run.run_id, attempt, talk };
        let started = std::thread::Builder::new()
            .name(format!("listen-{}", attempt.0))
            .spawn(move || listener.listen());
        if started.is_err() {
            lock(&self.shared.talks).remove(&key);
            self.look_later(run.run_id, PAUSE);
        }
    }

    /// A new talk with an attempt's process, as its order and its turns tell.
    async fn talk(&self, run: &Run, attempt: Attempt) -> Option<Talk> {
        let page = Page::first(TURNS_AT_ONCE);
        let listed = self.world.store.turns_of(run.run_id, page).await.ok()?;
        let given = |turn: &Turn| turn.attempts.iter().any(|record| record.attempt == attempt);
        let turns: Vec<Turn> = listed.items.into_iter().filter(given).collect();
        let entry = self.world.catalogue.engine(&run.settings.engine)?;
        let launched = Launched::of(run, turns.first()?, attempt, entry.engine.skills_folder())?;
        let interpreter =
            entry.engine.interpreter(&launched.order(&entry.installation, &self.private(run.run_id)));
        let turns = turns.into_iter().map(|turn| turn.turn_id).collect();
        Some(Talk::new(entry.engine.name(), attempt, turns, interpreter))
    }

    /// The directory of a run's own.
    pub(super) fn private(&self, run: RunId) -> String {
        format!("{}/{run}", self.world.private)
    }
}

/// The thread's own.
struct Listener {
    performer: Performer,
    run: RunId,
    attempt: Attempt,
    talk: Arc<Mutex<Talk>>,
}

impl Listener {
    fn listen(self) {
        let name = name(self.run, self.attempt);
        let processes = self.performer.world.processes.clone();
        let heard_out = match processes.follow(&name) {
            Ok(mut follow) => self.hear_out(&mut *follow),
            Err(lost) => Err(lost),
        };
        lock(&self.performer.shared.talks).remove(&(self.run, self.attempt));
        match heard_out {
            // Everything that it said is committed, so it may be forgotten, with whatever it left behind.
            Ok(()) => {
                let _swept_at_the_next_start = processes.end(&name);
                self.performer.shared.changed.send_modify(|changes| *changes += 1);
            }
            Err(_) => self.take(Event::ContactLost { attempt: self.attempt }),
        }
    }

    fn hear_out(&self, follow: &mut dyn Follow) -> Result<(), Lost> {
        let mut patience = None;
        loop {
            let deeds = match follow.next(patience)? {
                Heard::Stdout(bytes) => lock(&self.talk).heard(&bytes),
                Heard::Stderr(bytes) => {
                    lock(&self.talk).complained(&bytes);
                    continue;
                }
                Heard::Exited(exit) => {
                    let deeds = lock(&self.talk).departed(exit);
                    self.perform(deeds);
                    return Ok(());
                }
                Heard::Nothing => {
                    lock(&self.talk).dismiss();
                    patience = None;
                    let name = name(self.run, self.attempt);
                    let signal = abide_ports::engine::Signal::Terminate;
                    let _it_may_have_gone = self.performer.world.processes.signal(&name, signal);
                    continue;
                }
            };
            if deeds.contains(&Deed::ExpectExit) {
                patience = Some(LINGER);
            }
            self.perform(deeds);
        }
    }

    fn perform(&self, deeds: Vec<Deed>) {
        for deed in deeds {
            match deed {
                Deed::Take(event) => self.take(event),
                Deed::Write { key, bytes } => {
                    let name = name(self.run, self.attempt);
                    let write = Write { key, bytes: &bytes, ends: false };
                    // A process that cannot be written to is about to be heard of.
                    let _noticed_by_its_exit = self.performer.world.processes.write(&name, &write);
                }
                Deed::ExpectExit => {}
            }
        }
    }

    /// News must be committed before more is heard. The store may be away for a while; facts are not dropped for that.
    fn take(&self, event: Event) {
        let runtime = &self.performer.runtime;
        loop {
            match runtime.block_on(self.performer.take(self.run, event.clone())) {
                Ok(Outcome::Changed(_) | Outcome::Absorbed | Outcome::Repeated(_)) => return,
                Err(crate::error::DeskError::Refused(_) | crate::error::DeskError::KeyReused { .. }) => {
                    return;
                }
                Err(crate::error::DeskError::Store(error)) => {
                    let (run, attempt) = (self.run, self.attempt.0);
                    tracing::warn!(%run, attempt, %error, "news not committed");
                    runtime.block_on(tokio::time::sleep(PAUSE));
                }
            }
        }
    }
}
