//! The control group of a child. It contains all descendants of the child, but not the keeper.
//!
//! A keeper creates a group with its own identity in the name (pid namespace, pid and start time), enters it, starts
//! the child, and leaves it again. So no descendant of the child is ever outside, and no helper program is needed.
//!
//! A group is left over if the keeper in its name is dead. No other record is needed, so the group is found even if its
//! keeper was killed before it wrote a file. A group is killed by its keeper, or after its keeper has died, or because
//! its keeper does not answer.
//!
//! ```text
//! BASE/abide-keepers                           the keepers
//! BASE/abide-k-NAMESPACE-PID-STARTTIME         a child without limits
//! BASE/abide-NAME/abide-k-…                    a child below a group with limits, which it can share with others
//! ```
//!
//! The caller chooses the base, and decides how to react if there is none.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use abide_os::cgroup::find::is_group;
use abide_os::cgroup::{CgroupError, ControlGroup, ControlGroupLimits};
use abide_os::process::ProcessStat;
use serde::{Deserialize, Serialize};

use crate::identity::ProcessIdentity;
use crate::protocol::KeeperRefusal;

/// Prefix of the names of all groups.
pub const GROUP_NAME_PREFIX: &str = "abide-";
/// Prefix of the name of a child's group.
const CHILD_GROUP_PREFIX: &str = "abide-k-";
/// The group that contains the keepers.
const KEEPERS_GROUP_NAME: &str = "abide-keepers";
/// Time limit for the processes of a killed group to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the removal of a group. A group that remains is removed by the next sweep.
const REMOVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Where and with which limits the groups of children are created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroupConfig {
    /// The parent of all groups. It exists and is writable for this user.
    pub base: PathBuf,
    /// The parent of the keepers' group. Equal to `base`, unless `base` is itself below a group of ours.
    pub keepers_base: PathBuf,
    /// The limits for each name.
    pub limits: ControlGroupLimits,
    /// Whether to refuse a child that cannot get its group and limits.
    pub required: bool,
}

/// The group to create for a new child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSpec {
    #[serde(with = "crate::path_bytes")]
    base: PathBuf,
    #[serde(with = "crate::path_bytes")]
    keepers_base: PathBuf,
    /// The name of the group with the limits, which is between the base and the group of the child.
    name: Option<String>,
    memory_bytes: Option<u64>,
    pids: Option<u64>,
    required: bool,
}

impl ControlGroupConfig {
    /// The configuration for a process that is itself in the group of a child. Its children get groups beside that
    /// group, so that they share its limits and outlive it. `own` is the group of the process.
    pub fn beside(own: &Path) -> Option<Self> {
        let base = own.parent().filter(|_| keeper_of_group_path(own).is_some())?;
        let is_ours = |path: &Path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(GROUP_NAME_PREFIX))
        };
        let keepers_base = base.ancestors().find(|path| !is_ours(path))?;
        let (base, keepers_base) = (base.to_owned(), keepers_base.to_owned());
        Some(Self { base, keepers_base, limits: ControlGroupLimits::default(), required: false })
    }

    /// The group of a new child. Children with the same name share its limits.
    pub fn child_spec(&self, name: &str) -> GroupSpec {
        GroupSpec {
            base: self.base.clone(),
            keepers_base: self.keepers_base.clone(),
            name: (!self.limits.is_empty()).then(|| name.to_owned()),
            memory_bytes: self.limits.memory_bytes,
            pids: self.limits.pids,
            required: self.required,
        }
    }

    /// Kills and removes the groups of dead keepers, for all names.
    pub fn remove_dead_groups(&self) {
        remove_dead_groups_below(&ControlGroup::at(&self.base));
    }
}

impl GroupSpec {
    /// Creates the parent of the child's group and sets its limits.
    fn create_parent(&self) -> Result<ControlGroup, CgroupError> {
        let base = ControlGroup::at(&self.base);
        let Some(name) = &self.name else { return Ok(base) };
        let parent = limits_group(&base, name)?;
        parent.create()?;
        let limits = ControlGroupLimits { memory_bytes: self.memory_bytes, pids: self.pids };
        match parent.set_limits(&limits) {
            Err(error) if self.required => Err(error),
            // The caller has logged a warning.
            Ok(()) | Err(_) => Ok(parent),
        }
    }

