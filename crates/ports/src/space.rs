//! The contract for disk space: the free space at the place where a run would write.

use std::fmt::Debug;

/// Reports free disk space. Calls return quickly.
pub trait DiskSpace: Debug + Send + Sync {
    /// The number of bytes available to this user on the file system that holds a path or would hold it. None if it
    /// cannot be determined.
    fn free_bytes(&self, path: &str) -> Option<u64>;
}
