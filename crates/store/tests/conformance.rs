//! Every store in the registry passes the suite, so none can be left out.

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