    /// Whether a child without this group is refused.
    pub(crate) fn is_required(&self) -> bool {
        self.required
    }
}

/// The group with this name. Names that match the keepers' group or the group of a child are refused.
fn limits_group(base: &ControlGroup, name: &str) -> Result<ControlGroup, CgroupError> {
    let full = format!("{GROUP_NAME_PREFIX}{name}");
    if full == KEEPERS_GROUP_NAME || full.starts_with(CHILD_GROUP_PREFIX) {
        return Err(CgroupError::Name { name: full });
    }
    base.child(&full)
}

fn refusal(error: &CgroupError) -> KeeperRefusal {
    KeeperRefusal::System(format!(
        "the process cannot get a control group: {error}; set sandbox.cgroup to another group, or to \"auto\""
    ))
}

/// The group of a child, as used by its keeper.
#[derive(Debug)]
pub(crate) struct ChildGroup {
    leaf: ControlGroup,
    keepers: ControlGroup,
    /// The group between the leaf and the base, if there is one.
    limits_group: Option<ControlGroup>,
    /// True if the keeper has left the leaf.
    is_outside: Cell<bool>,
}

impl ChildGroup {
    /// Creates the group for the child of this keeper. None if it cannot be created and is not required.
    pub(crate) fn create(spec: &GroupSpec, keeper: &ProcessIdentity) -> Result<Option<Self>, KeeperRefusal> {
        match Self::try_create(spec, keeper) {
            Ok(group) => Ok(Some(group)),
            Err(error) if spec.required => Err(refusal(&error)),
            Err(_) => Ok(None),
        }
    }

