//! Reads the output of a process: from its keeper, or from the files of a dead keeper.

use std::{
    io::{self},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use abide_domain::process::ExitStatus;
use abide_keeper::{
    KeeperError,
    client::{FollowedOutput, SharedConnection, timeouts::NO_TIMEOUT_MS},
    keeper_dir::{FinalRecord, KeeperDir},
    launch::resume_stopped_keeper,
    protocol::{KeeperRequest, OutputStream},
    spool::{DeadSpoolItem, DeadSpoolReader},
};
use abide_os::atomic_file::{self, Durability};
use abide_ports::processes::{OutputFollower, OutputOffsets, ProcessOutput, ProcessUnreachable};

use super::errors::unreachable_error;

/// File in a keeper's directory with the reader's latest checkpoint.
pub(super) const CHECKPOINT_FILE: &str = "checkpoint";
/// Interval of checks whether the keeper of a silent process is stopped.
const SILENT_KEEPER_CHECK_INTERVAL_MS: u64 = 5_000;

/// Reads the output of one process from its keeper. The connection is also used for its input.
#[derive(Debug)]
pub(super) struct KeeperOutputReader {
    keeper: Arc<SharedConnection>,
    keeper_dir: KeeperDir,
    /// Whether the keeper supports the release of output that is no longer needed.
    supports_release: bool,
    /// Offset of the next byte of each stream.
    next_offsets: [u64; 2],
}

impl KeeperOutputReader {
    /// `None` if the connection already has a reader.
    pub(super) fn new(
        keeper: Arc<SharedConnection>,
        keeper_dir: KeeperDir,
        from: OutputOffsets,
    ) -> Result<Option<Self>, ProcessUnreachable> {
        let next = [from.stdout, from.stderr];
        if !keeper.follow(0, next).map_err(unreachable_error)? {
            return Ok(None);
        }
        let supports_release = keeper.first_status().protocol >= 1;
        Ok(Some(Self { keeper, keeper_dir, supports_release, next_offsets: next }))
    }
}

impl OutputFollower for KeeperOutputReader {
    fn next(&mut self, timeout: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        let mut left_ms = timeout.map_or(NO_TIMEOUT_MS, |timeout| timeout.as_millis() as u64);
        loop {
            let wait_ms = left_ms.min(SILENT_KEEPER_CHECK_INTERVAL_MS);
            match self.keeper.next_output(wait_ms) {
                Ok(Some(FollowedOutput::Output(output))) => {
                    let next = &mut self.next_offsets[output.stream.index()];
                    if output.offset != *next {
                        return Ok(ProcessOutput::Gap(missing_output_message(*next, output.offset)));
                    }
                    *next += output.bytes.len() as u64;
                    return Ok(process_output(output.stream, output.bytes));
                }
                Ok(Some(FollowedOutput::Ended(outcome))) => {
                    return Ok(ProcessOutput::Exited(ExitStatus::Code(outcome.code)));
                }
                Ok(Some(FollowedOutput::ChildResumed(times))) => {
                    let keeper = self.keeper_dir.path().display();
                    tracing::warn!(%keeper, times, "a signal had stopped the process; its keeper continued it");
                }
                Ok(None) if wait_ms == left_ms => return Ok(ProcessOutput::TimedOut),
                Ok(None) => {
                    left_ms -= wait_ms;
                    // An agent can stop its keeper, and the output of its turn would end (SECURITY 10).
                    if resume_stopped_keeper(&self.keeper_dir) {
                        let keeper = self.keeper_dir.path().display();
                        tracing::warn!(%keeper, "a keeper was stopped and is continued");
                    }
                }
                Err(KeeperError::NoKeeper { .. }) => return Err(unreachable_error("its keeper is gone")),
                Err(error) => return Err(unreachable_error(error)),
            }
        }
    }

    fn store_checkpoint(
        &mut self,
        checkpoint: &[u8],
        before: OutputOffsets,
    ) -> Result<(), ProcessUnreachable> {
        write_checkpoint(&self.keeper_dir, checkpoint).map_err(unreachable_error)?;
        if self.supports_release {
            let release = KeeperRequest::Release { job: 0, before: [before.stdout, before.stderr] };
            self.keeper.send(release).map_err(unreachable_error)?;
        }
        Ok(())
    }
}

impl Drop for KeeperOutputReader {
    fn drop(&mut self) {
        self.keeper.stop_following();
    }
}

/// Reads the output of one process from the files of its dead keeper.
#[derive(Debug)]
pub(super) struct FileReader {
    spool: DeadSpoolReader,
    /// `None` if the keeper died before it recorded the exit. Then only the output is known.
    record: Option<FinalRecord>,
    path: PathBuf,
}

impl FileReader {
    pub(super) fn new(
        keeper_dir: &KeeperDir,
        record: Option<FinalRecord>,
        from: OutputOffsets,
    ) -> io::Result<Self> {
        let remains = DeadSpoolReader::open(keeper_dir.path(), [from.stdout, from.stderr])?;
        Ok(Self { spool: remains, record, path: keeper_dir.path().to_owned() })
    }
}

impl OutputFollower for FileReader {
    fn next(&mut self, _timeout: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        Ok(match self.spool.next_item().map_err(unreachable_error)? {
            DeadSpoolItem::Output(stream, bytes) => process_output(stream, bytes),
            DeadSpoolItem::Missing(_, offset) => {
                ProcessOutput::Gap(format!("the process's output is not kept from byte {offset} on"))
            }
            DeadSpoolItem::End(ends) => match &self.record {
                // The record confirms the length of the output before the exit.
                Some(FinalRecord { exit, printed: Some(printed), .. })
                    if ends[0] < printed[0] || ends[1] < printed[1] =>
                {
                    ProcessOutput::Gap(format!(
                        "the process ended with code {}, but the end of its output is missing in {}",
                        exit.code,
                        self.path.display()
                    ))
                }
                Some(record) => ProcessOutput::Exited(ExitStatus::Code(record.exit.code)),
                None => ProcessOutput::Exited(ExitStatus::Unknown),
            },
        })
    }
}

fn process_output(stream: OutputStream, bytes: Vec<u8>) -> ProcessOutput {
    match stream {
        OutputStream::Stdout => ProcessOutput::Stdout(bytes),
        OutputStream::Stderr => ProcessOutput::Stderr(bytes),
    }
}

fn missing_output_message(from: u64, to: u64) -> String {
    format!("bytes {from} to {to} of the process's output are no longer kept")
}

/// Replaces the checkpoint atomically.
fn write_checkpoint(keeper_dir: &KeeperDir, checkpoint: &[u8]) -> io::Result<()> {
    let path = keeper_dir.path().join(CHECKPOINT_FILE);
    atomic_file::replace(&path, checkpoint, Durability::PowerFailure)
}
