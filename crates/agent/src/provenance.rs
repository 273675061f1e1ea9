//! What the home knows about a state folder: which one it is, and which part of its journal Abide wrote.
//!
//! A state folder lies in a workspace, where tools, other agents and cloned repositories can write. It is input. The
//! record about it lies below `$ABIDE_HOME/agents` and is the authority (decision 0017):
//!
//! | file | contents |
//! |---|---|
//! | `folder.json` | device and inode of the state folder, and its path |
//! | `written` | length and SHA-256 of the journal, and of the lines that are about to be appended |
//! | `lines` | 8 bytes of each line's SHA-256; names the first line that differs, and decides nothing |
//! | `lock` | held by the process that works in the state folder |
//! | `secrets` | sensitive answers |
//! | `sessions` | keepers of sessions |
//! | `calls` | the call at work and some before it: the record of each, and its keeper |
//!
//! `written` has three slots that are written in turn. The order is: announce lines and sync, append them to the journal
//! and sync, confirm them without a sync. The slot before the last announcement is therefore always durable, so a power
//! failure in the middle of a write leaves a slot that is older by at most one append.
//!
//! Not here: what the journal's lines mean.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{clock, private, tool::FormerSessions};

/// A state folder and where the home keeps its record.
#[derive(Clone, Debug)]
pub struct StateFolder {
    /// Such as `WORKDIR/.abide`.
    pub path: PathBuf,
    /// The records of all state folders: `$ABIDE_HOME/agents`.
    pub records: PathBuf,
    /// The name of the record, if the caller knows one that is unique. Otherwise a random id in the state folder names it.
    pub record_id: Option<String>,
    pub origin: Origin,
}

/// Where a state folder without a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It may come from anywhere.
    Unknown,
    /// The home knows that an earlier version, which kept no record, made it.
    EarlierVersion,
}

/// What is done about a state folder that is not as Abide left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnForeign {
    Refuse,
    /// Its journal is used as history only.
    Adopt,
}

/// How a record and its state folder were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The record is about this folder. The journal has to be compared with it.
    Recorded,
    /// The folder was empty.
    New,
    /// An earlier version made the folder.
    EarlierVersion,
    /// A person adopted the folder.
    Adopted,
}

/// Why a state folder cannot be used.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// Abide did not write this entry of the state folder.
    Foreign {
        name: &'static str,
    },
    /// A link where a folder or file of Abide's own should be.
    Link(PathBuf),
    Io {
        path: PathBuf,
        source: io::Error,
    },
}

/// The home's record of one state folder.
#[derive(Debug)]
pub(crate) struct Record {
    slots: File,
    lines: File,
    /// Number of the newest slot.
    number: u64,
    written: Written,
    /// Hash of everything that is confirmed.
    hash: Sha256,
    /// Number of lines in `lines`.
    line_count: u64,
}

/// The part of a journal that Abide wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    length: u64,
    sha256: String,
    /// What is being appended to it.
    announced: Option<Announced>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Announced {
    length: u64,
    sha256: String,
}

/// What a comparison of a journal with its record came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Abide wrote the first so many bytes. The rest is a torn piece of an append that never returned.
    Ours { length: usize },
    /// The first line that differs, from 1.
    Foreign { line: usize },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    /// Where it was when the record was made.
    path: PathBuf,
    /// Whether an earlier version made the folder, so that keepers of its sessions may lie in it.
    #[serde(default)]
    is_former: bool,
}

const FOLDER: &str = "folder.json";
const WRITTEN: &str = "written";
const LINES: &str = "lines";
/// The random id in the state folder that names its record.
const ID: &str = "id";
const SLOT_BYTES: usize = 512;
const SLOTS: u64 = 3;
const LINE_BYTES: usize = 8;

/// What makes a state folder without a record foreign. A `.gitignore` and the folders of named sessions do not.
const CONTENTS: [&str; 7] =
    [crate::memory::JOURNAL, "interaction.json", "executions", "sessions", "secrets", "lock", ID];

