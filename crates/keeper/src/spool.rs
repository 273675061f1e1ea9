//! What was printed, on disk: an append-only log in segments, of which the oldest are dropped.
//!
//! A record says which job and stream its bytes belong to and where in that stream they stand, so a reader needs
//! nothing but the files. The index in memory only saves reading them from the start. Retention is declared by the
//! caller; what is dropped is counted per stream and told to every reader, never skipped in silence.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::path::{Path, PathBuf};

use crate::protocol::{JobId, Outcome, Piece, Range, Stream};

/// The output of all jobs of one keeper.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    segment_bytes: u64,
    segments: VecDeque<Segment>,
    open: Option<File>,
    jobs: BTreeMap<JobId, Kept>,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    bytes: u64,
    /// How far each stream of each job reaches in it, so that it can be dropped without being read.
    ends: BTreeMap<(JobId, usize), u64>,
}

impl Segment {
    fn note(&mut self, header: Header) {
        self.ends.insert((header.job, header.stream.index()), header.offset + header.length as u64);
        // A job of which so many have come since is not known any more either.
        while self.ends.len() > 2 * MAX_JOBS
            && let Some(oldest) = self.ends.keys().find(|(job, _)| *job != 0).copied()
        {
            self.ends.remove(&oldest);
        }
    }
}

/// How a job's two streams stand.
#[derive(Debug, Default)]
struct Kept {
    printed: [u64; 2],
    dropped: [u64; 2],
    first_segment: u64,
    outcome: Option<Outcome>,
}

impl Spool {
    /// The spool in this directory, with what an earlier process left there.
    pub fn open(directory: &Path, retention: u64) -> io::Result<Self> {
        let segment_bytes = (retention / SEGMENTS).clamp(64 << 10, 8 << 20);
        let mut spool = Self {
            directory: directory.to_owned(),
            segment_bytes,
            segments: VecDeque::new(),
            open: None,
            jobs: BTreeMap::new(),
        };
        let mut numbers: Vec<u64> = fs::read_dir(directory)?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix(PREFIX)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        for number in numbers {
            spool.recover(number)?;
        }
        Ok(spool)
    }

    /// Adds bytes to a stream and says at which offset they stand.
    ///
    /// When the disk refuses, the bytes count as printed and dropped: the reader learns that they are missing.
    pub fn append(&mut self, job: JobId, stream: Stream, bytes: &[u8]) -> u64 {
        let newest = self.segments.back().map_or(0, |segment| segment.number);
        let kept = self.jobs.entry(job).or_insert(Kept { first_segment: newest, ..Kept::default() });
        let offset = kept.printed[stream.index()];
        let after = offset + bytes.len() as u64;
        kept.printed[stream.index()] = after;
        if self.write(Header { job, stream, offset, length: bytes.len() }, bytes).is_err()
            && let Some(kept) = self.jobs.get_mut(&job)
        {
            kept.dropped[stream.index()] = after;
        }
        self.forget_old_jobs();
        offset
    }

    /// Remembers a job before it has printed anything.
    pub fn begin(&mut self, job: JobId) {
        let newest = self.segments.back().map_or(0, |segment| segment.number);
        self.jobs.entry(job).or_insert(Kept { first_segment: newest, ..Kept::default() });
    }

    /// Remembers how a job ended.
    pub fn end(&mut self, outcome: Outcome) {
        let job = outcome.job;
        self.jobs.entry(job).or_default().outcome = Some(outcome);
    }

    /// How many bytes a stream has had.
    pub fn printed(&self, job: JobId) -> [u64; 2] {
        self.jobs.get(&job).map_or([0; 2], |kept| kept.printed)
    }

    /// How a job ended, if it is known and has.
    pub fn outcome(&self, job: JobId) -> Option<&Outcome> {
        self.jobs.get(&job)?.outcome.as_ref()
    }

