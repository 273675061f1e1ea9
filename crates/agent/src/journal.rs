//! The journal file: one event per line, appended and synced before the event is acted upon or shown.
//!
//! A kill during a write leaves a part of the lines that were announced to the home's record. They were not acted upon,
//! so this torn tail is moved to a separate file and the journal continues before it (decisions 0013, 0017). Any other
//! difference from the record makes the journal foreign: the error names file and line, and the file is not changed. A
//! journal without a record (adopted, or of an earlier version) is repaired by its contents alone: a truncated last
//! line and a reply without all of its requests are moved away.
//!
//! The meaning of events is in `journal_state`, and the record is in `provenance`.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use abide_os::failpoint;

use crate::{
    agent_state::JOURNAL_FILE,
    clock,
    event::{AgentEvent, AgentJournalEntry},
    provenance::{ForeignStatePolicy, JournalVerdict, ProvenanceRecord, StateStanding},
    state_directory::StateDirectory,
};

/// A journal that is open for appending.
#[derive(Debug)]
pub struct AgentJournal {
    file: File,
    state: StateDirectory,
    path: PathBuf,
    record: ProvenanceRecord,
    length_bytes: u64,
    next_seq: u64,
}

/// The result of opening a journal.
#[derive(Debug)]
pub(crate) struct OpenedJournal {
    pub(crate) journal: AgentJournal,
    pub(crate) entries: Vec<AgentJournalEntry>,
    /// The file that received the torn tail.
    pub(crate) torn_tail_path: Option<PathBuf>,
    /// Whether the journal was foreign and serves as history only.
    pub(crate) is_adopted: bool,
    /// Whether the journal of an earlier run was deleted, so that this one is new.
    pub(crate) was_deleted: bool,
}

/// The contents of a journal file.
#[derive(Debug, Default, PartialEq)]
pub struct ParsedJournal {
    pub entries: Vec<AgentJournalEntry>,
    /// The torn tail, if there is one.
    pub torn_tail: Option<TornTail>,
    /// Whether the last line lacks only its newline.
    lacks_newline: bool,
}

/// The end of a journal that a kill truncated.
#[derive(Debug, PartialEq, Eq)]
pub struct TornTail {
    /// In bytes from the start of the file.
    offset: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: {reason}", path.display())]
    Broken { path: PathBuf, line: usize, reason: String },
    #[error("{}, line {line}: {reason}. {ADOPT_ADVICE}", path.display())]
    Foreign { path: PathBuf, line: usize, reason: String },
    #[error(
        "{} was deleted or replaced while the agent worked or waited; its sessions were ended, and nothing more is recorded", 
        path.display()
    )]
    Gone { path: PathBuf },
    #[error("an event cannot be written as JSON")]
    Unwritable(#[from] serde_json::Error),
}

