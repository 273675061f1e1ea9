//! The simulated world: people, engines, a conversation, a clock, and a daemon that may crash at any commit. One seed
//! is one history.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use abide_domain::{event::RunEvent, id::RunId, run::RunStatus};
use abide_ports::{
    space::DiskSpace,
    store::{Journal, JournalSeq},
};
use abide_store::memory::MemoryStore;
use abide_testkit::{clock::FakeClock, seeded_rng::SeededRng};

use crate::{
    adapter::SimCatalogue,
    channel::{FakeChannel, NetworkMode},
    checks::InvariantViolation,
    daemon::{SimDaemon, now},
    engine::EnginePlan,
    faults::RuleFault,
    people::SimPeople,
    processes::{SimProcessKey, SimProcesses},
};

/// The whole state of a history.
pub(crate) struct SimWorld {
    pub(crate) dice: SeededRng,
    pub(crate) clock: Arc<FakeClock>,
    pub(crate) store: Arc<MemoryStore>,
    /// With [`RuleFault::AcknowledgeTooEarly`], the state that would survive a power failure now.
    pub(crate) on_disk: Option<MemoryStore>,
    pub(crate) processes: SimProcesses,
    pub(crate) catalogue: Arc<SimCatalogue>,
    pub(crate) disk: Arc<SimDisk>,
    pub(crate) people: SimPeople,
    pub(crate) channel: FakeChannel,
    pub(crate) weather: NetworkMode,
    pub(crate) daemon: SimDaemon,
    /// The monotonic time in microseconds.
    pub(crate) monotonic: u64,
    /// Number of commits since the start of the world, and of daemons after the first.
    pub(crate) taken: u64,
    pub(crate) restarts: u64,
    /// The number of bytes that were read from each process.
    pub(crate) read: BTreeMap<SimProcessKey, usize>,
    /// Whether there was too little space at the last survey for each run.
    pub(crate) surveyed_short: BTreeMap<RunId, bool>,
    /// Runs that were admitted although it said so.
    pub(crate) admitted_short: BTreeSet<RunId>,
    pub(crate) slots: usize,
    pub(crate) fault: Option<RuleFault>,
    /// The first observed status of each finished run.
    pub(crate) finished: BTreeMap<RunId, RunStatus>,
    story: Option<Vec<String>>,
}

/// The totals of a history.
#[derive(Clone, Debug, Default)]
pub(crate) struct HistoryCounters {
    pub(crate) events: u64,
    pub(crate) crashes: u64,
    pub(crate) runs: u64,
    pub(crate) replies: u64,
    pub(crate) auto_decisions: u64,
    pub(crate) deliveries: u64,
}

/// Why a step of a history stopped.
#[derive(Debug)]
pub(crate) enum HistoryHalt {
    /// The daemon crashed at a commit and must be restarted.
    Crashed,
    /// An invariant was violated.
    Violated(InvariantViolation),
}

impl From<InvariantViolation> for HistoryHalt {
    fn from(violation: InvariantViolation) -> Self {
        Self::Violated(violation)
    }
}

/// Number of random actions before the world becomes reliable.
const TROUBLED_ACTIONS: usize = 160;
/// Maximum number of rounds until the world is quiescent.
const QUIET_ROUNDS: usize = 400;

impl SimWorld {
    /// Creates a world. With [`StoryMode::Everything`], all events are recorded.
    pub(crate) fn new(seed: u64, fault: Option<RuleFault>, tells: StoryMode) -> Self {
        let mut dice = SeededRng::new(seed);
        let clock = Arc::new(FakeClock::new());
        let store = Arc::new(MemoryStore::new());
        let slots = 1 + dice.below(3);
        crate::faults::break_rules(fault);
        let processes = SimProcesses::new(seed, store.clone());
        let catalogue = Arc::<SimCatalogue>::default();
        let disk = Arc::<SimDisk>::default();
        let daemon = SimDaemon::assemble(&store, &clock, &processes, &catalogue, &disk, (slots, fault));
        Self {
            dice,
            clock,
            store,
            on_disk: None,
            processes,
            catalogue,
            disk,
            people: SimPeople::default(),
            channel: FakeChannel::default(),
            weather: NetworkMode::Foul,
            daemon,
            monotonic: 0,
            taken: 0,
            restarts: 0,
            read: BTreeMap::new(),
            surveyed_short: BTreeMap::new(),
            admitted_short: BTreeSet::new(),
            slots,
            fault,
            finished: BTreeMap::new(),
            story: matches!(tells, StoryMode::Everything).then(Vec::new),
        }
    }

