//! The event loop of the daemon: one receive point, one synchronous decision, and the actions that follow from it.
//!
//! The decisions are in the [`Dispatcher`]. Here each action becomes a task, and the result of the task is the next
//! input. Blocking calls run on the runtime's threads for them; each process is read by a thread of its own, because a
//! read may wait for months.

use std::{
    collections::BTreeMap,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use abide_domain::{effect::PendingEffect, id::RunId, process::Attempt, run::Run};
use abide_os::failpoint;
use abide_ports::{
    catalogue::InstalledEngine,
    processes::ProcessUnreachable,
    store::{JournalCommit, Store, StoreError},
};
use tokio::{
    sync::{mpsc::UnboundedReceiver, mpsc::WeakUnboundedSender, watch},
    task::{Id, JoinSet},
    time::Instant,
};

use crate::{
    dispatcher::{DaemonAction, DaemonInput, Dispatcher},
    executor::{EffectExecutor, EffectResult, ReadRequest, read_available, turns_of_attempt},
    guard::{CrashGuard, CrashGuardDecision},
    launch::process_name,
    run_actor::{ActorNumber, BROKEN_PAUSE, RunAction, RunInput},
    service::DaemonDeps,
};

/// Performs the actions of a dispatcher until [`DaemonInput::End`].
pub(crate) struct EventLoop {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) deps: Arc<DaemonDeps>,
    pub(crate) executor: EffectExecutor,
    pub(crate) guard: CrashGuard,
    pub(crate) inputs: UnboundedReceiver<DaemonInput>,
    /// For the threads that read processes. Weak, so that the loop ends with the last handle of the daemon.
    pub(crate) sender: WeakUnboundedSender<DaemonInput>,
    pub(crate) signals: Arc<DaemonSignals>,
    pub(crate) tasks: ActionTasks,
    /// The threads that read processes.
    pub(crate) readers: BTreeMap<(RunId, Attempt), mpsc::Sender<ReadRequest>>,
    /// The time of the next [`DaemonInput::Tick`].
    pub(crate) next_tick: Option<Instant>,
}

/// The signals between the loop and the handles of the daemon.
#[derive(Debug, Default)]
pub(crate) struct DaemonSignals {
    /// Changes whenever a run changes.
    pub(crate) changes: watch::Sender<u64>,
    /// Set at the shutdown, to cancel probes.
    pub(crate) is_closing: AtomicBool,
}

/// The actions in progress. They are cancelled when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct ActionTasks {
    tasks: JoinSet<Option<DaemonInput>>,
    /// The inputs for tasks that panic.
    on_panic: BTreeMap<Id, DaemonInput>,
}

/// Pause before the content of a question is stored again.
const CONTENT_PAUSE: Duration = Duration::from_millis(500);
/// Prefix of the names of effects in the crash guard's record.
pub(crate) const EFFECT_PREFIX: &str = "effect ";

impl EventLoop {
    pub(crate) async fn run(mut self) {
        loop {
            let input = tokio::select! {
                input = self.inputs.recv() => input,
                input = self.tasks.next() => input,
                () = sleep_until(self.next_tick) => {
                    self.next_tick = None;
                    Some(DaemonInput::Tick)
                }
            };
            match input {
                None | Some(DaemonInput::End) => return,
                Some(input) => {
                    for action in self.dispatcher.handle(input) {
                        self.start(action);
                    }
                }
            }
        }
    }

    /// Starts an action. Its result is an input of the loop.
    fn start(&mut self, action: DaemonAction) {
        match action {
            DaemonAction::Run { run, actor, action } => self.start_run_action(run, actor, action),
            DaemonAction::ListDeadlines { limit } => {
                let deps = self.deps.clone();
                let failed = DaemonInput::DeadlinesListed(Err(broken_store()));
                self.tasks.spawn(failed, async move {
                    let listed = deps.store.runs_due(abide_domain::time::Timestamp(i64::MAX), limit).await;
                    Some(DaemonInput::DeadlinesListed(listed))
                });
            }
            DaemonAction::TickAfter(delay) => self.next_tick = Some(Instant::now() + delay),
            DaemonAction::Probe(entry) => self.probe(entry, None),
        }
    }