impl StateFolder {
    /// Finds the folder's record, or makes one. A folder that is refused stays as it is.
    pub(crate) fn record_folder(&self, on_foreign: OnForeign) -> Result<(PathBuf, Standing), Unusable> {
        self.refuse_links()?;
        if let Some(found) = self.find()? {
            return Ok((found, Standing::Recorded));
        }
        let foreign = CONTENTS.into_iter().find(|name| fs::symlink_metadata(self.path.join(name)).is_ok());
        let standing = match (foreign, self.origin, on_foreign) {
            (None, ..) => Standing::New,
            (Some(_), Origin::EarlierVersion, _) => Standing::EarlierVersion,
            (Some(_), Origin::Unknown, OnForeign::Adopt) => Standing::Adopted,
            (Some(name), Origin::Unknown, OnForeign::Refuse) => return Err(Unusable::Foreign { name }),
        };
        let fail = |source| Unusable::Io { path: self.path.clone(), source };
        make(&self.path).map_err(fail)?;
        match self.make_record(standing) {
            // Another process was faster, and its record is the one that counts.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = self.find()?.ok_or(Unusable::Foreign { name: ID })?;
                Ok((found, Standing::Recorded))
            }
            made => made.map(|record| (record, standing)).map_err(fail),
        }
    }

    /// Whether keepers of an earlier version may lie in the folder of this record.
    pub(crate) fn former_sessions(record: &Path) -> FormerSessions {
        let bytes = fs::read(record.join(FOLDER)).unwrap_or_default();
        match serde_json::from_slice(&bytes) {
            Ok(Identity { is_former: true, .. }) => FormerSessions::Served,
            Ok(_) | Err(_) => FormerSessions::None,
        }
    }

    /// Other records about a folder at this path. Their folders were deleted or moved away.
    pub(crate) fn former_records(&self, own: &Path) -> Vec<PathBuf> {
        let records = fs::read_dir(&self.records).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_former = |record: &PathBuf| {
            let bytes = fs::read(record.join(FOLDER)).unwrap_or_default();
            let known = serde_json::from_slice::<Identity>(&bytes);
            record != own && known.is_ok_and(|known| known.path == self.path)
        };
        records.filter(is_former).collect()
    }

    /// Abide's own folders below a workspace are never links.
    fn refuse_links(&self) -> Result<(), Unusable> {
        let is_own = |path: &&Path| path.components().any(|part| part.as_os_str() == ".abide");
        let folders = self.path.ancestors().take_while(is_own).map(Path::to_owned);
        let parts = ["executions", "sessions"].map(|name| self.path.join(name));
        match folders.chain(parts).find(|path| fs::symlink_metadata(path).is_ok_and(|of| of.is_symlink())) {
            Some(link) => Err(Unusable::Link(link)),
            None => Ok(()),
        }
    }

    fn find(&self) -> Result<Option<PathBuf>, Unusable> {
        let Some(id) = self.record_id.clone().or_else(|| self.read_id()) else { return Ok(None) };
        let record = self.records.join(id);
        let path = record.join(FOLDER);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Unusable::Io { path, source }),
        };
        let known: Identity = serde_json::from_slice(&bytes)
            .map_err(|error| Unusable::Io { path, source: io::Error::from(error) })?;
        let is_same = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (known.device, known.inode));
        Ok(is_same.then_some(record))
    }

    /// The id in the state folder, if it can be the name of a record.
    fn read_id(&self) -> Option<String> {
        let id = private::read_bounded(&self.path.join(ID), 64).ok()?;
        let id = String::from_utf8(id).ok()?.trim().to_owned();
        let is_name = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_name.then_some(id)
    }

    /// Makes a record about the folder that is there now.
    fn make_record(&self, standing: Standing) -> io::Result<PathBuf> {
        private::folder(&self.records)?;
        let id = self.record_id.clone().unwrap_or_else(|| clock::fresh(24));
        let record = self.records.join(&id);
        // One of the same name is about a folder that is gone.
        for name in [WRITTEN, LINES] {
            remove(&record.join(name))?;
        }
        private::folder(&record)?;
        let found = fs::symlink_metadata(&self.path)?;
        let identity = Identity {
            device: found.dev(),
            inode: found.ino(),
            path: self.path.clone(),
            is_former: standing == Standing::EarlierVersion,
        };
        private::replace(&record.join(FOLDER), &serde_json::to_vec_pretty(&identity)?)?;
        if self.record_id.is_none() {
            let path = self.path.join(ID);
            if standing != Standing::New {
                remove(&path)?;
            }
            let file = private::open(private::options().create_new(true).write(true), &path);
            if file.is_err() {
                fs::remove_dir_all(&record)?;
            }
            let mut file = file?;
            file.write_all(format!("{id}\n").as_bytes())?;
            file.sync_all()?;
        }
        Ok(record)
    }
}

