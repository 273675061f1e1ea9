//! Where log lines go: to standard error in the foreground, to files in the home when detached.
//!
//! Only lines of our own crates are written at the chosen level; others' are, from warnings on. Their finer lines would
//! repeat headers and bytes of connections, among which are secrets.

mod rotating;

use std::{
    io,
    path::{Path, PathBuf},
};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, Registry, filter::Targets, fmt, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt,
};

pub(crate) use rotating::RotatingLog;

use crate::config::settings::{LogFormat, LogLevel, LogSettings};

/// Where lines go.
#[derive(Clone, Debug)]
pub(crate) enum LogDestination {
    /// Standard error.
    Stderr,
    /// Files in this folder.
    Files(PathBuf),
}

/// The folder of the home in which a detached daemon logs.
pub(crate) fn folder(home: &Path) -> PathBuf {
    home.join("logs")
}

/// Begins to log. The first call in a process counts.
pub(crate) fn start(log: &LogSettings, destination: &LogDestination) -> io::Result<()> {
    match destination {
        LogDestination::Stderr => install(log, io::stderr),
        LogDestination::Files(folder) => install(log, RotatingLog::open(folder, log.max_bytes, log.files)?),
    }
    Ok(())
}

fn install<W>(log: &LogSettings, writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer).with_ansi(false);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let _a_test_may_have_been_first =
        tracing_subscriber::registry().with(layer.with_filter(targets(log.level))).try_init();
}

/// Ours at this level, others' from warnings on.
fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("abide", level)
}
