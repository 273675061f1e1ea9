//! Locations of test stores: a new folder or schema for each test.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use abide_ports::store::{Store, StoreFuture};
use abide_store::{memory::MemoryStore, registry};
use abide_testkit::store::{TestStoreDurability, TestStorePlace, TestStoreProvider};
use tempfile::TempDir;

use crate::server::{new_schema, postgres_url};

/// The provider for this scheme. An unknown scheme fails the test.
pub(crate) fn fixtures_for(scheme: &str) -> Box<dyn TestStoreProvider> {
    match scheme {
        "memory" => Box::new(FolderFixtures { prefix: "memory:", keeps: TestStoreDurability::Volatile }),
        "sqlite" => Box::new(FolderFixtures { prefix: "sqlite:", keeps: TestStoreDurability::Durable }),
        "postgres" => Box::new(SchemaFixtures { url: postgres_url() }),
        unknown => panic!("say in tests/places where stores of the kind {unknown} can be tried"),
    }
}

struct SchemaFixtures {
    url: String,
}

struct SchemaFixture {
    url: String,
}

impl TestStoreProvider for SchemaFixtures {
    fn new_place(&self) -> Box<dyn TestStorePlace> {
        Box::new(SchemaFixture { url: new_schema(&self.url) })
    }

    fn reference(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }
}

impl TestStorePlace for SchemaFixture {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(registry::open(&self.url))
    }

    fn durability(&self) -> TestStoreDurability {
        TestStoreDurability::Durable
    }

    fn open_backup(&self, _backup: &Path) -> StoreFuture<'_, Arc<dyn Store>> {
        unreachable!("the server makes its own backups")
    }

    fn new_file(&self) -> PathBuf {
        PathBuf::from("never-written")
    }
}

struct FolderFixtures {
    prefix: &'static str,
    keeps: TestStoreDurability,
}

/// A store in a temporary folder.
struct FolderFixture {
    url: String,
    folder: TempDir,
    keeps: TestStoreDurability,
    files: AtomicUsize,
}

impl TestStoreProvider for FolderFixtures {
    fn new_place(&self) -> Box<dyn TestStorePlace> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("{}{}", self.prefix, folder.path().join("abide.db").display());
        Box::new(FolderFixture { url, folder, keeps: self.keeps, files: AtomicUsize::new(0) })
    }

    fn reference(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }
}

impl TestStorePlace for FolderFixture {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(registry::open(&self.url))
    }

    fn durability(&self) -> TestStoreDurability {
        self.keeps
    }

    fn open_backup(&self, backup: &Path) -> StoreFuture<'_, Arc<dyn Store>> {
        let url = format!("sqlite:{}", backup.display());
        Box::pin(async move { registry::open(&url).await })
    }

    fn new_file(&self) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        self.folder.path().join(format!("backup-{number}.db"))
    }
}
