//! Runs the conformance suite for every store in the registry.

mod places;
mod server;

use abide_store::registry::KINDS;
use abide_testkit::store;

#[tokio::test(flavor = "multi_thread")]
async fn every_registered_store_passes_the_suite() {
    for kind in KINDS {
        store::check(kind.scheme, &*places::of(kind.scheme)).await;
    }
}
