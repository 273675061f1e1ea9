//! The folders of the home. No agent may work in most of them: with the home itself they hold the token, the database
//! and the keepers of all runs.
//!
//! Directories are compared by device and inode, not by name. So a folder is recognised through a link, a bind mount, and
//! another spelling on a file system that ignores case. A bind mount of a directory inside one of these folders is
//! recognised by the mount table.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use abide_os::mount_table;

/// A folder that Abide creates in its home. This is the only list of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeFolder {
    /// Records of native agents.
    Agents,
    Backups,
    /// Contents of long questions.
    Contents,
    CrashGuard,
    /// Notes about directories that Abide created.
    CreatedDirs,
    /// Directories of keepers.
    Keepers,
    Logs,
    /// Session files of the parrot.
    Parrot,
    /// Private files of runs.
    Runs,
    /// Notes about keepers that survive their process.
    SurvivingKeepers,
    /// Directories that await deletion.
    Trash,
    /// Workspaces of runs that name no directory. The only folder in which agents work.
    Workspaces,
}

impl HomeFolder {
    /// Folders in which no agent may work, and which only the owner may read.
    pub(crate) const PRIVATE: [Self; 11] = [
        Self::Agents,
        Self::Backups,
        Self::Contents,
        Self::CrashGuard,
        Self::CreatedDirs,
        Self::Keepers,
        Self::Logs,
        Self::Parrot,
        Self::Runs,
        Self::SurvivingKeepers,
        Self::Trash,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Backups => "backups",
            Self::Contents => "contents",
            Self::CrashGuard => "crash-guard",
            Self::CreatedDirs => "created-dirs",
            Self::Keepers => "keepers",
            Self::Logs => "logs",
            Self::Parrot => "parrot",
            Self::Runs => "runs",
            Self::SurvivingKeepers => "surviving-keepers",
            Self::Trash => "trash",
            Self::Workspaces => "workspaces",
        }
    }

    /// Returns the path of the folder in this home.
    pub fn path(self, home: &Path) -> PathBuf {
        home.join(self.name())
    }
}

/// Returns why no agent may work in this directory; `None` if one may. The workspaces of single runs and other folders
/// that the owner created in the home are allowed.
pub fn refusal(home: &Path, directory: &Path) -> Option<String> {
    // `..` and links are resolved, so that every parent is examined.
    let resolved = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let own = identity(&resolved)?;
    let is = |path: PathBuf| identity(&path) == Some(own);
    let is_whole = is(home.to_owned()) || is(HomeFolder::Workspaces.path(home));
    let private = HomeFolder::PRIVATE.iter().filter_map(|folder| identity(&folder.path(home)));
    let private: Vec<_> = private.collect();
    let is_inside = |path: &Path| identity(path).is_some_and(|id| private.contains(&id));
    // A table that cannot be read prevents isolation. Without isolation, the mount is not the only way to the folders.
    let aliases =
        fs::canonicalize(home).and_then(|home| mount_table::find_aliases(&home)).unwrap_or_default();
    let reachable = aliases.iter().filter(|alias| alias.is_reachable());
    let originals = reachable.filter_map(|alias| {
        let below = resolved.strip_prefix(&alias.place).ok()?;
        Some(alias.original.join(below))
    });
    let paths: Vec<PathBuf> = [resolved.clone()].into_iter().chain(originals).collect();
    (is_whole || paths.iter().flat_map(|path| path.ancestors()).any(is_inside)).then(|| {
        format!(
            "{} is Abide's home or one of its own folders, which agents must not see; use another directory",
            directory.display()
        )
    })
}

