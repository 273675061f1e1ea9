//! A store in one schema of a Postgres server.
//!
//! The order of the journal is the order of commits, because each writer locks the head row first (`write.rs`). Each
//! daemon has one writing task (`writer.rs`), and queued commits share a transaction (`batch.rs`).

mod batch;
mod connect;
mod error;
mod inspect;
mod read;
mod reencode;
mod schema_lock;
mod store;
mod text;
mod tls;
mod witness_check;
mod write;
mod writer;

use std::path::PathBuf;

use abide_ports::store::StoreError;

use crate::witness::LossPolicy;
pub use schema_lock::WriterPolicy;

use connect::PostgresTarget;
use read::PostgresReader;
use schema_lock::SchemaLock;
use witness_check::{WitnessTracker, WriteHealth};
use writer::{PostgresWriter, WriterConnection};

/// A store on a server.
#[derive(Debug)]
pub struct PostgresStore {
    writer: PostgresWriter,
    reader: PostgresReader,
    /// The path of the witness file; none without a folder for it.
    witness: Option<PathBuf>,
    state: WriteHealth,
    notes: Vec<String>,
}

/// Options for opening a store on a server.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The local folder for the witness. Without one, a loss of acknowledged input on the server is not detected.
    pub witness_folder: Option<PathBuf>,
    /// The reaction to missing acknowledged input.
    pub loss: LossPolicy,
    /// Opens the store for inspection. Nothing is created or changed, and a daemon may use the store. A repair takes
    /// the schema's lock first.
    pub read_only: bool,
    /// The number of daemons that may write to the schema.
    pub writers: WriterPolicy,
}

impl PostgresStore {
    /// Opens the store with this URL, and creates it if it does not exist. The URL parameter `schema` selects the
    /// schema. Requires a tokio runtime while the store is used.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, &PostgresOptions::default()).await
    }

    pub async fn open_with(url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        let target = PostgresTarget::parse(url)?;
        let mut session = target.connect().await?;
        let state = WriteHealth::default();
        let home = options.witness_folder.clone();
        let mut lock = SchemaLock::new(options.writers, target.schema(), home, state.clone());
        if options.read_only {
            session.check_migrations(&target).await?;
        } else {
            // The lock is taken before changes, because another daemon may use the schema.
            lock.acquire(&session).await?;
            session.migrate(&target).await?;
        }
        session.check_journal().await?;
        let (mut watch, mut witness, mut notes) =
            (WitnessTracker::without_witness(state.clone()), None, Vec::new());
        if let Some(folder) = &options.witness_folder {
            let path = witness_check::witness_path(folder, &session).await?;
            if !options.read_only {
                watch = witness_check::open(&session, &path, options.loss, state.clone(), &mut notes).await?;
            }
            witness = Some(path);
        }
        let reader = PostgresReader::new(target.clone(), target.connect().await?);
        let session = match options.read_only {
            true => None,
            false => {
                lock.write_holder(&session).await?;
                Some(session)
            }
        };
        let writer = PostgresWriter::start(WriterConnection { target, session, watch, lock });
        Ok(Self { writer, reader, witness, state, notes })
    }

    /// Notes for the operator about the opening.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
