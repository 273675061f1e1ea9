//! Where tests put their stores: a new folder or schema each.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use abide_ports::store::{Answer, Store};
use abide_store::{memory::MemoryStore, registry};
use abide_testkit::store::{Keeps, Place, Places};
use tempfile::TempDir;

/// Where stores of this scheme can be opened. A kind that is not known here fails the test.
pub(crate) fn of(scheme: &str) -> Box<dyn Places> {
    match scheme {
        "memory" => Box::new(Folders { prefix: "memory:", keeps: Keeps::Nothing }),
        "sqlite" => Box::new(Folders { prefix: "sqlite:", keeps: Keeps::Everything }),
        "postgres" => Box::new(Schemas { url: postgres_url() }),
        unknown => panic!("say in tests/places where stores of the kind {unknown} can be tried"),
    }
}

/// The server that `cargo xtask test` starts. Without it nothing is skipped: the test fails.
#[expect(clippy::disallowed_methods, reason = "the test command says where its server is")]
pub(crate) fn postgres_url() -> String {
    std::env::var("ABIDE_TEST_POSTGRES_URL")
        .expect("ABIDE_TEST_POSTGRES_URL is not set: run `cargo xtask test`, which starts a server for it")
}

/// A schema that nobody else uses.
pub(crate) fn new_schema(url: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let join = if url.contains('?') { '&' } else { '?' };
    // A folder's name is new even if the process id is not.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let unique: String =
        folder.path().display().to_string().bytes().map(|byte| format!("{byte:x}")).collect();
    let unique = &unique[unique.len() - 12..];
    format!("{url}{join}schema=test_{}_{number}_{unique}", std::process::id())
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
    fn open(&self) -> Answer<'_, Arc<dyn Store>> {
        Box::pin(registry::open(&self.url))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Everything
    }

    fn restored(&self, _backup: &Path) -> Answer<'_, Arc<dyn Store>> {
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
    fn open(&self) -> Answer<'_, Arc<dyn Store>> {
        Box::pin(registry::open(&self.url))
    }

    fn keeps(&self) -> Keeps {
        self.keeps
    }

    fn restored(&self, backup: &Path) -> Answer<'_, Arc<dyn Store>> {
        let url = format!("sqlite:{}", backup.display());
        Box::pin(async move { registry::open(&url).await })
    }

    fn new_file(&self) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        self.folder.path().join(format!("backup-{number}.db"))
    }
}
