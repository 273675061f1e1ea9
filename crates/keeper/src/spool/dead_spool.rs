//! Reads the spool of a dead keeper.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use super::record::SegmentReader;
use super::{SEGMENT_FILE_PREFIX, segment_numbers};
use crate::protocol::OutputStream;

/// Reads the output of a dead keeper's child from its files.
#[derive(Debug)]
pub struct DeadSpoolReader {
    directory: PathBuf,
    segments: VecDeque<u64>,
    records: Option<SegmentReader>,
    /// The next offset of each stream.
    next_offsets: [u64; 2],
}

/// An item of a dead keeper's spool.
#[derive(Debug, PartialEq, Eq)]
pub enum DeadSpoolItem {
    /// Further bytes of a stream.
    Output(OutputStream, Vec<u8>),
    /// Bytes of this stream are missing from this offset on.
    Missing(OutputStream, u64),
    /// The end, with the final offset of each stream.
    End([u64; 2]),
}

impl DeadSpoolReader {
    /// Reads job 0 of the spool in this directory, from these offsets on.
    pub fn open(directory: &Path, from: [u64; 2]) -> io::Result<Self> {
        let segments = segment_numbers(directory)?.into();
        Ok(Self { directory: directory.to_owned(), segments, records: None, next_offsets: from })
    }

    /// The next item. A segment ends at the first incomplete record.
    pub fn next_item(&mut self) -> io::Result<DeadSpoolItem> {
        loop {
            let Some(records) = &mut self.records else {
                let Some(number) = self.segments.pop_front() else {
                    return Ok(DeadSpoolItem::End(self.next_offsets));
                };
                let path = self.directory.join(format!("{SEGMENT_FILE_PREFIX}{number}"));
                self.records = Some(SegmentReader::open(&path, 0)?);
                continue;
            };
            let Some(header) = records.next()? else {
                self.records = None;
                continue;
            };
            let next = &mut self.next_offsets[header.stream.index()];
            if header.job != 0 || header.offset + header.length as u64 <= *next {
                continue;
            }
            if header.offset > *next {
                return Ok(DeadSpoolItem::Missing(header.stream, *next));
            }
            let mut bytes = records.payload()?;
            bytes.drain(..usize::try_from(*next - header.offset).unwrap_or(0).min(bytes.len()));
            // The payload is torn; the rest of the segment is skipped.
            if bytes.is_empty() {
                self.records = None;
                continue;
            }
            *next += bytes.len() as u64;
            return Ok(DeadSpoolItem::Output(header.stream, bytes));
        }
    }
}
