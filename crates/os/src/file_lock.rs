//! Advisory locks on files (`flock`): one process at a time. The kernel releases a lock when its holder ends.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};

/// A held exclusive lock.
///
/// Dropping it unlocks the file. Closing the file is not sufficient: a child process that is being started has a copy of
/// the descriptor until it executes its program.
#[derive(Debug)]
pub struct FileLock(File);

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum FileLockError {
    /// The contents of the file, where the holder may have written its name.
    #[error("another process holds the lock")]
    Held(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Maximum length of a holder's name, in bytes.
const MAX_HOLDER_BYTES: u64 = 1 << 10;

impl FileLock {
    /// Acquires the lock if it is free. The file must be open for reading if the holder's name is wanted.
    pub fn try_acquire(file: File) -> Result<Self, FileLockError> {
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(FileLockError::Held(holder(&file))),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Acquires the lock, and blocks while another process holds it.
    pub fn acquire(file: File) -> io::Result<Self> {
        file.lock()?;
        Ok(Self(file))
    }

    /// The contents of the file.
    pub fn text(&self) -> String {
        holder(&self.0)
    }

    /// Replaces the contents of the file, usually by the name of the holder.
    pub fn set_text(&mut self, text: &str) -> io::Result<()> {
        self.0.rewind()?;
        self.0.set_len(0)?;
        self.0.write_all(text.as_bytes())
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // It can only fail for a file that is closed or not lockable, which then is not locked.
        self.0.unlock().ok();
    }
}

/// Whether another process holds the lock of this file.
pub fn is_held(file: &File) -> bool {
    // The shared lock ends when the caller closes the file.
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// The holder may be writing its name at this moment, so the text may be empty.
fn holder(mut file: &File) -> String {
    let mut text = Vec::new();
    if file.rewind().is_ok() {
        file.take(MAX_HOLDER_BYTES).read_to_end(&mut text).ok();
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn open(path: &Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    #[test]
    fn a_held_lock_is_refused_with_its_holder_and_free_after_the_drop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let mut lock = FileLock::try_acquire(open(&path)).unwrap();
        lock.set_text("a longer name\n").unwrap();
        lock.set_text("process 7\n").unwrap();
        assert_eq!(lock.text(), "process 7");
        assert!(is_held(&open(&path)));
        match FileLock::try_acquire(open(&path)) {
            Err(FileLockError::Held(holder)) => assert_eq!(holder, "process 7"),
            other => panic!("{other:?}"),
        }
        drop(lock);
        assert!(!is_held(&open(&path)));
        FileLock::acquire(open(&path)).unwrap();
    }

    #[test]
    fn a_drop_unlocks_also_if_another_descriptor_of_the_file_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = open(&path);
        let copy = file.try_clone().unwrap();
        drop(FileLock::try_acquire(file).unwrap());
        FileLock::try_acquire(open(&path)).unwrap();
        drop(copy);
    }
}
