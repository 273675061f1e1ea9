//! The output on disk: an append-only log in segments.
//!
//! A record contains its job, its stream and its offset in the stream, so a reader needs only the files. The index in
//! memory avoids reading them from the start. The caller sets the retention: at least this many of the newest bytes are
//! kept. It also sets the reaction to more output ([`SpoolOverflow`]). Either the oldest segments are dropped, which is
//! counted per stream and reported to every reader. Or the spool is full until a reader releases output.

mod dead_spool;
mod record;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::protocol::{ExecOutcome, JobId, JobOutputRange, OutputPage, OutputStream, SpoolOverflow};

pub use dead_spool::{DeadSpoolItem, DeadSpoolReader};
use record::{HEADER_BYTES, MAX_PAYLOAD_BYTES, RecordHeader, SegmentReader, write_record};

/// The output of all jobs of one keeper.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    retention_bytes: u64,
    overflow: SpoolOverflow,
    segment_bytes: u64,
    segments: VecDeque<SpoolSegment>,
    /// Total size of all segments.
    total_bytes: u64,
    current_file: Option<File>,
    next_segment: u64,
    /// The first segment with data that may not be synced.
    first_unsynced_segment: u64,
    jobs: BTreeMap<JobId, JobStreams>,
}

#[derive(Debug)]
struct SpoolSegment {
    number: u64,
    bytes: u64,
    /// The end offset of each stream of each job in this segment, so that it can be dropped without being read.
    end_offsets: BTreeMap<(JobId, usize), u64>,
}

impl SpoolSegment {
    fn record_end(&mut self, header: RecordHeader) {
        self.end_offsets.insert((header.job, header.stream.index()), header.offset + header.length as u64);
        // The index no longer contains a job that is this old.
        while self.end_offsets.len() > 2 * MAX_JOBS
            && let Some(oldest) = self.end_offsets.keys().find(|(job, _)| *job != 0).copied()
        {
            self.end_offsets.remove(&oldest);
        }
    }
}

/// The positions of a job's two streams.
#[derive(Debug, Default)]
struct JobStreams {
    stream_bytes: [u64; 2],
    dropped_bytes: [u64; 2],
    /// Bytes before these offsets were released by the reader.
    released_bytes: [u64; 2],
    outcome: Option<ExecOutcome>,
    /// The end of the last read of each stream. Most reads continue there.
    read_cursors: [Cell<Option<SpoolCursor>>; 2],
}

/// An offset in a stream, and the position of the record that ends there.
#[derive(Debug, Clone, Copy)]
struct SpoolCursor {
    offset: u64,
    segment: u64,
    position: u64,
}

impl Spool {
    /// Opens the spool in this directory, with the records of an earlier process.
    pub fn open(directory: &Path, retention: u64, overflow: SpoolOverflow) -> io::Result<Self> {
        let mut spool = Self {
            directory: directory.to_owned(),
            retention_bytes: retention,
            overflow,
            segment_bytes: (retention / 8).clamp(64 << 10, 8 << 20),
            segments: VecDeque::new(),
            total_bytes: 0,
            current_file: None,
            next_segment: 0,
            first_unsynced_segment: 0,
            jobs: BTreeMap::new(),
        };
        for number in segment_numbers(directory)? {
            spool.recover(number)?;
        }
        Ok(spool)
    }

    /// Appends bytes to a stream and returns their offset.
    ///
    /// If the write fails, the bytes count as printed and dropped, so the reader learns that they are missing.
    pub fn append(&mut self, job: JobId, stream: OutputStream, bytes: &[u8]) -> u64 {
        let first_offset = self.stream_bytes(job)[stream.index()];
        self.begin_job(job);
        // A reader treats a longer record, and all data behind it, as a torn write.
        for record in bytes.chunks(MAX_PAYLOAD_BYTES) {
            let offset = self.stream_bytes(job)[stream.index()];
            let written = self.write(RecordHeader { job, stream, offset, length: record.len() }, record);
            if let Some(kept) = self.jobs.get_mut(&job) {
                let after = offset + record.len() as u64;
                kept.stream_bytes[stream.index()] = after;
                if written.is_err() {
                    kept.dropped_bytes[stream.index()] = after;
                }
            }
        }
        self.evict_old_jobs();
        first_offset
    }

