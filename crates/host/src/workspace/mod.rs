//! Implements the workspace port (`ports::workspace`) on the local file system.
//!
//! In a workspace Abide owns `.abide`, which is ignored by git, and the copies of skills that carry its mark.
//! Everything else belongs to the owner. A folder of the owner with the skill's name is therefore never changed: the
//! run is refused. A copy under another name would have the same title, and engines differ in which of the two they
//! would use.
//!
//! A copy is staged inside `.abide`, invisible to engines, and moved to its place when it is complete and synced. It
//! stays unchanged while its run lasts. Runs in the same workspace share a copy if they use the same skill; otherwise
//! each run installs its own copy before its process is started.
//!
//! Agents and repositories can write everything below a workspace, and an agent may also write the directory above it.
//! The path of a workspace is resolved when the run is created and is opened without following links at each turn. All
//! paths below it are opened relative to it in the same way. A link is refused with an error that names it.
//!
//! Reading and writing folders is in `copy`.

mod copy;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use abide_domain::settings::ExecutionMode;
use abide_os::{
    OsError,
    beneath::{Directory, FileKind},
    remove::remove,
};
use abide_ports::workspace::{RunSkill, WorkspaceError, WorkspacePreparation, Workspaces};

use crate::{
    created_dirs::{self, DirPurpose},
    home_folders::{self, HomeFolder},
    store_folders,
};

/// The workspaces of the runs of one home.
#[derive(Clone, Debug)]
pub struct LocalWorkspaces {
    pub home: PathBuf,
    /// See [`store_folders`].
    pub store_folders: Vec<PathBuf>,
    /// Folder for files for the person, relative to the workspace and below `.abide`.
    pub artifacts_folder: &'static str,
    /// Returns the text that is appended to a run's copy of a skill.
    pub skill_patch: fn(ExecutionMode) -> String,
}

/// Folder that Abide owns in a workspace.
const ABIDE_FOLDER: &str = ".abide";
/// Folder in which copies are staged.
const STAGING: &str = ".abide/skills";
/// Marker file that distinguishes a copy from a folder of the owner. It contains the id of the run.
const COPY_MARKER: &str = ".abide-copy";
const SKILL_FILE: &str = "SKILL.md";
/// Limits of a skill.
const SKILL_LIMITS: copy::CopyLimits = copy::CopyLimits { bytes: 64 << 20, entries: 10_000 };
/// Maximum size of a marker: a run id and a line end. A longer file is not a marker.
const MAX_MARKER_BYTES: u64 = 200;
/// Time limit for the removal of an old copy. The next run removes the rest.
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);
/// Modes of created folders and files, before the umask.
const FOLDER_MODE: u32 = 0o777;
const FILE_MODE: u32 = 0o666;
/// Mode of a run's own directory.
const OWN_MODE: u32 = 0o700;
/// Maximum number of attempts if another run changes the target concurrently.
const MAX_INSTALL_ATTEMPTS: u32 = 5;

impl Workspaces for LocalWorkspaces {
    fn check(&self, workspace: &str) -> Result<(), WorkspaceError> {
        match self.refusal(Path::new(workspace)) {
            Some(refusal) => Err(WorkspaceError(refusal)),
            None => Ok(()),
        }
    }

    fn check_skill(&self, workspace: &str, skill: &str) -> Result<(), WorkspaceError> {
        let named = Path::new(workspace).join(skill);
        let relation = if self.refusal(&named).is_some() {
            "is"
        } else if home_folders::contains_home_folder(&self.home, &named)
            || store_folders::contains(&self.store_folders, &named)
        {
            "contains"
        } else {
            return Ok(());
        };
        Err(WorkspaceError(format!(
            "the skill {} {relation} Abide's home, one of its own folders, or that of its database; keep skills in another \
             folder",
            named.display()
        )))
    }

