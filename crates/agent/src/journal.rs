//! The journal file: one event a line, appended and synced before anything is done about it or shown.
//!
//! A kill in the middle of a write leaves a last line that is cut, or a thought without all of its requests. Neither was
//! acted on, so both are put aside in a file of their own and the journal goes on before them (decision 0013). Only a
//! prefix of the line that would have come next counts as cut. Anything else that cannot be read was changed by another
//! program: an error names file and line, and the file stays as it is.
//!
//! Not here: what the events mean.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use crate::{
    clock,
    event::{Entry, Event},
    failpoint::{self, Point},
    private,
};

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    length: u64,
    next: u64,
}

/// What was found in a file.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    pub entries: Vec<Entry>,
    /// What was cut at the end, if anything.
    pub torn: Option<Torn>,
    /// The last line lacks only its end.
    unended: bool,
}

/// The end of a journal that a kill cut.
#[derive(Debug, PartialEq, Eq)]
pub struct Torn {
    /// Where it begins.
    offset: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: {why}", path.display())]
    Broken { path: PathBuf, line: usize, why: String },
    #[error("an event cannot be written as JSON")]
    Unwritable(#[from] serde_json::Error),
}

impl Journal {
    /// Opens or makes the journal, reads it, and repairs a cut end. Whoever calls this holds the folder's lock.
    pub fn open(path: &Path) -> Result<(Self, Vec<Entry>, Option<PathBuf>), JournalError> {
        let fail = |source| JournalError::Io { path: path.to_owned(), source };
        let mut file = private::options().create(true).read(true).append(true).open(path).map_err(fail)?;
        private::tighten(&file).map_err(fail)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail)?;
        let Found { entries, torn, unended } = parse(path, &bytes)?;
        let mut length = bytes.len() as u64;
        let mut aside = None;
        if let Some(torn) = torn {
            aside = Some(put_aside(path, &torn).map_err(fail)?);
            file.set_len(torn.offset).map_err(fail)?;
            length = torn.offset;
        } else if unended {
            file.write_all(b"\n").map_err(fail)?;
            length += 1;
        }
        file.sync_all().map_err(fail)?;
        sync_folder(path).map_err(fail)?;
        let next = entries.last().map_or(1, |entry| entry.seq + 1);
        Ok((Self { file, path: path.to_owned(), length, next }, entries, aside))
    }

    /// Reads a journal and changes nothing. A file that is not there is an empty one.
    pub fn read(path: &Path) -> Result<Found, JournalError> {
        match std::fs::read(path) {
            Ok(bytes) => parse(path, &bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::default()),
            Err(source) => Err(JournalError::Io { path: path.to_owned(), source }),
        }
    }

