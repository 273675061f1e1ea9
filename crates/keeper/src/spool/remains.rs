//! What a dead keeper left, read from its files alone.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use super::record::SegmentReader;
use super::{PREFIX, numbers};
use crate::protocol::OutputStream;

/// What the held child of a dead keeper printed, read from its files alone.
#[derive(Debug)]
pub struct DeadSpoolReader {
    directory: PathBuf,
    segments: VecDeque<u64>,
    records: Option<SegmentReader>,
    /// The next byte of each stream.
    next: [u64; 2],
}

/// What is found in a dead keeper's files.
#[derive(Debug, PartialEq, Eq)]
pub enum DeadSpoolItem {
    /// Further bytes of a stream.
    Output(OutputStream, Vec<u8>),
    /// Bytes are missing in this stream from this offset on.
    Missing(OutputStream, u64),
    /// There is nothing more; each stream ends here.
    End([u64; 2]),
}

impl DeadSpoolReader {
    /// Reads job 0 of the spool in this directory from these offsets on.
    pub fn open(directory: &Path, from: [u64; 2]) -> io::Result<Self> {
        let segments = numbers(directory)?.into();
        Ok(Self { directory: directory.to_owned(), segments, records: None, next: from })
    }

    /// What comes next. A segment ends at the first record that is not whole.
    pub fn next_piece(&mut self) -> io::Result<DeadSpoolItem> {
        loop {
            let Some(records) = &mut self.records else {
                let Some(number) = self.segments.pop_front() else {
                    return Ok(DeadSpoolItem::End(self.next));
                };
                let path = self.directory.join(format!("{PREFIX}{number}"));
                self.records = Some(SegmentReader::open(&path, 0)?);
                continue;
            };
            let Some(header) = records.next()? else {
                self.records = None;
                continue;
            };
            let next = &mut self.next[header.stream.index()];
            if header.job != 0 || header.offset + header.length as u64 <= *next {
                continue;
            }
            if header.offset > *next {
                return Ok(DeadSpoolItem::Missing(header.stream, *next));
            }
            let mut bytes = records.payload()?;
            bytes.drain(..usize::try_from(*next - header.offset).unwrap_or(0).min(bytes.len()));
            // A torn payload: the rest of this segment is none.
            if bytes.is_empty() {
                self.records = None;
                continue;
            }
            *next += bytes.len() as u64;
            return Ok(DeadSpoolItem::Output(header.stream, bytes));
        }
    }
}