    /// Whether the producer must wait for a release.
    pub fn is_full(&self) -> bool {
        match self.overflow {
            SpoolOverflow::DropOldest => false,
            // The newest segment cannot be released, so there is always room for a second one.
            SpoolOverflow::Block => self.total_bytes >= self.retention_bytes.max(2 * self.segment_bytes),
        }
    }

    /// Whether output is never dropped.
    pub fn is_lossless(&self) -> bool {
        self.overflow == SpoolOverflow::Block
    }

    /// Releases the bytes before these offsets, which may then be deleted.
    pub fn release(&mut self, job: JobId, before: [u64; 2]) -> io::Result<()> {
        if let Some(kept) = self.jobs.get_mut(&job) {
            for (released, (before, printed)) in
                kept.released_bytes.iter_mut().zip(before.iter().zip(kept.stream_bytes))
            {
                *released = (*released).max((*before).min(printed));
            }
        }
        while self.segments.len() > 1 && self.segments.front().is_some_and(|oldest| self.is_released(oldest))
        {
            self.drop_oldest()?;
        }
        Ok(())
    }

    fn is_released(&self, segment: &SpoolSegment) -> bool {
        segment.end_offsets.iter().all(|((job, index), end)| {
            self.jobs.get(job).is_none_or(|kept| *end <= kept.released_bytes[*index])
        })
    }