    /// The bytes of a range that are still kept, or nothing if the job is not known.
    pub fn read(&self, range: Range) -> io::Result<Option<Piece>> {
        let Some(kept) = self.jobs.get(&range.job) else { return Ok(None) };
        let index = range.stream.index();
        let (printed, dropped) = (kept.printed[index], kept.dropped[index]);
        let start = range.offset.max(dropped).min(printed);
        let end = start.saturating_add(range.limit.min(MAX_READ)).min(printed);
        let mut bytes = Vec::with_capacity(usize::try_from(end - start).unwrap_or(0));
        let mut next = start;
        for segment in self.segments.iter().filter(|segment| segment.number >= kept.first_segment) {
            if next >= end {
                break;
            }
            let mut records = Records::new(File::open(self.path(segment.number))?);
            while next < end
                && let Some(header) = records.next()?
            {
                let wanted = header.job == range.job && header.stream == range.stream;
                let after = header.offset + header.length as u64;
                if wanted && header.offset <= next && next < after {
                    let payload = records.payload()?;
                    let from = usize::try_from(next - header.offset).unwrap_or(0);
                    let to = usize::try_from(end.min(after) - header.offset).unwrap_or(0);
                    bytes.extend_from_slice(payload.get(from..to).unwrap_or_default());
                    next = end.min(after);
                }
            }
        }
        Ok(Some(Piece { offset: start, bytes, printed, dropped, outcome: kept.outcome.clone() }))
    }

    fn write(&mut self, header: Header, bytes: &[u8]) -> io::Result<()> {
        if self.open.is_none()
            || self.segments.back().is_none_or(|segment| segment.bytes >= self.segment_bytes)
        {
            self.roll()?;
        }
        let file = self.open.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let encoded = header.encode();
        let whole = encoded.len() + bytes.len();
        let written = file.write_vectored(&[IoSlice::new(&encoded), IoSlice::new(bytes)])?;
        if written < encoded.len() {
            file.write_all(encoded.get(written..).unwrap_or_default())?;
            file.write_all(bytes)?;
        } else if written < whole {
            file.write_all(bytes.get(written - encoded.len()..).unwrap_or_default())?;
        }
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += whole as u64;
            segment.note(header);
        }
        Ok(())
    }

    fn roll(&mut self) -> io::Result<()> {
        while self.segments.len() as u64 >= SEGMENTS {
            self.drop_oldest()?;
        }
        let number = self.segments.back().map_or(0, |segment| segment.number + 1);
        self.open = Some(File::options().create(true).append(true).open(self.path(number))?);
        self.segments.push_back(Segment { number, bytes: 0, ends: BTreeMap::new() });
        Ok(())
    }

    fn drop_oldest(&mut self) -> io::Result<()> {
        let Some(segment) = self.segments.pop_front() else { return Ok(()) };
        for ((job, index), after) in segment.ends {
            if let Some(kept) = self.jobs.get_mut(&job) {
                kept.dropped[index] = after.max(kept.dropped[index]);
            }
        }
        fs::remove_file(self.path(segment.number))
    }

    fn recover(&mut self, number: u64) -> io::Result<()> {
        let mut records = Records::new(File::open(self.path(number))?);
        let mut segment = Segment { number, bytes: 0, ends: BTreeMap::new() };
        while let Some(header) = records.next()? {
            segment.note(header);
            let index = header.stream.index();
            let kept =
                self.jobs.entry(header.job).or_insert(Kept { first_segment: number, ..Kept::default() });
            if header.offset > kept.printed[index] {
                kept.dropped[index] = header.offset;
            }
            kept.printed[index] = header.offset + header.length as u64;
            segment.bytes += (HEADER + header.length) as u64;
        }
        self.segments.push_back(segment);
        Ok(())
    }

    /// The index is bounded too; an ended job beyond the bound answers as unknown.
    fn forget_old_jobs(&mut self) {
        while self.jobs.len() > MAX_JOBS {
            let oldest =
                self.jobs.iter().find(|(id, kept)| **id != 0 && kept.outcome.is_some()).map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            self.jobs.remove(&oldest);
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{PREFIX}{number}"))
    }
}

const PREFIX: &str = "spool.";
const SEGMENTS: u64 = 8;
const MAX_JOBS: usize = 512;
const MAX_READ: u64 = 32 << 20;

const HEADER: usize = 28;
const MAX_RECORD: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    job: JobId,
    stream: Stream,
    offset: u64,
    length: usize,
}

impl Header {
    fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        let stream = u32::try_from(self.stream.index()).unwrap_or(0);
        bytes[..8].copy_from_slice(&self.job.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&length.to_le_bytes());
        bytes[20..24].copy_from_slice(&stream.to_le_bytes());
        let check = check(&bytes);
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let stream = match word(20) {
            0 => Stream::Stdout,
            1 => Stream::Stderr,
            _ => return None,
        };
        let length = usize::try_from(word(16)).ok().filter(|length| *length <= MAX_RECORD)?;
        let header = Self { job: long(0), stream, offset: long(8), length };
        header.offset.checked_add(length as u64)?;
        (word(24) == check(bytes)).then_some(header)
    }
}