    fn prepare(&self, preparation: &WorkspacePreparation<'_>) -> Result<(), WorkspaceError> {
        let named = Path::new(preparation.workspace);
        // A directory named after the run belongs to the run and is created here.
        if named.file_name().is_some_and(|name| name == preparation.run) {
            // An error shows when the directory is opened.
            create_run_workspace(named, preparation.run).ok();
        }
        let opened = Directory::open_without_links(named);
        let workspace = opened.map_err(|error| workspace_error(preparation.workspace, &error))?;
        // The directory may have been replaced since the run was created.
        self.check(preparation.workspace)?;
        // Engines are told to create the folder if it is missing, and some workspaces are read-only.
        create_artifacts_folder(&workspace, self.artifacts_folder).ok();
        match preparation.skill {
            Some(skill) => self.install_skill(&workspace, preparation, skill),
            None => Ok(()),
        }
    }
}

/// Creates a run's own directory, accessible to its owner only. Inside, the umask applies. In the workspaces folder of
/// a home it gets the note that retention requires for deletion.
fn create_run_workspace(workspace: &Path, run: &str) -> io::Result<()> {
    let folder = workspace.parent().filter(|parent| parent.ends_with(DirPurpose::Workspace.folder()));
    match folder.and_then(|folder| Some((folder, folder.parent()?))) {
        Some((folder, home)) => match Directory::open_without_links(folder) {
            // Nothing is created behind a link.
            Err(error) if !error.is_not_found() => Err(error.into()),
            Ok(_) | Err(_) => created_dirs::create(home, DirPurpose::Workspace, run),
        },
        None => {
            let root = Directory::open(Path::new("/"))?;
            let relative = workspace.strip_prefix("/").unwrap_or(workspace);
            Ok(root.create_directories(relative, OWN_MODE).map(drop)?)
        }
    }
}

fn workspace_error(workspace: &str, error: &OsError) -> WorkspaceError {
    WorkspaceError(match error {
        OsError::SymbolicLink { path } => format!(
            "the workspace {workspace} is not used, because {} was replaced by a symbolic link since the run was \
             created; remove the link and put the directory back, or start a new run",
            path.display()
        ),
        OsError::System { .. }
        | OsError::InvalidPath { .. }
        | OsError::NotRegular { .. }
        | OsError::TooLarge { .. } => {
            format!("the workspace {workspace} does not exist or cannot be entered")
        }
    })
}

fn create_artifacts_folder(workspace: &Directory, folder: &str) -> Result<(), OsError> {
    workspace.create_directories(folder, FOLDER_MODE)?;
    write_gitignore(&workspace.open_directory(ABIDE_FOLDER)?)
}

/// Tells git to ignore a folder, unless it has a `.gitignore` already.
///
/// The file is not synced: every launch writes it again if a power failure takes it.
fn write_gitignore(folder: &Directory) -> Result<(), OsError> {
    match write_new(folder, ".gitignore", b"*\n") {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        written => written.map(drop),
    }
}

/// Writes a file that must not exist yet. The caller syncs it if needed.
fn write_new(folder: &Directory, name: &str, bytes: &[u8]) -> Result<File, OsError> {
    let mut file = folder.create_file(name, FILE_MODE)?;
    let written = file.write_all(bytes);
    written.map_err(|source| OsError::System { action: "write", path: folder.path().join(name), source })?;
    Ok(file)
}

impl LocalWorkspaces {
    /// Returns why no agent may work in this directory.
    fn refusal(&self, directory: &Path) -> Option<String> {
        home_folders::refusal(&self.home, directory)
            .or_else(|| store_folders::refusal(&self.home, &self.store_folders, directory))
    }

    /// Device and inode of the home, its folders, and those of the database.
    fn protected_directories(&self) -> Vec<(u64, u64)> {
        let folders = HomeFolder::PRIVATE.into_iter().chain([HomeFolder::Workspaces]);
        let paths = folders.map(|folder| folder.path(&self.home)).chain([self.home.clone()]);
        let paths = paths.chain(self.store_folders.iter().cloned());
        paths
            .filter_map(|path| fs::metadata(path).ok())
            .map(|metadata| (metadata.dev(), metadata.ino()))
            .collect()
    }

