//! Where tests put their stores: a new folder or schema each.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use abide_ports::store::{Store, StoreFuture};
use abide_store::{memory::MemoryStore, registry};
use abide_testkit::store::{Keeps, Place, Places};
use tempfile::TempDir;

use crate::server::{new_schema, postgres_url};

/// Where stores of this scheme can be opened. A kind that is not known here fails the test.
pub(crate) fn of(scheme: &str) -> Box<dyn Places> {
    match scheme {
        "memory" => Box::new(Folders { prefix: "memory:", keeps: Keeps::Nothing }),
        "sqlite" => Box::new(Folders { prefix: "sqlite:", keeps: Keeps::Everything }),
        "postgres" => Box::new(Schemas { url: postgres_url() }),
        unknown => panic!("say in tests/places where stores of the kind {unknown} can be tried"),
    }
}

struct Schemas {
    url: String,
}

struct Schema {
    url: String,
}

impl Places for Schemas {
    fn fresh(&self) -> Box<dyn Place> {
        Box::new(Schema { url: new_schema(&self.url) })
    }

    fn reference(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }
}

impl Place for Schema {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(registry::open(&self.url))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Everything
    }

    fn restored(&self, _backup: &Path) -> StoreFuture<'_, Arc<dyn Store>> {
        unreachable!("the server makes its own backups")
    }

    fn new_file(&self) -> PathBuf {
        PathBuf::from("never-written")
    }
}

struct Folders {
    prefix: &'static str,
    keeps: Keeps,
}

/// A store in a folder of its own.
struct Folder {
    url: String,
    folder: TempDir,
    keeps: Keeps,
    files: AtomicUsize,
}

impl Places for Folders {
    fn fresh(&self) -> Box<dyn Place> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("{}{}", self.prefix, folder.path().join("abide.db").display());
        Box::new(Folder { url, folder, keeps: self.keeps, files: AtomicUsize::new(0) })
    }

    fn reference(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }
}

impl Place for Folder {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(registry::open(&self.url))
    }

    fn keeps(&self) -> Keeps {
        self.keeps
    }

    fn restored(&self, backup: &Path) -> StoreFuture<'_, Arc<dyn Store>> {
        let url = format!("sqlite:{}", backup.display());
        Box::pin(async move { registry::open(&url).await })
    }

    fn new_file(&self) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        self.folder.path().join(format!("backup-{number}.db"))
    }
}
