//! The directories that runs work in, on this machine's files: the contract of `ports::workspace`.
//!
//! In a workspace Abide owns `.abide`, which git is told to overlook, and the copies of skills that carry its mark.
//! Everything else is the owner's. A folder of the owner's that bears the skill's name is therefore never replaced or
//! changed: the run is refused, because a copy under another name would stand next to it under the same title, and
//! engines differ in which of the two they would take.
//!
//! A copy is staged inside `.abide`, out of every engine's sight, and moved to its place when it is whole and on the
//! disk. It stays as it is for as long as its run lasts. Several runs in one workspace share a copy if they want the same;
//! else each puts its own there before its process is started.
//!
//! How a folder is read and written is in `copy`.

mod copy;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use abide_engines::asking::patch::{ARTIFACTS, skill_patch};
use abide_ports::workspace::{Preparation, Skill, Unusable, Workspaces};

use crate::private;

/// Workspaces on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Folders;

/// What Abide owns in a workspace.
const OWN: &str = ".abide";
/// Where copies are made before they are moved to their place.
const STAGING: &str = ".abide/skills";
/// What tells a copy from a folder of the owner's: a file that names the run for which it was made.
const MARK: &str = ".abide-copy";
/// The file that makes a folder a skill.
const SKILL_FILE: &str = "SKILL.md";
/// The most that a skill may hold.
const MOST: copy::Most = copy::Most { bytes: 64 << 20, entries: 10_000 };
/// How often a place is looked at again that another run has changed in between.
const LOOKS: u32 = 5;

impl Workspaces for Folders {
    fn prepare(&self, preparation: &Preparation<'_>) -> Result<(), Unusable> {
        let named = Path::new(preparation.workspace);
        // A directory with the run's own name is the run's own, and made for it.
        if named.file_name().is_some_and(|name| name == preparation.run) {
            let _seen_below = make_own(named);
        }
        let workspace = fs::canonicalize(preparation.workspace)
            .ok()
            .filter(|workspace| workspace.is_dir())
            .ok_or_else(|| unusable(preparation.workspace))?;
        // Engines are told to create the folder if it is missing, and some workspaces may only be looked at.
        let _nice_to_have = make_artifacts(&workspace);
        match preparation.skill {
            Some(skill) => place(&workspace, preparation, skill),
            None => Ok(()),
        }
    }
}

/// Makes a run's own directory. The folder of all of them is private; inside, the person's umask decides.
fn make_own(workspace: &Path) -> io::Result<()> {
    if let Some(all) = workspace.parent() {
        private::missing_directories(all)?;
    }
    fs::create_dir_all(workspace)
}

fn unusable(workspace: &str) -> Unusable {
    Unusable(format!("the workspace {workspace} is not there or cannot be entered"))
}

fn make_artifacts(workspace: &Path) -> io::Result<()> {
    folder_in(workspace, ARTIFACTS)?;
    overlook(&workspace.join(OWN))
}

