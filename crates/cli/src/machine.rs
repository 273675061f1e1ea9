//! Resources of this machine: cores, memory and programs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};

/// Returns the number of cores available to this process.
pub(crate) fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// Returns the bytes of memory available to this process: those of the machine, or the limit of our control group if
/// that is lower. 0 if unknown.
pub(crate) fn memory() -> u64 {
    let installed = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text)).unwrap_or(0);
    let bound = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let bound = bound.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    installed.min(bound)
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Finds a program by its path, or by its name in the directories of `search`, as the system would.
pub(crate) fn program(name: &str, search: &str) -> Option<PathBuf> {
    let runs = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if name.contains('/') {
        return std::path::absolute(name).ok().filter(|path| runs(path));
    }
    std::env::split_paths(search)
        .map(|directory| directory.join(name))
        .find(|path| runs(path))
        .and_then(|path| std::path::absolute(path).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kibibytes() {
        assert_eq!(total("MemTotal:       24689764 kB\nMemFree: 1 kB\n"), Some(24_689_764 * 1024));
        assert_eq!(total("nothing of the kind"), None);
    }

    #[test]
    fn a_program_is_the_first_of_its_name_that_can_be_executed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        for (directory, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("tool"), "").unwrap();
            fs::set_permissions(directory.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let search = format!("{}:{}", first.display(), second.display());
        assert_eq!(program("tool", &search), Some(second.join("tool")));
        assert_eq!(program("other", &search), None);
        assert_eq!(program(&first.join("tool").to_string_lossy(), &search), None);
    }
}
