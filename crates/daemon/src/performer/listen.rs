//! Starts a process or reattaches to it, and reads its output until it exits, on its own thread.
//!
//! After a restart the reader begins at the last checkpoint, or at the first byte if no checkpoint can be used.
//!
//! The available output is committed as one transaction; the reader does not wait for more. Writes to the process
//! follow the commit of the output before them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::Duration,
};

use abide_domain::{
    event::RunEvent,
    id::{RunId, TurnId},
    process::{Attempt, OutputPosition},
    run::Run,
    turn::Turn,
};
use abide_os::failpoint;
use abide_ports::{
    engine::ProcessInterpreter,
    processes::{OutputFollower, OutputOffsets, ProcessOutput, ProcessUnreachable, StdinWrite},
    store::{PageRequest, StoreError},
};
use tokio::sync::OwnedMutexGuard;

use super::{
    BROKEN_PAUSE, EffectExecutor, is_being_stopped,
    launch::{PreparedLaunch, RunFolders, launch_context},
    lock, name,
};
use crate::{
    content,
    error::RequestError,
    guard::GuardedEffect,
    talk::{ProcessSession, SessionAction, SessionCheckpoint},
};

/// Time limit for a process to exit after its last output. Some wait for their children or for telemetry.
const LINGER: Duration = Duration::from_secs(10);
/// Time without output after which a reattached process counts as caught up.
const CATCHING_UP: Duration = Duration::from_secs(1);
/// Pause before a failed commit is retried.
const PAUSE: Duration = Duration::from_millis(500);
/// The same if another daemon has the store. This daemon does not get it back, but the events of its processes may be
/// requested.
const TAKEN_PAUSE: Duration = Duration::from_secs(60);
/// Pause before a launch is retried whose keeper does not answer.
const SILENT_PAUSE: Duration = Duration::from_secs(2);
/// Page size of turns, in entries and in bytes.
const TURNS_AT_ONCE: usize = 500;
const TURN_BYTES_AT_ONCE: usize = 1 << 20;
/// Maximum number of output pieces in one commit.
const PIECES_AT_ONCE: usize = 64;

/// Maximum number of events in one commit. A single piece may exceed it and is not split.
const EVENTS_AT_ONCE: usize = 256;

/// Number of output bytes between two checkpoints. Fewer bytes are quickly read again.
const CHECKPOINT_EVERY: u64 = 16 << 20;

/// The reason if the interpreter of a process panicked.
const BROKEN_READER: &str =
    "the reader of this engine failed on its output, which is a bug of Abide; see the log";

/// Runs code of an adapter. None if it panicked; the failure then concerns only one run.
pub(super) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Number of bytes between two offsets.
fn beyond(from: OutputOffsets, to: OutputOffsets) -> u64 {
    to.stdout.saturating_sub(from.stdout) + to.stderr.saturating_sub(from.stderr)
}

/// The held lock of a run. No other task executes effects or reports events of the run meanwhile.
type RunLockGuard = OwnedMutexGuard<()>;

impl EffectExecutor {
    /// Starts to read the output of the run's current process. A repeated call has no effect.
    pub(super) async fn listen(&self, run: &Run) {
        let Some(attempt) = run.live().map(|live| live.attempt) else { return };
        if lock(&self.shared.talks).contains_key(&(run.run_id, attempt)) {
            return;
        }
        let Some(mut talk) = self.talk(run, attempt).await else { return };
        talk.falls_behind();
        let refused = self.restore(run, attempt, &mut talk).await;
        if is_being_stopped(run) {
            contained(|| talk.interrupt());
        }
        if !self.begin(run.run_id, attempt, talk, |listener| listener.listen(refused)) {
            self.look_later(run.run_id, PAUSE);
        }
    }

    /// Restores a session from a checkpoint; otherwise returns why it has to begin at the first byte.
    async fn restore(&self, run: &Run, attempt: Attempt, talk: &mut ProcessSession) -> Option<String> {
        let (processes, name) = (self.world.processes.clone(), name(run.run_id, attempt));
        let stored = self.blocking(move || processes.checkpoint(&name)).await?;
        let Some(checkpoint) = SessionCheckpoint::from_bytes(&stored) else {
            return Some("the reader's checkpoint is damaged".to_owned());
        };
        let committed = run.live().map_or_else(OutputPosition::default, |live| live.processed_position);
        let restored = contained(|| talk.restore(&checkpoint, committed));
        let refused = restored.unwrap_or_else(|| Err(BROKEN_READER.to_owned())).err();
        if let Some(reason) = &refused {
            let run = run.run_id;
            tracing::warn!(%run, attempt = attempt.0, reason, "a checkpoint is not used");
        }
        refused
    }

