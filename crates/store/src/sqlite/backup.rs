//! Writes a consistent copy to one file, concurrently with commits.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use abide_ports::store::{StoreError, StoreInputError};
use rusqlite::Connection;

use super::{
    connect::{self, InUseMark},
    error::{failed, path_error},
    lock::sibling_path,
};
use crate::witness::{sync_folder, write_error};

/// Copies the database to a file that must not exist. The file appears when it is complete.
pub(super) fn copy(database: &Path, to: &Path) -> Result<(), StoreError> {
    if to.exists() {
        return Err(StoreError::Invalid(StoreInputError::Location {
            detail: format!("{} already exists; choose another name", to.display()),
        }));
    }
    let part = sibling_path(to, "part");
    let _ = fs::remove_file(&part);
    let copied = write(database, &part).and_then(|()| {
        // A hard link does not replace a file that another process created in the meantime.
        fs::hard_link(&part, to).map_err(|error| write_error(to, &error))?;
        sync_folder(to).map_err(|error| write_error(to, &error))
    });
    let _ = fs::remove_file(&part);
    copied
}

fn write(database: &Path, part: &Path) -> Result<(), StoreError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(part).map_err(|error| write_error(part, &error))?;
    let source = connect::reader(database)?;
    let name = part.to_str().ok_or_else(|| path_error(part))?;
    source.execute("VACUUM INTO ?1", [name]).map_err(|error| failed(&error))?;
    // The copy is complete without a log, so it is marked accordingly.
    let copy = Connection::open(part).map_err(|error| failed(&error))?;
    connect::set_in_use_mark(&copy, InUseMark::No)?;
    // A copy has no witness until it is opened as a store.
    connect::remove_property(&copy, "witness")?;
    connect::check_copy(&copy)?;
    copy.close().map_err(|(_, error)| failed(&error))?;
    File::open(part).and_then(|file| file.sync_all()).map_err(|error| write_error(part, &error))
}
