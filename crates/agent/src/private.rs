//! Files and folders of the state folder, which only their owner may read.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// How a private file is made; a file that is there already keeps its mode until [`tighten`].
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Takes the rights of others away from a file that is there already, such as one that an earlier version made.
pub(crate) fn tighten(file: &File) -> io::Result<()> {
    if file.metadata()?.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(0o600))
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = options().create(true).truncate(true).write(true).open(path)?;
    tighten(&file)?;
    file.write_all(bytes)
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
