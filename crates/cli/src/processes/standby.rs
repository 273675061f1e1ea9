//! The keeper that is kept ready for the next process.

use std::sync::{Arc, Mutex, PoisonError};

use abide_keeper::launch::{KeeperLauncher, StandbyKeeper};

/// Whether a keeper is kept ready, so that a turn does not wait for one to start.
#[derive(Debug, Default)]
pub enum StandbyPolicy {
    /// For programs that start a few processes and go.
    #[default]
    None,
    /// For the daemon. There is none before the first process was started.
    One(Arc<Mutex<Option<StandbyKeeper>>>),
}

impl StandbyPolicy {
    /// The keeper that is ready, if there is one.
    pub(super) fn take(&self) -> Option<StandbyKeeper> {
        match self {
            Self::None => None,
            Self::One(spare) => spare.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }

    /// Makes the next one ready if there is none, while nobody waits for it.
    pub(super) fn refill(&self, launcher: &KeeperLauncher) {
        let Self::One(spare) = self else { return };
        if spare.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return;
        }
        let (spare, launcher) = (spare.clone(), launcher.clone());
        let _there_is_none_then = std::thread::Builder::new().name("spare".to_owned()).spawn(move || {
            if let Ok(ready) = launcher.prepare() {
                *spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(ready);
            }
        });
    }
}