    /// Syncs the records written since the last call. Does nothing if output may be dropped.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.overflow == SpoolOverflow::DropOldest {
            return Ok(());
        }
        for segment in self.segments.iter().filter(|segment| segment.number >= self.first_unsynced_segment) {
            match &self.current_file {
                Some(open) if self.segments.back().is_some_and(|newest| newest.number == segment.number) => {
                    open.sync_data()?;
                }
                Some(_) | None => File::open(self.segment_path(segment.number))?.sync_data()?,
            }
        }
        self.first_unsynced_segment = self.segments.back().map_or(0, |newest| newest.number);
        Ok(())
    }

    /// Registers a job before its first output.
    pub fn begin_job(&mut self, job: JobId) {
        self.jobs.entry(job).or_default();
    }

    /// Records the end of a job.
    pub fn end_job(&mut self, outcome: ExecOutcome) {
        let job = outcome.job;
        self.jobs.entry(job).or_default().outcome = Some(outcome);
    }

    /// Length of both streams, in bytes.
    pub fn stream_bytes(&self, job: JobId) -> [u64; 2] {
        self.jobs.get(&job).map_or([0; 2], |kept| kept.stream_bytes)
    }

    /// The outcome of a job; None if it is unknown or has not ended.
    pub fn outcome(&self, job: JobId) -> Option<&ExecOutcome> {
        self.jobs.get(&job)?.outcome.as_ref()
    }

    /// The retained bytes of a range; None if the job is unknown.
    pub fn read(&self, range: JobOutputRange) -> io::Result<Option<OutputPage>> {
        let Some(kept) = self.jobs.get(&range.job) else { return Ok(None) };
        let index = range.stream.index();
        let (printed, dropped) = (kept.stream_bytes[index], kept.dropped_bytes[index]);
        let start = range.offset.max(dropped).min(printed);
        let end = start.saturating_add(range.limit.min(MAX_READ_BYTES)).min(printed);
        let mut bytes = Vec::with_capacity(usize::try_from(end - start).unwrap_or(0));
        let mut next = start;
        let mut cursor = kept.read_cursors[index].get().filter(|cursor| cursor.offset == start);
        for segment in &self.segments {
            let reaches = segment.end_offsets.get(&(range.job, index)).is_some_and(|reaches| *reaches > next);
            if next >= end || cursor.is_some_and(|cursor| cursor.segment > segment.number) || !reaches {
                continue;
            }
            let from = cursor.filter(|cursor| cursor.segment == segment.number);
            let mut records = SegmentReader::open(
                &self.segment_path(segment.number),
                from.map_or(0, |cursor| cursor.position),
            )?;
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
                    let position = records.position;
                    cursor = Some(SpoolCursor { offset: next, segment: segment.number, position });
                }
            }
        }
        kept.read_cursors[index].set(cursor);
        Ok(Some(OutputPage { offset: start, bytes, printed, dropped, outcome: kept.outcome.clone() }))
    }

    fn write(&mut self, header: RecordHeader, bytes: &[u8]) -> io::Result<()> {
        if self.current_file.is_none()
            || self.segments.back().is_none_or(|segment| segment.bytes >= self.segment_bytes)
        {
            self.roll()?;
        }
        let file = self.current_file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let whole = (HEADER_BYTES + bytes.len()) as u64;
        if let Err(error) = write_record(file, header, bytes) {
            // Records behind an incomplete one cannot be read. If it cannot be truncated, the next record starts a new
            // segment.
            let kept = self.segments.back().map_or(0, |segment| segment.bytes);
            if file.set_len(kept).is_err() {
                self.current_file = None;
            }
            return Err(error);
        }
        self.total_bytes += whole;
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += whole;
            segment.record_end(header);
        }
        Ok(())
    }

    fn roll(&mut self) -> io::Result<()> {
        let exceeds_retention =
            |spool: &Self, oldest: &SpoolSegment| spool.total_bytes - oldest.bytes >= spool.retention_bytes;
        while self.overflow == SpoolOverflow::DropOldest
            && self.segments.front().is_some_and(|oldest| exceeds_retention(self, oldest))
        {
            self.drop_oldest()?;
        }
        let number = self.next_segment;
        self.current_file =
            Some(File::options().create(true).append(true).mode(0o600).open(self.segment_path(number))?);
        self.next_segment += 1;
        self.segments.push_back(SpoolSegment { number, bytes: 0, end_offsets: BTreeMap::new() });
        Ok(())
    }

    fn drop_oldest(&mut self) -> io::Result<()> {
        let Some(segment) = self.segments.pop_front() else { return Ok(()) };
        self.total_bytes -= segment.bytes;
        for ((job, index), after) in segment.end_offsets {
            if let Some(kept) = self.jobs.get_mut(&job) {
                kept.dropped_bytes[index] = after.max(kept.dropped_bytes[index]);
            }
        }
        fs::remove_file(self.segment_path(segment.number))
    }

    fn recover(&mut self, number: u64) -> io::Result<()> {
        let mut records = SegmentReader::open(&self.segment_path(number), 0)?;
        let mut segment = SpoolSegment { number, bytes: 0, end_offsets: BTreeMap::new() };
        while let Some(header) = records.next()? {
            segment.record_end(header);
            let index = header.stream.index();
            let kept = self.jobs.entry(header.job).or_default();
            if header.offset > kept.stream_bytes[index] {
                kept.dropped_bytes[index] = header.offset;
            }
            kept.stream_bytes[index] = header.offset + header.length as u64;
            segment.bytes += (HEADER_BYTES + header.length) as u64;
        }
        self.total_bytes += segment.bytes;
        self.next_segment = number + 1;
        self.segments.push_back(segment);
        Ok(())
    }

    /// Bounds the index. An ended job beyond the bound is reported as unknown.
    fn evict_old_jobs(&mut self) {
        while self.jobs.len() > MAX_JOBS {
            let oldest =
                self.jobs.iter().find(|(id, kept)| **id != 0 && kept.outcome.is_some()).map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            self.jobs.remove(&oldest);
        }
    }

    fn segment_path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{SEGMENT_FILE_PREFIX}{number}"))
    }
}

