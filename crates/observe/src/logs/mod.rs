//! Logging: to standard error in the foreground, to files in the home when detached.
//!
//! The configured level applies to our own crates only. Other crates log warnings and errors only, because their finer
//! lines contain headers and bytes of connections, and so secrets.

mod rotating;

use std::{io, path::PathBuf};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, Registry, filter::Targets, fmt, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt,
};

use rotating::RotatingLog;

/// How lines are selected, written and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The least important level that our own crates log.
    pub level: LevelFilter,
    pub format: LogLineFormat,
    /// Size in bytes from which a new file is begun.
    pub max_file_bytes: u64,
    /// Number of files, the newest included; at least 1.
    pub max_files: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLineFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Clone, Debug)]
pub enum LogDestination {
    Stderr,
    /// Rotating files in this folder.
    Files(PathBuf),
}

/// Initialises logging. Only the first call in a process has an effect.
pub fn start(log: &LogOptions, destination: &LogDestination) -> io::Result<()> {
    match destination {
        LogDestination::Stderr => install(log, io::stderr),
        LogDestination::Files(folder) => {
            install(log, RotatingLog::open(folder, log.max_file_bytes, log.max_files)?)
        }
    }
    Ok(())
}

fn install<W>(log: &LogOptions, writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer).with_ansi(false);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogLineFormat::Text => lines.boxed(),
        LogLineFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    // A subscriber that a test installed before stays.
    tracing_subscriber::registry().with(layer.with_filter(targets(log.level))).try_init().ok();
}

/// The configured level for our crates, warnings for all others.
fn targets(level: LevelFilter) -> Targets {
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("abide", level)
}