/// Tells git to overlook a folder, unless that was settled before.
fn overlook(folder: &Path) -> io::Result<()> {
    match fs::File::create_new(folder.join(".gitignore")) {
        Ok(mut file) => {
            file.write_all(b"*\n")?;
            file.sync_all()
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// A folder below the workspace, made where it is missing. Links are followed only within the workspace: a project that
/// somebody else wrote must not choose where else we write.
fn folder_in(workspace: &Path, relative: &str) -> io::Result<PathBuf> {
    let mut folder = workspace.to_owned();
    for part in relative.split('/') {
        folder.push(part);
        match fs::create_dir(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        folder = fs::canonicalize(&folder)?;
        if !folder.starts_with(workspace) {
            return Err(io::Error::other("it is a link that leaves the workspace"));
        }
    }
    Ok(folder)
}

/// Sees to it that the run's copy of its skill is in its place.
fn place(workspace: &Path, preparation: &Preparation<'_>, skill: &Skill) -> Result<(), Unusable> {
    let (folder, name) = skill.copy.rsplit_once('/').unwrap_or(("", &skill.copy));
    let folder = folder_in(workspace, folder).map_err(|error| {
        Unusable(format!("cannot make the folder {folder} for skills in the workspace: {error}"))
    })?;
    let target = folder.join(name);
    if found(&target, preparation.run) == There::ForThisRun {
        return Ok(());
    }
    let staged = stage(workspace, preparation, skill)?;
    for _ in 0..LOOKS {
        match found(&target, preparation.run) {
            There::ForThisRun => return Ok(()),
            There::ForAnotherRun if copy::same(&staged.copy, &target, MARK) => return Ok(()),
            There::ForAnotherRun => {
                // Two runs may both be at it. Who comes second finds nothing to move, and looks again.
                let _looked_at_again = fs::rename(&target, &staged.old);
                let _nobody_wants_it = fs::remove_dir_all(&staged.old);
            }
            There::OwnersOwn => {
                let (copy, source) = (&skill.copy, &skill.source);
                return Err(Unusable(format!(
                    "the workspace has a {copy} of its own, which is not overwritten; start the run without the \
                     skill to use that one, or rename the folder {source}"
                )));
            }
            There::Nothing => match fs::rename(&staged.copy, &target).and_then(|()| sync(&folder)) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) => {
                    return Err(Unusable(format!("cannot put the skill at {}: {error}", skill.copy)));
                }
            },
        }
    }
    Err(Unusable(format!("other runs keep changing {} in the workspace; try again later", skill.copy)))
}

/// What is in a copy's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Nothing,
    ForThisRun,
    /// It may be replaced.
    ForAnotherRun,
    /// It may not.
    OwnersOwn,
}

fn found(target: &Path, run: &str) -> There {
    let Ok(metadata) = fs::symlink_metadata(target) else { return There::Nothing };
    match fs::read_to_string(target.join(MARK)) {
        Ok(mark) if metadata.is_dir() => {
            let is_whole = fs::symlink_metadata(target.join(SKILL_FILE)).is_ok_and(|file| file.is_file());
            if mark.trim() == run && is_whole { There::ForThisRun } else { There::ForAnotherRun }
        }
        Ok(_) | Err(_) => There::OwnersOwn,
    }
}

/// A copy that is whole, and not yet in its place. What is left of it goes with this value.
struct Staged {
    copy: PathBuf,
    /// Where to move what stands in its place.
    old: PathBuf,
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _moved_to_its_place = fs::remove_dir_all(&self.copy);
        // The folder around them stays: another run may be about to write there.
        let _never_there = fs::remove_dir_all(&self.old);
    }
}

fn stage(workspace: &Path, preparation: &Preparation<'_>, skill: &Skill) -> Result<Staged, Unusable> {
    let named = workspace.join(&skill.source);
    let wrong = |what: &str| Unusable(format!("the skill {} {what}", named.display()));
    let source = fs::canonicalize(&named)
        .map_err(|error| wrong(&format!("cannot be found: {error}; name a folder with a {SKILL_FILE}")))?;
    if !source.is_dir() {
        return Err(wrong(&format!("is not a folder; name the folder in which the {SKILL_FILE} lies")));
    }
    if workspace.starts_with(&source) {
        return Err(wrong("holds the workspace itself; name the folder of the skill alone"));
    }
    if source.join(MARK).exists() {
        return Err(wrong("is a copy that Abide made for a run; name the folder that it was made from"));
    }
    match fs::symlink_metadata(source.join(SKILL_FILE)) {
        Ok(file) if file.is_file() => {}
        Ok(_) => return Err(wrong(&format!("has a {SKILL_FILE} that is not a plain file"))),
        Err(error) => return Err(wrong(&format!("has no {SKILL_FILE} that can be read: {error}"))),
    }
    let not_written = |error: io::Error| {
        Unusable(format!("cannot copy the skill into the workspace {}: {error}", workspace.display()))
    };
    let staging = folder_in(workspace, STAGING).map_err(not_written)?;
    let staged =
        Staged { copy: staging.join(preparation.run), old: staging.join(format!("{}.old", preparation.run)) };
    for left_by_a_crash in [&staged.copy, &staged.old] {
        match fs::remove_dir_all(left_by_a_crash) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(not_written(error)),
        }
    }
    let patch = skill_patch(preparation.mode);
    copy::folder(&source, &staged.copy, MOST, &|path, bytes| {
        if path == Path::new(SKILL_FILE) && !bytes.ends_with(patch.as_bytes()) {
            bytes.extend_from_slice(patch.as_bytes());
        }
        // The copy is nobody's work, so git overlooks all of it.
        if path == Path::new(".gitignore") {
            *bytes = b"*\n".to_vec();
        }
    })
    .map_err(|trouble| wrong(&trouble.to_string()))?;
    finish(&staged.copy, preparation.run).map_err(not_written)?;
    Ok(staged)
}

fn finish(copy: &Path, run: &str) -> io::Result<()> {
    overlook(copy)?;
    let mut mark = fs::File::create_new(copy.join(MARK))?;
    writeln!(mark, "{run}")?;
    mark.sync_all()?;
    sync(copy)
}

/// Makes what was done in a folder last.
fn sync(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}
