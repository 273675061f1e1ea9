//! Every kind of store, by the scheme of its URL. A new one is a module and a line here.

use std::sync::Arc;

use abide_ports::store::{Answer, Store, StoreError};

/// A kind of store.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// What its URLs begin with, without the colon.
    pub scheme: &'static str,
    /// What its URLs look like, for people.
    pub example: &'static str,
    open: fn(String) -> Answer<'static, Arc<dyn Store>>,
}

/// All kinds that this program was built with.
pub const KINDS: &[Kind] = &[
    Kind { scheme: "memory", example: "memory:", open: |_| Box::pin(async { Ok(memory()) }) },
    #[cfg(feature = "sqlite")]
    Kind { scheme: "sqlite", example: "sqlite:/var/lib/abide/abide.db", open: sqlite },
    #[cfg(feature = "postgres")]
    Kind { scheme: "postgres", example: "postgres://user@host/database?schema=abide", open: postgres },
];

/// Opens the store that a URL names.
pub async fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match KINDS.iter().find(|kind| kind.scheme == scheme) {
        Some(kind) => (kind.open)(url.to_owned()).await,
        None => {
            // The URL itself may hold a password, so it is not repeated.
            let examples: Vec<_> = KINDS.iter().map(|kind| kind.example).collect();
            let what = format!("the store's URL, which should look like {},", examples.join(" or "));
            Err(StoreError::Invalid { what })
        }
    }
}

/// Opens a store to look at it, beside a daemon that has it if there is one. None is made where none is.
pub async fn look(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    #[cfg(feature = "sqlite")]
    if let Some(path) = url.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
        let store = crate::sqlite::SqliteStore::look(std::path::Path::new(path))?;
        return Ok(Arc::new(store) as Arc<dyn Store>);
    }
    open(url).await
}

fn memory() -> Arc<dyn Store> {
    Arc::new(crate::memory::MemoryStore::new())
}

#[cfg(feature = "sqlite")]
fn sqlite(url: String) -> Answer<'static, Arc<dyn Store>> {
    Box::pin(async move {
        let path = url.strip_prefix("sqlite:").unwrap_or(&url);
        if path.is_empty() {
            return Err(StoreError::Invalid { what: "a sqlite URL without a path".to_owned() });
        }
        let store = crate::sqlite::SqliteStore::open(std::path::Path::new(path))?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

#[cfg(feature = "postgres")]
fn postgres(url: String) -> Answer<'static, Arc<dyn Store>> {
    Box::pin(async move {
        let store = crate::postgres::PostgresStore::open(&url).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}
