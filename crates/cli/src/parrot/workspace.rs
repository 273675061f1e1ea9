//! File access of the parrot: only below its working directory, and only if its sandbox permits it.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, bail};

#[derive(Debug)]
pub(super) struct ParrotWorkspace {
    root: PathBuf,
    read_only: bool,
}

/// Whether a write replaces or extends the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    Replace,
    Add,
}

impl ParrotWorkspace {
    /// Opens the working directory of this process.
    pub(super) fn here(read_only: bool) -> anyhow::Result<Self> {
        let root = std::env::current_dir().and_then(fs::canonicalize).context("cannot use this directory")?;
        Ok(Self { root, read_only })
    }

    pub(super) fn name(&self) -> String {
        self.root.to_string_lossy().into_owned()
    }

    /// Writes a line with one write call and syncs it.
    pub(super) fn put(&self, path: &str, text: &str, manner: WriteMode) -> anyhow::Result<()> {
        self.write(path, text, manner).with_context(|| format!("cannot write {path}"))
    }

    fn write(&self, path: &str, text: &str, manner: WriteMode) -> anyhow::Result<()> {
        if self.read_only {
            bail!("the sandbox is read-only");
        }
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !Path::new(path).components().all(inside) {
            bail!("it is outside of the workspace");
        }
        let path = self.root.join(path);
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { bail!("it is no file") };
        let folder = self.made(folder)?;
        let mut options = OpenOptions::new();
        match manner {
            WriteMode::Replace => options.write(true).truncate(true),
            WriteMode::Add => options.append(true),
        };
        // A link could lead out of the workspace.
        let no_links = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut file = options.create(true).custom_flags(no_links).open(folder.join(name))?;
        file.write_all(format!("{text}\n").as_bytes())?;
        file.sync_all()?;
        fs::File::open(folder)?.sync_all()?;
        Ok(())
    }

    /// Creates the folder. Fails if a link on the way leads out of the workspace.
    fn made(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let mut made = self.root.clone();
        for part in folder.strip_prefix(&self.root)?.components() {
            made.push(part);
            if !made.exists() {
                fs::create_dir(&made)?;
            }
            made = made.canonicalize()?;
            if !made.starts_with(&self.root) {
                bail!("it is outside of the workspace");
            }
        }
        Ok(made)
    }
}
