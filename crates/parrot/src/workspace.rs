//! File access of the parrot: only below its working directory, not in Abide's home, and only if its sandbox permits it.
//! The parrot is not isolated, so it checks this itself.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, bail};

#[derive(Debug)]
pub(crate) struct ParrotWorkspace {
    root: PathBuf,
    /// Abide's home, which may be below the working directory.
    home: PathBuf,
    read_only: bool,
}

/// Whether a write replaces or extends the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    Replace,
    Append,
}

impl ParrotWorkspace {
    /// Opens the working directory of this process.
    pub(crate) fn current_dir(home: &Path, read_only: bool) -> anyhow::Result<Self> {
        let root = std::env::current_dir().and_then(fs::canonicalize).context("cannot use this directory")?;
        Ok(Self { root, home: home.to_owned(), read_only })
    }

    pub(crate) fn name(&self) -> String {
        self.root.to_string_lossy().into_owned()
    }

    /// Writes a line with one write call and syncs it.
    pub(crate) fn write_line(&self, path: &str, text: &str, mode: WriteMode) -> anyhow::Result<()> {
        self.write(path, text, mode).with_context(|| format!("cannot write {path}"))
    }

    fn write(&self, path: &str, text: &str, mode: WriteMode) -> anyhow::Result<()> {
        if self.read_only {
            bail!("the sandbox is read-only");
        }
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !Path::new(path).components().all(inside) {
            bail!("it is outside of the workspace");
        }
        let path = self.root.join(path);
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("it is not a regular file")
        };
        let folder = self.create_folder(folder)?;
        let mut options = OpenOptions::new();
        match mode {
            WriteMode::Replace => options.write(true).truncate(true),
            WriteMode::Append => options.append(true),
        };
        // A link could lead out of the workspace.
        let no_links = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut file = options.create(true).custom_flags(no_links).open(folder.join(name))?;
        file.write_all(format!("{text}\n").as_bytes())?;
        file.sync_all()?;
        fs::File::open(folder)?.sync_all()?;
        Ok(())
    }

    /// Creates the folder. Fails if a link on the way leads out of the workspace, or if the way leads into Abide's home.
    fn create_folder(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let mut path = self.root.clone();
        let refuse_home = |path: &Path| match is_same_directory(&self.home, path) {
            true => bail!("it is in Abide's home"),
            false => Ok(()),
        };
        refuse_home(&path)?;
        for part in folder.strip_prefix(&self.root)?.components() {
            path.push(part);
            if !path.exists() {
                fs::create_dir(&path)?;
            }
            path = path.canonicalize()?;
            if !path.starts_with(&self.root) {
                bail!("it is outside of the workspace");
            }
            refuse_home(&path)?;
        }
        Ok(path)
    }
}

/// Returns whether both paths lead to the same directory, by any link or mount.
fn is_same_directory(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token with the permission `run` could otherwise add an admin token to `access.json`.
    #[test]
    fn a_parrot_above_the_home_writes_nothing_in_it() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let home = root.join("user/.abide");
        fs::create_dir_all(home.join("workspaces/run_1")).unwrap();
        let at =
            |root: &Path| ParrotWorkspace { root: root.to_owned(), home: home.clone(), read_only: false };
        for path in ["user/.abide/access.json", "user/.abide/new/file", "user/.abide/workspaces/run_1/file"] {
            let refused = at(&root).write_line(path, "x", WriteMode::Replace).unwrap_err();
            assert!(format!("{refused:#}").contains("in Abide's home"), "{refused:#}");
        }
        assert!(at(&home).write_line("access.json", "x", WriteMode::Replace).is_err());
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
        at(&root).write_line("user/file", "x", WriteMode::Replace).unwrap();
        at(&home.join("workspaces/run_1")).write_line("sub/file", "x", WriteMode::Append).unwrap();
    }
}
