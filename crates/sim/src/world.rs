//! The simulated world: people, engines, a conversation, a clock, and a daemon that may crash at any commit. One seed
//! is one history.

use std::{collections::BTreeMap, sync::Arc};

use abide_domain::{id::RunId, process::Attempt, run::RunStatus};
use abide_store::memory::{CrashPoint, MemoryStore};
use abide_testkit::{clock::FakeClock, seeded_rng::SeededRng};

use crate::{
    channel::{FakeChannel, NetworkMode},
    checks::InvariantViolation,
    daemon::SimDaemon,
    engine::{EnginePlan, SimEngines},
    faults::RuleFault,
    people::SimPeople,
};

/// The whole state of a history.
pub(crate) struct SimWorld {
    pub(crate) dice: SeededRng,
    pub(crate) clock: Arc<FakeClock>,
    pub(crate) store: Arc<MemoryStore>,
    /// With [`RuleFault::AcknowledgeTooEarly`], the state that would survive a power failure now.
    pub(crate) on_disk: Option<MemoryStore>,
    pub(crate) engines: SimEngines,
    pub(crate) plans: BTreeMap<RunId, EnginePlan>,
    pub(crate) people: SimPeople,
    pub(crate) channel: FakeChannel,
    pub(crate) weather: NetworkMode,
    pub(crate) daemon: SimDaemon,
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
        let daemon = SimDaemon::start(&store, &clock, slots);
        Self {
            dice,
            clock,
            store,
            on_disk: None,
            engines: SimEngines::default(),
            plans: BTreeMap::new(),
            people: SimPeople::default(),
            channel: FakeChannel::default(),
            weather: NetworkMode::Foul,
            daemon,
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
            let before = self.daemon.taken;
            let acted = self.rest();
            self.after(acted)?;
            if self.daemon.taken == before && round > 2 {
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
        let ((held, queued), slots) = (self.daemon.desk.occupancy(), self.slots);
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
        if self.dice.chance(3) && !self.store.has_pending_crash() {
            let point = self.dice.choose_nonempty(&[CrashPoint::BeforeWrite, CrashPoint::AfterWrite]);
            self.store.crash_at(point);
        }
        match self.dice.below(100) {
            0..5 => self.create_run(),
            5..12 => self.send_message(),
            12..22 => self.answer_question(),
            22..24 => self.interrupt_run(),
            24..25 => self.cancel_run(),
            25..45 => self.a_few_times(Self::perform_something),
            45..65 => self.a_few_times(Self::hear_something),
            65..88 => self.a_few_times(Self::some_process_lives_on),
            88..94 => self.time_passes(),
            94..95 => self.conversation_speaks(),
            95..97 => self.admit(),
            97..98 => self.contact_is_lost(),
            98..99 => {
                self.note(|| "the daemon is killed".into());
                Err(HistoryHalt::Crashed)
            }
            _ => {
                if self.dice.chance(20) {
                    self.note(|| "the daemon is told to stop in order".into());
                    self.shut_down()?;
                    return Err(HistoryHalt::Crashed);
                }
                if self.dice.chance(20) {
                    self.note(|| "the machine goes down with every process".into());
                    self.engines.reboot();
                    return Err(HistoryHalt::Crashed);
                }
                Ok(())
            }
        }
    }

    /// Makes all participants reliable, so that the invariants can be checked.
    fn calm_down(&mut self) {
        self.note(|| "no more faults from here".into());
        self.weather = NetworkMode::Fair;
        self.people.behave = true;
        for plan in self.plans.values_mut() {
            plan.behave();
        }
    }

    /// Lets all participants act once.
    fn rest(&mut self) -> Result<(), HistoryHalt> {
        self.repeat_unacknowledged()?;
        self.conversation_speaks()?;
        self.perform_everything()?;
        let all: Vec<_> = self.engines.keepers.keys().copied().collect();
        for at in all {
            let Some(keeper) = self.engines.keepers.get_mut(&at) else { continue };
            keeper.unhang();
            for _ in 0..12 {
                keeper.live_on();
            }
            self.hear_all(at)?;
        }
        self.perform_everything()?;
        self.answer_everything()?;
        self.admit()?;
        self.clock.advance(4_000_000_000);
        self.ring()
    }

    /// With [`RuleFault::AcknowledgeTooEarly`], the next commit will not survive a crash.
    pub(crate) fn before_the_desk(&mut self) {
        if self.fault == Some(RuleFault::AcknowledgeTooEarly) {
            self.on_disk = Some(self.store.copy());
        }
    }

    /// Restarts the daemon if it crashed.
    fn after(&mut self, acted: Result<(), HistoryHalt>) -> Result<(), InvariantViolation> {
        match acted {
            Ok(()) => Ok(()),
            Err(HistoryHalt::Violated(violation)) => Err(violation),
            Err(HistoryHalt::Crashed) => {
                if let Some(on_disk) = self.on_disk.take() {
                    self.store = Arc::new(on_disk);
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
        let alive: Vec<(RunId, Attempt)> = self.engines.alive().collect();
        let Some(at) = self.dice.choose(&alive) else { return Ok(()) };
        let did = self.engines.keepers.get_mut(&at).and_then(crate::engine::SimKeeper::live_on);
        if let Some(did) = did {
            self.note(|| format!("process {}/{} {did}", at.0, at.1.0));
        }
        Ok(())
    }

    fn time_passes(&mut self) -> Result<(), HistoryHalt> {
        let span = self.dice.choose_nonempty(&[1, 5, 20, 700]);
        self.clock.advance(span * 1_000_000);
        self.note(|| format!("{span} s pass"));
        self.ring()
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