    /// Runs the whole history: random actions, then quiescence, then all checks.
    pub(crate) fn live(&mut self) -> Result<HistoryCounters, InvariantViolation> {
        for _ in 0..TROUBLED_ACTIONS {
            let acted = self.act();
            self.after(acted)?;
        }
        self.calm_down();
        for round in 0..QUIET_ROUNDS {
            let before = self.taken;
            let acted = self.rest();
            self.after(acted)?;
            if self.taken == before && round > 3 {
                break;
            }
        }
        self.tell_the_end();
        self.check_the_end()?;
        Ok(self.tally())
    }

    fn tell_the_end(&mut self) {
        for run in self.all_runs() {
            self.note(|| format!("in the end {} is {}", run.run_id, run.state.detail()));
        }
        let ((held, queued), slots) = (self.daemon.parts.dispatcher.occupancy(), self.slots);
        self.note(|| format!("in the end {held} of {slots} slots are held, {queued} runs wait"));
    }

    /// The recorded events, in order.
    pub(crate) fn story(&self) -> &[String] {
        self.story.as_deref().unwrap_or_default()
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            let seconds = self.clock.now().0 as f64 / 1e6;
            story.push(format!("{seconds:>12.6}  {}", without_zeros(&line())));
        }
    }

    /// Performs one random action.
    fn act(&mut self) -> Result<(), HistoryHalt> {
        match self.dice.below(100) {
            0..4 => self.create_run(),
            4..9 => self.send_message(),
            9..16 => self.answer_question(),
            16..17 => self.interrupt_run(),
            17..18 => self.cancel_run(),
            18..60 => self.a_few_times(Self::do_a_task),
            60..82 => self.a_few_times(Self::some_process_lives_on),
            82..88 => self.time_passes(),
            88..89 => self.conversation_speaks(),
            89..91 => self.a_keeper_changes(),
            91..93 => self.a_fact_is_late(),
            93..94 => {
                let is_short = !self.disk.is_short();
                self.note(|| format!("the disk is short of space: {is_short}"));
                self.disk.set_short(is_short);
                Ok(())
            }
            94..96 => {
                self.note(|| "the daemon is killed".into());
                Err(HistoryHalt::Crashed)
            }
            _ => {
                if self.dice.chance(10) {
                    self.note(|| "the daemon is told to stop in order".into());
                    self.shut_down()?;
                    return Err(HistoryHalt::Crashed);
                }
                if self.dice.chance(10) {
                    self.note(|| "the machine goes down with every process".into());
                    self.processes.table().engines.reboot();
                    return Err(HistoryHalt::Crashed);
                }
                Ok(())
            }
        }
    }

    fn do_a_task(&mut self) -> Result<(), HistoryHalt> {
        self.do_something().map(|_| ())
    }

    /// A keeper stops answering, answers again, or loses the connection of its reader.
    fn a_keeper_changes(&mut self) -> Result<(), HistoryHalt> {
        let mut table = self.processes.table();
        let kept: Vec<SimProcessKey> = table
            .engines
            .keepers
            .iter()
            .filter(|(_, keeper)| !keeper.is_removed)
            .map(|(at, _)| *at)
            .collect();
        let Some(at) = self.dice.choose(&kept) else { return Ok(()) };
        let Some(keeper) = table.engines.keepers.get_mut(&at) else { return Ok(()) };
        if self.dice.chance(40) {
            keeper.is_severed = true;
        } else {
            keeper.is_silent = !keeper.is_silent;
        }
        let (is_silent, is_severed) = (keeper.is_silent, keeper.is_severed);
        drop(table);
        self.note(|| format!("keeper {}/{}: silent {is_silent}, severed {is_severed}", at.0, at.1.0));
        Ok(())
    }

    /// A fact that was recorded before arrives again.
    fn a_fact_is_late(&mut self) -> Result<(), HistoryHalt> {
        let Some(run) = self.some_run() else { return Ok(()) };
        let entries = now(self.store.entries_of(run, JournalSeq(0), usize::MAX)).unwrap_or_default();
        let facts: Vec<RunEvent> =
            entries.into_iter().map(|entry| entry.event).filter(crate::faults::is_fact).collect();
        let Some(fact) = self.dice.choose(&facts) else { return Ok(()) };
        self.note(|| format!("{} arrives again for {run}", fact.name()));
        self.send_event(run, fact)
    }

    /// Makes all participants reliable, so that the invariants can be checked.
    fn calm_down(&mut self) {
        self.note(|| "no more faults from here".into());
        self.weather = NetworkMode::Fair;
        self.people.behave = true;
        self.disk.set_short(false);
        self.catalogue.plans().values_mut().for_each(EnginePlan::behave);
        let mut table = self.processes.table();
        table.engines.plans.values_mut().for_each(EnginePlan::behave);
        for keeper in table.engines.keepers.values_mut() {
            keeper.is_silent = false;
        }
    }

    /// Lets all participants act once.
    fn rest(&mut self) -> Result<(), HistoryHalt> {
        self.repeat_unacknowledged()?;
        self.do_everything()?;
        self.conversation_speaks()?;
        self.do_everything()?;
        let all: Vec<SimProcessKey> = self.processes.table().engines.keepers.keys().copied().collect();
        for at in all {
            if let Some(keeper) = self.processes.table().engines.keepers.get_mut(&at) {
                keeper.unhang();
                for _ in 0..12 {
                    keeper.live_on();
                }
            }
            self.do_everything()?;
        }
        self.answer_everything()?;
        self.do_everything()?;
        self.pass(4_000);
        self.do_everything()
    }

    /// Restarts the daemon if it crashed.
    pub(crate) fn after(&mut self, acted: Result<(), HistoryHalt>) -> Result<(), InvariantViolation> {
        match acted {
            Ok(()) => Ok(()),
            Err(HistoryHalt::Violated(violation)) => Err(violation),
            Err(HistoryHalt::Crashed) => {
                if let Some(on_disk) = self.on_disk.take() {
                    self.store = Arc::new(on_disk);
                    self.processes.table().store = self.store.clone();
                }
                self.restart_daemon()
            }
        }
    }

    fn a_few_times(&mut self, act: fn(&mut Self) -> Result<(), HistoryHalt>) -> Result<(), HistoryHalt> {
        for _ in 0..=self.dice.below(3) {
            act(self)?;
        }
        Ok(())
    }

    fn some_process_lives_on(&mut self) -> Result<(), HistoryHalt> {
        let alive: Vec<SimProcessKey> = self.processes.table().engines.alive().collect();
        let Some(at) = self.dice.choose(&alive) else { return Ok(()) };
        let did =
            self.processes.table().engines.keepers.get_mut(&at).and_then(crate::engine::SimKeeper::live_on);
        if let Some(did) = did {
            self.note(|| format!("process {}/{} {did}", at.0, at.1.0));
        }
        Ok(())
    }

    /// Time passes; sometimes the wall clock is set back meanwhile.
    fn time_passes(&mut self) -> Result<(), HistoryHalt> {
        let span = self.dice.choose_nonempty(&[1, 5, 20, 700]);
        self.pass(span);
        self.note(|| format!("{span} s pass"));
        if self.dice.chance(10) {
            let back = self.dice.choose_nonempty(&[1, 60, 3_600]);
            self.clock.advance(-back * 1_000_000);
            self.note(|| format!("the clock is set back by {back} s"));
        }
        Ok(())
    }

    fn pass(&mut self, seconds: i64) {
        self.clock.advance(seconds * 1_000_000);
        self.monotonic += seconds.unsigned_abs() * 1_000_000;
    }
}

/// The disk of the simulated machine.
#[derive(Debug, Default)]
pub(crate) struct SimDisk(AtomicBool);

impl SimDisk {
    pub(crate) fn is_short(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set_short(&self, is_short: bool) {
        self.0.store(is_short, Ordering::Relaxed);
    }
}

impl DiskSpace for SimDisk {
    fn free_bytes(&self, _: &str) -> Option<u64> {
        Some(u64::from(!self.is_short()))
    }
}

/// Removes the leading zeros of ids, which count up from zero in this world.
fn without_zeros(line: &str) -> String {
    let mut parts = line.split('_');
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        told.push('_');
        told.push_str(part.trim_start_matches('0'));
    }
    told
}

/// Whether the events of a history are recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoryMode {
    Nothing,
    Everything,
}
