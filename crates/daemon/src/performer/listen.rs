//! Starts one process, or finds it again, and listens to it until it is over, on a thread of its own.
//!
//! What has been heard is committed together: everything that is there already, and never anything that would have to
//! be waited for. Writing to the process comes after the commit of what was heard before it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use abide_domain::{event::Event, id::RunId, process::Attempt, run::Run, turn::Turn};
use abide_ports::{
    processes::{Follow, Heard, Lost, Write},
    store::Page,
};
use tokio::sync::OwnedMutexGuard;

use super::{
    Performer, is_being_stopped,
    launch::{Launched, Starting},
    lock, name,
};
use crate::{
    error::DeskError,
    failpoint::{self, Point},
    talk::{Deed, Talk},
};

/// How long a process may take to go after its last word. Some wait for their own children or for telemetry.
const LINGER: Duration = Duration::from_secs(10);
/// After how much silence a process that is listened to again has told everything that it said meanwhile.
const CATCHING_UP: Duration = Duration::from_secs(1);
/// How long to wait before news that could not be committed is offered again.
const PAUSE: Duration = Duration::from_millis(500);
/// How many turns one process may have been given.
const TURNS_AT_ONCE: usize = 10_000;
/// How many pieces are heard before what they said is committed, however much more is there.
const PIECES_AT_ONCE: usize = 64;

/// The same for what they said. One piece may say more, and is not taken apart.
const EVENTS_AT_ONCE: usize = 256;

/// A run's lane, while nobody else may perform or tell anything of it.
type Lane = OwnedMutexGuard<()>;

impl Performer {
    /// Begins to listen to the process that a run counts on, from its first byte. Listening twice is listening once.
    pub(super) async fn listen(&self, run: &Run) {
        let Some(attempt) = run.live().map(|live| live.attempt) else { return };
        if lock(&self.shared.talks).contains_key(&(run.run_id, attempt)) {
            return;
        }
        let Some(mut talk) = self.talk(run, attempt).await else { return };
        talk.falls_behind();
        if is_being_stopped(run) {
            let _was_told_before = talk.interrupt();
        }
        if !self.begin(run.run_id, attempt, talk, Listener::listen) {
            self.look_later(run.run_id, PAUSE);
        }
    }

    /// Starts the process of a turn and listens to it. The thread that does so has the run's lane until it has told
    /// what became of the start. Returns false if there is no thread to be had.
    pub(super) fn start_and_listen(&self, run: &Run, starting: Starting, lane: Lane) -> bool {
        let attempt = starting.attempt;
        let turns = run.turns.last().map(|turn| turn.turn_id).into_iter().collect();
        let talk = Talk::new(starting.engine.name(), attempt, turns, starting.interpreter());
        self.begin(run.run_id, attempt, talk, move |listener| listener.start(&starting, lane))
    }