    /// Installs the run's copy of its skill.
    fn install_skill(
        &self,
        workspace: &Directory,
        preparation: &WorkspacePreparation<'_>,
        skill: &RunSkill,
    ) -> Result<(), WorkspaceError> {
        let (folder, name) = skill.copy_path.rsplit_once('/').unwrap_or(("", &skill.copy_path));
        let folder = workspace.create_directories(folder, FOLDER_MODE).map_err(|error| {
            WorkspaceError(format!("cannot create the folder {folder} for skills in the workspace: {error}"))
        })?;
        if copy_state(&folder, name, preparation.run) == CopyState::ForThisRun {
            return Ok(());
        }
        let staged = self.stage_copy(workspace, preparation, skill)?;
        for _ in 0..MAX_INSTALL_ATTEMPTS {
            match copy_state(&folder, name, preparation.run) {
                CopyState::ForThisRun => return Ok(()),
                CopyState::ForAnotherRun if staged.matches_target(&folder, name) => return Ok(()),
                CopyState::ForAnotherRun => {
                    // Two runs may do this concurrently. The second one finds nothing to move and tries again.
                    folder.rename(name, &staged.staging, &staged.old).ok();
                    // A folder that cannot be removed makes the next move fail, which is reported.
                    remove(&staged.staging, staged.old.as_ref(), MAX_REMOVAL_TIME);
                }
                CopyState::OwnedByUser => {
                    let (copy, source) = (&skill.copy_path, &skill.source);
                    return Err(WorkspaceError(format!(
                        "the workspace has a {copy} of its own, which is not overwritten; start the run without the \
                         skill to use that one, or rename the folder {source}"
                    )));
                }
                CopyState::Absent => {
                    let placed =
                        staged.staging.rename(&staged.copy, &folder, name).and_then(|()| folder.sync());
                    match placed {
                        Ok(()) => return Ok(()),
                        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                        Err(error) => {
                            return Err(WorkspaceError(format!(
                                "cannot put the skill at {}: {error}",
                                skill.copy_path
                            )));
                        }
                    }
                }
            }
        }
        Err(WorkspaceError(format!(
            "other runs keep changing {} in the workspace; try again later",
            skill.copy_path
        )))
    }

    /// Copies the skill to the staging folder and syncs it.
    fn stage_copy(
        &self,
        workspace: &Directory,
        preparation: &WorkspacePreparation<'_>,
        skill: &RunSkill,
    ) -> Result<StagedCopy, WorkspaceError> {
        let named = workspace.path().join(&skill.source);
        let refusal = |problem: &str| WorkspaceError(format!("the skill {} {problem}", named.display()));
        let source = open_source(workspace, &named).map_err(|error| {
            if error.kind() == io::ErrorKind::NotADirectory {
                refusal(&format!("is not a folder; name the folder that contains the {SKILL_FILE}"))
            } else {
                refusal(&format!("cannot be found: {error}; name a folder with a {SKILL_FILE}"))
            }
        })?;
        if fs::canonicalize(&named).is_ok_and(|source| workspace.path().starts_with(source)) {
            return Err(refusal("contains the workspace itself; name the folder of the skill alone"));
        }
        // The folder may have been replaced since the run was created.
        self.check_skill(preparation.workspace, &skill.source)?;
        if source.metadata(COPY_MARKER).is_ok() {
            return Err(refusal("is a copy that Abide made for a run; name the original folder"));
        }
        match source.metadata(SKILL_FILE) {
            Ok(file) if file.kind == FileKind::Regular => {}
            Ok(_) => return Err(refusal(&format!("has a {SKILL_FILE} that is not a plain file"))),
            Err(error) => return Err(refusal(&format!("has no {SKILL_FILE} that can be read: {error}"))),
        }
        let not_written = |error: OsError| {
            WorkspaceError(format!(
                "cannot copy the skill into the workspace {}: {error}",
                workspace.path().display()
            ))
        };
        let staging = workspace.create_directories(STAGING, FOLDER_MODE).map_err(not_written)?;
        let run = preparation.run;
        let staged = StagedCopy { staging, copy: run.to_owned(), old: format!("{run}.old") };
        for left_by_a_crash in [&staged.copy, &staged.old] {
            let removal = remove(&staged.staging, left_by_a_crash.as_ref(), MAX_REMOVAL_TIME);
            removal.into_result().map_err(not_written)?;
        }
        staged.staging.create_directory(&staged.copy, copy::FOLDER_MODE).map_err(not_written)?;
        let copy = staged.staging.open_directory(&staged.copy).map_err(not_written)?;
        let patch = (self.skill_patch)(preparation.mode);
        let protected = self.protected_directories();
        copy::copy_folder(&source, &copy, SKILL_LIMITS, &protected, &|path, bytes| {
            if path == Path::new(SKILL_FILE) && !bytes.ends_with(patch.as_bytes()) {
                bytes.extend_from_slice(patch.as_bytes());
            }
            // The copy is not part of the project, so git ignores all of it.
            if path == Path::new(".gitignore") {
                *bytes = b"*\n".to_vec();
            }
        })
        .map_err(|error| refusal(&error.to_string()))?;
        write_marker(&copy, run).map_err(not_written)?;
        Ok(staged)
    }
}