/// Returns whether a directory contains the home or one of its folders, which may be links to other places. The home
/// contains its folders.
pub fn contains_home_folder(home: &Path, directory: &Path) -> bool {
    let Some(own) = identity(directory) else { return false };
    let folders = HomeFolder::PRIVATE.into_iter().chain([HomeFolder::Workspaces]);
    let places = folders.map(|folder| folder.path(home)).chain([home.to_owned()]);
    places.filter_map(|place| fs::canonicalize(place).ok()).any(|place| {
        let mut parents = place.ancestors().skip(1);
        parents.any(|parent| identity(parent) == Some(own))
    })
}

/// Returns device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_home_and_its_own_folders_are_refused_by_every_path() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("home");
        for folder in ["keepers/runs/run_1", "workspaces/run_1/sub", "work/mine", "runs/run_1"] {
            fs::create_dir_all(home.join(folder)).unwrap();
        }
        symlink(&home, place.path().join("link")).unwrap();
        symlink(home.join("keepers"), home.join("work/keepers")).unwrap();
        let refused =
            ["", "keepers", "keepers/runs/run_1", "workspaces", "runs/run_1", "work/keepers/runs", "work/.."];
        let allowed = ["workspaces/run_1", "workspaces/run_1/sub", "work", "work/mine", "..", "missing"];
        for base in [home.clone(), place.path().join("link"), home.join("work/../../link")] {
            for name in refused {
                assert!(refusal(&home, &base.join(name)).is_some(), "{base:?} {name}");
            }
            for name in allowed {
                assert_eq!(refusal(&home, &base.join(name)), None, "{base:?} {name}");
            }
        }
        assert_eq!(refusal(&place.path().join("no home"), &home), None);
    }

    #[test]
    fn a_directory_above_the_home_or_above_a_folder_that_is_a_link_contains_them() {
        let place = tempfile::tempdir().unwrap();
        let (home, disk) = (place.path().join("user/home"), place.path().join("disk"));
        for folder in [home.join("work/mine"), home.join("workspaces/run_1"), disk.join("big/keepers")] {
            fs::create_dir_all(folder).unwrap();
        }
        symlink(disk.join("big/keepers"), home.join("keepers")).unwrap();
        symlink(place.path().join("user"), place.path().join("link")).unwrap();
        for above in ["", "user", "link", "user/home", "user/home/..", "disk", "disk/big", "/"] {
            assert!(contains_home_folder(&home, &place.path().join(above)), "{above}");
        }
        let others =
            ["user/home/work", "user/home/work/mine", "user/home/workspaces/run_1", "disk/big/keepers", "no"];
        for other in others {
            assert!(!contains_home_folder(&home, &place.path().join(other)), "{other}");
        }
        assert!(!contains_home_folder(&place.path().join("none/home"), &place.path().join("user")));
    }

    /// The test machine may mount in a namespace of its own.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test runs itself in another namespace")]
    fn a_bind_mount_of_the_home_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return abide_testkit::skip::skip("only root can mount");
        }
        let place = tempfile::tempdir().unwrap();
        for folder in ["home/keepers/runs/run_1", "bound", "bound-keepers", "bound-runs"] {
            fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        let script = r#"cd "$1" && mount --bind home bound && mount --bind home/keepers bound-keepers &&
            mount --bind home/keepers/runs bound-runs &&
            exec "$2" --exact --ignored home_folders::tests::a_mount_point_is_refused"#;
        let output = std::process::Command::new("unshare")
            .args(["--mount", "--propagation=private", "sh", "-c", script, "sh"])
            .args([place.path(), &std::env::current_exe().unwrap()])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    }

    #[test]
    #[ignore = "a part of a_bind_mount_of_the_home_is_refused, in its namespace"]
    fn a_mount_point_is_refused() {
        let here = std::env::current_dir().unwrap();
        let keepers = ["bound", "bound/keepers", "bound/keepers/runs", "bound-keepers", "bound-keepers/runs"];
        for bound in keepers.into_iter().chain(["bound-runs", "bound-runs/run_1"]) {
            assert!(refusal(&here.join("home"), &here.join(bound)).is_some(), "{bound}");
        }
    }
}
