//! Content storage in memory, and a disk that never fills up.

use std::{
    collections::BTreeMap,
    fmt::Display,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Cursor, Read},
    sync::{Mutex, PoisonError},
};

use abide_domain::id::RunId;
use abide_ports::{
    contents::{ContentError, ContentStore, StoredContent},
    space::DiskSpace,
};

/// Content storage in memory. The keys have the length of a SHA-256 digest, but are computed by a cheaper hash.
#[derive(Debug, Default)]
pub struct ContentsInMemory(Mutex<BTreeMap<(RunId, String), String>>);

impl ContentStore for ContentsInMemory {
    fn put(&self, run: RunId, text: &dyn Display) -> io::Result<StoredContent> {
        let text = text.to_string();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let sha256 = format!("{:016x}", hasher.finish()).repeat(4);
        let bytes = text.len() as u64;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((run, sha256.clone()), text);
        Ok(StoredContent { bytes, sha256 })
    }

    fn open(&self, run: RunId, sha256: &str) -> Result<Box<dyn Read + Send>, ContentError> {
        let contents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = contents.get(&(run, sha256.to_owned())).cloned().ok_or(ContentError::Gone)?;
        Ok(Box::new(Cursor::new(text.into_bytes())))
    }
}

/// Reports unlimited free disk space.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnlimitedSpace;

impl DiskSpace for UnlimitedSpace {
    fn free_bytes(&self, _path: &str) -> Option<u64> {
        Some(u64::MAX)
    }
}