    fn begin(
        &self,
        run: RunId,
        attempt: Attempt,
        talk: Talk,
        work: impl FnOnce(Listener) + Send + 'static,
    ) -> bool {
        let talk = Arc::new(Mutex::new(talk));
        lock(&self.shared.talks).insert((run, attempt), talk.clone());
        let listener = Listener { performer: self.clone(), run, attempt, talk };
        let started = self.shared.threads.run(move || work(listener));
        if !started {
            lock(&self.shared.talks).remove(&(run, attempt));
        }
        started
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

/// What was heard and is not committed yet, with the lane if it is ours already.
#[derive(Default)]
struct News {
    events: Vec<Event>,
    pieces: usize,
    lane: Option<Lane>,
}

impl Listener {
    /// Starts the process, and goes on to listen. That it was started is news like any other: what it says at once is
    /// committed with it.
    fn start(self, starting: &Starting, lane: Lane) {
        let world = &self.performer.world;
        let mut news = News { lane: Some(lane), ..News::default() };
        let started = starting.start_or_say(&*world.processes, &*world.workspaces);
        failpoint::reach(Point::OrderCarriedOut);
        match started {
            Ok(process) => {
                failpoint::reach(Point::OrderCarriedOut);
                news.events.push(Event::AttemptStarted { attempt: self.attempt, process });
                self.listen_on(news);
            }
            Err(trouble) => {
                lock(&self.performer.shared.talks).remove(&(self.run, self.attempt));
                news.events.push(trouble.told(self.attempt));
                self.commit(&mut news);
            }
        }
    }

    fn listen(self) {
        self.listen_on(News::default());
    }

    fn listen_on(self, mut news: News) {
        let name = name(self.run, self.attempt);
        let processes = self.performer.world.processes.clone();
        let heard_out = match processes.follow(&name) {
            Ok(mut follow) => self.hear_out(&mut *follow, &mut news),
            Err(lost) => Err(lost),
        };
        // Whatever was heard before contact was lost has happened.
        self.commit(&mut news);
        lock(&self.performer.shared.talks).remove(&(self.run, self.attempt));
        match heard_out {
            // Everything that it said is committed, so it may be forgotten, with whatever it left behind.
            Ok(()) => {
                let _swept_at_the_next_start = processes.end(&name);
                self.performer.shared.changed.send_modify(|changes| *changes += 1);
            }
            Err(_) => {
                news.events.push(Event::ContactLost { attempt: self.attempt });
                self.commit(&mut news);
            }
        }
    }

    /// Listens until the process is over. What it says last is left to be committed.
    fn hear_out(&self, follow: &mut dyn Follow, news: &mut News) -> Result<(), Lost> {
        let mut patience = None;
        loop {
            // With news in hand nobody waits: what is there already goes with it, what is not comes later.
            let behind = lock(&self.talk).is_behind();
            let waits = match news.events.is_empty() {
                true if behind => Some(CATCHING_UP),
                true => patience,
                false => Some(Duration::ZERO),
            };
            let deeds = match follow.next(waits)? {
                Heard::Stdout(bytes) => lock(&self.talk).heard(&bytes),
                Heard::Stderr(bytes) => {
                    lock(&self.talk).complained(&bytes);
                    vec![]
                }
                Heard::Exited(exit) => {
                    let deeds = lock(&self.talk).departed(exit);
                    self.perform(deeds, news);
                    return Ok(());
                }
                Heard::Nothing if !news.events.is_empty() => {
                    self.commit(news);
                    continue;
                }
                Heard::Nothing if behind => {
                    lock(&self.talk).caught_up();
                    continue;
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
            self.perform(deeds, news);
            news.pieces += 1;
            if news.pieces >= PIECES_AT_ONCE || news.events.len() >= EVENTS_AT_ONCE {
                self.commit(news);
            }
        }
    }

    fn perform(&self, deeds: Vec<Deed>, news: &mut News) {
        for deed in deeds {
            match deed {
                Deed::Take(event) => news.events.push(event),
                Deed::Write { key, bytes } => {
                    self.commit(news);
                    let name = name(self.run, self.attempt);
                    let write = Write { key, bytes: &bytes, ends: false };
                    // A process that cannot be written to is about to be heard of.
                    let _noticed_by_its_exit = self.performer.world.processes.write(&name, &write);
                }
                Deed::ExpectExit => {}
            }
        }
    }

    /// News must be committed before more is waited for. The store may be away for a while; facts are not dropped for
    /// that.
    fn commit(&self, news: &mut News) {
        news.pieces = 0;
        let (events, lane) = (std::mem::take(&mut news.events), news.lane.take());
        if events.is_empty() {
            return;
        }
        self.performer.runtime.block_on(async {
            let lane = match lane {
                Some(lane) => lane,
                None => self.performer.shared.lanes.enter(self.run).await,
            };
            loop {
                match self.performer.world.desk.take_all(self.run, &events).await {
                    Ok(outcome) => {
                        drop(lane);
                        return self.performer.follow_up(&outcome).await;
                    }
                    Err(DeskError::Refused(_) | DeskError::KeyReused { .. }) => return,
                    Err(DeskError::Store(error)) => {
                        let (run, attempt) = (self.run, self.attempt.0);
                        tracing::warn!(%run, attempt, %error, "news not committed");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        });
    }
}
