//! `abide restore FILE`: replaces the store with a backup while no daemon runs.
//!
//! The store does the work. This module takes the lock and prints the result.

use std::{io, path::Path, process::ExitCode};

use abide_store::sqlite::{self, RestoreReport};
use anyhow::Context;
use serde_json::json;

use crate::{
    args::RestoreArguments,
    config::{self, GivenSetting},
    error::CliError,
    exit::SUCCEEDED,
    home, store,
    up::HomeLock,
};

pub(crate) fn run(arguments: &RestoreArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let config = config::load(overrides)?.config;
    let Some(database) = config.store.strip_prefix("sqlite:").filter(|path| !path.is_empty()) else {
        let detail = "only an SQLite store is restored by this command; a Postgres store is restored with its own tool, \
                      such as pg_restore --clean --dbname=URL abide.dump, and started with `abide up --accept-loss`";
        return Err(CliError::failure("UNSUPPORTED", detail).into());
    };
    let backup = std::path::absolute(&arguments.file).context("cannot use that name")?;
    let home = home::home()?;
    home::prepare(&home)?;
    // No daemon can start until the lock is dropped.
    let _lock = HomeLock::take(&home)?;
    let restored = sqlite::restore(&backup, Path::new(database)).map_err(store::open_error)?;
    let mut out = io::stdout();
    let output = match arguments.output.json {
        true => format!("{}\n", as_json(database, &backup, &restored)),
        false => as_text(database, &backup, &restored),
    };
    io::Write::write_all(&mut out, output.as_bytes())?;
    Ok(SUCCEEDED)
}

/// Returns the first and last acknowledged journal entry that the backup lacks.
fn missing(restored: &RestoreReport) -> Option<(u64, u64)> {
    let acknowledged = restored.acknowledged_head?.0;
    (acknowledged > restored.head.0).then_some((restored.head.0 + 1, acknowledged))
}

fn as_json(database: &str, backup: &Path, restored: &RestoreReport) -> serde_json::Value {
    json!({
        "database": database,
        "backup": backup,
        "entries": restored.head.0,
        "previous": restored.previous_path,
        "missing": missing(restored).map(|(first, last)| json!({ "first": first, "last": last })),
    })
}

fn as_text(database: &str, backup: &Path, restored: &RestoreReport) -> String {
    let mut text = format!("{database} is now {} ({} entries)\n", backup.display(), restored.head.0);
    if let Some(kept) = &restored.previous_path {
        text += &format!("the previous database is kept as {}\n", kept.display());
    }
    if let Some((first, last)) = missing(restored) {
        text += &format!(
            "journal entries {first} to {last} were acknowledged after the backup and are not in it\n"
        );
    }
    text
}
