//! A log in files of limited size and number: `daemon.log`, older files as `daemon.log.1` and so on.
//!
//! Logging must never block or fail the daemon. A line that cannot be written (full disk, missing folder) is dropped
//! and counted, and the next line reports the count. A dropped line leaves no partial line in the file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

const LOG_FILE: &str = "daemon.log";

/// The log files. Clones share the same files.
#[derive(Clone, Debug)]
pub(super) struct RotatingLog(Arc<Mutex<LogFiles>>);

#[derive(Debug)]
struct LogFiles {
    folder: PathBuf,
    max_bytes: u64,
    count: u32,
    /// The newest file and its size in bytes; `None` while it cannot be opened.
    newest: Option<(File, u64)>,
    /// Lines dropped since the last written one.
    dropped_lines: u64,
}

impl RotatingLog {
    /// Opens the log in this folder, which is created if missing. An existing file is appended to.
    pub(super) fn open(folder: &Path, max_bytes: u64, count: u32) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut files = LogFiles {
            folder: folder.to_owned(),
            max_bytes,
            count: count.max(1),
            newest: None,
            dropped_lines: 0,
        };
        files.newest = Some(files.open_newest()?);
        Ok(Self(Arc::new(Mutex::new(files))))
    }

    /// Writes a whole line, or drops it.
    fn write_line(&self, line: &[u8]) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = files.dropped_lines;
        let written = if dropped > 0 {
            let note = format!("{dropped} lines left out: they could not be written\n");
            files.write(note.as_bytes()).and_then(|()| {
                files.dropped_lines = 0;
                files.write(line)
            })
        } else {
            files.write(line)
        };
        if written.is_err() {
            files.dropped_lines += 1;
        }
    }
}

impl LogFiles {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if self.newest.as_ref().is_some_and(|(_, size)| *size > 0 && size + length > self.max_bytes) {
            self.rotate()?;
        }
        let (mut file, size) = match self.newest.take() {
            Some(newest) => newest,
            None => self.open_newest()?,
        };
        let written = file.write_all(line);
        if written.is_err() {
            // A partial line is removed, so that the next line begins at a line start.
            // If that fails, the note about dropped lines ends the partial line.
            file.set_len(size).ok();
        }
        let size = if written.is_ok() { size + length } else { size };
        self.newest = Some((file, size));
        written
    }

    /// Rotates the files. Each step is a rename, so a crash loses no file that should be kept.
    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..self.count).rev() {
            let older = self.path(number - 1);
            match fs::rename(&older, self.path(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        if self.count == 1 {
            let (file, size) = match self.newest.take() {
                Some(newest) => newest,
                None => return Ok(()),
            };
            if let Err(error) = file.set_len(0) {
                self.newest = Some((file, size));
                return Err(error);
            }
            self.newest = Some((file, 0));
            return Ok(());
        }
        self.newest = None;
        Ok(())
    }

    fn open_newest(&self) -> io::Result<(File, u64)> {
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(0o600).open(self.path(0))?;
        let size = file.metadata()?.len();
        Ok((file, size))
    }

    fn path(&self, number: u32) -> PathBuf {
        if number == 0 {
            self.folder.join(LOG_FILE)
        } else {
            self.folder.join(format!("{LOG_FILE}.{number}"))
        }
    }
}

/// A writer that never fails.
#[derive(Debug)]
pub(super) struct LogWriter(RotatingLog);

impl<'w> MakeWriter<'w> for RotatingLog {
    type Writer = LogWriter;

    fn make_writer(&'w self) -> LogWriter {
        LogWriter(self.clone())
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_line(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sizes(folder: &Path) -> Vec<(String, u64)> {
        let mut files: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .collect();
        files.sort();
        files
    }

    #[test]
    fn files_are_bounded_in_size_and_number_and_the_newest_lines_are_kept_whole_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let log = RotatingLog::open(folder.path(), 100, 3).unwrap();
        for number in 0..50 {
            log.write_line(format!("line {number:05} of the log\n").as_bytes());
        }
        let files = sizes(folder.path());
        assert_eq!(files.len(), 3);
        assert!(files.iter().all(|(_, size)| *size <= 100), "{files:?}");
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let all = [read("daemon.log.2"), read("daemon.log.1"), read("daemon.log")].concat();
        let expected: Vec<_> =
            (50 - all.lines().count()..50).map(|it| format!("line {it:05} of the log")).collect();
        assert_eq!(all.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_single_file_is_truncated_and_a_restart_appends() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(LOG_FILE);
        RotatingLog::open(folder.path(), 20, 1).unwrap().write_line(b"0123456789\n");
        let log = RotatingLog::open(folder.path(), 20, 1).unwrap();
        log.write_line(b"short\n");
        assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789\nshort\n");
        log.write_line(b"another\n");
        assert_eq!(fs::read_to_string(&file).unwrap(), "another\n");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn lines_dropped_on_a_full_disk_are_counted_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        let log = RotatingLog::open(folder.path(), 1000, 2).unwrap();
        log.write_line(b"before\n");
        // `/dev/full` simulates a full disk.
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let kept = log.0.lock().unwrap().newest.replace((full, 0));
        for _ in 0..3 {
            log.write_line(b"lost\n");
        }
        log.0.lock().unwrap().newest = kept;
        log.write_line(b"after\n");
        let log = fs::read_to_string(folder.path().join(LOG_FILE)).unwrap();
        assert_eq!(log, "before\n3 lines left out: they could not be written\nafter\n");
    }

    #[test]
    fn a_deleted_log_folder_does_not_block_logging() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("logs");
        let log = RotatingLog::open(&inner, 10, 2).unwrap();
        fs::remove_dir_all(&inner).unwrap();
        for _ in 0..5 {
            log.write_line(b"a line that needs a new file\n");
        }
        assert!(log.0.lock().unwrap().dropped_lines > 0);
        fs::create_dir(&inner).unwrap();
        log.write_line(b"back\n");
        assert!(fs::read_to_string(inner.join(LOG_FILE)).unwrap().ends_with("back\n"));
    }
}
