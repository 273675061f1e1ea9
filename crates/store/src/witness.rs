//! The witness: a small file outside the database that records the head of the journal.
//!
//! It is written after each commit and before its acknowledgement. A database that is older than its witness has
//! therefore lost acknowledged input. A write is one `pwrite` without a sync; the file is synced at checkpoints and
//! about once a second. A witness that lags behind its database, for example after a crash between the two writes, is
//! normal.
//!
//! The file has two slots in different sectors, written alternately, each with its own checksum. A torn write destroys
//! at most one of them.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use abide_ports::store::StoreError;

use crate::chain::JournalHead;

/// The first bytes of a slot.
const MAGIC: &[u8; 8] = b"abidewit";
const VERSION: u32 = 1;
/// The number of used bytes per slot.
const SLOT_BYTES: usize = 48;
/// The offsets of the slots, in different sectors.
const SLOT_OFFSETS: [u64; 2] = [0, 512];
const FILE_BYTES: u64 = 1024;

/// The reaction to missing acknowledged input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossPolicy {
    /// The store is not opened.
    #[default]
    Refuse,
    /// The store is opened as it is, and its witness restarts at the store's head.
    Accept,
}

/// The contents of a witness file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WitnessReading {
    /// The file does not exist.
    Missing,
    /// The file cannot be read, or neither slot is valid.
    Unreadable(String),
    /// The newest commit that was about to be acknowledged.
    Head(JournalHead),
}

/// Writes a witness file. There must be only one writer at a time.
#[derive(Debug)]
pub(crate) struct WitnessWriter {
    path: PathBuf,
    file: Arc<SyncedFile>,
    /// Increases by one with each write; the slot with the higher number is the newer one.
    writes: u64,
}

/// The file, shared with the thread that syncs it.
#[derive(Debug)]
pub(crate) struct SyncedFile {
    file: File,
    dirty: AtomicBool,
}

impl SyncedFile {
    /// Syncs the file if it was written since the last sync.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.file.sync_data().inspect_err(|_| self.dirty.store(true, Ordering::Release))
    }
}

