//! `abide backup FILE`: writes a consistent copy of the store while the daemon runs.
//!
//! The copy contains everything acknowledged before it began. The store makes the copy.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use abide_store::registry;
use anyhow::Context;
use serde_json::json;

use crate::{
    args::BackupArguments,
    config::{self, GivenSetting},
    error::CliError,
    exit::SUCCEEDED,
    verify::VerifyProgress,
};

/// Interval at which the size of the copy is polled.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &BackupArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let config = config::load(overrides)?.config;
    let to = std::path::absolute(&arguments.file).context("cannot use that name")?;
    if !config.store.starts_with("sqlite:") {
        let detail = "only an SQLite store is copied by this command; a Postgres store is backed up with its own tool, \
                      such as pg_dump --format=custom --schema=abide --file=abide.dump URL";
        return Err(CliError::failure("UNSUPPORTED", detail).into());
    }
    if fs::symlink_metadata(&to).is_ok() {
        let detail = format!("{} already exists and is not changed; choose another name", to.display());
        return Err(CliError::failure("FILE_EXISTS", detail).into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(copy(&config.store, &to))?;
    let bytes = fs::metadata(&to).map_or(0, |file| file.len());
    let mut out = io::stdout();
    let output = match arguments.output.json {
        true => format!("{}\n", json!({ "file": to, "bytes": bytes })),
        false => format!("{} ({bytes} bytes)\n", to.display()),
    };
    io::Write::write_all(&mut out, output.as_bytes())?;
    Ok(SUCCEEDED)
}

async fn copy(url: &str, to: &Path) -> anyhow::Result<()> {
    let store = registry::open_for_inspection(url).await.context("cannot open the store")?;
    let mut progress_line = VerifyProgress::default();
    let mut part = to.as_os_str().to_owned();
    part.push("-part");
    let part = PathBuf::from(part);
    let whole =
        url.strip_prefix("sqlite:").and_then(|path| fs::metadata(path).ok()).map_or(0, |file| file.len());
    let copied = store.backup(to);
    tokio::pin!(copied);
    let done = loop {
        tokio::select! {
            done = &mut copied => break done,
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                let bytes = fs::metadata(&part).map_or(0, |file| file.len());
                progress_line.line(&format!("{bytes} of about {whole} bytes"));
            }
        }
    };
    progress_line.clear();
    done.context("the copy could not be made")
}