impl AgentJournal {
    /// Opens or creates the journal, compares it with its record, and repairs a torn tail. The caller holds the
    /// record's lock. A refused journal is not changed.
    pub(crate) fn open(
        state: &StateDirectory,
        mut record: ProvenanceRecord,
        standing: StateStanding,
        on_foreign: ForeignStatePolicy,
    ) -> Result<OpenedJournal, JournalError> {
        let path = &state.path().join(JOURNAL_FILE);
        let fail = |source| JournalError::Io { path: path.clone(), source };
        let parsed = read(state).map_err(fail)?;
        let is_lost = parsed.is_none() && standing == StateStanding::Recorded && !record.is_empty();
        let mut bytes = parsed.unwrap_or_default();
        let verdict = match standing {
            StateStanding::Recorded if is_lost => None,
            StateStanding::Recorded => Some(record.compare(&bytes)),
            StateStanding::New | StateStanding::EarlierVersion | StateStanding::Adopted => None,
        };
        let (parsed, is_adopted) = match (verdict, on_foreign) {
            (Some(JournalVerdict::Ours { length }), _) => {
                let mut parsed = parse(path, &bytes[..length])?;
                if length < bytes.len() {
                    parsed.mark_torn(length, false, &bytes);
                }
                (parsed, false)
            }
            (Some(JournalVerdict::Foreign { line }), ForeignStatePolicy::Refuse) => {
                return Err(foreign_error(path, line, &bytes));
            }
            (Some(JournalVerdict::Foreign { .. }), ForeignStatePolicy::Adopt) => (parse(path, &bytes)?, true),
            (None, _) => (parse(path, &bytes)?, standing == StateStanding::Adopted),
        };
        let ParsedJournal { entries, torn_tail: torn, lacks_newline: unended } = parsed;
        let mut file = state.append(JOURNAL_FILE).map_err(|error| fail(error.into()))?;
        let mut torn_tail_path = None;
        if let Some(torn) = torn {
            torn_tail_path = Some(save_torn_tail(state, &torn).map_err(fail)?);
            file.set_len(torn.offset).map_err(fail)?;
            bytes.truncate(usize::try_from(torn.offset).unwrap_or(usize::MAX));
        } else if unended {
            file.write_all(b"\n").map_err(fail)?;
            bytes.push(b'\n');
        }
        file.sync_all().map_err(fail)?;
        state.directory().sync().map_err(|error| fail(error.into()))?;
        record.reset(&bytes).map_err(fail)?;
        let next = entries.last().map_or(1, |entry| entry.seq + 1);
        let journal = Self {
            file,
            state: state.clone(),
            path: path.clone(),
            record,
            length_bytes: bytes.len() as u64,
            next_seq: next,
        };
        Ok(OpenedJournal { journal, entries, torn_tail_path, is_adopted, was_deleted: is_lost })
    }

    /// Reads a journal without changes. A missing file is an empty journal.
    pub fn read(state: &StateDirectory) -> Result<ParsedJournal, JournalError> {
        let path = state.path().join(JOURNAL_FILE);
        match read(state) {
            Ok(bytes) => parse(&path, &bytes.unwrap_or_default()),
            Err(source) => Err(JournalError::Io { path, source }),
        }
    }

    /// The sequence number of the next event.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Appends events atomically. They are durable when this returns.
    pub fn append(&mut self, events: Vec<AgentEvent>) -> Result<Vec<AgentJournalEntry>, JournalError> {
        let ts = clock::now();
        let mut entries = Vec::with_capacity(events.len());
        let mut text = String::new();
        for (seq, event) in (self.next_seq..).zip(events) {
            let entry = AgentJournalEntry { seq, ts: ts.clone(), event };
            text.push_str(&entry.to_line()?);
            text.push('\n');
            entries.push(entry);
        }
        self.check_in_place()?;
        let path = self.path.clone();
        let fail = |source| JournalError::Io { path: path.clone(), source };
        self.record.announce(text.as_bytes()).map_err(fail)?;
        failpoint::reach("before_write");
        if let Err(source) = self.write(text.as_bytes()) {
            // After a write error, for instance of a full disk, a partial line must not precede the next event. The
            // next start repairs a failed truncation.
            self.file.set_len(self.length_bytes).ok();
            return Err(fail(source));
        }
        failpoint::reach("after_write");
        self.record.confirm(text.as_bytes()).map_err(fail)?;
        self.length_bytes += text.len() as u64;
        self.next_seq += entries.len() as u64;
        Ok(entries)
    }

    /// Fails if the file at the journal's path is not the open one, because writes would be lost.
    pub(crate) fn check_in_place(&self) -> Result<(), JournalError> {
        let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let own = identity(&self.file);
        let own = own.map_err(|source| JournalError::Io { path: self.path.clone(), source })?;
        let at_path = self.state.directory().open_file(JOURNAL_FILE);
        let is_same = at_path.is_ok_and(|file| identity(&file).is_ok_and(|current| current == own));
        if is_same && self.state.is_in_place() {
            return Ok(());
        }
        Err(self.gone_error())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if failpoint::is_installed() {
            let (first, second) = bytes.split_at(bytes.len() / 2);
            self.file.write_all(first)?;
            failpoint::reach("mid_write");
            self.file.write_all(second)?;
        } else {
            self.file.write_all(bytes)?;
        }
        self.file.sync_data()
    }
}

