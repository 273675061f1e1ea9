//! Files and directories with access for one user: the home and everything that Abide creates in it.
//!
//! Modes are set explicitly, so the umask has no effect. The modes of a home of an earlier version, or of one created
//! by hand, are repaired at the next start. Workspaces are left unchanged, because they belong to the user.

use std::{
    fs::{self, Metadata},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use abide_os::private_file::{self, MODE_OTHERS};

use crate::{HostError, former_folders, home_folders::HomeFolder};

/// Whether other users had access to the home before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeAccess {
    OwnerOnly,
    /// The access of other users to the home and everything in it was removed.
    Restricted,
}

/// The sticky bit of a shared directory.
const STICKY_BIT: u32 = 0o1000;

/// Creates the home if it is missing, and removes other users' access. A shared directory, such as the one for
/// temporary files, is refused, because its mode must not be changed.
pub fn prepare_home(path: &Path) -> Result<HomeAccess, HostError> {
    // The home may be a link; the mode of its target is checked.
    let resolved = fs::canonicalize(path);
    let path = resolved.as_deref().unwrap_or(path);
    let mode = fs::metadata(path).map_or(0, |metadata| metadata.mode());
    if mode & STICKY_BIT != 0 || path.parent().is_none() {
        return Err(HostError::SharedHome { path: path.to_owned() });
    }
    private_file::create_dir(path)
        .map_err(|source| HostError::HomeUnusable { path: path.to_owned(), source })?;
    if mode & MODE_OTHERS == 0 {
        return Ok(HomeAccess::OwnerOnly);
    }
    repair(path);
    Ok(HomeAccess::Restricted)
}

/// Returns whether this user owns the file.
pub fn is_own_file(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw()
}

/// Name prefixes of Abide's own files in a home.
const OWN_FILE_PREFIXES: [&str; 7] =
    ["abide.", "access.", "config.toml", "daemon.", "failpoints", "starting.", "token"];

/// Returns whether an entry of the home is Abide's own. A folder with a suffix is an unfinished one. Other entries are
/// left unchanged.
fn is_own_entry(name: &str) -> bool {
    let folders = HomeFolder::PRIVATE.iter().map(|folder| folder.name()).chain(former_folders::names());
    OWN_FILE_PREFIXES.into_iter().chain(folders).any(|own| name.starts_with(own))
}

/// Repairs the modes of entries that an earlier version created. An entry that cannot be changed is protected by the
/// mode of the home.
fn repair(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if is_own_entry(&name) {
            restrict_all(&entry.path(), MAX_REPAIR_DEPTH);
        } else if name == HomeFolder::Workspaces.name() {
            // Its contents belong to the user.
            restrict(&entry.path());
        }
    }
}

/// Maximum depth of the repair. Abide's own files are less deep, but agents can nest folders without limit in `runs`,
/// which may be moved to `trash`.
const MAX_REPAIR_DEPTH: u32 = 16;

fn restrict_all(path: &Path, levels: u32) {
    restrict(path);
    if levels > 0 && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            restrict_all(&entry.path(), levels - 1);
        }
    }
}

fn restrict(path: &Path) {
    // Links are skipped, because their targets may be outside of the home.
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    if !metadata.is_symlink() && metadata.mode() & MODE_OTHERS != 0 {
        let mode = metadata.mode() & 0o777 & !MODE_OTHERS;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("it is there").mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    #[test]
    fn a_home_becomes_private_except_workspace_contents() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().join("deep/home");
        assert_eq!(super::prepare_home(&home).expect("it can be made"), HomeAccess::OwnerOnly);
        assert_eq!(mode(&home), 0o700);
        for directory in ["keepers/k", "workspaces/run", "logs", "backups"] {
            fs::create_dir_all(home.join(directory)).expect("the home can be written");
        }
        let files = ["daemon.lock", "abide.db-wal", "keepers/k/exit.json", "workspaces/run/script"];
        for file in files {
            fs::write(home.join(file), "").expect("the home can be written");
            set_mode(&home.join(file), 0o755);
        }
        for directory in ["", "keepers", "keepers/k", "workspaces", "workspaces/run", "logs", "backups"] {
            set_mode(&home.join(directory), 0o755);
        }
        assert_eq!(super::prepare_home(&home).expect("it can be repaired"), HomeAccess::Restricted);
        for directory in ["", "keepers", "keepers/k", "workspaces", "logs", "backups"] {
            assert_eq!(mode(&home.join(directory)), 0o700, "{directory}");
        }
        for file in ["daemon.lock", "abide.db-wal", "keepers/k/exit.json"] {
            assert_eq!(mode(&home.join(file)), 0o700, "{file} keeps what its owner may do");
        }
        for theirs in ["workspaces/run", "workspaces/run/script"] {
            assert_eq!(mode(&home.join(theirs)), 0o755, "{theirs}");
        }
    }

    /// SECURITY finding 4: recursion through folders made by agents overflows the stack and aborts the daemon.
    #[test]
    fn the_repair_of_a_home_does_not_follow_folders_without_end() {
        use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("trash/run.0");
        fs::create_dir_all(&deep).expect("it can be made");
        set_mode(folder.path(), 0o755);
        let mut directory = openat(CWD, &deep, OFlags::PATH, Mode::empty()).expect("it is there");
        for _ in 0..2_000 {
            mkdirat(&directory, "d", Mode::RWXU).expect("it can be made");
            directory = openat(&directory, "d", OFlags::PATH, Mode::empty()).expect("it is there");
        }
        std::thread::scope(|scope| {
            let small = std::thread::Builder::new().stack_size(128 << 10);
            let repaired =
                small.spawn_scoped(scope, || super::prepare_home(folder.path())).expect("a thread");
            repaired.join().expect("it ends").expect("it can be repaired");
        });
        assert_eq!(mode(folder.path()), 0o700);
    }

    #[test]
    fn a_directory_that_is_shared_is_no_home_and_keeps_its_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        set_mode(folder.path(), 0o1777);
        assert!(super::prepare_home(folder.path()).is_err());
        assert_eq!(fs::metadata(folder.path()).expect("it is there").mode() & 0o7777, 0o1777);
    }

    #[test]
    fn foreign_entries_keep_their_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let theirs = folder.path().join("notes");
        fs::create_dir(&theirs).expect("it can be made");
        set_mode(&theirs, 0o755);
        set_mode(folder.path(), 0o755);
        super::prepare_home(folder.path()).expect("it can be repaired");
        assert_eq!((mode(folder.path()), mode(&theirs)), (0o700, 0o755));
    }

    #[test]
    fn mode_repair_does_not_follow_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (home, outside) = (folder.path().join("home"), folder.path().join("outside"));
        fs::create_dir(&home).expect("it can be made");
        fs::write(&outside, "").expect("it can be made");
        set_mode(&outside, 0o644);
        set_mode(&home, 0o755);
        std::os::unix::fs::symlink(&outside, home.join("config.toml")).expect("it can be made");
        super::prepare_home(&home).expect("it can be repaired");
        assert_eq!((mode(&home), mode(&outside)), (0o700, 0o644));
    }

    #[test]
    fn a_file_is_private_however_it_was_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("daemon.lock");
        fs::write(&path, "").expect("it can be made");
        set_mode(&path, 0o644);
        private_file::open(fs::File::options().write(true), &path).expect("it is ours");
        assert_eq!(mode(&path), 0o600);
    }
}