    /// Starts the process of a turn and reads its output. The thread holds the lock of the run until the result of the
    /// start is reported. Returns false if no thread could be created.
    pub(super) fn start_and_listen(
        &self,
        run: &Run,
        (launch, interpreter): (PreparedLaunch, Box<dyn ProcessInterpreter>),
        lane: RunLockGuard,
        performance: GuardedEffect,
    ) -> bool {
        let attempt = launch.attempt;
        let turns = run.turns.last().map(|turn| turn.turn_id).into_iter().collect();
        let talk = ProcessSession::new(launch.engine.name(), attempt, turns, interpreter);
        self.begin(run.run_id, attempt, talk, move |listener| {
            listener.start(&launch, lane, performance);
        })
    }

    fn begin(
        &self,
        run: RunId,
        attempt: Attempt,
        talk: ProcessSession,
        work: impl FnOnce(ProcessListener) + Send + 'static,
    ) -> bool {
        let talk = Arc::new(Mutex::new(talk));
        lock(&self.shared.talks).insert((run, attempt), talk.clone());
        let listener = ProcessListener { performer: self.clone(), run, attempt, talk };
        let performer = self.clone();
        let started = self.shared.threads.run(move || {
            if catch_unwind(AssertUnwindSafe(|| work(listener))).is_err() {
                performer.broke_off(run, attempt);
            }
        });
        if !started {
            lock(&self.shared.talks).remove(&(run, attempt));
        }
        started
    }

    /// Handles a panic of a reader thread. Its run is retried after a pause; no other is affected.
    fn broke_off(&self, run: RunId, attempt: Attempt) {
        tracing::error!(%run, attempt = attempt.0, "the thread that reads a process panicked");
        lock(&self.shared.talks).remove(&(run, attempt));
        let performer = self.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(BROKEN_PAUSE).await;
            performer.take_up(run).await;
        });
    }

    /// Creates a session for an attempt's process, from its launch and its turns.
    async fn talk(&self, run: &Run, attempt: Attempt) -> Option<ProcessSession> {
        let (first, turns) = self.turns_given(run.run_id, attempt).await?;
        let entry =
            self.world.catalogue.engine(&run.settings.engine)?.with_stored_command(run.command.as_ref());
        let folders = RunFolders::of(run, entry.engine.skills_folder(), self.private(run.run_id));
        let context = launch_context(run, &first, attempt, &entry.installation, &folders)?;
        let interpreter = entry.engine.interpreter(&context);
        Some(ProcessSession::new(entry.engine.name(), attempt, turns, interpreter))
    }

    /// The first turn of an attempt's process, and the ids of all its turns.
    async fn turns_given(&self, run: RunId, attempt: Attempt) -> Option<(Turn, Vec<TurnId>)> {
        let (mut first, mut names) = (None, Vec::new());
        let mut page = PageRequest::first(TURNS_AT_ONCE).with_max_bytes(TURN_BYTES_AT_ONCE);
        loop {
            let listed = self.world.store.turns_of(run, page.clone()).await.ok()?;
            let given = |turn: &Turn| turn.attempts.iter().any(|record| record.attempt == attempt);
            for turn in listed.items.into_iter().filter(given) {
                names.push(turn.turn_id);
                first.get_or_insert(turn);
            }
            match listed.next_cursor {
                Some(cursor) => page = page.after_cursor(cursor),
                None => return Some((first?, names)),
            }
        }
    }

    /// The private directory of a run.
    pub(super) fn private(&self, run: RunId) -> String {
        format!("{}/{run}", self.world.private)
    }
}

/// The state of a reader thread.
struct ProcessListener {
    performer: EffectExecutor,
    run: RunId,
    attempt: Attempt,
    talk: Arc<Mutex<ProcessSession>>,
}

/// Events that are not committed, with the lock of the run if it is already held.
#[derive(Default)]
struct UncommittedEvents {
    events: Vec<RunEvent>,
    pieces: usize,
    lane: Option<RunLockGuard>,
}

/// Why the output of a process could not be read to its end.
enum ListenError {
    /// The process cannot be reached.
    Lost(ProcessUnreachable),
    /// A part of its output is lost.
    Missing(String),
}

impl ListenError {
    fn reason(&self) -> &str {
        match self {
            Self::Lost(lost) => &lost.reason,
            Self::Missing(reason) => reason,
        }
    }
}

impl From<ProcessUnreachable> for ListenError {
    fn from(lost: ProcessUnreachable) -> Self {
        Self::Lost(lost)
    }
}