const SEGMENT_FILE_PREFIX: &str = "spool.";
const MAX_JOBS: usize = 512;
const MAX_READ_BYTES: u64 = 32 << 20;

/// The numbers of the segments in a directory, oldest first.
fn segment_numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers: Vec<u64> = fs::read_dir(directory)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix(SEGMENT_FILE_PREFIX)?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(spool: &Spool, job: JobId, stream: OutputStream, offset: u64) -> OutputPage {
        spool.read(JobOutputRange { job, stream, offset, limit: u64::MAX }).unwrap().unwrap()
    }

    #[test]
    fn output_longer_than_a_record_does_not_hide_later_records() {
        let place = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(place.path(), 64 << 20, SpoolOverflow::DropOldest).unwrap();
        let much = vec![b'y'; 3 * MAX_PAYLOAD_BYTES + 7];
        spool.append(1, OutputStream::Stdout, &much);
        assert_eq!(spool.append(0, OutputStream::Stdout, b"after"), 0);
        assert_eq!(read(&spool, 0, OutputStream::Stdout, 0).bytes, b"after");
        assert_eq!(read(&spool, 1, OutputStream::Stdout, 0).bytes, much);
    }

    #[test]
    fn dropped_bytes_are_counted_and_offsets_stay() {
        let home = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(home.path(), 0, SpoolOverflow::DropOldest).unwrap();
        let block: Vec<u8> = (0..=255).cycle().take(32 << 10).collect();
        for _ in 0..64 {
            spool.append(1, OutputStream::Stdout, &block);
        }
        let piece = read(&spool, 1, OutputStream::Stdout, 0);
        assert_eq!(piece.printed, 2 << 20);
        assert!(piece.dropped > 0 && piece.offset == piece.dropped);
        assert_eq!(piece.offset + piece.bytes.len() as u64, piece.printed);
        let at = usize::try_from(piece.offset % 256).unwrap();
        assert_eq!(usize::from(piece.bytes[0]), at);
    }

    #[test]
    fn the_declared_retention_is_kept_however_large_it_is() {
        let home = tempfile::tempdir().unwrap();
        let retention = 72 << 20;
        let mut spool = Spool::open(home.path(), retention, SpoolOverflow::DropOldest).unwrap();
        let block = vec![7; 1 << 20];
        for _ in 0..100 {
            spool.append(0, OutputStream::Stdout, &block);
        }
        let piece = spool
            .read(JobOutputRange { job: 0, stream: OutputStream::Stdout, offset: 0, limit: 1 })
            .unwrap()
            .unwrap();
        let kept = piece.printed - piece.dropped;
        assert!(kept >= retention && kept < retention + (18 << 20), "{kept}");
    }

    #[test]
    fn a_full_spool_drops_nothing_and_has_room_when_output_is_released() {
        let home = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(home.path(), 1 << 20, SpoolOverflow::Block).unwrap();
        let block: Vec<u8> = (0..=255).cycle().take(64 << 10).collect();
        let (mut printed, mut filled) = (0, 0);
        for round in 0..40u64 {
            while !spool.is_full() {
                spool.append(0, OutputStream::ALL[usize::from(printed % 10 == 9)], &block);
                printed += 1;
            }
            filled += 1;
            let all = OutputStream::ALL.map(|stream| read(&spool, 0, stream, round * 4_000));
            assert!(all.iter().all(|piece| piece.dropped <= round * 4_000 || piece.dropped < piece.printed));
            let [stdout, stderr] = spool.stream_bytes(0);
            spool.release(0, [stdout - 5, stderr]).unwrap();
            let last = read(&spool, 0, OutputStream::Stdout, stdout - 5);
            assert_eq!(last.bytes, block[block.len() - 5..], "unreleased output is kept");
        }
        assert_eq!(filled, 40, "every release makes room");
        let on_disk: u64 =
            fs::read_dir(home.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(on_disk < 2 << 20, "{on_disk}");
    }

    #[test]
    fn the_spool_of_a_dead_keeper_is_read_up_to_the_torn_record() {
        let home = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(home.path(), 1 << 20, SpoolOverflow::Block).unwrap();
        let mut expected: [Vec<u8>; 2] = Default::default();
        for number in 0..3_000u32 {
            let stream = OutputStream::ALL[usize::from(number % 3 == 0)];
            let bytes = number.to_le_bytes().repeat(30);
            spool.append(0, stream, &bytes);
            spool.append(1, stream, b"another job");
            expected[stream.index()].extend_from_slice(&bytes);
        }
        let from = [1_001, 2_002];
        let collect = || {
            let (mut remains, mut found) =
                (DeadSpoolReader::open(home.path(), from).unwrap(), [vec![], vec![]]);
            loop {
                match remains.next_item().unwrap() {
                    DeadSpoolItem::Output(stream, bytes) => found[stream.index()].extend(bytes),
                    DeadSpoolItem::Missing(stream, at) => panic!("{stream:?} is missing from {at} on"),
                    DeadSpoolItem::End(at) => return (found, at),
                }
            }
        };
        let (found, at) = collect();
        assert_eq!(at, spool.stream_bytes(0));
        for ((found, expected), from) in found.iter().zip(&expected).zip([1_001, 2_002]) {
            assert_eq!(found[..], expected[from..]);
        }
        let newest = segment_numbers(home.path()).unwrap().pop().unwrap();
        let file = File::options()
            .write(true)
            .open(home.path().join(format!("{SEGMENT_FILE_PREFIX}{newest}")))
            .unwrap();
        file.set_len(file.metadata().unwrap().len() - 50).unwrap();
        let (found, at) = collect();
        assert!(at != spool.stream_bytes(0));
        for ((found, expected), from) in found.iter().zip(&expected).zip([1_001, 2_002]) {
            assert!(expected[from..].starts_with(found));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_stream_reads_back_as_it_was_written_also_by_the_next_process(
            // Empty pieces are not recorded, so a job with only empty output is unknown to the next process.
            writes in proptest::collection::vec(
                (1u64..4, any::<bool>(), proptest::collection::vec(any::<u8>(), 1..200)), 0..40),
            from in 0u64..300,
        ) {
            let home = tempfile::tempdir().unwrap();
            let mut expected: BTreeMap<(u64, usize), Vec<u8>> = BTreeMap::new();
            let mut spool = Spool::open(home.path(), 1 << 20, SpoolOverflow::DropOldest).unwrap();
            for (job, error, bytes) in &writes {
                let stream = if *error { OutputStream::Stderr } else { OutputStream::Stdout };
                spool.append(*job, stream, bytes);
                expected.entry((*job, stream.index())).or_default().extend_from_slice(bytes);
            }
            let reopened = Spool::open(home.path(), 1 << 20, SpoolOverflow::DropOldest).unwrap();
            for ((job, index), bytes) in expected {
                for spool in [&spool, &reopened] {
                    let piece = read(spool, job, OutputStream::ALL[index], from);
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
            let mut spool = Spool::open(home.path(), 1 << 20, SpoolOverflow::DropOldest).unwrap();
            for _ in 0..4 {
                spool.append(1, OutputStream::Stdout, &[7; 72]);
            }
            let path = home.path().join("spool.0");
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate(cut);
            bytes.extend_from_slice(&garbage);
            fs::write(&path, &bytes).unwrap();
            let torn = Spool::open(home.path(), 1 << 20, SpoolOverflow::DropOldest).unwrap();
            if cut >= 100 {
                let whole = read(&torn, 1, OutputStream::Stdout, 0).bytes;
                prop_assert!(whole.len() >= cut / 100 * 72);
                prop_assert!(whole[..cut / 100 * 72].iter().all(|byte| *byte == 7));
            }
        }
    }
}
