//! Every store passes the suite.
//!
//! FIXME: walk the registry once there is one.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_ports::store::{Answer, Store};
use abide_store::memory::MemoryStore;
use abide_testkit::store::{self, Keeps, Place, Places};

struct Memory;

impl Places for Memory {
    fn fresh(&self) -> Box<dyn Place> {
        Box::new(Self)
    }

    fn reference(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }
}

impl Place for Memory {
    fn open(&self) -> Answer<'_, Arc<dyn Store>> {
        Box::pin(async { Ok(Arc::new(MemoryStore::new()) as Arc<dyn Store>) })
    }

    fn keeps(&self) -> Keeps {
        Keeps::Nothing
    }

    fn restored(&self, _backup: &Path) -> Answer<'_, Arc<dyn Store>> {
        unreachable!("memory has no backup")
    }

    fn new_file(&self) -> PathBuf {
        PathBuf::new()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_passes_the_suite() {
    store::check("memory", &Memory).await;
}
