//! Caches the results of engine probes, for as long as the probed program is unchanged.
//!
//! Comparing the metadata of its files is the cheap probe for the first turn of a run (A3). A program that was upgraded
//! or replaced is probed again. A failed probe is also repeated, because the user may have repaired the program.

use std::collections::VecDeque;

use abide_domain::{engine::EngineInteractiveProfile, event::RunEvent, id::IdSeed, settings::RunSettings};
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{EngineHealth, EngineInstallation},
    processes::{FileIdentity, Processes},
};

/// Maximum number of cached programs.
const MAX_PROGRAMS: usize = 64;

/// The cached results of successful probes.
#[derive(Debug, Default)]
pub(crate) struct ProbeCache(VecDeque<(ProbedProgram, EngineHealth)>);

/// Identity of an installed program: name, command and file metadata. Changes when the program is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedProgram {
    engine: String,
    installation: EngineInstallation,
    files: Vec<FileIdentity>,
}

impl ProbedProgram {
    /// The program as it is now, if the metadata of its files can be read. Call it before the probe, so that a
    /// replacement during the probe is detected. Blocks.
    pub(crate) fn read(processes: &dyn Processes, entry: &InstalledEngine) -> Option<Self> {
        let files = processes.program_files(&entry.installation)?;
        let (engine, installation) = (entry.engine.name().to_owned(), entry.installation.clone());
        Some(Self { engine, installation, files })
    }
}

impl ProbeCache {
    pub(crate) fn insert(&mut self, program: ProbedProgram, health: EngineHealth) {
        // One entry per command, even if its program was replaced.
        self.0.retain(|(cached, _)| {
            (&cached.engine, &cached.installation) != (&program.engine, &program.installation)
        });
        self.0.push_back((program, health));
        if self.0.len() > MAX_PROGRAMS {
            self.0.pop_front();
        }
    }

    /// The cached result for a program.
    pub(crate) fn get(&self, program: &ProbedProgram) -> Option<&EngineHealth> {
        self.0.iter().find(|(cached, _)| cached == program).map(|(_, health)| health)
    }
}

/// The event for the result of a probe.
pub(crate) fn probe_event(
    entry: &InstalledEngine,
    health: &EngineHealth,
    settings: &RunSettings,
    id_seed: IdSeed,
) -> RunEvent {
    if let Some(failure) = health.failure.clone() {
        return RunEvent::EngineUnusable { failure };
    }
    let uuid = uuid_of(id_seed.0);
    RunEvent::ProfileResolved {
        profile: EngineInteractiveProfile {
            kind: health.profile_kind(),
            reason: health.resume.detail.clone(),
            session_timeout_sec: settings.session_timeout_sec,
        },
        abilities: health.abilities.to_run_abilities(),
        command: Some(entry.stored_command()),
        handle: health.resume.supported.then(|| entry.engine.new_session_handle(&uuid)).flatten(),
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
