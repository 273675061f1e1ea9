//! The contract of disk space: how much is free where a run would write.

use std::fmt::Debug;

/// Tells how much space is free. Calls are quick.
pub trait DiskSpace: Debug + Send + Sync {
    /// The bytes that are free for this user on the file system that holds a path, or would hold it. None if that
    /// cannot be found out.
    fn free_bytes(&self, path: &str) -> Option<u64>;
}
