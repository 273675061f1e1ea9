//! Everything in one schema of a Postgres server, where a server is at hand.
//!
//! The order of the journal is the order of commits: whoever writes takes the head row first (`write.rs`). One task
//! writes for each daemon (`writer.rs`), and commits that queue up share a transaction (`batch.rs`).

mod batch;
mod connect;
mod error;
mod holder;
mod inspect;
mod ledgers;
mod read;
mod testimony;
mod text;
mod tls;
mod write;
mod writer;

use std::path::PathBuf;

use abide_ports::store::StoreError;

use crate::witness::LossPolicy;
pub use holder::WriterPolicy;

use connect::PostgresTarget;
use holder::SchemaLock;
use read::PostgresReader;
use testimony::{WitnessTracker, WriteHealth};
use writer::{PostgresWriter, WriterConnection};

/// A store on a server.
#[derive(Debug)]
pub struct PostgresStore {
    writer: PostgresWriter,
    reader: PostgresReader,
    /// Where its witness is, if there is a folder for it.
    witness: Option<PathBuf>,
    state: WriteHealth,
    notes: Vec<String>,
}

/// How to open a store on a server.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The folder on this machine for the witness. Without one, a server that lost acknowledged input is not noticed.
    pub witness_folder: Option<PathBuf>,
    /// What to do if acknowledged input is missing.
    pub loss: LossPolicy,
    /// Whether the store is opened to be looked at. Nothing is made or changed, and a daemon may have it; a repair takes
    /// the schema's lock first.
    pub only_looks: bool,
    /// How many daemons may write to the schema.
    pub writers: WriterPolicy,
}

impl PostgresStore {
    /// Opens the store that a URL names, and makes it if there is none. `schema` among the URL's parameters says
    /// where on the server it lives. Needs a tokio runtime for as long as it is used.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, &PostgresOptions::default()).await
    }

    /// The same with options.
    pub async fn open_with(url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        let target = PostgresTarget::parse(url)?;
        let mut session = target.connect().await?;
        let state = WriteHealth::default();
        let home = options.witness_folder.clone();
        let mut lock = SchemaLock::new(options.writers, target.schema(), home, state.clone());
        if options.only_looks {
            session.check_migrations(&target).await?;
        } else {
            // Before anything is changed that another daemon may be using.
            lock.take(&session).await?;
            session.migrate(&target).await?;
        }
        session.check_journal().await?;
        let (mut watch, mut witness, mut notes) =
            (WitnessTracker::without_witness(state.clone()), None, Vec::new());
        if let Some(folder) = &options.witness_folder {
            let path = testimony::path_in(folder, &session).await?;
            if !options.only_looks {
                watch = testimony::open(&session, &path, options.loss, state.clone(), &mut notes).await?;
            }
            witness = Some(path);
        }
        let reader = PostgresReader::new(target.clone(), target.connect().await?);
        let session = match options.only_looks {
            true => None,
            false => {
                lock.sign(&session).await?;
                Some(session)
            }
        };
        let writer = PostgresWriter::start(WriterConnection { target, session, watch, lock });
        Ok(Self { writer, reader, witness, state, notes })
    }

    /// What an operator should know of how it was opened.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
