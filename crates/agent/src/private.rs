//! Files and folders of the state folder and of its record, which only their owner may read.
//!
//! Files are opened without following a link, and only if they are regular: the state folder lies where others can write.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use rustix::fs::OFlags;

/// How a private file is made; one that is there already gets that mode in [`open`].
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Opens a regular file and takes the rights of others away. A link is refused, and so is a FIFO, without waiting for it.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file =
        options.custom_flags(flags.bits().cast_signed()).open(path).map_err(|error| explain(error, path))?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(named(io::ErrorKind::InvalidInput, path, "is not a regular file"));
    }
    if found.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Reads a regular file without following a link and without changing it.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_bounded(path, u64::MAX)
}

/// Reads a regular file of at most so many bytes, in the same way.
pub(crate) fn read_bounded(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = file.map_err(|error| explain(error, path))?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > most_bytes {
        return Err(named(io::ErrorKind::InvalidInput, path, "is not a regular file, or too large"));
    }
    let mut bytes = Vec::new();
    file.take(most_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    open(options().create(true).truncate(true).write(true), path)?.write_all(bytes)
}

/// Puts a whole file in the place of one that may be there, durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut file = open(options().create(true).truncate(true).write(true), &part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(part, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Makes a folder with all that lead to it. Folders that are there keep their mode, except those from `.abide` on: these
/// are Abide's own.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let is_own = |folder: &&Path| folder.components().any(|part| part.as_os_str() == ".abide");
    for own in path.ancestors().take_while(is_own) {
        if fs::metadata(own)?.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(own, Permissions::from_mode(0o700))?;
        }
    }
    Ok(())
}

/// The error of a link names the link.
fn explain(error: io::Error, path: &Path) -> io::Error {
    if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
        return named(io::ErrorKind::InvalidInput, path, "is a link, which is not followed");
    }
    error
}

fn named(kind: io::ErrorKind, path: &Path, what: &str) -> io::Error {
    io::Error::new(kind, format!("{} {what}", path.display()))
}
