//! Question contents as files in the home: `contents/RUN/SHA256`.
//!
//! A file gets its final name only after it is synced, so a crash leaves at most an unreferenced temporary file. Agents
//! of the same user can write here; a content that does not match its name is not shown.

use std::{
    fmt::{self, Display, Write as _},
    fs::{File, OpenOptions},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use abide_domain::id::RunId;
use abide_ports::contents::{ContentError, ContentStore, StoredContent};
use sha2::{Digest, Sha256};

use crate::created_dirs::{self, DirPurpose};

/// Content store in a home.
#[derive(Debug)]
pub struct ContentFiles {
    pub home: PathBuf,
}

impl ContentFiles {
    fn contents_dir(&self) -> PathBuf {
        self.home.join(DirPurpose::Content.folder())
    }

    fn run_dir(&self, run: RunId) -> PathBuf {
        self.contents_dir().join(run.to_string())
    }
}

impl ContentStore for ContentFiles {
    fn put(&self, run: RunId, text: &dyn Display) -> io::Result<StoredContent> {
        let folder = self.run_dir(run);
        created_dirs::create(&self.home, DirPurpose::Content, &run.to_string())?;
        let unnamed = tempfile::Builder::new().prefix(".new-").tempfile_in(&folder)?;
        let (bytes, sha256) = write_with_digest(unnamed.as_file(), text)?;
        unnamed.as_file().sync_all()?;
        unnamed.persist(folder.join(&sha256)).map_err(|error| error.error)?;
        for directory in [folder, self.contents_dir(), self.home.clone()] {
            File::open(directory)?.sync_all()?;
        }
        Ok(StoredContent { bytes, sha256 })
    }

    fn open(&self, run: RunId, sha256: &str) -> Result<Box<dyn Read + Send>, ContentError> {
        if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ContentError::Gone);
        }
        let path = self.run_dir(run).join(sha256);
        let plain = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let opened = OpenOptions::new().read(true).custom_flags(plain.bits().cast_signed()).open(path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ContentError::Gone),
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(ContentError::Damaged);
        }
        let mut digest = Sha256::new();
        let mut piece = vec![0; READ_BYTES];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                read => digest.update(piece.get(..read).unwrap_or_default()),
            }
        }
        if hex(&digest.finalize()) != sha256 {
            return Err(ContentError::Damaged);
        }
        file.seek(SeekFrom::Start(0))?;
        Ok(Box::new(file))
    }
}

/// Writes a text. Returns its length in bytes and its SHA-256.
fn write_with_digest(file: &File, text: &dyn Display) -> io::Result<(u64, String)> {
    let mut writer = DigestWriter { out: BufWriter::new(file), digest: Sha256::new(), bytes: 0, error: None };
    if write!(writer, "{text}").is_err() {
        return Err(writer.error.unwrap_or_else(|| io::Error::other("the text cannot be written")));
    }
    writer.out.flush()?;
    Ok((writer.bytes, hex(&writer.digest.finalize())))
}

/// Read size, in bytes.
const READ_BYTES: usize = 64 << 10;

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// Writes to a file and computes its digest.
struct DigestWriter<'a> {
    out: BufWriter<&'a File>,
    digest: Sha256,
    bytes: u64,
    error: Option<io::Error>,
}

impl fmt::Write for DigestWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.digest.update(text.as_bytes());
        self.bytes += text.len() as u64;
        self.out.write_all(text.as_bytes()).map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use abide_domain::id::IdSeed;

    use super::*;

    const RUN: RunId = RunId(IdSeed(7));

    fn read(contents: &ContentFiles, sha256: &str) -> Result<String, ContentError> {
        Ok(io::read_to_string(contents.open(RUN, sha256)?)?)
    }

    #[test]
    fn a_content_is_read_back_and_keeping_it_again_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let contents = ContentFiles { home: home.path().to_owned() };
        let kept = contents.put(RUN, &"abc").unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(kept, StoredContent { bytes: 3, sha256: sha256.to_owned() });
        assert_eq!(contents.put(RUN, &"abc").unwrap(), kept);
        assert_eq!(read(&contents, sha256).unwrap(), "abc");
        let folder = contents.run_dir(RUN);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(fs::metadata(folder.join(sha256)).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_content_that_was_changed_removed_or_replaced_is_not_shown() {
        let home = tempfile::tempdir().unwrap();
        let contents = ContentFiles { home: home.path().to_owned() };
        let StoredContent { sha256, .. } = contents.put(RUN, &"rm -rf /").unwrap();
        let path = contents.run_dir(RUN).join(&sha256);
        fs::write(&path, "ls").unwrap();
        assert!(matches!(read(&contents, &sha256), Err(ContentError::Damaged)));
        fs::remove_file(&path).unwrap();
        assert!(matches!(read(&contents, &sha256), Err(ContentError::Gone)));
        symlink("/dev/zero", &path).unwrap();
        assert!(read(&contents, &sha256).is_err());
        assert!(matches!(read(&contents, "../../token"), Err(ContentError::Gone)));
    }
}