impl ProcessListener {
    /// Starts the process and reads its output. The start is an event like any other: output that follows at once is
    /// committed with it.
    fn start(self, launch: &PreparedLaunch, lane: RunLockGuard, performance: GuardedEffect) {
        let world = &self.performer.world;
        let mut news = UncommittedEvents { lane: Some(lane), ..UncommittedEvents::default() };
        let started = launch.start_or_say(&*world.processes, &*world.workspaces);
        performance.succeeded();
        failpoint::reach("effect_performed");
        match started {
            Ok(process) => {
                failpoint::reach("effect_performed");
                news.events.push(RunEvent::AttemptStarted { attempt: self.attempt, process });
                news.events.extend(launch.warning(&*world.processes));
                self.listen_on(news, None);
            }
            Err(trouble) => {
                lock(&self.performer.shared.talks).remove(&(self.run, self.attempt));
                match trouble.told(self.attempt) {
                    Some(event) => {
                        news.events.push(event);
                        self.commit(&mut news);
                        // The process never ran, or its keeper is dead. The next attempt has another name, so the
                        // remains of this one are removed here.
                        world.processes.terminate(&name(self.run, self.attempt)).ok();
                    }
                    // The launch is still pending. The lock is free meanwhile, so the launch can be cancelled.
                    None => self.performer.look_later(self.run, SILENT_PAUSE),
                }
            }
        }
    }

    /// Reads the output of an existing process. `refused` is the reason if a checkpoint could not be used.
    fn listen(self, refused: Option<String>) {
        self.listen_on(UncommittedEvents::default(), refused);
    }

    fn listen_on(self, mut news: UncommittedEvents, refused: Option<String>) {
        let name = name(self.run, self.attempt);
        let processes = self.performer.world.processes.clone();
        let from = lock(&self.talk).fed();
        let heard_out = match processes.follow(&name, from) {
            Ok(mut follow) => self.hear_out(&mut *follow, &mut news),
            Err(lost) => Err(lost.into()),
        };
        // Output read before the loss of contact counts.
        self.commit(&mut news);
        let forget = || lock(&self.performer.shared.talks).remove(&(self.run, self.attempt));
        match heard_out {
            // All output is committed, so the process and its files are removed. The session stays listed until then,
            // because a shutdown waits for the end of its keeper. A keeper that cannot be reached is cleaned up at the
            // next start.
            Ok(()) => {
                processes.terminate(&name).ok();
                forget();
                self.performer.shared.changed.send_modify(|changes| *changes += 1);
            }
            Err(unheard) => {
                forget();
                let (run, attempt) = (self.run, self.attempt);
                tracing::warn!(%run, attempt = attempt.0, reason = unheard.reason(), "contact lost");
                let within = Some(self.performer.world.recovery_max);
                news.events.push(RunEvent::ContactLost { attempt, search_timeout_sec: within });
                // Reattaching would find the same gap in the output.
                if let ListenError::Missing(missing) = unheard {
                    let reason = match refused {
                        Some(refused) => {
                            format!("{missing}, and its reader cannot continue from a checkpoint: {refused}")
                        }
                        None => missing,
                    };
                    news.events.push(RunEvent::RecoveryFailed { attempt, reason });
                }
                self.commit(&mut news);
            }
        }
    }

    /// Reads until the process exits. Its last events are left for the caller to commit.
    fn hear_out(
        &self,
        follow: &mut dyn OutputFollower,
        news: &mut UncommittedEvents,
    ) -> Result<(), ListenError> {
        let mut linger = None;
        let every = CHECKPOINT_EVERY.min(self.performer.world.processes.output_buffer_bytes() / 4);
        let mut stored = lock(&self.talk).fed();
        let mut tried = stored;
        loop {
            // With uncommitted events the reader does not wait: available output is added, later output goes into the
            // next commit.
            let behind = lock(&self.talk).is_behind();
            let waits = match news.events.is_empty() {
                true if behind => Some(CATCHING_UP),
                true => linger,
                false => Some(Duration::ZERO),
            };
            let deeds = match follow.next(waits)? {
                ProcessOutput::Stdout(bytes) => self.understand(|talk| talk.heard(&bytes))?,
                ProcessOutput::Stderr(bytes) => {
                    lock(&self.talk).complained(&bytes);
                    vec![]
                }
                ProcessOutput::Exited(exit) => {
                    let deeds = self.understand(|talk| talk.departed(exit))?;
                    self.perform(deeds, news);
                    return Ok(());
                }
                ProcessOutput::Gap(reason) => return Err(ListenError::Missing(reason)),
                ProcessOutput::TimedOut if !news.events.is_empty() => {
                    self.commit(news);
                    continue;
                }
                ProcessOutput::TimedOut if behind => {
                    lock(&self.talk).caught_up();
                    continue;
                }
                ProcessOutput::TimedOut => {
                    lock(&self.talk).dismiss();
                    linger = None;
                    let name = name(self.run, self.attempt);
                    let signal = abide_ports::engine::ProcessSignal::Terminate;
                    // The process may have exited meanwhile.
                    self.performer.world.processes.signal(&name, signal).ok();
                    continue;
                }
            };
            if deeds.contains(&SessionAction::ExpectExit) {
                linger = Some(LINGER);
            }
            self.perform(deeds, news);
            news.pieces += 1;
            if news.pieces >= PIECES_AT_ONCE || news.events.len() >= EVENTS_AT_ONCE {
                self.commit(news);
            }
            let fed = lock(&self.talk).fed();
            if beyond(tried, fed) >= every {
                self.commit(news);
                (stored, tried) = (self.store_checkpoint(follow, stored), fed);
            }
        }
    }

