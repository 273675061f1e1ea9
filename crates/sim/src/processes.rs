//! The processes of the simulated world behind the port [`Processes`]: fake processes under fake keepers, which may not
//! answer for a while. Their state survives the daemon.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use abide_daemon::{parse_process_name, process_name};
use abide_domain::{
    id::{RunId, TurnId},
    process::{Attempt, ExitStatus, ProcessBinding},
    time::Timestamp,
    turn::Turn,
};
use abide_ports::{
    engine::{EngineInstallation, ProcessSignal},
    processes::{
        FileIdentity, OutputFollower, OutputOffsets, ProcessLookup, ProcessOutput, ProcessUnreachable,
        Processes, StartError, StartRequest, StdinWrite,
    },
    store::StoreMaintenance,
};
use abide_store::memory::MemoryStore;
use abide_testkit::seeded_rng::SeededRng;

use crate::{
    adapter::{SimInputLine, launch_session},
    daemon::now,
    engine::{ProcessFate, SimEngines, SimKeeper, SimLaunch},
};

/// Fake processes, shared by consecutive daemons.
#[derive(Clone, Debug)]
pub(crate) struct SimProcesses(Arc<Mutex<SimProcessTable>>);

/// The state of all processes.
#[derive(Debug)]
pub(crate) struct SimProcessTable {
    pub(crate) engines: SimEngines,
    pub(crate) dice: SeededRng,
    /// To see which turn an input belongs to.
    pub(crate) store: Arc<MemoryStore>,
}

