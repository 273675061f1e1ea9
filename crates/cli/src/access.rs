//! Where the credentials of a home are kept: `access.json`, with digests only, beside the owner's `token`.

use std::{
    io,
    path::{Path, PathBuf},
};

use abide_api::access::{AccessRegistry, AccessStorage};
use abide_os::beneath::Directory;
use anyhow::Context;

use crate::up::token;

/// The file in the home.
const FILE: &str = "access.json";
/// More than any registry takes.
const MAX_FILE_BYTES: u64 = 4 << 20;
const PRIVATE: u32 = 0o600;

/// The credentials of this home. Who opens them holds the home's lock, because only one process may write them.
pub(crate) fn open(home: &Path) -> anyhow::Result<AccessRegistry> {
    let token = token::of(home)?;
    let path = home.join(FILE);
    let document = match Directory::open(home)?.read_bounded(FILE, MAX_FILE_BYTES) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error).with_context(|| format!("cannot use {}", path.display())),
    };
    let storage = Box::new(HomeStorage { home: home.to_owned() });
    AccessRegistry::open(&token, document.as_deref(), storage).with_context(|| {
        format!(
            "cannot use {}; if it is damaged, delete it: all tokens but the owner's and all sign-ins are then void",
            path.display()
        )
    })
}

/// Keeps credentials in the home.
#[derive(Debug)]
struct HomeStorage {
    home: PathBuf,
}

impl HomeStorage {
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        Ok(Directory::open(&self.home)?.write_file(name, bytes, PRIVATE)?)
    }
}

impl AccessStorage for HomeStorage {
    fn save(&self, document: &[u8]) -> io::Result<()> {
        self.replace(FILE, document)
    }

    fn save_owner_token(&self, secret: &str) -> io::Result<()> {
        self.replace(token::FILE, secret.as_bytes())
    }
}
