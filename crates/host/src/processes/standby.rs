//! A standby keeper, started in advance for the next process.

use std::sync::{Arc, Mutex, PoisonError};

use abide_keeper::launch::{KeeperLauncher, StandbyKeeper};

/// Whether a standby keeper is started in advance, so that a turn does not wait for one.
#[derive(Debug, Default)]
pub enum StandbyPolicy {
    /// For programs that start few processes and exit.
    #[default]
    None,
    /// For the daemon. There is no standby keeper before the first process is started.
    One(Arc<Mutex<Option<StandbyKeeper>>>),
}

impl StandbyPolicy {
    /// Takes the standby keeper, if there is one.
    pub(super) fn take(&self) -> Option<StandbyKeeper> {
        match self {
            Self::None => None,
            Self::One(standby) => standby.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }

    /// Starts a standby keeper on a background thread if there is none.
    pub(super) fn refill(&self, launcher: &KeeperLauncher) {
        let Self::One(standby) = self else { return };
        if standby.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return;
        }
        let (standby, launcher) = (standby.clone(), launcher.clone());
        // Without a thread there is no standby keeper, and the next start takes longer.
        std::thread::Builder::new()
            .name("spare".to_owned())
            .spawn(move || {
                if let Ok(ready) = launcher.start_standby() {
                    *standby.lock().unwrap_or_else(PoisonError::into_inner) = Some(ready);
                }
            })
            .ok();
    }
}