/// State of the target of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyState {
    Absent,
    ForThisRun,
    /// A copy of another run, which may be replaced.
    ForAnotherRun,
    /// A folder of the owner, which may not be replaced.
    OwnedByUser,
}

fn copy_state(folder: &Directory, name: &str, run: &str) -> CopyState {
    let target = match folder.open_directory(name) {
        Ok(target) => target,
        Err(error) if error.is_not_found() => return CopyState::Absent,
        Err(_) => return CopyState::OwnedByUser,
    };
    match target.read_bounded(COPY_MARKER, MAX_MARKER_BYTES) {
        Ok(mark) => {
            let is_whole = target.metadata(SKILL_FILE).is_ok_and(|file| file.kind == FileKind::Regular);
            let is_this_run = mark.trim_ascii() == run.as_bytes();
            if is_this_run && is_whole { CopyState::ForThisRun } else { CopyState::ForAnotherRun }
        }
        Err(_) => CopyState::OwnedByUser,
    }
}

/// A complete copy that is not yet in its place. Dropping it removes the remains.
struct StagedCopy {
    staging: Directory,
    /// Name of the copy in `staging`.
    copy: String,
    /// Name in `staging` to which the current target is moved.
    old: String,
}

impl StagedCopy {
    /// Returns whether the current target has equal contents.
    fn matches_target(&self, folder: &Directory, name: &str) -> bool {
        match (self.staging.open_directory(&self.copy), folder.open_directory(name)) {
            (Ok(copy), Ok(target)) => copy::is_equal(&copy, &target, COPY_MARKER, SKILL_LIMITS),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
        }
    }
}

impl Drop for StagedCopy {
    fn drop(&mut self) {
        // The copy has been moved to its place or is not needed. A failed removal is reported by the next run that
        // needs the name. The staging folder stays, because another run may be about to write there.
        for name in [&self.copy, &self.old] {
            remove(&self.staging, name.as_ref(), MAX_REMOVAL_TIME);
        }
    }
}

/// Opens the folder that the owner named. Outside of the workspace the path is trusted and links are followed. Inside
/// the workspace it is opened without following links.
fn open_source(workspace: &Directory, named: &Path) -> Result<Directory, OsError> {
    let below = named.strip_prefix(workspace.path()).ok().filter(|below| {
        below.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
    });
    match below.filter(|below| !below.as_os_str().is_empty()) {
        Some(below) => workspace.open_directory(below),
        None => Directory::open(named),
    }
}

fn write_marker(copy: &Directory, run: &str) -> Result<(), OsError> {
    write_gitignore(copy)?;
    let mark = write_new(copy, COPY_MARKER, format!("{run}\n").as_bytes())?;
    let failed = |source| OsError::System { action: "sync", path: copy.path().join(COPY_MARKER), source };
    mark.sync_all().map_err(failed)?;
    copy.sync()
}
