//! The registry of all kinds of stores, by URL scheme. A new kind needs a module and a line here.

use std::{path::PathBuf, sync::Arc};

use abide_ports::store::{Store, StoreError, StoreFuture, StoreInputError};

#[cfg(feature = "_records")]
use crate::witness::LossPolicy;

/// A kind of store.
#[derive(Clone, Copy, Debug)]
pub struct StoreKind {
    /// The scheme of its URLs, without the colon.
    pub scheme: &'static str,
    /// An example URL, for people.
    pub example: &'static str,
    open: fn(String, StoreOptions) -> StoreFuture<'static, OpenedStore>,
}

/// Options for opening a store.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// The daemon's home. A store that is not a file keeps its witness there.
    pub home: Option<PathBuf>,
    /// The reaction to missing acknowledged input.
    #[cfg(feature = "_records")]
    pub loss: LossPolicy,
    /// Opens the store for inspection. A missing store is not created, and a daemon may use it.
    pub read_only: bool,
}

#[derive(Clone)]
pub struct OpenedStore {
    pub store: Arc<dyn Store>,
    /// Notes for the operator about the opening.
    pub notes: Vec<String>,
}

impl std::fmt::Debug for OpenedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedStore").field("notes", &self.notes).finish_non_exhaustive()
    }
}

/// All kinds that this program was built with.
pub const STORE_KINDS: &[StoreKind] = &[
    StoreKind { scheme: "memory", example: "memory:", open: memory },
    #[cfg(feature = "sqlite")]
    StoreKind { scheme: "sqlite", example: "sqlite:/var/lib/abide/abide.db", open: sqlite },
    #[cfg(feature = "postgres")]
    StoreKind { scheme: "postgres", example: "postgres://user@host/database?schema=abide", open: postgres },
];

/// Opens the store with this URL.
pub async fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Ok(open_with(url, StoreOptions::default()).await?.store)
}

/// Opens a store with options, and returns notes about the opening.
pub async fn open_with(url: &str, store_options: StoreOptions) -> Result<OpenedStore, StoreError> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match STORE_KINDS.iter().find(|kind| kind.scheme == scheme) {
        Some(kind) => (kind.open)(url.to_owned(), store_options).await,
        None => {
            // The URL is not included in the message, because it may contain a password.
            let examples: Vec<_> = STORE_KINDS.iter().map(|kind| kind.example).collect();
            let detail = format!("the store's URL is invalid; write one such as {}", examples.join(" or "));
            Err(StoreError::Invalid(StoreInputError::Location { detail }))
        }
    }
}

/// Opens a store for inspection, concurrently with a daemon that uses it. A missing store is not created.
pub async fn open_for_inspection(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Ok(open_with(url, StoreOptions { read_only: true, ..StoreOptions::default() }).await?.store)
}

fn memory(_url: String, _opening: StoreOptions) -> StoreFuture<'static, OpenedStore> {
    let store: Arc<dyn Store> = Arc::new(crate::memory::MemoryStore::new());
    Box::pin(async { Ok(OpenedStore { store, notes: vec![] }) })
}

#[cfg(feature = "sqlite")]
fn sqlite(url: String, store_options: StoreOptions) -> StoreFuture<'static, OpenedStore> {
    use crate::sqlite::{SqliteOptions, SqliteStore};
    Box::pin(async move {
        let path = url.strip_prefix("sqlite:").unwrap_or(&url);
        if path.is_empty() {
            return Err(StoreError::Invalid(StoreInputError::Location {
                detail: "the store's URL has no path; write one such as sqlite:/var/lib/abide/abide.db"
                    .to_owned(),
            }));
        }
        let path = std::path::Path::new(path);
        let options = SqliteOptions { loss: store_options.loss, ..SqliteOptions::default() };
        let store = match store_options.read_only {
            true => SqliteStore::open_for_inspection(path)?,
            false => SqliteStore::open_with(path, &options)?,
        };
        let notes = store.notes().to_vec();
        Ok(OpenedStore { store: Arc::new(store), notes })
    })
}

#[cfg(feature = "postgres")]
fn postgres(url: String, store_options: StoreOptions) -> StoreFuture<'static, OpenedStore> {
    use crate::postgres::{PostgresOptions, PostgresStore};
    Box::pin(async move {
        let StoreOptions { home, loss, read_only: only_looks } = store_options;
        let options = PostgresOptions {
            witness_folder: home,
            loss,
            read_only: only_looks,
            ..PostgresOptions::default()
        };
        let store = PostgresStore::open_with(&url, &options).await?;
        let notes = store.notes().to_vec();
        Ok(OpenedStore { store: Arc::new(store), notes })
    })
}