    fn start_run_action(&mut self, run: RunId, actor: ActorNumber, action: RunAction) {
        let (deps, executor) = (self.deps.clone(), self.executor.clone());
        let input = move |input| DaemonInput::Run { run, actor: Some(actor), input };
        match action {
            RunAction::Load => self.tasks.spawn(input(RunInput::Loaded(Err(broken_store()))), async move {
                let loaded = match deps.store.run(run).await {
                    Err(error) => Err(error),
                    Ok(loaded) => {
                        let loaded = loaded.map(Arc::new);
                        let settings = loaded.as_ref().map(|run| run.settings.clone());
                        let survey = blocking(move || executor.survey(settings.as_deref())).await;
                        Ok((loaded, survey))
                    }
                };
                Some(input(RunInput::Loaded(loaded)))
            }),
            RunAction::Survey(settings) => {
                let failed = input(RunInput::Surveyed(Default::default()));
                self.tasks.spawn_blocking(failed, move || {
                    Some(input(RunInput::Surveyed(executor.survey(Some(&settings)))))
                });
            }
            RunAction::Commit(commit) => {
                let reason = "the commit panicked; see the log".to_owned();
                let failed = input(RunInput::Committed(Err(StoreError::OutcomeUnknown { reason })));
                self.tasks.spawn(failed, async move {
                    Some(input(RunInput::Committed(commit_changes(&*deps.store, commit).await)))
                });
            }
            RunAction::Execute { number, name, operation } => {
                let (guard, item) = (self.guard.clone(), effect_item(run, number.0, name));
                let failed = input(RunInput::Executed(EffectResult::Later(BROKEN_PAUSE)));
                self.tasks.spawn(failed, async move {
                    let perform = move || executor.execute(run, number, operation);
                    Some(input(RunInput::Executed(perform_guarded(&guard, &item, perform).await)))
                });
            }
            RunAction::Probe { number, entry } => {
                self.probe(entry, Some(effect_item(run, number.0, "Probe")));
            }
            RunAction::Locate { attempt, inputs } => {
                self.tasks.spawn(input(RunInput::Located(Err(broken_store()))), async move {
                    let located = match turns_of_attempt(&*deps.store, run, attempt).await {
                        Ok(turns) => {
                            Ok(blocking(move || executor.locate(run, attempt, &inputs, turns)).await)
                        }
                        Err(error) => Err(error),
                    };
                    Some(input(RunInput::Located(located)))
                });
            }
            RunAction::Read { attempt, request } => self.read(run, actor, attempt, request),
            RunAction::StopReading { attempt } => {
                self.readers.remove(&(run, attempt));
            }
            RunAction::StoreContents { attempt, events } => {
                let failed = input(RunInput::ContentsStored { attempt, events: events.clone() });
                self.tasks.spawn(failed, async move {
                    let events = store_contents(executor, run, events).await;
                    Some(input(RunInput::ContentsStored { attempt, events }))
                });
            }
            RunAction::Write { attempt, key, bytes } => {
                self.tasks.spawn_blocking(input(RunInput::Written { attempt }), move || {
                    // A process that cannot be written to reports its exit next.
                    executor.write(&process_name(run, attempt), key, &bytes);
                    Some(input(RunInput::Written { attempt }))
                });
            }
            RunAction::CleanUp { attempt } => {
                self.readers.remove(&(run, attempt));
                self.tasks.spawn_blocking(input(RunInput::CleanedUp { attempt }), move || {
                    executor.clean_up(&process_name(run, attempt));
                    Some(input(RunInput::CleanedUp { attempt }))
                });
            }
            RunAction::Dismiss { attempt } => {
                self.tasks.spawn_blocking(DaemonInput::Tick, move || {
                    executor.dismiss(&process_name(run, attempt));
                    None
                });
            }
            RunAction::Pause { pause, duration } => {
                self.tasks.spawn(input(RunInput::Resume(pause)), async move {
                    tokio::time::sleep(duration).await;
                    Some(input(RunInput::Resume(pause)))
                });
            }
            // The client may have gone.
            RunAction::Reply { reply, result } => drop(reply.send(result)),
            RunAction::Announce(changed) => {
                self.signals.changes.send_modify(|changes| *changes += 1);
                if let Some(changed) = changed {
                    self.forget_settled(&changed);
                }
            }
        }
    }

