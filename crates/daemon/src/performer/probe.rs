//! Finds out what an engine's program can do, before a run's first turn (A3). How it is examined is [`crate::probe`]'s trade.

use abide_domain::{
    engine::Profile,
    event::Event,
    failure::{Failure, FailureCode},
    run::Run,
};
use abide_ports::{catalogue::Entry, engine::Health};

use super::{Carried, Performer};
use crate::probe::{self, Examination};

impl Performer {
    pub(super) async fn probe(&self, run: &Run) -> Carried {
        let settings = &run.settings;
        let Some(entry) = self.world.catalogue.engine(&settings.engine) else {
            let known = self.world.catalogue.names().join(", ");
            let message = format!("there is no engine {}; there are {known}", settings.engine);
            return unusable(Failure::new(FailureCode::EngineNotFound, message));
        };
        // Where it is asked makes no difference; whether the workspace can be used shows when a turn is launched in it.
        let health = self.examine(&entry, "/").await;
        if let Some(trouble) = health.trouble {
            return unusable(trouble);
        }
        let fresh = uuid_of(self.world.clock.stamp().fresh.0);
        Carried::Told(Event::ProfileResolved {
            profile: Profile {
                kind: health.profile_kind(),
                reason: health.resume.detail.clone(),
                session_timeout_sec: settings.session_timeout_sec,
            },
            abilities: health.abilities.for_domain(),
            handle: health.resume.supported.then(|| entry.engine.name_session(&fresh)).flatten(),
        })
    }

    /// Runs an engine's checks and judges them.
    pub async fn examine(&self, entry: &Entry, directory: &str) -> Health {
        let (processes, entry, directory) =
            (self.world.processes.clone(), entry.clone(), directory.to_owned());
        let stamp = self.world.clock.stamp().fresh;
        self.blocking(move || {
            let unique = stamp.to_string();
            let examination = Examination { directory: &directory, unique: &unique, patience: None };
            probe::examine(&*processes, &entry, &examination)
        })
        .await
    }
}

fn unusable(failure: Failure) -> Carried {
    Carried::Told(Event::EngineUnusable { failure })
}

/// A fresh id in the form of a UUID of version 4, as programs that check the form want it.
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