    /// The number that the next event will have.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Writes events in one go. When this returns they will be found again, whatever happens.
    pub fn append(&mut self, events: Vec<Event>) -> Result<Vec<Entry>, JournalError> {
        let ts = clock::now();
        let mut entries = Vec::with_capacity(events.len());
        let mut text = String::new();
        for (seq, event) in (self.next..).zip(events) {
            let entry = Entry { seq, ts: ts.clone(), event };
            text.push_str(&entry.line()?);
            text.push('\n');
            entries.push(entry);
        }
        failpoint::reach(Point::BeforeWrite);
        if let Err(source) = self.write(text.as_bytes()) {
            // A full disk must not leave half a line in front of the next event.
            let _it_is_repaired_by_the_next_start = self.file.set_len(self.length);
            return Err(JournalError::Io { path: self.path.clone(), source });
        }
        failpoint::reach(Point::AfterWrite);
        self.length += text.len() as u64;
        self.next += entries.len() as u64;
        Ok(entries)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if cfg!(feature = "failpoints") {
            let (first, second) = bytes.split_at(bytes.len() / 2);
            self.file.write_all(first)?;
            failpoint::reach(Point::MidWrite);
            self.file.write_all(second)?;
        } else {
            self.file.write_all(bytes)?;
        }
        self.file.sync_data()
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Found, JournalError> {
    let broken = |line: usize, why: String| JournalError::Broken { path: path.to_owned(), line, why };
    let mut found = Found::default();
    // Where the batch that is being read began, and how many of its requests are still to come.
    let mut batch: Option<(usize, u64)> = None;
    let mut offset = 0;
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let (number, start) = (index + 1, offset);
        offset += line.len();
        let ended = line.last() == Some(&b'\n');
        if ended && line.trim_ascii().is_empty() {
            continue;
        }
        let entry = match Entry::parse(line) {
            Ok(entry) => entry,
            Err(_) if offset == bytes.len() && is_cut(line) => {
                let offset = batch.map_or(start, |(start, _)| start);
                found.cut(offset, batch.is_some(), bytes);
                return Ok(found);
            }
            Err(error) => return Err(broken(number, explain(line, &error))),
        };
        found.unended = !ended;
        let expected = found.entries.last().map_or(1, |entry| entry.seq + 1);
        if entry.seq != expected {
            return Err(broken(number, format!("expected event {expected}, found event {}", entry.seq)));
        }
        batch = match (batch, &entry.event) {
            (None, Event::Thought(thought)) if thought.calls > 0 => Some((start, thought.calls)),
            (Some((_, 1)), Event::ActionRequest(_)) => None,
            (Some((start, left)), Event::ActionRequest(_)) => Some((start, left - 1)),
            (Some((_, left)), _) => {
                return Err(broken(number, format!("{left} requests of the thought before it are missing")));
            }
            (None, Event::ActionRequest(_)) => {
                return Err(broken(number, "this request belongs to no thought".to_owned()));
            }
            (
                None,
                Event::RunStart(_)
                | Event::RunEnd(_)
                | Event::UserMessage(_)
                | Event::Thought(_)
                | Event::ActionResult(_)
                | Event::SystemMessage(_),
            ) => None,
        };
        found.entries.push(entry);
    }
    if let Some((start, _)) = batch {
        found.cut(start, true, bytes);
    }
    Ok(found)
}

impl Found {
    /// Everything from this place on was cut by a kill; the thought of a batch that is not whole goes with it.
    fn cut(&mut self, offset: usize, batch: bool, bytes: &[u8]) {
        if batch {
            let thought = self.entries.iter().rposition(|entry| matches!(entry.event, Event::Thought(_)));
            self.entries.truncate(thought.unwrap_or(0));
        }
        self.unended = false;
        self.torn = Some(Torn { offset: offset as u64, bytes: bytes[offset..].to_vec() });
    }
}

/// Whether this can be the beginning of a line that was cut by a kill: a prefix of one JSON object, or such a prefix with
/// a hole behind it where blocks never reached the disk.
fn is_cut(line: &[u8]) -> bool {
    let prefix = match line.iter().position(|byte| *byte == 0) {
        None if line.ends_with(b"\n") => return false,
        None => line,
        Some(at) => {
            // One zero between other bytes is no hole: text in UTF-16 has one beside each letter.
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
    // A cut inside a character or a number is no syntax error.
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

/// Why a line cannot be read, for a person.
fn explain(line: &[u8], error: &serde_json::Error) -> String {
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
    // Events that follow each other in one line, with or without a comma or a list around them.
    let events = text.matches("\"payload\":").count() > 1 && text.matches("\"seq\":").count() > 1;
    if events && !error.is_eof() {
        return "several events stand in one line: the file was reformatted, perhaps by an editor that formats JSON. \
                Each event must stand in a line of its own (`jq -c . FILE` writes them so, or `jq -c .[] FILE` for a \
                list); the file was left as it is"
            .to_owned();
    }
    // An object that is opened and not closed, or a list around all: lines are no longer events.
    let spans = error.is_eof() || matches!(text, "{" | "[" | "}" | "]" | "},") || text.starts_with('[');
    if spans {
        return "an event does not end in the line in which it begins: the file was reformatted, perhaps by an \
                editor that formats JSON. Each event must stand in one line (`jq -c . FILE` writes them so); the \
                file was left as it is"
            .to_owned();
    }
    format!("this is no event of a journal ({error}); the file was left as it is")
}

/// Keeps what is cut off beside the journal.
fn put_aside(path: &Path, torn: &Torn) -> io::Result<PathBuf> {
    for number in 1_u32.. {
        let aside = path.with_file_name(format!("journal.torn-{number}"));
        match private::options().create_new(true).write(true).open(&aside) {
            Ok(mut file) => {
                file.write_all(&torn.bytes)?;
                file.sync_all()?;
                return Ok(aside);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("there are too many torn ends"))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests;