impl Record {
    /// Opens the files of a record. The caller holds its lock.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let open = |name: &str| {
            private::open(
                private::options().create(true).truncate(false).read(true).write(true),
                &folder.join(name),
            )
        };
        let slots = open(WRITTEN)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut &slots, &mut bytes)?;
        let newest = bytes.chunks(SLOT_BYTES).filter_map(parse_slot).max_by_key(|(number, _)| *number);
        let (number, written) = newest.unwrap_or((0, Written::default()));
        let lines = open(LINES)?;
        let line_count = lines.metadata()?.len() / LINE_BYTES as u64;
        Ok(Self { slots, lines, number, written, hash: Sha256::new(), line_count })
    }

    /// Compares a journal with the record.
    pub(crate) fn compare(&self, journal: &[u8]) -> Verdict {
        let Written { length, sha256, announced } = &self.written;
        let own = usize::try_from(*length).ok().and_then(|length| journal.split_at_checked(length));
        let foreign = || Verdict::Foreign { line: self.first_difference(journal) };
        let Some((own, rest)) = own else { return foreign() };
        if *length > 0 && digest(own) != *sha256 {
            return foreign();
        }
        let rest_length = rest.len() as u64;
        match announced {
            Some(announced) if announced.length == rest_length && announced.sha256 == digest(rest) => {
                Verdict::Ours { length: journal.len() }
            }
            // Nothing was done about lines that were not confirmed, so a piece of them can go.
            Some(announced) if rest_length <= announced.length => Verdict::Ours { length: own.len() },
            None if rest.is_empty() => Verdict::Ours { length: own.len() },
            Some(_) | None => foreign(),
        }
    }

    /// Takes this as the journal from now on.
    pub(crate) fn restart(&mut self, journal: &[u8]) -> io::Result<()> {
        self.hash = Sha256::new();
        self.line_count = 0;
        self.lines.set_len(0)?;
        self.written.length = 0;
        self.advance(journal)?;
        self.save()?;
        self.slots.sync_data()
    }

    /// Records what is about to be appended. It is durable when this returns.
    pub(crate) fn announce(&mut self, lines: &[u8]) -> io::Result<()> {
        self.written.announced = Some(Announced { length: lines.len() as u64, sha256: digest(lines) });
        self.save()?;
        self.slots.sync_data()
    }

    /// Records that the announced lines were appended. Lost in a power failure, it is found out by comparing.
    pub(crate) fn confirm(&mut self, lines: &[u8]) -> io::Result<()> {
        self.advance(lines)?;
        self.save()
    }

    fn advance(&mut self, lines: &[u8]) -> io::Result<()> {
        self.hash.update(lines);
        self.written.length += lines.len() as u64;
        self.written.sha256 = hex(&self.hash.clone().finalize());
        self.written.announced = None;
        let short: Vec<u8> = split(lines).flat_map(short_digest).collect();
        self.lines.write_all_at(&short, self.line_count * LINE_BYTES as u64)?;
        self.line_count += (short.len() / LINE_BYTES) as u64;
        Ok(())
    }

    fn save(&mut self) -> io::Result<()> {
        self.number += 1;
        let json = serde_json::to_string(&(self.number, &self.written))?;
        let mut slot = format!("{} {json}", &digest(json.as_bytes())[..16]).into_bytes();
        slot.resize(SLOT_BYTES - 1, b' ');
        slot.push(b'\n');
        self.slots.write_all_at(&slot, (self.number % SLOTS) * SLOT_BYTES as u64)
    }

    /// The number of the first line that is not the one that was written, from 1.
    fn first_difference(&self, journal: &[u8]) -> usize {
        let mut known = vec![0; usize::try_from(self.line_count).unwrap_or_default() * LINE_BYTES];
        if self.lines.read_exact_at(&mut known, 0).is_err() {
            known.clear();
        }
        let mut known = known.chunks(LINE_BYTES);
        let same =
            split(journal).take_while(|line| known.next().is_some_and(|known| known == short_digest(line)));
        same.count() + 1
    }
}

fn parse_slot(slot: &[u8]) -> Option<(u64, Written)> {
    let (check, json) = std::str::from_utf8(slot).ok()?.trim_end().split_once(' ')?;
    if digest(json.as_bytes())[..16] != *check {
        return None;
    }
    serde_json::from_str(json).ok()
}

fn split(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines.split_inclusive(|byte| *byte == b'\n')
}

fn short_digest(line: &[u8]) -> [u8; LINE_BYTES] {
    let mut short = [0; LINE_BYTES];
    short.copy_from_slice(&Sha256::digest(line)[..LINE_BYTES]);
    short
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Makes the state folder, private and out of sight of version control.
fn make(state: &Path) -> io::Result<()> {
    private::folder(state)?;
    let ignore = state.join(".gitignore");
    if fs::symlink_metadata(&ignore).is_err() {
        private::open(private::options().create_new(true).write(true), &ignore)?.write_all(b"*\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
