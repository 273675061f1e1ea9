//! Finds out what an engine's program can do, before a run's first turn (A3), where that is not known already. How it is
//! examined is [`crate::probe`]'s trade, what is remembered of that is in `examined.rs`.

use abide_domain::{
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
        // Somebody else's run may have had the same engine examined meanwhile.
        if let Some(known) = self.shared.examined.foresee(run) {
            return Carried::Told(known);
        }
        let Some(entry) = self.world.catalogue.engine(&settings.engine) else {
            let known = self.world.catalogue.names().join(", ");
            let message = format!("there is no engine {}; there are {known}", settings.engine);
            return unusable(Failure::new(FailureCode::EngineNotFound, message));
        };
        // Where it is asked makes no difference; whether the workspace can be used shows when a turn is launched in it.
        let health = self.examine(&entry, "/").await;
        Carried::Told(match health.trouble {
            Some(trouble) => Event::EngineUnusable { failure: trouble },
            None => self.shared.examined.resolved(&entry, &health, settings),
        })
    }

    /// Runs an engine's checks and judges them, whatever is remembered of earlier ones.
    pub async fn examine(&self, entry: &Entry, directory: &str) -> Health {
        let (processes, examined) = (self.world.processes.clone(), self.shared.examined.clone());
        let (entry, directory) = (entry.clone(), directory.to_owned());
        let stamp = self.world.clock.stamp().fresh;
        self.blocking(move || {
            let unique = stamp.to_string();
            let examination = Examination { directory: &directory, unique: &unique, patience: None };
            let program = examined.program(&entry);
            let (health, lasts) = probe::look(&*processes, &entry, &examination);
            if let Some(program) = program.filter(|_| lasts) {
                examined.remember(program, health.clone());
            }
            health
        })
        .await
    }
}

fn unusable(failure: Failure) -> Carried {
    Carried::Told(Event::EngineUnusable { failure })
}
