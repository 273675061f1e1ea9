//! Caches the results of engine probes, for as long as the probed program is unchanged.
//!
//! Comparing the metadata of its files is the cheap probe for the first turn of a run (A3). A program that was upgraded
//! or replaced is probed again. A failed probe is also repeated, because the user may have repaired the program.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use abide_domain::{
    effect::Effect, engine::EngineInteractiveProfile, event::RunEvent, run::Run, settings::RunSettings,
};
use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    clock::Clock,
    engine::{EngineHealth, EngineInstallation},
    processes::{FileIdentity, Processes},
};

use super::lock;

/// Maximum number of cached programs.
const MOST: usize = 64;

/// The cached results of successful probes.
pub(super) struct ProbeCache {
    catalogue: Arc<dyn EngineLookup>,
    processes: Arc<dyn Processes>,
    clock: Arc<dyn Clock>,
    seen: Mutex<VecDeque<(ProbedProgram, EngineHealth)>>,
}

/// Identity of an installed program: name, command and file metadata. Changes when the program is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbedProgram {
    engine: String,
    installation: EngineInstallation,
    files: Vec<FileIdentity>,
}

impl ProbeCache {
    pub(super) fn new(
        catalogue: Arc<dyn EngineLookup>,
        processes: Arc<dyn Processes>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { catalogue, processes, clock, seen: Mutex::default() }
    }

    /// The program as it is now, if the metadata of its files can be read. Call it before the probe, so that a
    /// replacement during the probe is detected.
    pub(super) fn program(&self, entry: &InstalledEngine) -> Option<ProbedProgram> {
        let files = self.processes.program_files(&entry.installation)?;
        Some(ProbedProgram {
            engine: entry.engine.name().to_owned(),
            installation: entry.installation.clone(),
            files,
        })
    }

    pub(super) fn remember(&self, program: ProbedProgram, health: EngineHealth) {
        let mut seen = lock(&self.seen);
        // One entry per command, even if its program was replaced.
        seen.retain(|(known, _)| {
            (&known.engine, &known.installation) != (&program.engine, &program.installation)
        });
        seen.push_back((program, health));
        if seen.len() > MOST {
            seen.pop_front();
        }
    }

    /// The cached result for the current program of an engine.
    pub(super) fn known(&self, entry: &InstalledEngine) -> Option<EngineHealth> {
        let program = self.program(entry)?;
        let seen = lock(&self.seen);
        seen.iter().find(|(known, _)| *known == program).map(|(_, health)| health.clone())
    }

    /// The event for a run's pending probe, if the result is cached.
    pub(super) fn cached_result(&self, run: &Run) -> Option<RunEvent> {
        let Effect::Probe { .. } = run.pending_effects.first()?.effect else { return None };
        let entry = self.catalogue.engine(&run.settings.engine)?;
        let health = self.known(&entry)?;
        Some(self.resolved(&entry, &health, &run.settings))
    }

    /// The event for a successful probe.
    pub(super) fn resolved(
        &self,
        entry: &InstalledEngine,
        health: &EngineHealth,
        settings: &RunSettings,
    ) -> RunEvent {
        let fresh = uuid_of(self.clock.stamp().id_seed.0);
        RunEvent::ProfileResolved {
            profile: EngineInteractiveProfile {
                kind: health.profile_kind(),
                reason: health.resume.detail.clone(),
                session_timeout_sec: settings.session_timeout_sec,
            },
            abilities: health.abilities.to_run_abilities(),
            command: Some(entry.stored_command()),
            handle: health.resume.supported.then(|| entry.engine.new_session_handle(&fresh)).flatten(),
        }
    }
}

/// Formats an id as a UUID of version 4, for programs that check the form.
fn uuid_of(fresh: u128) -> String {
    let versioned = (fresh & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{versioned:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_number_becomes_a_uuid_of_version_4() {
        assert_eq!(uuid_of(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid_of(0), "00000000-0000-4000-8000-000000000000");
    }
}
