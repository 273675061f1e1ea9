//! Recognition of Abide's own journals after a crash at any point, and of foreign ones.

use super::*;

/// A state folder and its records in a temporary folder.
fn state(folder: &Path) -> StateFolder {
    fs::create_dir(folder.join("work")).unwrap();
    StateFolder {
        root: folder.join("work"),
        relative: ".abide".into(),
        records: folder.join("home/agents"),
        record_id: None,
        origin: StateOrigin::Unknown,
        keeper_arguments: vec!["keeper".to_owned()],
    }
}

fn locate(state: &StateFolder, on_foreign: ForeignStatePolicy) -> (PathBuf, StateStanding) {
    let located = state.locate(on_foreign).unwrap();
    (located.record, located.standing)
}

/// A record that has confirmed the first line and announced the second.
fn record_with_announcement(folder: &Path) -> ProvenanceRecord {
    let mut record = ProvenanceRecord::open(folder).unwrap();
    record.reset(b"").unwrap();
    record.announce(CONFIRMED_LINES).unwrap();
    record.confirm(CONFIRMED_LINES).unwrap();
    record.announce(ANNOUNCED_LINES).unwrap();
    record
}

const CONFIRMED_LINES: &[u8] = b"first line\n";
const ANNOUNCED_LINES: &[u8] = b"second line\nthird line\n";

#[test]
fn a_journal_is_ours_with_the_announced_lines_or_any_torn_piece_of_them() {
    let folder = tempfile::tempdir().unwrap();
    record_with_announcement(folder.path());
    let record = ProvenanceRecord::open(folder.path()).unwrap();
    let whole = [CONFIRMED_LINES, ANNOUNCED_LINES].concat();
    for end in CONFIRMED_LINES.len()..whole.len() {
        assert_eq!(
            record.compare(&whole[..end]),
            JournalVerdict::Ours { length: CONFIRMED_LINES.len() },
            "cut at {end}"
        );
    }
    assert_eq!(record.compare(&whole), JournalVerdict::Ours { length: whole.len() });
    let hole = [CONFIRMED_LINES, &[0; ANNOUNCED_LINES.len()]].concat();
    assert_eq!(record.compare(&hole), JournalVerdict::Ours { length: CONFIRMED_LINES.len() });
}

#[test]
fn a_changed_journal_is_foreign_from_the_first_different_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = record_with_announcement(folder.path());
    let foreign = |record: &ProvenanceRecord, journal: &[u8]| match record.compare(journal) {
        JournalVerdict::Foreign { line } => line,
        JournalVerdict::Ours { length } => panic!("{length} bytes of it are ours"),
    };
    assert_eq!(foreign(&record, &[CONFIRMED_LINES, ANNOUNCED_LINES, b"x"].concat()), 2);
    assert_eq!(foreign(&record, &[CONFIRMED_LINES, b"another line\n"].concat()), 2);
    record.confirm(ANNOUNCED_LINES).unwrap();
    let record = ProvenanceRecord::open(folder.path()).unwrap();
    let whole = [CONFIRMED_LINES, ANNOUNCED_LINES].concat();
    assert_eq!(record.compare(&whole), JournalVerdict::Ours { length: whole.len() });
    assert_eq!(foreign(&record, &[&whole, &b"more\n"[..]].concat()), 4);
    assert_eq!(foreign(&record, &whole[..whole.len() - 1]), 3);
    assert_eq!(foreign(&record, CONFIRMED_LINES), 2);
    assert_eq!(foreign(&record, b""), 1);
    assert_eq!(foreign(&record, &[b"First line\n", ANNOUNCED_LINES].concat()), 1);
    assert_eq!(foreign(&record, b"first line\nsecond line\nthird lime\n"), 3);
}

#[test]
fn a_slot_torn_by_a_power_failure_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    record_with_announcement(folder.path());
    let path = folder.path().join(WRITTEN_FILE);
    let slots = fs::read(&path).unwrap();
    let newest = ProvenanceRecord::open(folder.path()).unwrap().slot_number;
    let place = usize::try_from(newest % SLOT_COUNT).unwrap() * SLOT_BYTES;
    let mut torn = slots.clone();
    torn[place + 40] ^= 1;
    fs::write(&path, torn).unwrap();
    // The announcement is lost, so no part of the line can be in the journal.
    assert_eq!(
        ProvenanceRecord::open(folder.path()).unwrap().compare(CONFIRMED_LINES),
        JournalVerdict::Ours { length: CONFIRMED_LINES.len() }
    );
}

#[test]
fn a_state_folder_is_known_by_device_inode_and_id() {
    let folder = tempfile::tempdir().unwrap();
    let state = state(folder.path());
    let (record, standing) = locate(&state, ForeignStatePolicy::Refuse);
    assert_eq!(standing, StateStanding::New);
    assert_eq!(locate(&state, ForeignStatePolicy::Refuse), (record.clone(), StateStanding::Recorded));
    // A moved folder keeps its record.
    let moved = StateFolder { root: folder.path().join("elsewhere"), ..state.clone() };
    fs::rename(folder.path().join("work"), folder.path().join("elsewhere")).unwrap();
    assert_eq!(locate(&moved, ForeignStatePolicy::Refuse), (record.clone(), StateStanding::Recorded));
    // A copy has the same id but is a different folder.
    fs::create_dir_all(state.path()).unwrap();
    fs::copy(moved.path().join(ID_FILE), state.path().join(ID_FILE)).unwrap();
    assert!(matches!(
        state.locate(ForeignStatePolicy::Refuse),
        Err(StateFolderError::Foreign { name: ID_FILE })
    ));
    let (adopted, standing) = locate(&state, ForeignStatePolicy::Adopt);
    assert_eq!(standing, StateStanding::Adopted);
    assert_ne!(adopted, record);
    assert_eq!(locate(&state, ForeignStatePolicy::Refuse), (adopted, StateStanding::Recorded));
}

#[test]
fn a_cloned_state_folder_is_foreign_and_not_changed() {
    for name in OWN_ENTRY_NAMES {
        let folder = tempfile::tempdir().unwrap();
        let state = state(folder.path());
        fs::create_dir_all(state.path()).unwrap();
        fs::write(state.path().join(name), "x").unwrap();
        assert!(
            matches!(state.locate(ForeignStatePolicy::Refuse), Err(StateFolderError::Foreign { name: n }) if n == name)
        );
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1, "{name}");
        let records: Vec<_> =
            fs::read_dir(&state.records).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(records, [FIRST_USE_FILE], "{name}");
    }
}

#[test]
fn links_in_place_of_folders_are_refused() {
    for name in ["", "executions", "sessions"] {
        let folder = tempfile::tempdir().unwrap();
        let state = state(folder.path());
        let link = if name.is_empty() { state.path() } else { state.path().join(name) };
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        for on_foreign in [ForeignStatePolicy::Refuse, ForeignStatePolicy::Adopt] {
            assert!(matches!(state.locate(on_foreign), Err(StateFolderError::Link(path)) if path == link));
        }
    }
}