/// The remedy in errors about foreign journals.
pub(crate) const ADOPT_ADVICE: &str = "Nothing was changed. With --adopt it is used as history only: open calls get an unknown \
                                result, and its sessions, secrets and open question are not used";

/// The error for a foreign journal. A syntax error from that line on is reported instead, because it is more specific.
fn foreign_error(path: &Path, line: usize, bytes: &[u8]) -> JournalError {
    let reason = match parse(path, bytes) {
        Err(JournalError::Broken { line: broken, reason, .. }) if broken == line => reason,
        _ if bytes.is_empty() => "abide wrote a journal here, but the file is empty".to_owned(),
        _ => "abide did not write this line, or a line that it wrote here is missing; the file was left as it is".to_owned(),
    };
    JournalError::Foreign { path: path.to_owned(), line, reason }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<ParsedJournal, JournalError> {
    let broken = |line: usize, reason: String| JournalError::Broken { path: path.to_owned(), line, reason };
    let mut journal = ParsedJournal::default();
    // The offset of the current batch, and the number of requests that it still lacks.
    let mut batch: Option<(usize, u64)> = None;
    let mut offset = 0;
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let (number, start) = (index + 1, offset);
        offset += line.len();
        let ended = line.last() == Some(&b'\n');
        if ended && line.trim_ascii().is_empty() {
            continue;
        }
        let entry = match AgentJournalEntry::parse(line) {
            Ok(entry) => entry,
            Err(_) if offset == bytes.len() && is_truncated_line(line) => {
                let offset = batch.map_or(start, |(start, _)| start);
                journal.mark_torn(offset, batch.is_some(), bytes);
                return Ok(journal);
            }
            Err(error) => return Err(broken(number, explain_parse_error(line, &error))),
        };
        journal.lacks_newline = !ended;
        let expected = journal.entries.last().map_or(1, |entry| entry.seq + 1);
        if entry.seq != expected {
            return Err(broken(number, format!("expected event {expected}, found event {}", entry.seq)));
        }
        batch = match (batch, &entry.event) {
            (None, AgentEvent::Thought(thought)) if thought.calls > 0 => Some((start, thought.calls)),
            (Some((_, 1)), AgentEvent::ActionRequest(_)) => None,
            (Some((start, missing_requests)), AgentEvent::ActionRequest(_)) => {
                Some((start, missing_requests - 1))
            }
            (Some((_, missing_requests)), _) => {
                return Err(broken(
                    number,
                    format!("{missing_requests} requests of the preceding thought are missing"),
                ));
            }
            (None, AgentEvent::ActionRequest(_)) => {
                return Err(broken(number, "this request belongs to no thought".to_owned()));
            }
            (
                None,
                AgentEvent::RunStart(_)
                | AgentEvent::RunEnd(_)
                | AgentEvent::UserMessage(_)
                | AgentEvent::Thought(_)
                | AgentEvent::ActionResult(_)
                | AgentEvent::SystemMessage(_),
            ) => None,
        };
        journal.entries.push(entry);
    }
    if let Some((start, _)) = batch {
        journal.mark_torn(start, true, bytes);
    }
    Ok(journal)
}

impl AgentJournal {
    pub(crate) fn gone_error(&self) -> JournalError {
        JournalError::Gone { path: self.path.clone() }
    }
}

impl JournalError {
    /// The error for a journal without a record.
    pub(crate) fn unrecorded(path: &Path) -> Self {
        let reason =
            "abide has no record that it wrote this journal here; the file was left as it is".to_owned();
        Self::Foreign { path: path.to_owned(), line: 1, reason }
    }
}

