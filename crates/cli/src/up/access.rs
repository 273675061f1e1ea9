//! Stores the credentials of a home: `access.json`, with digests only, beside the owner's `token`.

use std::{
    io,
    path::{Path, PathBuf},
};

use abide_api::access::{AccessRegistry, AccessStorage};
use abide_os::beneath::Directory;
use anyhow::Context;

use super::token;

const FILE: &str = "access.json";
/// Maximum size of the file; larger than any registry.
const MAX_FILE_BYTES: u64 = 4 << 20;
const FILE_MODE: u32 = 0o600;

/// Opens the credentials of this home. The caller must hold the home's lock, because only one process may write them.
pub(crate) fn open(home: &Path) -> anyhow::Result<AccessRegistry> {
    let token = token::load_or_create(home)?;
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

/// Stores credentials in files of the home.
#[derive(Debug)]
struct HomeStorage {
    home: PathBuf,
}

impl HomeStorage {
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        Ok(Directory::open(&self.home)?.write_file(name, bytes, FILE_MODE)?)
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
