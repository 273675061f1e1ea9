//! The owner's token of a home: the file `token`, readable by its owner only.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use abide_host::home_permissions;
use abide_os::{beneath::Directory, private_file, random};
use anyhow::Context;

use crate::error::eprint_line;

pub(crate) const FILE: &str = "token";

/// Returns the token of this home; creates it if there is none.
pub(crate) fn load_or_create(home: &Path) -> anyhow::Result<String> {
    let path = home.join(FILE);
    let failed = || format!("cannot use {}", path.display());
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(mut file) => {
            let token = random::secret(32);
            file.write_all(token.as_bytes()).and_then(|()| file.sync_all()).with_context(failed)?;
            Ok(token)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let token = read(&path).with_context(failed)?;
            let token = token.trim();
            anyhow::ensure!(
                !token.is_empty(),
                "{} is empty; delete it, and the next start creates a new token",
                path.display()
            );
            Ok(token.to_owned())
        }
        Err(error) => Err(error).with_context(failed),
    }
}

/// Reads an existing token. It grants full control of this user's daemon, so a file of another user is refused, and
/// other users' access to the file is removed. A link is refused too, because its target may be outside of the home.
fn read(path: &Path) -> anyhow::Result<String> {
    let (Some(home), Some(name)) = (path.parent(), path.file_name()) else {
        anyhow::bail!("it has no name");
    };
    let mut file = Directory::open(home)?
        .open_file(name)
        .context("delete it, and the next start creates a new token")?;
    anyhow::ensure!(
        home_permissions::is_own_file(&file.metadata()?),
        "it belongs to another user; delete it, and the next start creates a new token"
    );
    let was_open = private_file::remove_access_of_others(&file)
        .context("other users can read it, and its mode cannot be changed; make it private: chmod 600")?;
    if was_open {
        eprint_line(format_args!(
            "abide: other users could read {}; it is private now, but one of them may know it: to be sure, make a new one: \
             abide token rotate owner",
            path.display()
        ));
    }
    let mut token = String::new();
    file.read_to_string(&mut token)?;
    Ok(token)
}
