//! Reads the output of a process: from its keeper, or from the files of a dead keeper.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    time::Duration,
};

use abide_domain::process::ExitStatus;
use abide_keeper::{
    launch::KeeperConnection,
    place::{FinalRecord, KeeperDir},
    protocol::{KeeperRequest, KeeperResponse, OutputStream, TaggedRequest, TaggedResponse},
    spool::{DeadSpoolItem, DeadSpoolReader},
};
use abide_ports::processes::{OutputFollower, OutputOffsets, ProcessOutput, ProcessUnreachable};

use super::lost;

/// File in a keeper's directory with the reader's latest checkpoint.
pub(super) const CHECKPOINT: &str = "checkpoint";

/// Reads the output of one process from its keeper.
#[derive(Debug)]
pub(super) struct KeeperOutputReader {
    keeper: KeeperConnection,
    /// Whether the keeper supports the release of output that is no longer needed.
    releases: bool,
    /// Offset of the next byte of each stream.
    next: [u64; 2],
}

impl KeeperOutputReader {
    pub(super) fn new(
        mut keeper: KeeperConnection,
        protocol: u32,
        from: OutputOffsets,
    ) -> Result<Self, ProcessUnreachable> {
        let next = [from.stdout, from.stderr];
        keeper
            .link
            .send(&TaggedRequest { tag: 1, act: KeeperRequest::Follow { job: 0, from: next } })
            .map_err(lost)?;
        Ok(Self { keeper, releases: protocol >= 1, next })
    }
}

impl OutputFollower for KeeperOutputReader {
    fn next(&mut self, patience: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        let milliseconds = patience.map_or(u64::MAX / 2_000, |patience| patience.as_millis() as u64);
        loop {
            match self.keeper.link.wait::<TaggedResponse>(milliseconds).map_err(lost)? {
                None if self.keeper.link.is_closed() => return Err(lost("its keeper is gone")),
                None => return Ok(ProcessOutput::Nothing),
                Some(TaggedResponse { news: KeeperResponse::Output(output), .. }) => {
                    let next = &mut self.next[output.stream.index()];
                    if output.offset != *next {
                        return Ok(ProcessOutput::Missing(missing(*next, output.offset)));
                    }
                    *next += output.bytes.len() as u64;
                    return Ok(heard(output.stream, output.bytes));
                }
                Some(TaggedResponse { news: KeeperResponse::Ended(outcome), .. }) => {
                    return Ok(ProcessOutput::Exited(ExitStatus::Code(outcome.code)));
                }
                Some(_) => {}
            }
        }
    }

    fn store_checkpoint(
        &mut self,
        checkpoint: &[u8],
        before: OutputOffsets,
    ) -> Result<(), ProcessUnreachable> {
        store(&self.keeper.place, checkpoint).map_err(lost)?;
        if self.releases {
            let act = KeeperRequest::Release { job: 0, before: [before.stdout, before.stderr] };
            self.keeper.link.send(&TaggedRequest { tag: 3, act }).map_err(lost)?;
        }
        Ok(())
    }
}

/// Reads the output of one process from the files of its dead keeper.
#[derive(Debug)]
pub(super) struct FileReader {
    remains: DeadSpoolReader,
    /// `None` if the keeper died before it recorded the exit. Then only the output is known.
    record: Option<FinalRecord>,
    path: PathBuf,
}

impl FileReader {
    pub(super) fn new(
        place: &KeeperDir,
        record: Option<FinalRecord>,
        from: OutputOffsets,
    ) -> io::Result<Self> {
        let remains = DeadSpoolReader::open(place.path(), [from.stdout, from.stderr])?;
        Ok(Self { remains, record, path: place.path().to_owned() })
    }
}

impl OutputFollower for FileReader {
    fn next(&mut self, _patience: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        Ok(match self.remains.next_piece().map_err(lost)? {
            DeadSpoolItem::Output(stream, bytes) => heard(stream, bytes),
            DeadSpoolItem::Missing(_, offset) => {
                ProcessOutput::Missing(format!("the process's output is not kept from byte {offset} on"))
            }
            DeadSpoolItem::End(ends) => match &self.record {
                // The record confirms the length of the output before the exit.
                Some(FinalRecord { exit, printed: Some(printed) })
                    if ends[0] < printed[0] || ends[1] < printed[1] =>
                {
                    ProcessOutput::Missing(format!(
                        "the process ended with code {}, but the end of its output is missing in {}",
                        exit.code,
                        self.path.display()
                    ))
                }
                Some(record) => ProcessOutput::Exited(ExitStatus::Code(record.exit.code)),
                None => ProcessOutput::Exited(ExitStatus::Unseen),
            },
        })
    }
}

fn heard(stream: OutputStream, bytes: Vec<u8>) -> ProcessOutput {
    match stream {
        OutputStream::Stdout => ProcessOutput::Stdout(bytes),
        OutputStream::Stderr => ProcessOutput::Stderr(bytes),
    }
}

fn missing(from: u64, to: u64) -> String {
    format!("bytes {from} to {to} of the process's output are no longer kept")
}

/// Replaces the checkpoint atomically.
fn store(place: &KeeperDir, checkpoint: &[u8]) -> io::Result<()> {
    let path = place.path().join(CHECKPOINT);
    let temporary = path.with_extension("tmp");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(checkpoint)?;
    file.sync_data()?;
    fs::rename(&temporary, &path)?;
    File::open(place.path())?.sync_all()
}
