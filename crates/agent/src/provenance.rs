//! The home's record of a state folder: its identity, and the part of its journal that Abide wrote.
//!
//! A state folder is in a workspace, where tools, other agents and cloned repositories can write. It is untrusted
//! input. Its record is below `$ABIDE_HOME/agents` and is the authority (decision 0017):
//!
//! | file | contents |
//! |---|---|
//! | `folder.json` | device and inode of the state folder, and its path |
//! | `written` | length and SHA-256 of the journal and of the lines that are about to be appended, and these lines |
//! | `lines` | 8 bytes of each line's SHA-256; names the first line that differs, and decides nothing |
//! | `lock` | held by the process that uses the state folder |
//! | `secrets` | sensitive answers |
//! | `sessions` | keepers of sessions |
//! | `calls` | the running call and some before it: the record of each, and its keeper |
//! | `former` | offsets up to which the output of sessions of an earlier version was read |
//!
//! Beside the records, `first-use.json` names the process that first used this version in the home. Keepers that
//! started before it may be of an earlier version, which kept no records.
//!
//! `written` has three slots that are used in rotation. Lines are announced and synced, then appended to the journal
//! and synced, then confirmed without a sync. The slot before the last announcement is therefore always durable. A
//! power failure during a write leaves a slot that is older by at most one append.
//!
//! The meaning of the journal's lines is in `event`.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use abide_keeper::{former_keepers::FormerKeepers, identity::ProcessIdentity};
use abide_os::{
    OsError,
    atomic_file::{self, Durability},
    beneath::{Directory, FileKind},
    clock::monotonic,
    private_file, random,
    remove::remove_path,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{state_directory::StateDirectory, tool::FormerSessions};

/// A state folder, and the location of its record in the home.
#[derive(Clone, Debug)]
pub struct StateFolder {
    /// The workspace. Symbolic links in this path are followed, links below it are not.
    pub root: PathBuf,
    /// Relative to `root`, such as `.abide`.
    pub relative: PathBuf,
    /// The records of all state folders: `$ABIDE_HOME/agents`.
    pub records: PathBuf,
    /// The name of the record, if the caller has a unique one. Otherwise a random id in the state folder names it.
    pub record_id: Option<String>,
    pub origin: StateOrigin,
    /// The arguments that start this program as a keeper.
    pub keeper_arguments: Vec<String>,
}

/// The origin of a state folder without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateOrigin {
    /// Unknown. A running keeper in the folder can prove that an earlier version created it.
    Unknown,
    /// The home shows that an earlier version, which kept no records, created it.
    EarlierVersion,
}

/// The treatment of a state folder that differs from its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignStatePolicy {
    Refuse,
    /// Its journal is used as history only.
    Adopt,
}

/// The relation of a state folder to its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateStanding {
    /// The record belongs to this folder. The journal must be compared with it.
    Recorded,
    /// The folder was empty.
    New,
    /// An earlier version created the folder.
    EarlierVersion,
    /// A person adopted the folder.
    Adopted,
}

/// A usable state folder.
#[derive(Debug)]
pub(crate) struct LocatedState {
    pub(crate) state: StateDirectory,
    /// The folder of its record.
    pub(crate) record: PathBuf,
    pub(crate) standing: StateStanding,
}

/// The reason why a state folder cannot be used.
#[derive(Debug)]
pub(crate) enum StateFolderError {
    /// Abide did not write this entry of the state folder.
    Foreign {
        name: &'static str,
    },
    /// A symbolic link in place of a folder or file of Abide.
    Link(PathBuf),
    Io {
        path: PathBuf,
        source: io::Error,
    },
}

/// The home's record of one state folder. For each append, call [`Self::announce`] before and [`Self::confirm`] after
/// it.
#[derive(Debug)]
pub(crate) struct ProvenanceRecord {
    slots: File,
    lines: File,
    /// Number of the newest slot.
    slot_number: u64,
    written: WrittenPart,
    /// Hash of the confirmed part.
    hash: Sha256,
    /// Number of lines in `lines`.
    line_count: u64,
}

/// The part of a journal that Abide wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenPart {
    length: u64,
    sha256: String,
    /// Lines whose append is not confirmed.
    announced: Option<AnnouncedLines>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AnnouncedLines {
    length: u64,
    sha256: String,
}

