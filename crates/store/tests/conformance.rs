//! Runs the conformance suite for every store in the registry.

mod providers;
mod server;

use abide_store::registry::STORE_KINDS;
use abide_testkit::store;

#[tokio::test(flavor = "multi_thread")]
async fn every_registered_store_passes_the_suite() {
    for kind in STORE_KINDS {
        store::check(kind.scheme, &*providers::fixtures_for(kind.scheme)).await;
    }
}
