//! A value whose changes can be awaited, with and without async.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct WatchedValue<T> {
    value: Mutex<T>,
    changed: Condvar,
    versions: watch::Sender<u64>,
}

/// The timeout of all waits. It is long because the machine may be busy; it only turns a hanging test into a failure.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

impl<T> WatchedValue<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new(), versions: watch::Sender::new(0) }
    }

    pub(super) fn read<R>(&self, find: impl FnOnce(&T) -> R) -> R {
        find(&self.lock())
    }

    pub(super) fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        self.versions.send_modify(|moves| *moves += 1);
        result
    }

    /// Blocks until `find` returns a value; `None` after a timeout.
    pub(super) fn wait<R>(&self, mut find: impl FnMut(&T) -> Option<R>) -> Option<R> {
        let mut result = None;
        let guard = self.changed.wait_timeout_while(self.lock(), WAIT_TIMEOUT, |value| {
            result = find(value);
            result.is_none()
        });
        drop(guard);
        result
    }

    /// Waits until `find` returns a value; `None` after a timeout.
    pub(super) async fn wait_async<R>(&self, mut find: impl FnMut(&T) -> Option<R>) -> Option<R> {
        let mut moves = self.versions.subscribe();
        let finding = async {
            loop {
                // Marked as seen before the call of `find`, so that a change during the call is noticed.
                moves.borrow_and_update();
                if let Some(result) = self.read(&mut find) {
                    return result;
                }
                moves.changed().await.expect("the sender lives as long as this value");
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, finding).await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
