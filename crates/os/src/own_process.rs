//! This process: its limits and its rights.

use std::path::Path;

use rustix::{
    fs::{Access, access},
    process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit},
};

/// Raises the soft limit of open file descriptors to the hard limit. If that fails, the present limit stays.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).ok();
}

/// Returns whether this process may create entries in a directory.
pub fn can_create_in(directory: &Path) -> bool {
    directory.is_dir() && access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Kills this process without running any handler, as a power failure would.
pub fn kill() -> ! {
    // The signal cannot be blocked, and a process may always signal itself.
    kill_process(getpid(), Signal::KILL).ok();
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_limit() {
        raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn entries_can_be_created_in_directories_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(can_create_in(folder.path()));
        assert!(!can_create_in(&file) && !can_create_in(&folder.path().join("missing")));
    }
}
