//! The crash guard's record in the home: `crash-guard/performing` lists the operations in progress, and
//! `crash-guard/state.json` the operations during which earlier daemons crashed.
//!
//! Operations are written in place, in fixed-size slots, and never synced: they must survive the process, not the
//! machine. The daemon decides how to react to them.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use abide_os::{
    atomic_file::{self, Durability},
    private_file,
};
use abide_ports::crash_log::{CrashGuardState, CrashLog, CrashLogContents, CrashSuspect};
use serde_json::{Value, json};

use crate::{HostError, home_folders::HomeFolder};

const FOLDER: &str = HomeFolder::CrashGuard.name();
/// Size of a slot; larger than any file name.
const SLOT_BYTES: usize = 512;
/// Maximum number of bytes read, whatever the size of the file.
const MAX_RECORD_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub struct CrashRecord {
    in_progress: File,
    state: PathBuf,
    slots: Mutex<GuardSlots>,
    /// Set before an orderly exit: operations that begin now are not recorded.
    is_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct GuardSlots {
    free: Vec<usize>,
    count: usize,
}

/// Opens the record of this home, which the caller has locked. Returns it with the contents left by the last daemon.
pub fn open(home: &Path) -> Result<(CrashRecord, CrashLogContents), HostError> {
    let folder = home.join(FOLDER);
    let opened = || -> io::Result<(CrashRecord, CrashLogContents)> {
        private_file::create_dir(&folder)?;
        let path = folder.join("performing");
        let options = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options
        };
        let performing = private_file::open(&mut options(), &path)?;
        let state = folder.join("state.json");
        let contents =
            CrashLogContents { in_flight: read_operations(&performing)?, state: read_state(&state) };
        let (slots, is_closed) = (Mutex::default(), AtomicBool::new(false));
        Ok((CrashRecord { in_progress: performing, state, slots, is_closed }, contents))
    };
    opened().map_err(|source| HostError::CrashRecordUnusable { folder: folder.clone(), source })
}

/// Returns the operations that are quarantined in this home.
pub fn quarantined(home: &Path) -> Vec<CrashSuspect> {
    let state = read_state(&home.join(FOLDER).join("state.json"));
    state.suspects.into_iter().filter(CrashSuspect::is_set_aside).collect()
}

impl CrashRecord {
    /// Clears the slots left by an earlier daemon, after they are counted.
    pub fn clear(&self) {
        if let Err(error) = self.in_progress.set_len(0) {
            tracing::warn!(%error, "crash guard: the record cannot be cleared");
        }
    }
}

impl CrashLog for CrashRecord {
    fn begin(&self, item: &str) -> usize {
        let index = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            let free = slots.free.pop();
            free.unwrap_or_else(|| {
                slots.count += 1;
                slots.count - 1
            })
        };
        if self.is_closed.load(Ordering::Acquire) {
            return index;
        }
        let mut slot = [0; SLOT_BYTES];
        let length = item.len().min(SLOT_BYTES);
        slot[..length].copy_from_slice(&item.as_bytes()[..length]);
        // A full disk must not block the operation; a crash is then not counted.
        self.in_progress.write_all_at(&slot, (index * SLOT_BYTES) as u64).ok();
        index
    }

    fn end(&self, index: usize) {
        self.in_progress.write_all_at(&[0; SLOT_BYTES], (index * SLOT_BYTES) as u64).ok();
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).free.push(index);
    }

    fn save(&self, state: &CrashGuardState) {
        let suspects = state.suspects.iter().map(
            |suspect| json!({ "item": suspect.item, "deaths": suspect.deaths, "retry_at": suspect.retry_at }),
        );
        let text = json!({
            "suspects": suspects.collect::<Vec<_>>(),
            "concurrent_deaths": state.concurrent_deaths,
        });
        // It counts deaths of the daemon, which a power failure is not.
        let saved = atomic_file::replace(&self.state, text.to_string().as_bytes(), Durability::ProcessCrash);
        if let Err(error) = saved {
            tracing::warn!(%error, "crash guard: its state cannot be written");
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.clear();
    }
}

/// Returns the names in the used slots.
fn read_operations(performing: &File) -> io::Result<Vec<String>> {
    let length = performing.metadata()?.len().min(MAX_RECORD_BYTES);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    performing.read_exact_at(&mut bytes, 0)?;
    let name = |slot: &[u8]| {
        let end = slot.iter().position(|byte| *byte == 0).unwrap_or(slot.len());
        String::from_utf8_lossy(&slot[..end]).into_owned()
    };
    Ok(bytes.chunks(SLOT_BYTES).map(name).filter(|name| !name.is_empty()).collect())
}

/// Reads the last saved state. A missing or unreadable file yields the initial state.
fn read_state(path: &Path) -> CrashGuardState {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let suspect = |entry: &Value| {
        Some(CrashSuspect {
            item: entry["item"].as_str()?.to_owned(),
            deaths: number(&entry["deaths"])?,
            retry_at: entry["retry_at"].as_i64()?,
        })
    };
    let suspects = value["suspects"].as_array().map(Vec::as_slice).unwrap_or_default();
    CrashGuardState {
        suspects: suspects.iter().filter_map(suspect).collect(),
        concurrent_deaths: number(&value["concurrent_deaths"]).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_state_are_found_by_the_next_daemon_and_ended_ones_are_not() {
        let home = tempfile::tempdir().unwrap();
        let (record, remains) = open(home.path()).unwrap();
        assert_eq!(remains, CrashLogContents::default());
        let first = record.begin("effect 1");
        let second = record.begin("deletion two\nlines");
        record.end(first);
        let third = record.begin(&"x".repeat(600));
        assert_eq!(third, first, "a slot is used again");
        let suspect = CrashSuspect { item: "effect 1".to_owned(), deaths: 3, retry_at: 7 };
        let state = CrashGuardState { suspects: vec![suspect.clone()], concurrent_deaths: 2 };
        record.save(&state);
        // Dropping the record simulates a crash: `close` is not called.
        drop(record);
        let (record, remains) = open(home.path()).unwrap();
        assert_eq!(remains.in_flight, ["x".repeat(SLOT_BYTES), "deletion two\nlines".to_owned()]);
        assert_eq!((remains.state, quarantined(home.path())), (state, vec![suspect]));
        record.end(second);
        record.close();
        record.begin("effect 2");
        drop(record);
        assert_eq!(open(home.path()).unwrap().1.in_flight, Vec::<String>::new());
    }

    #[test]
    fn a_state_that_cannot_be_read_counts_from_the_beginning() {
        let home = tempfile::tempdir().unwrap();
        drop(open(home.path()).unwrap());
        for text in ["", "[]", "{\"suspects\": 3}", "{\"suspects\": [{\"item\": 3}]}", "\u{0}"] {
            fs::write(home.path().join(FOLDER).join("state.json"), text).unwrap();
            assert_eq!(open(home.path()).unwrap().1.state, CrashGuardState::default(), "{text:?}");
        }
    }
}
