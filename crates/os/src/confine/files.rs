//! Restricts access to files with Landlock.
//!
//! Landlock only grants permissions. So a directory is hidden by granting access to everything beside it and beside
//! each of its parents, at every place at which it is mounted. Entries created there later are not accessible. Landlock does not restrict connecting to Unix
//! sockets, nor reading the names and attributes of files. A restricted process cannot mount anything. To hide a
//! directory from programs with their own sandboxes, use [`super::namespace`].

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus,
};
use rustix::fs::{FileType, fstat};

use super::{AliasScope, ConfineError, HiddenTree, open_resolved};

const MECHANISM_NAME: &str = "Landlock";

/// The permitted access to files. Access that no field forbids is permitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileRules {
    /// Directories whose contents can be neither read nor written, even below a writable path.
    pub hidden: Option<HiddenTree>,
    /// If set, only these paths and their contents can be written. They are absolute, without symbolic links. Paths that
    /// do not exist are ignored.
    pub writable: Option<Vec<PathBuf>>,
}

/// Devices that programs write to without changing any state.
const WRITABLE_DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/console",
];

/// The newest known access rights. An older kernel does not restrict the rights that it does not have.
const NEWEST_ABI: ABI = ABI::V6;

/// Restricts this process and its future descendants.
pub fn restrict(rules: &FileRules) -> Result<(), ConfineError> {
    let all = AccessFs::from_all(NEWEST_ABI);
    let default_access = if rules.writable.is_some() { AccessFs::from_read(NEWEST_ABI) } else { all };
    let mut ruleset = create_ruleset()?;
    let places = match &rules.hidden {
        None => vec![],
        Some(tree) => tree.places(AliasScope::All)?,
    };
    for path in paths_beside(Path::new("/"), &places) {
        ruleset = permit(ruleset, &path, default_access)?;
    }
    let shown: Vec<&Path> = match &rules.hidden {
        None => vec![],
        Some(tree) => places.iter().flat_map(|place| tree.shown_below(place)).collect(),
    };
    for path in shown.iter().flat_map(|path| paths_beside(path, &places)) {
        ruleset = permit_resolved(ruleset, &path, default_access)?;
    }
    for path in rules.writable.iter().flatten().flat_map(|path| paths_beside(path, &places)) {
        ruleset = permit_resolved(ruleset, &path, all)?;
    }
    for path in WRITABLE_DEVICES {
        let use_of_device = AccessFs::ReadFile
            | AccessFs::WriteFile
            | AccessFs::Truncate
            | AccessFs::IoctlDev
            | AccessFs::ReadDir;
        ruleset = permit(ruleset, Path::new(path), use_of_device)?;
    }
    let restriction = ruleset.restrict_self().map_err(unavailable_error)?;
    match restriction.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(unavailable_error("the kernel does not enforce it")),
    }
}

/// Whether this kernel has Landlock and permits its use.
pub fn check() -> Result<(), ConfineError> {
    create_ruleset().map(drop)
}

fn create_ruleset() -> Result<RulesetCreated, ConfineError> {
    // The first version is required; later ones are used if available.
    let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let required = required.handle_access(AccessFs::from_all(ABI::V1)).map_err(unavailable_error)?;
    let best = required.set_compatibility(CompatLevel::BestEffort);
    best.handle_access(AccessFs::from_all(NEWEST_ABI)).and_then(Ruleset::create).map_err(unavailable_error)
}

/// Permits access to a path and its contents. A path that cannot be opened needs no rule.
fn permit(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfineError> {
    let Ok(fd) = PathFd::new(path) else { return Ok(ruleset) };
    permit_opened(ruleset, fd, access)
}

/// The same for a path that the caller has resolved. A symbolic link that was put into the path since then is an error.
fn permit_resolved(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfineError> {
    match open_resolved(path)? {
        Some(opened) => permit_opened(ruleset, opened, access),
        None => Ok(ruleset),
    }
}

fn permit_opened(
    ruleset: RulesetCreated,
    opened: impl AsFd,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfineError> {
    let Ok(stat) = fstat(&opened) else { return Ok(ruleset) };
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let access = if is_directory { access } else { access & AccessFs::from_file(NEWEST_ABI) };
    ruleset.add_rule(PathBeneath::new(opened, access)).map_err(unavailable_error)
}

/// The path itself, or if places are below it, all entries beside these places and beside each of their parents. Links
/// are left out: their targets have their own rules.
fn paths_beside(path: &Path, places: &[PathBuf]) -> Vec<PathBuf> {
    if places.iter().any(|place| place == path) {
        return vec![];
    }
    if !places.iter().any(|place| place.starts_with(path)) {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
    entries.flat_map(|entry| paths_beside(&entry.path(), places)).collect()
}

fn unavailable_error(reason: impl ToString) -> ConfineError {
    ConfineError::Unavailable { mechanism: MECHANISM_NAME, source: io::Error::other(reason.to_string()) }
}