/// The result of comparing a journal with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalVerdict {
    /// Abide wrote the first `length` bytes. The rest is a torn part of an unfinished append.
    Ours { length: usize },
    /// The first line that differs, starting at 1.
    Foreign { line: usize },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StateIdentity {
    device: u64,
    inode: u64,
    /// Path of the folder when the record was created.
    path: PathBuf,
    /// Evidence that an earlier version created the folder, so that keepers of its sessions may be in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    earlier_version: Option<VersionEvidence>,
}

/// Evidence that an earlier version created a state folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VersionEvidence {
    /// A note of the daemon in the home.
    Note,
    /// A running keeper in the folder that started before the first use of this version.
    Keeper,
}

const IDENTITY_FILE: &str = "folder.json";
const WRITTEN_FILE: &str = "written";
const LINES_FILE: &str = "lines";
/// The file in the state folder with the random id that names its record.
const ID_FILE: &str = "id";
const SLOT_BYTES: usize = 512;
const SLOT_COUNT: u64 = 3;
/// Offset of the announced lines, after the slots.
const LINES_OFFSET: u64 = 4096;
const LINE_HASH_BYTES: usize = 8;
const FIRST_USE_FILE: &str = "first-use.json";
const MAX_ID_BYTES: u64 = 64;
/// Limits of the search for a running keeper of an earlier version.
const MAX_SEARCHED_ENTRIES: usize = 1_000;
const MAX_SEARCH_TIME: Duration = Duration::from_secs(10);
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);

/// Entries that make a state folder without a record foreign. A `.gitignore` and the folders of named sessions do not.
const OWN_ENTRY_NAMES: [&str; 7] = [
    crate::agent_state::JOURNAL_FILE,
    "interaction.json",
    "executions",
    "sessions",
    "secrets",
    "lock",
    ID_FILE,
];

/// Whether the state folder of a record, or its journal, was deleted or replaced. If the workspace is missing too, it
/// was moved, or its file system is not mounted.
pub(crate) fn is_deleted(record: &Path) -> bool {
    let bytes = fs::read(record.join(IDENTITY_FILE)).unwrap_or_default();
    let Ok(identity) = serde_json::from_slice::<StateIdentity>(&bytes) else { return false };
    let is_missing =
        |path: &Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    match fs::symlink_metadata(&identity.path) {
        Ok(metadata) if (metadata.dev(), metadata.ino()) == (identity.device, identity.inode) => {
            is_missing(&identity.path.join(crate::agent_state::JOURNAL_FILE))
        }
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The innermost one, because a workspace may be in a home directory of the same name.
            let own =
                identity.path.ancestors().find(|path| path.file_name().is_some_and(|it| it == ".abide"));
            own.unwrap_or(&identity.path).parent().is_some_and(Path::is_dir)
        }
        Err(_) => false,
    }
}

impl StateFolder {
    pub fn path(&self) -> PathBuf {
        self.root.join(&self.relative)
    }

    /// Finds the record of the folder, or creates one. A refused folder is not changed.
    pub(crate) fn locate(&self, on_foreign: ForeignStatePolicy) -> Result<LocatedState, StateFolderError> {
        record_first_use(&self.records).map_err(|source| StateFolderError::io(&self.records, source))?;
        let existing = match StateDirectory::open(&self.root, &self.relative) {
            Ok(state) => Some(state),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(state) = &existing {
            refuse_links(state)?;
            if let Some(record) = self.find_record(state)? {
                return Ok(LocatedState { state: state.clone(), record, standing: StateStanding::Recorded });
            }
        }
        let is_there =
            |name: &&str| existing.as_ref().is_some_and(|state| state.directory().metadata(name).is_ok());
        let foreign_entry = OWN_ENTRY_NAMES.into_iter().find(is_there);
        let has_former_keeper = || existing.as_ref().is_some_and(|state| self.has_former_keeper(state));
        let (standing, evidence) = match (foreign_entry, self.origin, on_foreign) {
            (None, ..) => (StateStanding::New, None),
            (Some(_), StateOrigin::EarlierVersion, _) => {
                (StateStanding::EarlierVersion, Some(VersionEvidence::Note))
            }
            (Some(_), StateOrigin::Unknown, _) if has_former_keeper() => {
                (StateStanding::EarlierVersion, Some(VersionEvidence::Keeper))
            }
            (Some(_), StateOrigin::Unknown, ForeignStatePolicy::Adopt) => (StateStanding::Adopted, None),
            (Some(name), StateOrigin::Unknown, ForeignStatePolicy::Refuse) => {
                return Err(StateFolderError::Foreign { name });
            }
        };
        let state = StateDirectory::create(&self.root, &self.relative)?;
        ignore_for_git(&state).map_err(|source| StateFolderError::io(state.path(), source))?;
        match self.create_record(&state, standing, evidence) {
            // Another process created the id first, so its record is used.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let record = self.find_record(&state)?.ok_or(StateFolderError::Foreign { name: ID_FILE })?;
                Ok(LocatedState { state, record, standing: StateStanding::Recorded })
            }
            Ok(record) => Ok(LocatedState { state, record, standing }),
            Err(source) => Err(StateFolderError::io(state.path(), source)),
        }
    }