/// Tells a record from leftovers of a torn write; it need not withstand an attacker who owns the directory anyway.
fn check(bytes: &[u8; HEADER]) -> u32 {
    bytes[..24].iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The records of one segment, up to the first that is not whole.
struct Records<R> {
    file: BufReader<R>,
    unread: usize,
}

impl<R: Read> Records<R> {
    fn new(file: R) -> Self {
        Self { file: BufReader::with_capacity(32 << 10, file), unread: 0 }
    }

    fn next(&mut self) -> io::Result<Option<Header>> {
        let skipped = io::copy(&mut (&mut self.file).take(self.unread as u64), &mut io::sink())?;
        if skipped < self.unread as u64 {
            return Ok(None);
        }
        self.unread = 0;
        let mut bytes = [0; HEADER];
        match self.file.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let header = Header::decode(&bytes);
        self.unread = header.map_or(0, |header| header.length);
        Ok(header)
    }

    fn payload(&mut self) -> io::Result<Vec<u8>> {
        let mut payload = vec![0; self.unread];
        self.unread = 0;
        let mut filled = 0;
        while let Some(room) = payload.get_mut(filled..).filter(|room| !room.is_empty()) {
            match self.file.read(room)? {
                0 => break,
                count => filled += count,
            }
        }
        payload.truncate(filled);
        Ok(payload)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(spool: &Spool, job: JobId, stream: Stream, offset: u64) -> Piece {
        spool.read(Range { job, stream, offset, limit: u64::MAX }).unwrap().unwrap()
    }

    #[test]
    fn what_is_dropped_is_counted_and_the_rest_keeps_its_offsets() {
        let home = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(home.path(), 0).unwrap();
        let block: Vec<u8> = (0..=255).cycle().take(32 << 10).collect();
        for _ in 0..64 {
            spool.append(1, Stream::Stdout, &block);
        }
        let piece = read(&spool, 1, Stream::Stdout, 0);
        assert_eq!(piece.printed, 2 << 20);
        assert!(piece.dropped > 0 && piece.offset == piece.dropped);
        assert_eq!(piece.offset + piece.bytes.len() as u64, piece.printed);
        let at = usize::try_from(piece.offset % 256).unwrap();
        assert_eq!(usize::from(piece.bytes[0]), at);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_stream_reads_back_as_it_was_written_also_by_the_next_process(
            writes in proptest::collection::vec(
                (1u64..4, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200)), 0..40),
            from in 0u64..300,
        ) {
            let home = tempfile::tempdir().unwrap();
            let mut expected: BTreeMap<(u64, usize), Vec<u8>> = BTreeMap::new();
            let mut spool = Spool::open(home.path(), 1 << 20).unwrap();
            for (job, error, bytes) in &writes {
                let stream = if *error { Stream::Stderr } else { Stream::Stdout };
                spool.append(*job, stream, bytes);
                expected.entry((*job, stream.index())).or_default().extend_from_slice(bytes);
            }
            let reopened = Spool::open(home.path(), 1 << 20).unwrap();
            for ((job, index), bytes) in expected {
                for spool in [&spool, &reopened] {
                    let piece = read(spool, job, Stream::ALL[index], from);
                    let start = usize::try_from(from).unwrap().min(bytes.len());
                    prop_assert_eq!(&piece.bytes[..], &bytes[start..]);
                }
            }
        }

        #[test]
        fn a_torn_or_broken_segment_gives_its_whole_records_and_no_panic(
            cut in 0usize..400, garbage in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let home = tempfile::tempdir().unwrap();
            let mut spool = Spool::open(home.path(), 1 << 20).unwrap();
            for _ in 0..4 {
                spool.append(1, Stream::Stdout, &[7; 72]);
            }
            let path = home.path().join("spool.0");
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate(cut);
            bytes.extend_from_slice(&garbage);
            fs::write(&path, &bytes).unwrap();
            let torn = Spool::open(home.path(), 1 << 20).unwrap();
            if cut >= 100 {
                let whole = read(&torn, 1, Stream::Stdout, 0).bytes;
                prop_assert!(whole.len() >= cut / 100 * 72);
                prop_assert!(whole[..cut / 100 * 72].iter().all(|byte| *byte == 7));
            }
        }
    }
}
