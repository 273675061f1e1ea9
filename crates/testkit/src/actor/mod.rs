//! An engine whose processes live inside the test and say what they are told to: for everything that wants the daemon
//! whole and the world simple. No program is started, nothing is read but lines of plain words.
//!
//! | line | means |
//! |---|---|
//! | `session NAME` | its session |
//! | `progress TEXT` | it gets on |
//! | `write TEXT` | it wants this on its input, and a line's end |
//! | `ask TEXT` | its turn ends with a question |
//! | `done TEXT` | its turn ends |
//! | `break` | its interpreter panics |

mod contents;
mod engine;
mod processes;

use std::sync::Arc;

use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    engine::Engine,
    workspace::{WorkspaceError, WorkspacePreparation, Workspaces},
};

pub use contents::{ContentsInMemory, UnlimitedSpace};
pub use engine::FakeEngine;
pub use processes::{FakeLaunch, FakeProcesses};

/// The only engine that there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct FakeCatalogue;

impl EngineLookup for FakeCatalogue {
    fn engine(&self, name: &str) -> Option<InstalledEngine> {
        (name == FakeEngine.name()).then(|| InstalledEngine {
            engine: Arc::new(FakeEngine),
            installation: FakeEngine.installation(),
            own_name: None,
        })
    }

    fn names(&self) -> Vec<String> {
        vec![FakeEngine.name().to_owned()]
    }
}

/// Workspaces that need no preparation.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopWorkspaces;

impl Workspaces for NoopWorkspaces {
    fn prepare(&self, _: &WorkspacePreparation<'_>) -> Result<(), WorkspaceError> {
        Ok(())
    }
}
