//! An engine whose processes are values inside the test and print scripted lines. It serves tests of the whole daemon
//! that do not depend on a real engine. No program is started, and the output is plain text lines.
//!
//! | line | means |
//! |---|---|
//! | `session NAME` | reports the session's id |
//! | `progress TEXT` | reports progress |
//! | `write TEXT` | requests this text and a line feed on the process's input |
//! | `ask TEXT` | ends the turn with a question |
//! | `done TEXT` | ends the turn |
//! | `break` | makes the interpreter panic |

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

/// A catalogue that contains only [`FakeEngine`].
#[derive(Clone, Copy, Debug, Default)]
pub struct FakeCatalogue;

impl EngineLookup for FakeCatalogue {
    fn engine(&self, name: &str) -> Option<InstalledEngine> {
        (name == FakeEngine.name()).then(|| InstalledEngine {
            engine: Arc::new(FakeEngine),
            installation: FakeEngine.installation(),
            binary_placeholder: None,
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
    fn check(&self, _: &str) -> Result<(), WorkspaceError> {
        Ok(())
    }

    fn check_skill(&self, _: &str, _: &str) -> Result<(), WorkspaceError> {
        Ok(())
    }

    fn prepare(&self, _: &WorkspacePreparation<'_>) -> Result<(), WorkspaceError> {
        Ok(())
    }
}