    /// Whether keepers of an earlier version may be in the folder of this record.
    pub(crate) fn former_sessions(&self, record: &Path) -> FormerSessions {
        let bytes = fs::read(record.join(IDENTITY_FILE)).unwrap_or_default();
        let identity = serde_json::from_slice::<StateIdentity>(&bytes).ok();
        match identity.and_then(|identity| identity.earlier_version) {
            None => FormerSessions::None,
            Some(VersionEvidence::Note) => FormerSessions::Accepted { started_before: None },
            Some(VersionEvidence::Keeper) => match first_use(&self.records) {
                Some(first) => FormerSessions::Accepted { started_before: Some(first) },
                None => FormerSessions::None,
            },
        }
    }

    /// Other records of this path. Their folders were deleted or moved.
    pub(crate) fn former_records(&self, own: &Path) -> Vec<PathBuf> {
        let path = self.path();
        let records = fs::read_dir(&self.records).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_former = |record: &PathBuf| {
            let bytes = fs::read(record.join(IDENTITY_FILE)).unwrap_or_default();
            let identity = serde_json::from_slice::<StateIdentity>(&bytes);
            record != own && identity.is_ok_and(|identity| identity.path == path)
        };
        records.filter(is_former).collect()
    }

    /// Whether a keeper that an earlier version started in the folder runs.
    fn has_former_keeper(&self, state: &StateDirectory) -> bool {
        let Some(first) = first_use(&self.records) else { return false };
        let keepers = FormerKeepers { arguments: self.keeper_arguments.clone(), started_before: Some(first) };
        let deadline = monotonic() + MAX_SEARCH_TIME;
        // The keeper of a session is in its folder, and that of a call one level deeper.
        [("sessions", None), ("executions", Some("held"))].into_iter().any(|(folder, below)| {
            let Ok(folder) = state.directory().open_directory(folder) else { return false };
            let Ok(entries) = folder.entries() else { return false };
            let in_time = entries.take(MAX_SEARCHED_ENTRIES).take_while(|_| monotonic() < deadline);
            let folders = in_time.flatten().filter(|entry| entry.kind == FileKind::Directory);
            folders.into_iter().any(|entry| {
                let keeper_path =
                    below.map_or_else(|| entry.name.clone().into(), |name| Path::new(&entry.name).join(name));
                folder
                    .open_directory(keeper_path)
                    .is_ok_and(|keeper_path| keepers.attach(&keeper_path).is_some())
            })
        })
    }

    fn find_record(&self, state: &StateDirectory) -> Result<Option<PathBuf>, StateFolderError> {
        let Some(id) = self.record_id.clone().or_else(|| read_id(state.directory())) else { return Ok(None) };
        let record = self.records.join(id);
        let path = record.join(IDENTITY_FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateFolderError::io(&path, source)),
        };
        let identity: StateIdentity =
            serde_json::from_slice(&bytes).map_err(|error| StateFolderError::io(&path, error.into()))?;
        Ok((state.identity()? == (identity.device, identity.inode)).then_some(record))
    }

    /// Creates a record of the present folder.
    fn create_record(
        &self,
        state: &StateDirectory,
        standing: StateStanding,
        earlier_version: Option<VersionEvidence>,
    ) -> io::Result<PathBuf> {
        private_file::create_missing_dirs(&self.records)?;
        let id = self.record_id.clone().unwrap_or_else(|| random::name(24));
        let record = self.records.join(&id);
        // An old record of the same name belongs to a folder that is gone.
        for name in [WRITTEN_FILE, LINES_FILE] {
            remove_file_if_exists(&record.join(name))?;
        }
        private_file::create_missing_dirs(&record)?;
        let (device, inode) = state.identity()?;
        let identity = StateIdentity { device, inode, path: self.path(), earlier_version };
        let identity = serde_json::to_vec_pretty(&identity)?;
        atomic_file::replace(&record.join(IDENTITY_FILE), &identity, Durability::PowerFailure)?;
        if self.record_id.is_none() {
            if standing != StateStanding::New {
                state.remove_file(ID_FILE)?;
            }
            let file = state.directory().create_file(ID_FILE, 0o600);
            if file.is_err() {
                remove_path(&record, MAX_REMOVAL_TIME)?.into_result()?;
            }
            let mut file = file?;
            file.write_all(format!("{id}\n").as_bytes())?;
            file.sync_all()?;
        }
        Ok(record)
    }
}

