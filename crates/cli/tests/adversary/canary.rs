//! A directory tree outside all workspaces that no test may change, and its fingerprint.

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, chown, symlink},
    },
    path::{Path, PathBuf},
    time::SystemTime,
};

use sha2::{Digest, Sha256};

pub(crate) struct CanaryTree {
    path: PathBuf,
    fingerprint: String,
}

/// The content of the tree's secret file; it must not appear in any response.
pub(crate) const SECRET: &str = "the canary's secret";

impl CanaryTree {
    /// Creates the tree. It contains the names that Abide uses below a workspace, so that a link into it finds a
    /// target. It belongs to the daemon's user, so that file permissions do not protect it.
    pub(crate) fn new(path: PathBuf, owner: Option<u32>) -> Self {
        let directories =
            ["", "Documents", "artifacts", "skills/heron", "native", "sessions/x", "executions", "closed"];
        for name in directories {
            fs::create_dir_all(path.join(name)).expect("the test machine allows it");
        }
        let files = [
            "secret",
            "journal.jsonl",
            "interaction.json",
            "lock",
            "id",
            "artifacts/report.txt",
            "skills/heron/SKILL.md",
            "skills/heron/.abide-copy",
            "sessions/x/identity",
            "sessions/x/secret",
            "Documents/letter.txt",
        ];
        for name in files {
            fs::write(path.join(name), format!("{SECRET}: {name}\n")).expect("the test machine allows it");
            let mode = fs::Permissions::from_mode(0o640);
            fs::set_permissions(path.join(name), mode).expect("the test machine allows it");
        }
        symlink("Documents/letter.txt", path.join("link")).expect("the test machine allows it");
        // An earlier version deleted folders older than a minute that had no keeper identity (SECURITY 1).
        let old = fs::File::open(path.join("Documents")).expect("it was made");
        old.set_modified(SystemTime::UNIX_EPOCH).expect("it is ours");
        if owner.is_some() {
            for entry in entries(&path).into_iter().filter(|entry| !entry.is_symlink()) {
                chown(entry, owner, owner).expect("only root has another owner");
            }
        }
        let closed = fs::Permissions::from_mode(0o000);
        fs::set_permissions(path.join("closed"), closed).expect("it is ours");
        let fingerprint = fingerprint(&path);
        Self { path, fingerprint }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn assert_unchanged(&self) {
        assert_eq!(fingerprint(&self.path), self.fingerprint, "something outside the workspace was changed");
    }
}

impl Drop for CanaryTree {
    fn drop(&mut self) {
        // Without this, an ordinary user could not remove the tree.
        fs::set_permissions(self.path.join("closed"), fs::Permissions::from_mode(0o700)).ok();
    }
}

fn entries(top: &Path) -> Vec<PathBuf> {
    let mut paths = vec![top.to_owned()];
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        next += 1;
        if !path.is_symlink() {
            // Files have no entries; folders that this user cannot read are treated likewise.
            paths.extend(fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    paths.sort();
    paths
}

/// Hashes names, kinds, modes, owners, modification times, contents and link targets.
fn fingerprint(top: &Path) -> String {
    let mut hash = Sha256::new();
    for path in entries(top) {
        let about = fs::symlink_metadata(&path).expect("it was listed");
        hash.update(path.as_os_str().as_bytes());
        hash.update(format!(
            "\0{:o} {} {} {}.{} ",
            about.mode(),
            about.uid(),
            about.gid(),
            about.mtime(),
            about.mtime_nsec()
        ));
        if about.is_symlink() {
            hash.update(fs::read_link(&path).expect("it is a link").as_os_str().as_bytes());
        } else if about.is_file() {
            hash.update(fs::read(&path).expect("it is ours"));
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_fingerprint_sees_contents_modes_targets_and_new_names() {
    let folder = tempfile::tempdir().expect("the test machine allows it");
    let changes: [fn(&Path); 5] = [
        |top| fs::write(top.join("lock"), "1\n").unwrap(),
        |top| fs::set_permissions(top.join("id"), fs::Permissions::from_mode(0o600)).unwrap(),
        |top| fs::write(top.join("artifacts/new"), "").unwrap(),
        |top| fs::remove_dir_all(top.join("Documents")).unwrap(),
        |top| {
            fs::remove_file(top.join("link")).unwrap();
            symlink("Documents", top.join("link")).unwrap();
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let canary = CanaryTree::new(folder.path().join(number.to_string()), None);
        canary.assert_unchanged();
        change(canary.path());
        assert_ne!(fingerprint(canary.path()), canary.fingerprint, "change {number}");
    }
}
