//! One daemon per schema: an advisory lock of the server, held by the writing connection.
//!
//! The server releases the lock when the connection ends, so a commit on the connection that took the lock is a commit
//! under the lock. A new connection takes the lock again before its first commit. The holder is recorded in a row of
//! `meta`, which also shows whether another daemon held the lock in between. The order of commits is determined in
//! `write.rs`.

use std::{fmt, path::PathBuf, time::Duration};

use abide_ports::store::{StoreError, StoreInputError};
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;

use super::{connect::PostgresConnection, error::failed, witness_check::WriteHealth};

/// The number of daemons that may write to one schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriterPolicy {
    /// One daemon. A second one is refused with the name of the first.
    #[default]
    Single,
    /// Any number. Commits are still ordered, but each daemon would perform the effects of all runs.
    Multiple,
}

/// The first half of the lock's key, `abid` as a number. The second half is a checksum of the schema's name.
const LOCK_CLASS: i32 = 0x6162_6964;
/// The delay between tries to take a lock that is held, for five seconds in total. The server may not have noticed yet
/// that the last holder is gone.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_LOCK_TRIES: u32 = 50;

/// The exclusive right to write to a schema.
#[derive(Debug)]
pub(super) struct SchemaLock {
    writers: WriterPolicy,
    schema: String,
    home: Option<PathBuf>,
    /// The entry of this daemon, set when it first took the lock.
    own_entry: Option<SchemaHolder>,
    state: WriteHealth,
}

/// The daemon that holds a schema, as recorded by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SchemaHolder {
    /// Random; constant for the lifetime of a process.
    id: String,
    host: String,
    pid: u32,
    home: String,
    since: String,
    /// The process id of its connection on the server.
    backend: i32,
}

impl fmt::Display for SchemaHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, home, since, .. } = self;
        write!(f, "the daemon on {host} (pid {pid}, home {home}, since {since})")
    }
}

impl SchemaLock {
    pub(super) fn new(
        writers: WriterPolicy,
        schema: &str,
        home: Option<PathBuf>,
        state: WriteHealth,
    ) -> Self {
        Self { writers, schema: schema.to_owned(), home, own_entry: None, state }
    }

    /// Whether the lock was taken and must be kept while the store is open.
    pub(super) fn must_be_held(&self) -> bool {
        self.own_entry.is_some() && !self.state.is_taken_over()
    }

    /// Takes the lock on a new connection, or returns an error with its holder. Call [`Self::write_holder`] next, as soon as
    /// the tables exist.
    pub(super) async fn acquire(&self, session: &PostgresConnection) -> Result<(), StoreError> {
        if self.writers == WriterPolicy::Multiple {
            return Ok(());
        }
        // If another daemon used the schema, this daemon's knowledge of its runs is outdated.
        self.state.check_not_taken_over()?;
        let key = crc32fast::hash(self.schema.as_bytes());
        let mut tries = 0;
        loop {
            let sql = "SELECT pg_try_advisory_lock($1, $2)";
            let rows =
                session.query(sql, &[&LOCK_CLASS, &(key as i32)]).await.map_err(|error| failed(&error))?;
            if rows.first().is_some_and(|row| row.get(0)) {
                return self.check_not_taken_over(session).await;
            }
            let backend = self.holding_backend(session, key).await?;
            let holder = read_holder(session).await?.filter(|holder| Some(holder.backend) == backend);
            match (&holder, &self.own_entry) {
                // The holder is this daemon's own connection. The server has not noticed its loss yet.
                (Some(holder), Some(ours)) if holder.id == ours.id => {
                    let ended = session.query("SELECT pg_terminate_backend($1)", &[&holder.backend]).await;
                    ended.map_err(|error| failed(&error))?;
                }
                (Some(holder), Some(_)) => return Err(self.taken_over_by(&holder.to_string())),
                (Some(_) | None, _) => {}
            }
            tries += 1;
            if tries >= MAX_LOCK_TRIES {
                let name = match (holder, backend) {
                    (Some(holder), _) => holder.to_string(),
                    (None, Some(backend)) => format!("another program (process {backend} of the server)"),
                    (None, None) => "another program".to_owned(),
                };
                return Err(match self.own_entry {
                    Some(_) => self.taken_over_by(&name),
                    None => StoreError::InUse {
                        detail: format!(
                            "the schema {} is held by {name}; stop that daemon first, or give this one a schema of \
                             its own (?schema=NAME in the store's URL)",
                            self.schema
                        ),
                    },
                });
            }
            tokio::time::sleep(LOCK_RETRY_DELAY).await;
        }
    }

