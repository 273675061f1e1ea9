//! Access to files, restricted with Landlock.
//!
//! Landlock knows only permissions, so a hidden directory is one of which everything beside it, and beside each of its
//! parents, is permitted. Entries that are made beside them later are not permitted. It does not restrict connecting to Unix
//! sockets, nor reading the names and attributes of files, and a process that it restricts cannot mount anything. Where a
//! directory must be hidden from programs with sandboxes of their own, use [`super::namespace`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus,
};

use super::{ConfineError, HiddenTree};

const MECHANISM: &str = "Landlock";

/// What a process may do with files. Everything is permitted that no field forbids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileRules {
    /// A directory whose contents can be neither read nor written.
    pub hidden: Option<HiddenTree>,
    /// If set, only what lies below these paths can be written. What does not exist is left out.
    pub writable: Option<Vec<PathBuf>>,
}

/// Devices that programs write to without changing anything.
const DEVICES: [&str; 9] = [
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

/// The newest rights that are handled. What an older kernel does not know, it does not restrict.
const NEWEST: ABI = ABI::V6;

/// Restricts this process and everything that it starts.
pub fn restrict(rules: &FileRules) -> Result<(), ConfineError> {
    let all = AccessFs::from_all(NEWEST);
    let elsewhere = if rules.writable.is_some() { AccessFs::from_read(NEWEST) } else { all };
    let mut ruleset = ruleset()?;
    match &rules.hidden {
        None => ruleset = permit(ruleset, Path::new("/"), elsewhere)?,
        Some(tree) => {
            for path in beside(&tree.directory) {
                ruleset = permit(ruleset, &path, elsewhere)?;
            }
            for path in tree.shown_below() {
                ruleset = permit(ruleset, path, elsewhere)?;
            }
        }
    }
    for path in rules.writable.iter().flatten() {
        ruleset = permit(ruleset, path, all)?;
    }
    for path in DEVICES {
        let use_of_device = AccessFs::ReadFile
            | AccessFs::WriteFile
            | AccessFs::Truncate
            | AccessFs::IoctlDev
            | AccessFs::ReadDir;
        ruleset = permit(ruleset, Path::new(path), use_of_device)?;
    }
    let restriction = ruleset.restrict_self().map_err(unavailable)?;
    match restriction.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(unavailable("the kernel does not enforce it")),
    }
}

/// Whether this kernel has Landlock, and lets this process use it.
pub fn check() -> Result<(), ConfineError> {
    ruleset().map(drop)
}

fn ruleset() -> Result<RulesetCreated, ConfineError> {
    // The first version is required; what came later is used where it is known.
    let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let required = required.handle_access(AccessFs::from_all(ABI::V1)).map_err(unavailable)?;
    let best = required.set_compatibility(CompatLevel::BestEffort);
    best.handle_access(AccessFs::from_all(NEWEST)).and_then(Ruleset::create).map_err(unavailable)
}

/// Permits access to a path and everything below it. A path that cannot be opened needs no permission.
fn permit(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfineError> {
    let Ok(meta) = fs::metadata(path) else { return Ok(ruleset) };
    let Ok(fd) = PathFd::new(path) else { return Ok(ruleset) };
    let access = if meta.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    ruleset.add_rule(PathBeneath::new(fd, access)).map_err(unavailable)
}

/// Everything beside a directory and beside each of its parents. Links are left out: what they lead to has its own rule.
fn beside(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for inner in directory.ancestors() {
        let Some(parent) = inner.parent() else { break };
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let others = entries.filter(|entry| entry.path() != inner);
        found.extend(
            others
                .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()))
                .map(|entry| entry.path()),
        );
    }
    found
}

fn unavailable(reason: impl ToString) -> ConfineError {
    ConfineError::Unavailable { mechanism: MECHANISM, source: io::Error::other(reason.to_string()) }
}