impl SimProcesses {
    pub(crate) fn new(seed: u64, store: Arc<MemoryStore>) -> Self {
        let (engines, dice) = (SimEngines::default(), SeededRng::new(seed ^ 0x5eed));
        Self(Arc::new(Mutex::new(SimProcessTable { engines, dice, store })))
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, SimProcessTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn silent() -> ProcessUnreachable {
    ProcessUnreachable { reason: "the keeper does not answer".to_owned() }
}

impl SimProcessTable {
    /// The latest stored turn of a run that fits.
    fn turn_of(&self, run: RunId, fits: impl Fn(&Turn) -> bool) -> Option<TurnId> {
        let tables = now(self.store.tables_of(run)).unwrap_or_default();
        tables
            .turns
            .values()
            .filter(|turn| fits(turn))
            .max_by_key(|turn| turn.turn_index)
            .map(|turn| turn.turn_id)
    }

    /// The process with this name, if its keeper answers.
    fn keeper(&mut self, name: &str) -> Result<Option<&mut SimKeeper>, ProcessUnreachable> {
        let at = parse_process_name(name).expect("the daemon names processes by run and attempt");
        match self.engines.keepers.get_mut(&at) {
            Some(keeper) if keeper.is_silent => Err(silent()),
            Some(keeper) if keeper.is_removed => Ok(None),
            keeper => Ok(keeper),
        }
    }
}

impl Processes for SimProcesses {
    fn start(&self, name: &str, start: &StartRequest<'_>) -> Result<ProcessBinding, StartError> {
        let table = &mut *self.table();
        let at @ (run, attempt) = parse_process_name(name).expect("the daemon names it");
        match table.keeper(name) {
            Err(_) => return Err(StartError::Unresponsive),
            Ok(Some(keeper)) if keeper.fate == ProcessFate::Vanished => return Err(StartError::Lost),
            Ok(Some(keeper)) => return Ok(keeper.process.clone()),
            Ok(None) => {}
        }
        let [engine, session, prompt] = &start.spec.argv[..] else {
            panic!("the adapter gives three arguments")
        };
        let plan = table.engines.plans.get(engine).expect("the run has this engine").clone();
        if table.dice.chance(plan.refuses) {
            return Err(match table.dice.chance(10) {
                true => StartError::ProgramUnusable("it would not start".to_owned()),
                false => StartError::SystemError("it would not start".to_owned()),
            });
        }
        let Some(turn) =
            table.turn_of(run, |turn| turn.attempts.iter().any(|record| record.attempt == attempt))
        else {
            table.engines.uncommitted.push(format!("process {name} was started"));
            return Err(StartError::SystemError("it is not committed".to_owned()));
        };
        let launch = SimLaunch { at, turn, session: &launch_session(session), prompt };
        Ok(table.engines.launch(&launch, &plan, &mut table.dice).process.clone())
    }

    fn find(&self, name: &str) -> ProcessLookup {
        match self.table().keeper(name) {
            Err(_) => ProcessLookup::Unresponsive,
            Ok(None) => ProcessLookup::NotStarted,
            Ok(Some(keeper)) if keeper.fate == ProcessFate::Vanished => ProcessLookup::Lost,
            Ok(Some(keeper)) => ProcessLookup::Found(keeper.process.clone()),
        }
    }

    fn last_output_at(&self, _: &str) -> Option<Timestamp> {
        None
    }

    fn follow(&self, name: &str, from: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        let mut table = self.table();
        let keeper = table.keeper(name)?.ok_or_else(silent)?;
        keeper.is_severed = false;
        keeper.repeat_open_gate();
        let offset = usize::try_from(from.stdout).expect("offsets are small");
        Ok(Box::new(SimFollower { processes: self.clone(), name: name.to_owned(), offset }))
    }

    fn checkpoint(&self, name: &str) -> Option<Vec<u8>> {
        self.table().keeper(name).ok().flatten()?.checkpoint.clone()
    }

    fn output_buffer_bytes(&self) -> u64 {
        // Small, so that checkpoints are stored.
        4_096
    }

    fn write(&self, name: &str, write: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        let table = &mut *self.table();
        let at = parse_process_name(name).expect("the daemon names it");
        let keeper = table.keeper(name)?.ok_or_else(silent)?;
        if keeper.keys.contains(&write.key) {
            return Ok(());
        }
        if keeper.fate != ProcessFate::Alive {
            return Err(silent());
        }
        keeper.keys.insert(write.key);
        if write.close_after {
            keeper.is_input_closed = true;
            return Ok(());
        }
        let line: SimInputLine = serde_json::from_slice(write.bytes).expect("the adapter wrote it");
        let turn = match &line {
            SimInputLine::Prompt(prompt) => table.turn_of(at.0, |turn| turn.prompt == *prompt),
            SimInputLine::Answer { .. } | SimInputLine::Steer(_) | SimInputLine::Interrupt => None,
        };
        table.engines.input(at, line, turn, &mut table.dice);
        Ok(())
    }

    fn received_keys(&self, name: &str, keys: &[u64]) -> Result<Vec<u64>, ProcessUnreachable> {
        let mut table = self.table();
        let Some(keeper) = table.keeper(name)? else { return Ok(vec![]) };
        // Real keepers that die without a record also lose the keys; here they are kept, as in `write`.
        Ok(keys.iter().copied().filter(|key| keeper.keys.contains(key)).collect())
    }

    fn signal(&self, name: &str, _: ProcessSignal) -> Result<(), ProcessUnreachable> {
        let mut table = self.table();
        let keeper = table.keeper(name)?.ok_or_else(silent)?;
        if keeper.fate == ProcessFate::Alive {
            keeper.fate = ProcessFate::Exited(143);
        }
        Ok(())
    }

    fn terminate(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable> {
        let mut table = self.table();
        let Some(keeper) = table.keeper(name)? else { return Ok(ExitStatus::Unknown) };
        if keeper.fate == ProcessFate::Alive {
            keeper.fate = ProcessFate::Exited(137);
        }
        keeper.is_removed = true;
        Ok(keeper.exit().unwrap_or(ExitStatus::Unknown))
    }

    fn names(&self) -> Vec<String> {
        let table = self.table();
        let kept = table.engines.keepers.iter().filter(|(_, keeper)| !keeper.is_removed);
        kept.map(|((run, attempt), _)| process_name(*run, *attempt)).collect()
    }

    fn program_files(&self, installation: &EngineInstallation) -> Option<Vec<FileIdentity>> {
        let path = installation.command.first()?.into();
        Some(vec![FileIdentity { path, inode: (1, 1), size: 1, modified: (0, 0) }])
    }
}

/// Reads the output of a process in pieces that do not respect lines.
struct SimFollower {
    processes: SimProcesses,
    name: String,
    offset: usize,
}

impl OutputFollower for SimFollower {
    fn next(&mut self, _: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        let table = &mut *self.processes.table();
        let keeper = table.keeper(&self.name)?.ok_or_else(silent)?;
        if keeper.is_severed {
            return Err(silent());
        }
        let rest = keeper.spool.get(self.offset..).unwrap_or_default().to_vec();
        let exit = keeper.exit();
        if rest.is_empty() {
            return Ok(exit.map_or(ProcessOutput::TimedOut, ProcessOutput::Exited));
        }
        let bytes = rest[..rest.len().min(1 + table.dice.below(400))].to_vec();
        self.offset += bytes.len();
        Ok(ProcessOutput::Stdout(bytes))
    }

    fn store_checkpoint(&mut self, checkpoint: &[u8], _: OutputOffsets) -> Result<(), ProcessUnreachable> {
        let mut table = self.processes.table();
        let keeper = table.keeper(&self.name)?.ok_or_else(silent)?;
        keeper.checkpoint = Some(checkpoint.to_vec());
        Ok(())
    }
}

/// The key of a process.
pub(crate) type SimProcessKey = (RunId, Attempt);
