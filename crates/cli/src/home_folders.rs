//! The folders of the home in which no agent may work: they hold the token, the database and the keepers of all runs.
//!
//! Directories are compared by device and inode, not by name. So a folder is recognised through a link, a bind mount, and
//! another spelling on a file system that ignores case. A bind mount of a directory inside one of these folders is not
//! recognised.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Folder of the home with the workspaces of runs that name no directory.
const WORKSPACES: &str = "workspaces";
/// Folders of the home that are not workspaces.
const PRIVATE: [&str; 11] = [
    "agents",
    "backups",
    "contents",
    "crash-guard",
    "keepers",
    "logs",
    "made",
    "outliving",
    "parrot",
    "runs",
    "trash",
];

/// Returns why no agent may work in this directory; `None` if one may. The workspaces of single runs and other folders
/// that the owner created in the home are allowed.
pub(crate) fn refusal(home: &Path, directory: &Path) -> Option<String> {
    // `..` and links are resolved, so that every parent is examined.
    let resolved = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let own = identity(&resolved)?;
    let is = |path: PathBuf| identity(&path) == Some(own);
    let is_whole = is(home.to_owned()) || is(home.join(WORKSPACES));
    let private: Vec<_> = PRIVATE.iter().filter_map(|name| identity(&home.join(name))).collect();
    let is_inside = |path: &Path| identity(path).is_some_and(|found| private.contains(&found));
    (is_whole || resolved.ancestors().any(is_inside)).then(|| {
        format!(
            "{} is Abide's home or one of its own folders, which agents must not see; use another directory",
            directory.display()
        )
    })
}

/// Returns whether this directory is the home.
pub(crate) fn is_home(home: &Path, directory: &Path) -> bool {
    identity(home).is_some_and(|home| identity(directory) == Some(home))
}

/// Returns device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
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

    /// The test machine may mount in a namespace of its own.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test runs itself in another namespace")]
    fn a_bind_mount_of_the_home_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return abide_testkit::skip::skip("only root can mount");
        }
        let place = tempfile::tempdir().unwrap();
        for folder in ["home/keepers/runs", "bound", "bound-keepers"] {
            fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        let script = r#"cd "$1" && mount --bind home bound && mount --bind home/keepers bound-keepers &&
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
        for bound in ["bound", "bound/keepers", "bound/keepers/runs", "bound-keepers", "bound-keepers/runs"] {
            assert!(refusal(&here.join("home"), &here.join(bound)).is_some(), "{bound}");
        }
    }
}