    fn probe(&mut self, entry: InstalledEngine, item: Option<String>) {
        let (executor, guard, clock) = (self.executor.clone(), self.guard.clone(), self.deps.clock.clone());
        let signals = self.signals.clone();
        let engine = entry.engine.name().to_owned();
        let failed = DaemonInput::Probed { engine: engine.clone(), result: Err(BROKEN_PAUSE) };
        self.tasks.spawn(failed, async move {
            let mut permit = None;
            if let Some(item) = item {
                match guard.admit(&item).await {
                    CrashGuardDecision::Now(effect) => permit = Some(effect),
                    CrashGuardDecision::Later(pause) => {
                        return Some(DaemonInput::Probed { engine, result: Err(pause) });
                    }
                }
            }
            let result = blocking(move || {
                let unique = clock.stamp().id_seed.to_string();
                let is_cancelled = || signals.is_closing.load(Ordering::Acquire);
                if let Some(permit) = &mut permit {
                    permit.begin();
                }
                let (health, program) = executor.probe(&entry, &unique, &is_cancelled);
                if let Some(permit) = permit {
                    permit.succeeded();
                }
                if is_cancelled() { Err(BROKEN_PAUSE) } else { Ok((Box::new(health), program)) }
            })
            .await;
            Some(DaemonInput::Probed { engine, result })
        });
    }

    /// Requests the next output from the thread that reads a process. The first request starts the thread.
    fn read(&mut self, run: RunId, actor: ActorNumber, attempt: Attempt, request: ReadRequest) {
        let input = move |output| {
            let input = RunInput::Read { attempt, output };
            DaemonInput::Run { run, actor: Some(actor), input }
        };
        if let Some(from) = request.from
            && let Some(sender) = self.sender.upgrade()
        {
            let (requests, received) = mpsc::channel();
            let (processes, process) = (self.deps.processes.clone(), process_name(run, attempt));
            // The loop has ended if this fails.
            let send = move |output| sender.send(input(output)).is_ok();
            let read = move || match contained_read(|| processes.follow(&process, from)) {
                Ok(mut follow) => {
                    while let Ok(request) = received.recv()
                        && send(contained_read(|| read_available(&mut *follow, &request)))
                    {
                    }
                }
                Err(lost) => drop(send(Err(lost))),
            };
            // Without a thread, the request below fails.
            if std::thread::Builder::new().name("read".to_owned()).spawn(read).is_ok() {
                self.readers.insert((run, attempt), requests);
            }
        }
        let sent = self.readers.get(&(run, attempt)).map(|reader| reader.send(request));
        if !matches!(sent, Some(Ok(()))) {
            let reason = "the thread that reads it has ended".to_owned();
            let lost = input(Err(ProcessUnreachable { reason }));
            self.tasks.spawn(DaemonInput::Tick, async move { Some(lost) });
        }
    }