    /// Runs the interpreter on new output. One that panics would do so again at the same byte, so the output counts as
    /// unreadable.
    fn understand<T>(&self, make: impl FnOnce(&mut ProcessSession) -> T) -> Result<T, ListenError> {
        contained(|| make(&mut lock(&self.talk)))
            .ok_or_else(|| ListenError::Missing(BROKEN_READER.to_owned()))
    }

    /// Stores a checkpoint when everything before it is committed, so that the output before it can be released.
    /// Returns the offsets of the stored checkpoint.
    fn store_checkpoint(&self, follow: &mut dyn OutputFollower, stored: OutputOffsets) -> OutputOffsets {
        let performer = &self.performer;
        let committed = performer.runtime.block_on(performer.world.desk.latest(self.run));
        let live = committed.ok().flatten().and_then(|run| run.live().cloned());
        let Some(live) = live.filter(|live| live.attempt == self.attempt) else { return stored };
        let (saved, fed) = {
            let talk = lock(&self.talk);
            (contained(|| talk.checkpoint(live.processed_position)).flatten(), talk.fed())
        };
        let (checkpoint, at) = match saved {
            Some((checkpoint, at)) if at != stored => (checkpoint, at),
            // The output ends within a line, or the reader's state is too large. There is room for more output for a
            // while. Later the output is released anyway, so that the process is not blocked, and the next reader
            // learns the reason.
            Some(_) | None if beyond(stored, fed) < performer.world.processes.output_buffer_bytes() / 2 => {
                return stored;
            }
            Some(_) | None => {
                let (run, attempt) = (self.run, self.attempt.0);
                tracing::warn!(%run, attempt, "too much output without a checkpoint: a restart would lose this turn");
                (SessionCheckpoint::impossible(fed), fed)
            }
        };
        match follow.store_checkpoint(&checkpoint.to_bytes(), at) {
            Ok(()) => at,
            Err(error) => {
                let (run, attempt) = (self.run, self.attempt.0);
                tracing::warn!(%run, attempt, %error, "a checkpoint could not be stored");
                stored
            }
        }
    }

    fn perform(&self, deeds: Vec<SessionAction>, news: &mut UncommittedEvents) {
        for deed in deeds {
            match deed {
                SessionAction::Take(mut event) => {
                    self.fit(&mut event);
                    news.events.push(event);
                }
                SessionAction::Write { key, bytes } => {
                    self.commit(news);
                    let name = name(self.run, self.attempt);
                    let write = StdinWrite { key, bytes: &bytes, close_after: false };
                    // A process that cannot be written to reports its exit next.
                    self.performer.world.processes.write(&name, &write).ok();
                }
                SessionAction::ExpectExit => {}
            }
        }
    }

    /// Stores texts that are too long for a question before the question is committed. While the disk is full, the
    /// process is not read, so nothing is lost.
    fn fit(&self, event: &mut RunEvent) {
        let world = &self.performer.world;
        while let Err(error) = content::fit_event(event, self.run, &*world.contents) {
            let (run, attempt) = (self.run, self.attempt.0);
            tracing::warn!(%run, attempt, %error, "the content of a question could not be kept");
            self.performer.runtime.block_on(tokio::time::sleep(PAUSE));
        }
    }

    /// Commits the events. While the store is unavailable it retries, because facts must not be dropped.
    fn commit(&self, news: &mut UncommittedEvents) {
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
                    Err(
                        RequestError::Refused(_)
                        | RequestError::KeyReused { .. }
                        | RequestError::Shortage(_)
                        | RequestError::Workspace(_),
                    ) => {
                        return;
                    }
                    Err(RequestError::Store(error)) => {
                        let (run, attempt) = (self.run, self.attempt.0);
                        tracing::warn!(%run, attempt, %error, "facts were not committed");
                        let is_taken = matches!(error, StoreError::InUse { .. });
                        tokio::time::sleep(if is_taken { TAKEN_PAUSE } else { PAUSE }).await;
                    }
                }
            }
        });
    }
}
