//! The keepers that this process uses: one connection for each, and the keepers that it has to reap.

use std::{
    collections::BTreeMap,
    process::Child,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use abide_keeper::{
    KeeperError,
    client::{KeeperRequests, SharedConnection, timeouts::LOOKUP_TIMEOUT_MS},
    protocol::KeeperStatus,
};

/// The connections and children of [`super::KeeperProcesses`].
///
/// A connection is kept from the start of a process, or from its first reader, until the process is terminated. So a
/// turn needs one connection, for its start, its output, its input and its end.
#[derive(Debug, Default)]
pub struct TrackedKeepers {
    connections: Mutex<BTreeMap<String, Arc<SharedConnection>>>,
    /// Keepers that are children of this process and must be reaped.
    children: Mutex<Vec<Child>>,
}

impl TrackedKeepers {
    /// The connection to the keeper of this process, if there is one that takes requests.
    pub(super) fn connection(&self, name: &str) -> Option<Arc<SharedConnection>> {
        let mut connections = self.connections();
        let keeper = connections.get(name).cloned()?;
        let takes_requests = keeper.takes_requests();
        if keeper.is_closed() {
            connections.remove(name);
        }
        takes_requests.then_some(keeper)
    }

    /// The same connection with the present status. An error if the keeper does not respond.
    pub(super) fn responsive_connection(
        &self,
        name: &str,
    ) -> Result<Option<(Arc<SharedConnection>, KeeperStatus)>, KeeperError> {
        let Some(keeper) = self.connection(name) else { return Ok(None) };
        let status = (&*keeper).current_status(LOOKUP_TIMEOUT_MS)?;
        Ok(Some((keeper, status)))
    }

    /// Keeps a connection, unless there is an open one.
    pub(super) fn keep(&self, name: &str, keeper: &Arc<SharedConnection>) {
        let mut connections = self.connections();
        if connections.get(name).is_none_or(|current| current.is_closed()) {
            connections.insert(name.to_owned(), Arc::clone(keeper));
        }
    }

    /// Removes the connection to a keeper that is about to be ended. Returns it if it takes requests.
    pub(super) fn forget(&self, name: &str) -> Option<Arc<SharedConnection>> {
        let keeper = self.connections().remove(name)?;
        keeper.takes_requests().then_some(keeper)
    }

    /// Takes ownership of a keeper that this process started, and reaps those that have exited.
    pub(super) fn track(&self, child: Option<Child>) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.extend(child);
        children.retain_mut(|child| child.try_wait().is_ok_and(|status| status.is_none()));
    }

    /// Reaps the keepers that have exited.
    pub(super) fn reap(&self) {
        self.track(None);
    }

    /// Waits until all keepers that this process started have exited. They must have been told to end.
    pub fn await_exits(&self) {
        for mut child in self.children.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // The exit status is not needed; the wait only reaps the process.
            child.wait().ok();
        }
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<String, Arc<SharedConnection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