    /// Forgets crashes during effects of this run that are no longer pending.
    fn forget_settled(&mut self, run: &Run) {
        if self.guard.suspects_any(EFFECT_PREFIX) {
            let name =
                |pending: &PendingEffect| effect_item(run.run_id, pending.number.0, pending.effect.name());
            let pending: Vec<String> = run.pending_effects.iter().map(name).collect();
            let (guard, prefix) = (self.guard.clone(), format!("{EFFECT_PREFIX}{} ", run.run_id));
            self.tasks.spawn_blocking(DaemonInput::Tick, move || {
                guard.forget(&prefix, |suspect| pending.iter().any(|item| item == suspect));
                None
            });
        }
    }
}

impl ActionTasks {
    /// Starts a task. `on_panic` is the input if it panics.
    fn spawn(
        &mut self,
        on_panic: DaemonInput,
        task: impl Future<Output = Option<DaemonInput>> + Send + 'static,
    ) {
        let task = self.tasks.spawn(task);
        self.on_panic.insert(task.id(), on_panic);
    }

    fn spawn_blocking(
        &mut self,
        on_panic: DaemonInput,
        task: impl FnOnce() -> Option<DaemonInput> + Send + 'static,
    ) {
        let task = self.tasks.spawn_blocking(task);
        self.on_panic.insert(task.id(), on_panic);
    }

    /// Waits for the next result. Never returns while there are no tasks.
    async fn next(&mut self) -> Option<DaemonInput> {
        loop {
            match self.tasks.join_next_with_id().await {
                None => std::future::pending().await,
                Some(Ok((id, input))) => {
                    self.on_panic.remove(&id);
                    if input.is_some() {
                        return input;
                    }
                }
                Some(Err(panicked)) => {
                    tracing::error!(%panicked, "a task of the daemon panicked");
                    if let Some(input) = self.on_panic.remove(&panicked.id()) {
                        return Some(input);
                    }
                }
            }
        }
    }
}

/// The one place at which changes become durable. Everything that follows from them happens after it has returned.
async fn commit_changes(store: &dyn Store, commit: JournalCommit) -> Result<(), StoreError> {
    failpoint::reach("before_commit");
    store.commit(commit).await?;
    failpoint::reach("after_commit");
    Ok(())
}

/// Performs an effect when the crash guard admits it.
async fn perform_guarded(
    guard: &CrashGuard,
    item: &str,
    perform: impl FnOnce() -> EffectResult + Send + 'static,
) -> EffectResult {
    let mut permit = match guard.admit(item).await {
        CrashGuardDecision::Now(permit) => permit,
        CrashGuardDecision::Later(pause) => return EffectResult::Later(pause),
    };
    blocking(move || {
        permit.begin();
        failpoint::reach("effect_started");
        let result = perform();
        permit.succeeded();
        failpoint::reach("effect_performed");
        result
    })
    .await
}

/// Stores long texts. While the disk is full, the process is not read, so nothing is lost.
async fn store_contents(
    executor: EffectExecutor,
    run: RunId,
    mut events: Vec<abide_domain::event::RunEvent>,
) -> Vec<abide_domain::event::RunEvent> {
    loop {
        let executor = executor.clone();
        let (stored, fitted) = blocking(move || {
            let stored = executor.store_contents(run, &mut events);
            (stored, events)
        })
        .await;
        events = fitted;
        let Err(error) = stored else { return events };
        tracing::warn!(%run, %error, "the content of a question could not be kept");
        tokio::time::sleep(CONTENT_PAUSE).await;
    }
}

/// Reads from a process. A panic counts as a loss of contact.
fn contained_read<T>(read: impl FnOnce() -> Result<T, ProcessUnreachable>) -> Result<T, ProcessUnreachable> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(ProcessUnreachable { reason: "the thread that reads it panicked; see the log".to_owned() })
    })
}

/// Runs a blocking function. A panic is passed on.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// The name of an effect in the crash guard's record.
pub(crate) fn effect_item(run: RunId, number: u32, name: &str) -> String {
    format!("{EFFECT_PREFIX}{run} {number} {name}")
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn broken_store() -> StoreError {
    StoreError::Unavailable { reason: "reading it panicked; see the log".to_owned() }
}
