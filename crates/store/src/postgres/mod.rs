//! Everything in one schema of a Postgres server, for several daemons or where a server is at hand anyway.
//!
//! The order of the journal is the order of commits: whoever writes takes the head row first (`write.rs`). One task
//! writes for each daemon (`writer.rs`), and commits that queue up share a transaction (`batch.rs`).

mod batch;
mod connect;
mod error;
mod ledgers;
mod read;
mod text;
mod write;
mod writer;

use abide_ports::store::StoreError;

use connect::Target;
use read::Reader;
use writer::Writer;

/// A store on a server.
#[derive(Debug)]
pub struct PostgresStore {
    writer: Writer,
    reader: Reader,
}

impl PostgresStore {
    /// Opens the store that a URL names, and makes it if there is none. `schema` among the URL's parameters says
    /// where on the server it lives. Needs a tokio runtime for as long as it is used.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let target = Target::parse(url)?;
        let mut session = target.connect().await?;
        session.migrate(&target).await?;
        session.check_journal().await?;
        let reader = Reader::new(target.clone(), target.connect().await?);
        Ok(Self { writer: Writer::start(target, session), reader })
    }
}