    /// Checks, after the lock was taken again, whether another daemon held it in between.
    async fn check_not_taken_over(&self, session: &PostgresConnection) -> Result<(), StoreError> {
        let Some(ours) = &self.own_entry else { return Ok(()) };
        match read_holder(session).await? {
            Some(holder) if holder.id == ours.id => Ok(()),
            Some(holder) => Err(self.taken_over_by(&holder.to_string())),
            None => Err(self.taken_over_by("another program, which removed this daemon's entry")),
        }
    }

    /// Records that another daemon took over the schema, and returns the error.
    fn taken_over_by(&self, name: &str) -> StoreError {
        let detail = format!(
            "the schema {} was taken by {name} while the connection was lost; this daemon accepts no more input; stop one \
             of the two daemons, and restart this one to continue with it",
            self.schema
        );
        self.state.set_taken_over(&detail);
        StoreError::InUse { detail }
    }

    /// Writes the entry of this daemon.
    pub(super) async fn write_holder(&mut self, session: &PostgresConnection) -> Result<(), StoreError> {
        if self.writers == WriterPolicy::Multiple {
            return Ok(());
        }
        let sql = "SELECT pg_backend_pid(), md5(random()::text || clock_timestamp()::text || pg_backend_pid()::text),
                       to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
        let rows = session.query(sql, &[]).await.map_err(|error| failed(&error))?;
        let Some(row) = rows.first() else { return Ok(()) };
        let backend = row.get(0);
        let holder = match &self.own_entry {
            Some(ours) => SchemaHolder { backend, ..ours.clone() },
            None => SchemaHolder {
                id: row.get(1),
                host: host(),
                pid: std::process::id(),
                home: self.home.as_ref().map_or("none".to_owned(), |home| home.display().to_string()),
                since: row.get(2),
                backend,
            },
        };
        let text = serde_json::to_string(&holder).map_err(|error| {
            StoreError::Invalid(StoreInputError::Unencodable {
                detail: format!("the entry of this daemon cannot be encoded: {error}"),
            })
        })?;
        let sql = "INSERT INTO meta (key, value) VALUES ('holder', $1)
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value";
        session.execute(sql, &[&text]).await.map_err(|error| failed(&error))?;
        self.own_entry = Some(holder);
        Ok(())
    }

    /// The process id of the connection that holds the lock.
    async fn holding_backend(
        &self,
        session: &PostgresConnection,
        key: u32,
    ) -> Result<Option<i32>, StoreError> {
        let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
                       AND classid::bigint = $1 AND objid::bigint = $2
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let (class, key) = (i64::from(LOCK_CLASS), i64::from(key));
        let rows = session.query(sql, &[&class, &key]).await.map_err(|error| failed(&error))?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}

/// The entry of the last holder. None if it is missing or unreadable, or if the schema does not exist yet.
async fn read_holder(session: &PostgresConnection) -> Result<Option<SchemaHolder>, StoreError> {
    let missing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
    let rows = match session.query("SELECT value FROM meta WHERE key = 'holder'", &[]).await {
        Ok(rows) => rows,
        Err(error) if error.code().is_some_and(|code| missing.contains(code)) => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    Ok(rows.first().and_then(|row| serde_json::from_str(row.get(0)).ok()))
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "an unknown host".to_owned() } else { name.trim().to_owned() }
}