impl ParsedJournal {
    /// Marks the bytes from `offset` on as torn. If a batch is incomplete, its reply is removed as well.
    fn mark_torn(&mut self, offset: usize, batch: bool, bytes: &[u8]) {
        if batch {
            let thought =
                self.entries.iter().rposition(|entry| matches!(entry.event, AgentEvent::Thought(_)));
            self.entries.truncate(thought.unwrap_or(0));
        }
        self.lacks_newline = false;
        self.torn_tail = Some(TornTail { offset: offset as u64, bytes: bytes[offset..].to_vec() });
    }
}

/// Whether this can be a truncated line: a prefix of a JSON object, optionally followed by zeros of blocks that did not
/// reach the disk.
fn is_truncated_line(line: &[u8]) -> bool {
    let prefix = match line.iter().position(|byte| *byte == 0) {
        None if line.ends_with(b"\n") => return false,
        None => line,
        Some(at) => {
            // A single zero between other bytes is not a hole: text in UTF-16 has one beside each letter.
            let zeros = line[at..].iter().take_while(|byte| **byte == 0).count();
            if zeros == 1 && !line[at + 1..].trim_ascii().is_empty() {
                return false;
            }
            &line[..at]
        }
    };
    if !prefix.is_empty() && prefix[0] != b'{' {
        return false;
    }
    // A cut inside a character or a number is not reported as a syntax error.
    let text = match std::str::from_utf8(prefix) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&prefix[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let text = text.trim_end_matches(|c: char| c.is_ascii_digit() || "+-.eE".contains(c));
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_err_and(|error| error.is_eof())
}

/// The reason why a line cannot be parsed, for users.
fn explain_parse_error(line: &[u8], error: &serde_json::Error) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim();
    if text.starts_with('\u{feff}') {
        return "the file begins with a byte order mark, which an editor has put there. Save it as UTF-8 without one; \
                the file was left as it is"
            .to_owned();
    }
    if line.starts_with(&[0xff, 0xfe]) || line.starts_with(&[0xfe, 0xff]) || line.contains(&0) {
        return "the file is not in UTF-8: an editor has saved it in another encoding. Save it as UTF-8 without a byte \
                order mark; the file was left as it is"
            .to_owned();
    }
    // Several events in one line, with or without a comma or brackets.
    let events = text.matches("\"payload\":").count() > 1 && text.matches("\"seq\":").count() > 1;
    if events && !error.is_eof() {
        return "several events stand in one line: the file was reformatted, perhaps by an editor that formats JSON. \
                Each event must stand in a line of its own (`jq -c . FILE` writes them so, or `jq -c .[] FILE` for a \
                list); the file was left as it is"
            .to_owned();
    }
    // An object that spans lines, or a list around all events.
    let spans = error.is_eof() || matches!(text, "{" | "[" | "}" | "]" | "},") || text.starts_with('[');
    if spans {
        return "an event does not end in the line in which it begins: the file was reformatted, perhaps by an \
                editor that formats JSON. Each event must stand in one line (`jq -c . FILE` writes them so); the \
                file was left as it is"
            .to_owned();
    }
    format!("this is not a journal event ({error}); the file was left as it is")
}

/// The bytes of the journal; `None` if the file does not exist.
fn read(state: &StateDirectory) -> io::Result<Option<Vec<u8>>> {
    match state.directory().read_bounded(JOURNAL_FILE, MAX_JOURNAL_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Far above the size of any model's context.
const MAX_JOURNAL_BYTES: u64 = 4 << 30;

/// Writes the torn tail to a new file beside the journal.
fn save_torn_tail(state: &StateDirectory, torn: &TornTail) -> io::Result<PathBuf> {
    for number in 1_u32.. {
        let name = format!("journal.torn-{number}");
        match state.directory().create_file(&name, 0o600) {
            Ok(mut file) => {
                file.write_all(&torn.bytes)?;
                file.sync_all()?;
                return Ok(state.path().join(name));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("there are too many files with torn tails; delete old ones"))
}

#[cfg(test)]
mod tests;