    fn try_create(spec: &GroupSpec, keeper: &ProcessIdentity) -> Result<Self, CgroupError> {
        let keepers = ControlGroup::at(&spec.keepers_base).child(KEEPERS_GROUP_NAME)?;
        keepers.create()?;
        // Another keeper with the same name may remove the parent when its own child was the last one in it.
        let mut tries = 0;
        let (parent, leaf) = loop {
            let created = spec.create_parent().and_then(|parent| {
                let leaf = parent.child(&child_group_name(KeeperKey::of(keeper)))?;
                leaf.create().map(|()| (parent, leaf))
            });
            match created {
                Err(error) if error.is_not_found() && spec.name.is_some() && tries < MAX_CREATE_ATTEMPTS => {
                    tries += 1
                }
                created => break created?,
            }
        };
        Ok(Self {
            leaf,
            keepers,
            limits_group: spec.name.is_some().then_some(parent),
            is_outside: Cell::new(true),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.leaf.path()
    }

    /// Runs `start` inside the group, so that the started processes belong to it.
    pub(crate) fn run_inside<T>(
        &self,
        required: bool,
        start: impl FnOnce() -> Result<T, KeeperRefusal>,
    ) -> Result<T, KeeperRefusal> {
        match self.leaf.enter() {
            Err(error) if required => return Err(refusal(&error)),
            Ok(()) | Err(_) => {}
        }
        let started = start();
        self.leave();
        started
    }

    /// Moves this keeper into the keepers' group. A keeper that cannot leave must not kill the group.
    fn leave(&self) {
        let mut entered = self.keepers.enter();
        let mut tries = 0;
        // A sweep may have removed the keepers' group while it was empty.
        while entered.as_ref().is_err_and(CgroupError::is_not_found) && tries < MAX_CREATE_ATTEMPTS {
            entered = self.keepers.create().and_then(|()| self.keepers.enter());
            tries += 1;
        }
        self.is_outside.set(entered.is_ok());
    }

    /// Kills all processes in the group, unless one of `spared` is in it.
    pub(crate) fn kill(&self, excluded_pids: &[u32]) {
        if self.is_safe_to_kill(excluded_pids) {
            // Remaining processes are detected by `holds_processes`.
            self.leaf.kill().ok();
        }
    }

    /// Whether the group contains processes that this keeper has to end.
    pub(crate) fn has_processes(&self, excluded_pids: &[u32]) -> bool {
        self.leaf.is_populated().unwrap_or(false) && self.is_safe_to_kill(excluded_pids)
    }

    fn is_safe_to_kill(&self, excluded_pids: &[u32]) -> bool {
        self.is_outside.get() && contains_none_of(&self.leaf, excluded_pids)
    }

    /// Removes the group. If that fails, a later sweep removes it.
    pub(crate) fn remove(&self) {
        self.leaf.remove(REMOVE_TIMEOUT).ok();
        if let Some(named) = &self.limits_group {
            remove_dead_groups_below(named);
            remove_if_unused(named);
        }
    }
}

/// Number of attempts to create a group whose parent is removed concurrently.
const MAX_CREATE_ATTEMPTS: u32 = 100;

/// Called by the exec helper: creates a group for this process below `parent`, and enters it.
pub(crate) fn enter_new_group(parent: &Path) -> Result<(), CgroupError> {
    let own = ProcessIdentity::own();
    let leaf = ControlGroup::at(parent).child(&child_group_name(KeeperKey::of(&own)))?;
    leaf.create()?;
    leaf.enter().inspect_err(|_| {
        // The group is empty, and its name is never used again.
        leaf.remove(REMOVE_TIMEOUT).ok();
    })
}

/// Kills the recorded group of a dead keeper, and removes it.
///
/// The record may be forged. A group with a foreign name, or with a living keeper, is not touched.
pub(crate) fn end_leftover_group(path: &Path) {
    if is_group(path) && keeper_of_group_path(path).is_some_and(KeeperKey::is_dead) {
        kill_and_remove(&ControlGroup::at(path));
        remove_named_parent(path);
    }
}

/// Kills the recorded group of a keeper that does not answer. The keeper survives if it is outside the group. A group
/// that contains one of `spared` is not touched.
pub(crate) fn kill_group_of_unresponsive_keeper(
    path: &Path,
    keeper: &ProcessIdentity,
    excluded_pids: &[u32],
) {
    let group = ControlGroup::at(path);
    let is_of_keeper = keeper_of_group_path(path) == Some(KeeperKey::of(keeper));
    if is_of_keeper && is_group(path) && contains_none_of(&group, excluded_pids) {
        // Remaining processes are found by their parent pids.
        group.kill().ok();
    }
}

/// Kills and removes the groups of dead keepers below a group, including those inside a named group.
fn remove_dead_groups_below(parent: &ControlGroup) {
    for name in parent.children() {
        let Ok(group) = parent.child(&name) else { continue };
        match parse_child_group_name(&name) {
            Some(keeper) if keeper.is_dead() => kill_and_remove(&group),
            Some(_) => {}
            None if name == KEEPERS_GROUP_NAME => remove_if_unused(&group),
            None if name.starts_with(GROUP_NAME_PREFIX) => {
                for inner in group.children() {
                    if parse_child_group_name(&inner).is_some_and(KeeperKey::is_dead)
                        && let Ok(leaf) = group.child(&inner)
                    {
                        kill_and_remove(&leaf);
                    }
                }
                remove_if_unused(&group);
            }
            None => {}
        }
    }
}

fn kill_and_remove(group: &ControlGroup) {
    // A group that does not become empty in time, because it contains a process of another user, is left to the next
    // sweep.
    group.kill().ok();
    group.wait_until_empty(KILL_TIMEOUT);
    group.remove(REMOVE_TIMEOUT).ok();
}

fn remove_named_parent(leaf: &Path) {
    let parent = leaf.parent().filter(|parent| {
        let name = parent.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with(GROUP_NAME_PREFIX)
    });
    if let Some(parent) = parent {
        remove_if_unused(&ControlGroup::at(parent));
    }
}

/// Removes a group that is empty and has no subgroups. The kernel refuses to remove a group in use.
fn remove_if_unused(named: &ControlGroup) {
    std::fs::remove_dir(named.path()).ok();
}

fn contains_none_of(group: &ControlGroup, pids: &[u32]) -> bool {
    if pids.is_empty() {
        return true;
    }
    // If the members cannot be read, the group is not considered free.
    group.processes().is_ok_and(|members| !members.iter().any(|member| pids.contains(member)))
}

/// The keeper that the name of a child's group identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeeperKey {
    /// The inode of the pid namespace in which the pid is valid.
    namespace: u64,
    pid: u32,
    start_time: u64,
}

impl KeeperKey {
    /// The key of a keeper in the pid namespace of this process.
    fn of(keeper: &ProcessIdentity) -> Self {
        Self { namespace: pid_namespace(), pid: keeper.pid, start_time: keeper.start_time }
    }

