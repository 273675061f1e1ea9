//! Free space of file systems.

use std::path::Path;

use abide_ports::space::DiskSpace;

/// Reports free space of the file systems of this machine.
#[derive(Clone, Copy, Debug)]
pub struct FileSystems;

impl DiskSpace for FileSystems {
    fn free_bytes(&self, path: &str) -> Option<u64> {
        // A path that does not exist will be created below its nearest existing ancestor.
        let stats = Path::new(path).ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
        Some(stats.f_bavail.saturating_mul(stats.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_uses_its_nearest_existing_ancestor() {
        let folder = tempfile::tempdir().unwrap();
        let free = |path: &Path| FileSystems.free_bytes(path.to_str().unwrap());
        assert!(free(folder.path()).is_some_and(|free| free > 0));
        assert!(free(&folder.path().join("not/yet")).is_some_and(|free| free > 0));
    }
}
