//! This process: its descriptors, its limits and its rights.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::{
    fs::{Access, access},
    io::{FdFlags, fcntl_setfd},
    process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit},
};

/// Marks every open descriptor except the standard streams close-on-exec, so that the programs of this process do not
/// inherit the descriptors of its parent. Must be called while the process has one thread.
#[expect(unsafe_code, reason = "no safe function borrows a descriptor by its number")]
pub fn withhold_descriptors_from_programs() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()).filter(|number| *number > 2)
        else {
            continue;
        };
        // SAFETY: the descriptor is listed as open, and there is no other thread to close it. It is borrowed for one
        // call, which does not change its owner.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    Ok(())
}

/// Raises the soft limit of open file descriptors to the hard limit. If that fails, the current limit stays.
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
    fn inherited_descriptors_are_closed_when_a_program_is_executed() {
        let file = std::fs::File::open("/dev/null").unwrap();
        fcntl_setfd(&file, FdFlags::empty()).unwrap();
        withhold_descriptors_from_programs().unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&file).unwrap(), FdFlags::CLOEXEC);
        for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
            assert_eq!(rustix::io::fcntl_getfd(stream).unwrap(), FdFlags::empty());
        }
    }

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