    /// Whether the keeper has certainly ended. A keeper of another pid namespace is assumed to be alive. Groups do not
    /// survive a reboot.
    fn is_dead(self) -> bool {
        let is_alive = |stat: ProcessStat| stat.start_time == self.start_time && !stat.is_zombie();
        self.namespace == pid_namespace() && !ProcessStat::read(self.pid).is_some_and(is_alive)
    }
}

/// The inode of this process's pid namespace; 0 if it cannot be read.
fn pid_namespace() -> u64 {
    static INODE: OnceLock<u64> = OnceLock::new();
    let read = || std::fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino()).unwrap_or_default();
    *INODE.get_or_init(read)
}

fn child_group_name(keeper: KeeperKey) -> String {
    format!("{CHILD_GROUP_PREFIX}{}-{}-{}", keeper.namespace, keeper.pid, keeper.start_time)
}

fn keeper_of_group_path(path: &Path) -> Option<KeeperKey> {
    parse_child_group_name(path.file_name()?.to_str()?)
}

fn parse_child_group_name(name: &str) -> Option<KeeperKey> {
    let mut numbers = name.strip_prefix(CHILD_GROUP_PREFIX)?.split('-');
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let (namespace, pid, start_time) = (next()?, u32::try_from(next()?).ok()?, next()?);
    let keeper = KeeperKey { namespace, pid, start_time };
    // Accepts only the exact format of `child_group_name`: no sign, no leading zero, no suffix.
    (child_group_name(keeper) == name).then_some(keeper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A temporary directory that imitates a cgroup hierarchy, with a group of this name that has controllers.
    fn fake(name: &str) -> (tempfile::TempDir, ControlGroupConfig) {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join(format!("{GROUP_NAME_PREFIX}{name}"));
        fs::create_dir(&named).unwrap();
        for file in ["memory.max", "pids.max"] {
            fs::write(named.join(file), "max").unwrap();
        }
        let limits = ControlGroupLimits { memory_bytes: Some(1 << 30), pids: Some(100) };
        let base = folder.path().to_owned();
        (folder, ControlGroupConfig { keepers_base: base.clone(), base, limits, required: true })
    }

    #[test]
    fn the_limits_of_a_name_are_written_above_the_group_of_the_child() {
        let (folder, groups) = fake("run_1");
        let own = ProcessIdentity::own();
        let child_group = ChildGroup::create(&groups.child_spec("run_1"), &own).unwrap().unwrap();
        let named = folder.path().join("abide-run_1");
        assert_eq!(fs::read_to_string(named.join("memory.max")).unwrap(), "1073741824");
        assert_eq!(fs::read_to_string(named.join("pids.max")).unwrap(), "100");
        let key = format!("{}-{}-{}", pid_namespace(), own.pid, own.start_time);
        assert_eq!(child_group.path(), named.join(format!("abide-k-{key}")));
        assert!(child_group.path().is_dir() && folder.path().join("abide-keepers").is_dir());
    }

    #[test]
    fn a_child_that_cannot_get_its_limits_is_refused_only_if_they_are_required() {
        let (_folder, mut groups) = fake("run_1");
        let own = ProcessIdentity::own();
        let refused = ChildGroup::create(&groups.child_spec("without-controllers"), &own).unwrap_err();
        assert!(refused.to_string().contains("the controller memory is not available"), "{refused}");
        groups.required = false;
        assert!(ChildGroup::create(&groups.child_spec("without-controllers"), &own).unwrap().is_some());
        for hostile in ["../x", "a/b", "", "..", "x\ny", "keepers", "k-1-2-3"] {
            // The name gets the prefix `abide-`, so only names that contain a path or match another kind of group are
            // refused.
            let child_group = ChildGroup::create(&groups.child_spec(hostile), &own).unwrap();
            assert_eq!(child_group.is_some(), ["", ".."].contains(&hostile), "{hostile:?}");
        }
    }

    #[test]
    fn a_missing_base_yields_no_group_or_a_refusal() {
        let (folder, mut groups) = fake("run_1");
        drop(folder);
        let own = ProcessIdentity::own();
        assert!(matches!(
            ChildGroup::create(&groups.child_spec("run_1"), &own),
            Err(KeeperRefusal::System(_))
        ));
        groups.required = false;
        assert!(ChildGroup::create(&groups.child_spec("run_1"), &own).unwrap().is_none());
        groups.remove_dead_groups();
    }

    #[test]
    fn a_sweep_removes_groups_of_dead_keepers_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let own = KeeperKey::of(&ProcessIdentity::own());
        let living = child_group_name(own);
        let dead = child_group_name(KeeperKey { start_time: own.start_time + 1, ..own });
        let elsewhere = child_group_name(KeeperKey { namespace: own.namespace + 1, start_time: 1, ..own });
        let base = folder.path().to_owned();
        for name in [
            living.as_str(),
            dead.as_str(),
            elsewhere.as_str(),
            "abide-keepers",
            "other",
            "abide-k-x-1",
            &format!("abide-used/{living}"),
            &format!("abide-used/{dead}"),
            &format!("abide-over/{dead}"),
            &format!("other/{dead}"),
        ] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        ControlGroupConfig {
            keepers_base: base.clone(),
            base,
            limits: ControlGroupLimits::default(),
            required: false,
        }
        .remove_dead_groups();
        let mut left = ControlGroup::at(folder.path()).children();
        left.sort();
        let mut expected = vec![living.clone(), elsewhere, "other".into(), "abide-used".into()];
        expected.sort();
        assert_eq!(left, expected);
        assert_eq!(ControlGroup::at(folder.path().join("abide-used")).children(), [living]);
        assert_eq!(ControlGroup::at(folder.path().join("other")).children(), [dead]);
    }

    #[test]
    fn a_recorded_group_with_a_foreign_name_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let own = KeeperKey::of(&ProcessIdentity::own());
        let dead = folder.path().join(child_group_name(KeeperKey { start_time: own.start_time + 1, ..own }));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("cgroup.kill"), "").unwrap();
        // A directory of another file system is ignored, even if its name matches.
        end_leftover_group(&dead);
        assert_eq!(fs::read(dead.join("cgroup.kill")).unwrap(), b"");
        for name in [
            "abide-k-1-2",
            "abide-k-1-2-3-4",
            "abide-k-1--2",
            "abide-k-1-02-3",
            "abide-k-1-+2-3",
            "k-1-2-3",
            "..",
        ] {
            assert_eq!(parse_child_group_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_in_a_child_group_creates_groups_beside_it() {
        let groups = ControlGroupConfig::beside(Path::new("/c/service/abide-run_1/abide-k-6-7-8")).unwrap();
        assert_eq!(groups.base, Path::new("/c/service/abide-run_1"));
        assert_eq!(groups.keepers_base, Path::new("/c/service"));
        assert!(groups.limits.is_empty());
        assert_eq!(groups.child_spec("x").name, None);
        assert_eq!(ControlGroupConfig::beside(Path::new("/c/service")), None);
        assert_eq!(ControlGroupConfig::beside(Path::new("/c/abide-k-6-7-8")).unwrap().base, Path::new("/c"));
    }
}
