//! A record of a segment: a header with a checksum, then the payload.

use std::fs::File;
use std::io::{self, BufReader, IoSlice, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::protocol::{JobId, OutputStream};

pub(super) const HEADER_BYTES: usize = 28;
/// Maximum payload of a record, in bytes.
pub(super) const MAX_PAYLOAD_BYTES: usize = 1 << 20;

pub(super) fn write_record(file: &mut File, header: RecordHeader, bytes: &[u8]) -> io::Result<()> {
    let encoded = header.encode();
    let written = file.write_vectored(&[IoSlice::new(&encoded), IoSlice::new(bytes)])?;
    if written < encoded.len() {
        file.write_all(encoded.get(written..).unwrap_or_default())?;
        file.write_all(bytes)?;
    } else if written < encoded.len() + bytes.len() {
        file.write_all(bytes.get(written - encoded.len()..).unwrap_or_default())?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) job: JobId,
    pub(super) stream: OutputStream,
    pub(super) offset: u64,
    pub(super) length: usize,
}

impl RecordHeader {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        let stream = u32::try_from(self.stream.index()).unwrap_or(0);
        bytes[..8].copy_from_slice(&self.job.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&length.to_le_bytes());
        bytes[20..24].copy_from_slice(&stream.to_le_bytes());
        let check = checksum(&bytes);
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let stream = match word(20) {
            0 => OutputStream::Stdout,
            1 => OutputStream::Stderr,
            _ => return None,
        };
        let length = usize::try_from(word(16)).ok().filter(|length| *length <= MAX_PAYLOAD_BYTES)?;
        let header = Self { job: long(0), stream, offset: long(8), length };
        header.offset.checked_add(length as u64)?;
        (word(24) == checksum(bytes)).then_some(header)
    }
}

/// Distinguishes a record from a torn write. It need not resist an attacker, who would own the directory anyway.
fn checksum(bytes: &[u8; HEADER_BYTES]) -> u32 {
    bytes[..24].iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Iterates over the records of a segment, up to the first incomplete one.
#[derive(Debug)]
pub(super) struct SegmentReader {
    file: BufReader<File>,
    /// The length of the file when it was opened.
    length: u64,
    /// The position of the current record.
    pub(super) position: u64,
    /// The position of the next record.
    next_position: u64,
    unread_payload_bytes: usize,
}

impl SegmentReader {
    pub(super) fn open(path: &Path, position: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if position > 0 {
            file.seek(SeekFrom::Start(position))?;
        }
        let length = file.metadata()?.len();
        Ok(Self {
            length,
            file: BufReader::with_capacity(32 << 10, file),
            position,
            next_position: position,
            unread_payload_bytes: 0,
        })
    }

    pub(super) fn next(&mut self) -> io::Result<Option<RecordHeader>> {
        self.file.seek_relative(i64::try_from(self.unread_payload_bytes).unwrap_or(i64::MAX))?;
        self.unread_payload_bytes = 0;
        let mut bytes = [0; HEADER_BYTES];
        match self.file.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let Some(header) = RecordHeader::decode(&bytes) else { return Ok(None) };
        self.position = self.next_position;
        self.next_position += (HEADER_BYTES + header.length) as u64;
        self.unread_payload_bytes = header.length;
        // The payload must end within the file.
        Ok((self.length >= self.next_position).then_some(header))
    }

    pub(super) fn payload(&mut self) -> io::Result<Vec<u8>> {
        let mut payload = vec![0; std::mem::take(&mut self.unread_payload_bytes)];
        self.file.read_exact(&mut payload)?;
        Ok(payload)
    }
}