/// Records the process that first used this version in the home, unless one is recorded. Keepers that started after it
/// are not of an earlier version.
pub fn record_first_use(records: &Path) -> io::Result<()> {
    let path = records.join(FIRST_USE_FILE);
    if path.exists() {
        return Ok(());
    }
    private_file::create_missing_dirs(records)?;
    let part = records.join(format!("{FIRST_USE_FILE}.{}", std::process::id()));
    atomic_file::replace(&part, &serde_json::to_vec(&ProcessIdentity::own())?, Durability::PowerFailure)?;
    let linked = fs::hard_link(&part, &path);
    fs::remove_file(&part)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// `None` if unknown; then no keeper counts as one of an earlier version.
fn first_use(records: &Path) -> Option<ProcessIdentity> {
    serde_json::from_slice(&fs::read(records.join(FIRST_USE_FILE)).ok()?).ok()
}

/// Fails if a folder of Abide in the state folder is a symbolic link.
fn refuse_links(state: &StateDirectory) -> Result<(), StateFolderError> {
    let is_link = |name: &&str| {
        state.directory().metadata(name).is_ok_and(|metadata| metadata.kind == FileKind::SymbolicLink)
    };
    match ["executions", "sessions"].into_iter().find(is_link) {
        Some(link) => Err(StateFolderError::Link(state.path().join(link))),
        None => Ok(()),
    }
}

/// The id in the state folder, if it is valid as the name of a record.
fn read_id(state: &Directory) -> Option<String> {
    let id = String::from_utf8(state.read_bounded(ID_FILE, MAX_ID_BYTES).ok()?).ok()?.trim().to_owned();
    let is_name = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_name.then_some(id)
}

impl StateFolderError {
    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

impl From<OsError> for StateFolderError {
    fn from(error: OsError) -> Self {
        match error {
            OsError::SymbolicLink { path } => Self::Link(path),
            OsError::System { path, source, .. } => Self::Io { path, source },
            OsError::NotRegular { .. } | OsError::TooLarge { .. } | OsError::InvalidPath { .. } => {
                Self::Io { path: PathBuf::new(), source: error.into() }
            }
        }
    }
}

impl ProvenanceRecord {
    /// Opens the files of a record. The caller holds its lock.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let open = |name: &str| {
            private_file::open(
                File::options().create(true).truncate(false).read(true).write(true),
                &folder.join(name),
            )
        };
        let slots = open(WRITTEN_FILE)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&slots, SLOT_COUNT * SLOT_BYTES as u64), &mut bytes)?;
        let newest = bytes.chunks(SLOT_BYTES).filter_map(parse_slot).max_by_key(|(number, _)| *number);
        let (number, written) = newest.unwrap_or((0, WrittenPart::default()));
        let lines = open(LINES_FILE)?;
        let line_count = lines.metadata()?.len() / LINE_HASH_BYTES as u64;
        Ok(Self { slots, lines, slot_number: number, written, hash: Sha256::new(), line_count })
    }

    /// Whether the record contains no confirmed bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.written.length == 0
    }

    /// Compares a journal with the record.
    pub(crate) fn compare(&self, journal: &[u8]) -> JournalVerdict {
        let WrittenPart { length, sha256, announced } = &self.written;
        let own = usize::try_from(*length).ok().and_then(|length| journal.split_at_checked(length));
        let foreign = || JournalVerdict::Foreign { line: self.first_difference(journal) };
        let Some((own, rest)) = own else { return foreign() };
        if *length > 0 && digest(own) != *sha256 {
            return foreign();
        }
        let rest_length = rest.len() as u64;
        match announced {
            Some(announced) if announced.length == rest_length && announced.sha256 == digest(rest) => {
                JournalVerdict::Ours { length: journal.len() }
            }
            // Unconfirmed lines were not acted upon, so a part of them can be discarded.
            Some(announced) if self.is_torn_part(rest, announced) => {
                JournalVerdict::Ours { length: own.len() }
            }
            None if rest.is_empty() => JournalVerdict::Ours { length: own.len() },
            Some(_) | None => foreign(),
        }
    }

    /// Whether this can be the part of the announced lines that a kill or power failure left: a prefix, possibly with
    /// zeros for blocks that did not reach the disk.
    fn is_torn_part(&self, rest: &[u8], announced: &AnnouncedLines) -> bool {
        if rest.len() as u64 > announced.length {
            return false;
        }
        let mut lines = vec![0; usize::try_from(announced.length).unwrap_or_default()];
        let is_kept =
            self.slots.read_exact_at(&mut lines, LINES_OFFSET).is_ok() && digest(&lines) == announced.sha256;
        // If the power failure also destroyed the announced lines in the record, only their length is compared. The
        // torn part is kept in a separate file.
        !is_kept || rest.iter().zip(&lines).all(|(recorded, line)| recorded == line || *recorded == 0)
    }

    /// Records this as the complete journal.
    pub(crate) fn reset(&mut self, journal: &[u8]) -> io::Result<()> {
        self.hash = Sha256::new();
        self.line_count = 0;
        self.lines.set_len(0)?;
        self.written.length = 0;
        self.advance(journal)?;
        self.write_slot()?;
        self.slots.sync_data()
    }

    /// Records the lines that are about to be appended. They are durable when this returns.
    pub(crate) fn announce(&mut self, lines: &[u8]) -> io::Result<()> {
        self.slots.write_all_at(lines, LINES_OFFSET)?;
        self.written.announced = Some(AnnouncedLines { length: lines.len() as u64, sha256: digest(lines) });
        self.write_slot()?;
        self.slots.sync_data()
    }

    /// Records that the announced lines were appended. If a power failure loses this, the comparison finds the lines.
    pub(crate) fn confirm(&mut self, lines: &[u8]) -> io::Result<()> {
        self.advance(lines)?;
        self.write_slot()
    }

    fn advance(&mut self, lines: &[u8]) -> io::Result<()> {
        self.hash.update(lines);
        self.written.length += lines.len() as u64;
        self.written.sha256 = to_hex(&self.hash.clone().finalize());
        self.written.announced = None;
        let short: Vec<u8> = split_lines(lines).flat_map(short_digest).collect();
        self.lines.write_all_at(&short, self.line_count * LINE_HASH_BYTES as u64)?;
        self.line_count += (short.len() / LINE_HASH_BYTES) as u64;
        Ok(())
    }

    fn write_slot(&mut self) -> io::Result<()> {
        self.slot_number += 1;
        let json = serde_json::to_string(&(self.slot_number, &self.written))?;
        let mut slot = format!("{} {json}", &digest(json.as_bytes())[..16]).into_bytes();
        slot.resize(SLOT_BYTES - 1, b' ');
        slot.push(b'\n');
        self.slots.write_all_at(&slot, (self.slot_number % SLOT_COUNT) * SLOT_BYTES as u64)
    }

    /// The number of the first line that differs from the recorded one, starting at 1.
    fn first_difference(&self, journal: &[u8]) -> usize {
        let mut recorded_hashes =
            vec![0; usize::try_from(self.line_count).unwrap_or_default() * LINE_HASH_BYTES];
        if self.lines.read_exact_at(&mut recorded_hashes, 0).is_err() {
            recorded_hashes.clear();
        }
        let mut recorded_hashes = recorded_hashes.chunks(LINE_HASH_BYTES);
        let same = split_lines(journal).take_while(|line| {
            recorded_hashes.next().is_some_and(|recorded_hashes| recorded_hashes == short_digest(line))
        });
        same.count() + 1
    }
}

fn parse_slot(slot: &[u8]) -> Option<(u64, WrittenPart)> {
    let (check, json) = std::str::from_utf8(slot).ok()?.trim_end().split_once(' ')?;
    if digest(json.as_bytes())[..16] != *check {
        return None;
    }
    serde_json::from_str(json).ok()
}

fn split_lines(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines.split_inclusive(|byte| *byte == b'\n')
}

fn short_digest(line: &[u8]) -> [u8; LINE_HASH_BYTES] {
    let mut short = [0; LINE_HASH_BYTES];
    short.copy_from_slice(&Sha256::digest(line)[..LINE_HASH_BYTES]);
    short
}

fn digest(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn remove_file_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Excludes the state folder from version control.
fn ignore_for_git(state: &StateDirectory) -> io::Result<()> {
    match state.directory().create_file(".gitignore", 0o600) {
        Ok(mut file) => file.write_all(b"*\n"),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
