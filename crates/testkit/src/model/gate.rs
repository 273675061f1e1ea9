//! A gate in front of which an answer stands until the test opens it.

use std::sync::Arc;

use super::watched::WatchedValue;

/// Clones are the same gate. Once open it stays open.
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

    /// Lets everything through that stands here or will come.
    pub fn open(&self) {
        self.0.update(|state| state.open = true);
    }

    /// How many answers have come to this gate so far.
    pub fn arrived(&self) -> usize {
        self.0.read(|state| state.arrived)
    }

    /// Blocks until an answer stands here, so that what is before the gate has been sent.
    ///
    /// # Panics
    /// When none comes.
    pub fn reached(&self) {
        let reached = self.0.wait(|state| (state.arrived > 0).then_some(()));
        reached.expect("no answer came to the gate");
    }

    /// Waits until an answer stands here.
    ///
    /// # Panics
    /// When none comes.
    pub async fn reached_async(&self) {
        let reached = self.0.wait_async(|state| (state.arrived > 0).then_some(())).await;
        reached.expect("no answer came to the gate");
    }

    /// Stands at the gate until it opens.
    pub(super) async fn pass(&self) {
        self.0.update(|state| state.arrived += 1);
        // A gate that is never opened holds until the test is over; giving up here would only confuse it.
        while self.0.wait_async(|state| state.open.then_some(())).await.is_none() {}
    }
}

impl Default for TestGate {
    fn default() -> Self {
        Self::new()
    }
}