/// Reads a witness file.
pub(crate) fn read(path: &Path) -> WitnessReading {
    match fs::read(path) {
        Ok(bytes) => match newest_slot(&bytes) {
            Some((_, head)) => WitnessReading::Head(head),
            None => WitnessReading::Unreadable(format!("{} is damaged", path.display())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => WitnessReading::Missing,
        Err(error) => WitnessReading::Unreadable(format!("{} cannot be read: {error}", path.display())),
    }
}

impl WitnessWriter {
    /// Durably sets the witness to this head, whatever it contained before.
    pub(crate) fn start(path: &Path, head: JournalHead) -> Result<Self, StoreError> {
        let cannot = |error: &io::Error| write_error(path, error);
        let writes =
            fs::read(path).ok().and_then(|bytes| newest_slot(&bytes)).map_or(0, |(writes, _)| writes);
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(|error| cannot(&error))?;
        let file = Arc::new(SyncedFile { file, dirty: AtomicBool::new(false) });
        let mut witness = Self { path: path.to_owned(), file, writes };
        // Both slots are written, so that later writes allocate no disk space.
        let written = witness
            .write(head)
            .and_then(|()| witness.write(head))
            .and_then(|()| witness.file.file.set_len(FILE_BYTES))
            .and_then(|()| witness.file.file.sync_all())
            .and_then(|()| if is_new { sync_folder(path) } else { Ok(()) });
        written.map_err(|error| cannot(&error))?;
        Ok(witness)
    }

    /// Records a commit. It is passed to the operating system, but not synced.
    pub(crate) fn write(&mut self, head: JournalHead) -> io::Result<()> {
        let writes = self.writes + 1;
        let offset = SLOT_OFFSETS[(writes % 2) as usize];
        self.file.file.write_all_at(&encode(writes, head), offset)?;
        self.writes = writes;
        self.file.dirty.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the path still refers to this file.
    pub(crate) fn is_in_place(&self) -> bool {
        let identity = |file: &fs::Metadata| (file.dev(), file.ino());
        match (fs::metadata(&self.path), self.file.file.metadata()) {
            (Ok(named), Ok(open)) => identity(&named) == identity(&open),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// The file, for a thread that syncs it.
    pub(crate) fn file(&self) -> Arc<SyncedFile> {
        self.file.clone()
    }
}

fn encode(writes: u64, head: JournalHead) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(MAGIC);
    slot[8..12].copy_from_slice(&VERSION.to_le_bytes());
    slot[16..24].copy_from_slice(&writes.to_le_bytes());
    slot[24..32].copy_from_slice(&head.seq.to_le_bytes());
    slot[32..40].copy_from_slice(&head.chain.to_le_bytes());
    let checksum = crc32fast::hash(&slot[..40]);
    slot[40..44].copy_from_slice(&checksum.to_le_bytes());
    slot
}

/// The newer of the valid slots.
fn newest_slot(bytes: &[u8]) -> Option<(u64, JournalHead)> {
    SLOT_OFFSETS.iter().filter_map(|offset| decode(bytes.get(*offset as usize..)?)).max_by_key(|slot| slot.0)
}

fn decode(bytes: &[u8]) -> Option<(u64, JournalHead)> {
    let slot = bytes.get(..SLOT_BYTES)?;
    let word = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
    let checksum = u32::from_le_bytes(slot[40..44].try_into().ok()?);
    let is_whole = slot.starts_with(MAGIC)
        && slot[8..12] == VERSION.to_le_bytes()
        && crc32fast::hash(&slot[..40]) == checksum;
    if !is_whole {
        return None;
    }
    Some((word(16)?, JournalHead { seq: word(24)? as i64, chain: word(32)? as i64 }))
}

/// Syncs the directory of a file.
pub(crate) fn sync_folder(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// The error for a file that cannot be written.
pub(crate) fn write_error(path: &Path, error: &io::Error) -> StoreError {
    let reason = format!("{} cannot be written: {error}", path.display());
    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if is_full { StoreError::Full { reason } } else { StoreError::Unavailable { reason } }
}

/// Compares a journal with its witness. `chain_at` is the chained checksum at the witness's position, or none if the
/// journal is shorter.
pub(crate) fn compare(
    database: &str,
    witness: JournalHead,
    head: JournalHead,
    chain_at: Option<i64>,
) -> Result<(), StoreError> {
    let lost = |detail: String| Err(StoreError::InputLost { detail });
    if head.seq < witness.seq {
        let missing = witness.seq - head.seq;
        return lost(format!(
            "{database} ends at journal entry {}, but its witness records entry {} as acknowledged: {missing} entries \
             are missing. Probably its log was truncated or deleted, or an older copy was put in its place",
            head.seq, witness.seq
        ));
    }
    if chain_at.unwrap_or(0) != witness.chain {
        return lost(format!(
            "{database} ends at journal entry {}, but its entries up to {} differ from those that its witness records \
             as acknowledged. Probably another copy was put in its place",
            head.seq, witness.seq
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: i64) -> JournalHead {
        JournalHead { seq, chain: seq * 31 }
    }

    #[test]
    fn the_newest_write_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        assert_eq!(read(&path), WitnessReading::Missing);
        let mut witness = WitnessWriter::start(&path, head(3)).unwrap();
        for seq in 4..9 {
            assert_eq!(read(&path), WitnessReading::Head(head(seq - 1)));
            witness.write(head(seq)).unwrap();
        }
        // A restarted witness may have a lower position.
        drop(witness);
        let mut witness = WitnessWriter::start(&path, head(2)).unwrap();
        assert_eq!(read(&path), WitnessReading::Head(head(2)));
        witness.write(head(3)).unwrap();
        assert_eq!(read(&path), WitnessReading::Head(head(3)));
    }

    #[test]
    fn a_torn_write_costs_one_commit_at_the_most() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        let mut witness = WitnessWriter::start(&path, head(7)).unwrap();
        let before = fs::read(&path).unwrap();
        witness.write(head(8)).unwrap();
        let after = fs::read(&path).unwrap();
        let slot = (0..before.len()).find(|at| before[*at] != after[*at]).unwrap() / 512 * 512;
        for torn in 0..SLOT_BYTES {
            let mut bytes = after.clone();
            bytes[slot + torn..slot + SLOT_BYTES].copy_from_slice(&before[slot + torn..slot + SLOT_BYTES]);
            fs::write(&path, &bytes).unwrap();
            let reading = read(&path);
            assert!(
                [WitnessReading::Head(head(7)), WitnessReading::Head(head(8))].contains(&reading),
                "{torn}: {reading:?}"
            );
        }
    }

    #[test]
    fn a_file_that_is_cut_or_garbage_is_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        drop(WitnessWriter::start(&path, head(7)).unwrap());
        let whole = fs::read(&path).unwrap();
        for bytes in [&[][..], &whole[..20], &[0xa5; 1024], &[0; 1024]] {
            fs::write(&path, bytes).unwrap();
            assert!(matches!(read(&path), WitnessReading::Unreadable(_)), "{} bytes", bytes.len());
        }
        fs::write(&path, &whole[..600]).unwrap();
        assert_eq!(read(&path), WitnessReading::Head(head(7)), "one slot is enough");
    }
}
