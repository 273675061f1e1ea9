//! A gate that blocks an answer until the test opens it.

use std::sync::Arc;

use super::watched_value::WatchedValue;

/// A gate. Clones share its state. Once open it stays open.
#[derive(Debug, Clone)]
pub struct TestGate(Arc<WatchedValue<GateState>>);

#[derive(Debug, Default)]
struct GateState {
    open: bool,
    arrived: usize,
}

impl TestGate {
    pub fn new() -> Self {
        Self(Arc::new(WatchedValue::new(GateState::default())))
    }

    /// Opens the gate for the answers that wait and for all later ones.
    pub fn open(&self) {
        self.0.update(|state| state.open = true);
    }

    /// Returns the number of answers that have arrived at this gate so far.
    pub fn arrival_count(&self) -> usize {
        self.0.read(|state| state.arrived)
    }

    /// Blocks until an answer has arrived at the gate; the part before the gate has then been sent.
    ///
    /// # Panics
    /// If none arrives within the timeout.
    pub fn wait_reached(&self) {
        let reached = self.0.wait(|state| (state.arrived > 0).then_some(()));
        reached.expect("no answer came to the gate");
    }

    /// Like [`Self::wait_reached`], without blocking the thread.
    ///
    /// # Panics
    /// If none arrives within the timeout.
    pub async fn wait_reached_async(&self) {
        let reached = self.0.wait_async(|state| (state.arrived > 0).then_some(())).await;
        reached.expect("no answer came to the gate");
    }

    /// Waits at the gate until it opens.
    pub(super) async fn pass(&self) {
        self.0.update(|state| state.arrived += 1);
        // A gate that is never opened blocks until the test ends. A timeout here would hide the cause of a failure.
        while self.0.wait_async(|state| state.open.then_some(())).await.is_none() {}
    }
}

impl Default for TestGate {
    fn default() -> Self {
        Self::new()
    }
}
