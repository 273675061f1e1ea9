//! The witness of a schema: a file in the daemon's home that detects a server which was restored from an older backup,
//! or failed over to a replica that lacked entries.
//!
//! The file is named after the store's id, so each schema has its own. Daemons that use one schema in turn have
//! separate witnesses, which do not follow the commits of the others.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use abide_ports::store::StoreError;

use super::{connect::PostgresConnection, error::failed};
use crate::{
    chain::JournalHead,
    record::CHAIN_AT_WITNESS_SQL,
    witness::{self, LossPolicy, SyncedFile, WitnessReading, WitnessWriter},
};

/// The interval between syncs of a changed witness.
const WITNESS_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The reasons why the store cannot be written, shared with health checks.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteHealth(Arc<Mutex<WriteBlockers>>);

#[derive(Debug, Default)]
struct WriteBlockers {
    /// The server lacks acknowledged entries. Cleared when it has them again.
    missing_entries: Option<String>,
    /// Another daemon took over the schema. Never cleared.
    taken_over: Option<String>,
}

impl WriteHealth {
    pub(super) fn health(&self) -> Result<(), StoreError> {
        self.check_not_taken_over()?;
        match &self.lock().missing_entries {
            Some(detail) => Err(StoreError::FilesGone { detail: detail.clone() }),
            None => Ok(()),
        }
    }

    /// Returns an error if another daemon took over the schema.
    pub(super) fn check_not_taken_over(&self) -> Result<(), StoreError> {
        match &self.lock().taken_over {
            Some(detail) => Err(StoreError::InUse { detail: detail.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn is_taken_over(&self) -> bool {
        self.lock().taken_over.is_some()
    }

    pub(super) fn set_taken_over(&self, detail: &str) {
        self.lock().taken_over = Some(detail.to_owned());
    }

    fn set_missing_entries(&self, detail: Option<String>) {
        self.lock().missing_entries = detail;
    }

    fn lock(&self) -> MutexGuard<'_, WriteBlockers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records the commits of this daemon in its witness.
#[derive(Debug)]
pub(super) struct WitnessTracker {
    witness: Option<WitnessWriter>,
    /// The newest commit of this daemon.
    last_commit: JournalHead,
    state: WriteHealth,
}

impl WitnessTracker {
    /// A tracker without a witness. It compares only with commits seen since its creation.
    pub(super) fn without_witness(state: WriteHealth) -> Self {
        Self { witness: None, last_commit: JournalHead::default(), state }
    }

    /// Returns an error if the server lacks acknowledged entries.
    pub(super) fn check(&mut self, head: JournalHead) -> Result<(), StoreError> {
        let chain = (head.seq == self.last_commit.seq).then_some(head.chain);
        let compared = match (head.seq > self.last_commit.seq, self.last_commit.seq) {
            // Commits of other daemons cannot be checked here. The next start checks them.
            (true, _) | (false, 0) => Ok(()),
            (false, _) => witness::compare("the store on the server", self.last_commit, head, chain),
        };
        self.state.set_missing_entries(compared.as_ref().err().map(ToString::to_string));
        compared
    }

    /// Records a commit, before it is acknowledged.
    pub(super) fn record_commit(&mut self, head: JournalHead) {
        if head == self.last_commit {
            return;
        }
        self.last_commit = head;
        if let Some(witness) = &mut self.witness {
            // The commit is durable. A witness that lags behind detects less, but is not wrong.
            witness.write(head).ok();
        }
    }
}

/// The path of this schema's witness.
pub(super) async fn witness_path(folder: &Path, session: &PostgresConnection) -> Result<PathBuf, StoreError> {
    let rows = session.query("SELECT value FROM meta WHERE key = 'id'", &[]).await;
    let rows = rows.map_err(|error| failed(&error))?;
    let Some(row) = rows.first() else {
        return Err(StoreError::Damaged {
            detail: "the store's id is missing from its table meta".to_owned(),
        });
    };
    let id: String = row.get(0);
    if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(StoreError::Damaged { detail: "the store's id in its table meta is invalid".to_owned() });
    }
    Ok(folder.join(format!("postgres-{id}.witness")))
}

/// Compares a schema with its witness, and restarts the witness at the schema's head.
pub(super) async fn open(
    session: &PostgresConnection,
    path: &Path,
    loss: LossPolicy,
    state: WriteHealth,
    notes: &mut Vec<String>,
) -> Result<WitnessTracker, StoreError> {
    match compare_with_witness(session, path).await {
        Ok(None) => {}
        Ok(Some(note)) => notes.push(note),
        Err(StoreError::InputLost { detail }) if loss == LossPolicy::Accept => {
            let sql = "INSERT INTO meta (key, value)
                       VALUES ('accepted_loss', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') || ': ' || $1)
                       ON CONFLICT (key) DO UPDATE SET value = excluded.value";
            session.execute(sql, &[&detail]).await.map_err(|error| failed(&error))?;
            notes.push(format!(
                "continues without acknowledged input, as requested with --accept-loss: {detail}"
            ));
        }
        Err(other) => return Err(other),
    }
    let head = head(session).await?;
    let witness = WitnessWriter::start(path, head)?;
    tokio::spawn(keep_synced(Arc::downgrade(&witness.file())));
    Ok(WitnessTracker { witness: Some(witness), last_commit: head, state })
}

/// Compares a schema with its witness. Returns a note for the operator if the witness cannot be read.
pub(super) async fn compare_with_witness(
    session: &PostgresConnection,
    path: &Path,
) -> Result<Option<String>, StoreError> {
    // The witness is read first, because concurrent commits can only make the journal longer.
    let witnessed = match witness::read(path) {
        WitnessReading::Head(witnessed) => witnessed,
        WitnessReading::Missing => return Ok(None),
        WitnessReading::Unreadable(reason) => {
            let note =
                format!("its witness {reason}; it is unknown whether acknowledged input was lost before now");
            return Ok(Some(note));
        }
    };
    let rows = session.query(CHAIN_AT_WITNESS_SQL, &[&witnessed.chain, &witnessed.seq]).await;
    let rows = rows.map_err(|error| failed(&error))?;
    let chain = rows.first().map(|row| row.get(0));
    witness::compare("the store on the server", witnessed, head(session).await?, chain)?;
    Ok(None)
}

async fn head(session: &PostgresConnection) -> Result<JournalHead, StoreError> {
    let rows = session.query("SELECT seq, chain FROM head", &[]).await.map_err(|error| failed(&error))?;
    Ok(rows.first().map_or(JournalHead::default(), |row| JournalHead { seq: row.get(0), chain: row.get(1) }))
}

/// Syncs the witness periodically while it is in use.
async fn keep_synced(file: Weak<SyncedFile>) {
    loop {
        tokio::time::sleep(WITNESS_SYNC_INTERVAL).await;
        let Some(file) = file.upgrade() else { return };
        // A failed sync is retried after the next interval.
        tokio::task::spawn_blocking(move || file.sync().ok()).await.ok();
    }
}
