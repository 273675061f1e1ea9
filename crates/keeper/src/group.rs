//! The control group of a child: everything that the child starts is in it, and the keeper is not.
//!
//! A keeper makes a group with its own identity in the name (pid namespace, pid and start time), enters it, starts the child, and leaves it again. So no
//! descendant of the child was ever outside, and no program has to be started in between. A shell that is confined together with its keeper is
//! different: the exec helper enters the group before it confines itself, and the keeper stays inside.
//!
//! The name says whether a group is left over: its keeper is dead. Nothing else has to be recorded for that, so a group is
//! found also if its keeper was killed before it wrote a file. A group is killed only if its keeper is dead, or by its keeper,
//! or because its keeper does not answer.
//!
//! ```text
//! BASE/abide-keepers                           the keepers
//! BASE/abide-k-NAMESPACE-PID-STARTTIME         a child without limits
//! BASE/abide-NAME/abide-k-…                    a child below a group with limits, which it can share with others
//! ```
//!
//! Not here: which base is used, and what happens where there is none. The caller decides both.

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

/// What the names of all groups begin with.
pub const PREFIX: &str = "abide-";
/// What the name of a child's group begins with.
const LEAF: &str = "abide-k-";
/// The group in which keepers are.
const KEEPERS: &str = "abide-keepers";
/// How long the processes of a group may take to end after they were killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the removal of a group may take. What is left is removed by the next sweep.
const REMOVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Where children get their groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroupConfig {
    /// The group below which all groups are made. It exists, and this user may write to it.
    pub base: PathBuf,
    /// The group below which keepers have theirs. The same as `base`, unless that is itself below a group of ours.
    pub keepers_base: PathBuf,
    /// The limits of each name.
    pub limits: ControlGroupLimits,
    /// Whether a child that cannot get its group and limits is refused.
    pub required: bool,
}

/// The group that a new child is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSpec {
    #[serde(with = "crate::path_bytes")]
    base: PathBuf,
    #[serde(with = "crate::path_bytes")]
    keepers_base: PathBuf,
    /// The group with the limits, between the base and the child's.
    name: Option<String>,
    memory_bytes: Option<u64>,
    pids: Option<u64>,
    required: bool,
}

impl ControlGroupConfig {
    /// Groups of children that are started by a process that is itself in the group of a child: beside that group, so that
    /// they share its limits and outlive it. `own` is the process's own group.
    pub fn beside(own: &Path) -> Option<Self> {
        let base = own.parent().filter(|_| keeper_of_leaf(own).is_some())?;
        let is_ours =
            |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        let keepers_base = base.ancestors().find(|path| !is_ours(path))?;
        let (base, keepers_base) = (base.to_owned(), keepers_base.to_owned());
        Some(Self { base, keepers_base, limits: ControlGroupLimits::default(), required: false })
    }

    /// The group of a new child. Children of one name share its limits.
    pub fn of_child(&self, name: &str) -> GroupSpec {
        GroupSpec {
            base: self.base.clone(),
            keepers_base: self.keepers_base.clone(),
            name: (!self.limits.is_empty()).then(|| name.to_owned()),
            memory_bytes: self.limits.memory_bytes,
            pids: self.limits.pids,
            required: self.required,
        }
    }

    /// Kills and removes what dead keepers left, of all names.
    pub fn sweep(&self) {
        sweep_below(&ControlGroup::at(&self.base));
    }
}

impl GroupSpec {
    /// Makes the group in which the child's is made, with its limits.
    fn parent(&self) -> Result<ControlGroup, CgroupError> {
        let base = ControlGroup::at(&self.base);
        let Some(name) = &self.name else { return Ok(base) };
        let parent = named(&base, name)?;
        parent.create()?;
        let limits = ControlGroupLimits { memory_bytes: self.memory_bytes, pids: self.pids };
        match parent.limit(&limits) {
            Err(error) if self.required => Err(error),
            // The caller has warned of it.
            Ok(()) | Err(_) => Ok(parent),
        }
    }

    /// The group that a keeper's helper with this pid has entered, if it lives.
    pub(crate) fn of_keeper(&self, pid: u32) -> Option<PathBuf> {
        let base = ControlGroup::at(&self.base);
        let parent = self.name.as_ref().map_or(Ok(base.clone()), |name| named(&base, name));
        let leaf = parent.ok()?.child(&leaf_name(KeeperKey::of(&ProcessIdentity::of(pid)?))).ok()?;
        Some(leaf.path().to_owned())
    }

    /// Whether a child that cannot get it is refused.
    pub(crate) fn is_required(&self) -> bool {
        self.required
    }

    /// What the exec helper is told so that it enters the group. None if the group cannot be made and need not be.
    pub(crate) fn for_helper(&self) -> Result<Option<PathBuf>, KeeperRefusal> {
        match self.parent() {
            Ok(parent) => Ok(Some(parent.path().to_owned())),
            Err(error) if self.required => Err(refusal(&error)),
            Err(_) => Ok(None),
        }
    }
}

/// The group of a name. It is neither the one of the keepers nor looks like the one of a child.
fn named(base: &ControlGroup, name: &str) -> Result<ControlGroup, CgroupError> {
    let full = format!("{PREFIX}{name}");
    if full == KEEPERS || full.starts_with(LEAF) {
        return Err(CgroupError::Name { name: full });
    }
    base.child(&full)
}

fn refusal(error: &CgroupError) -> KeeperRefusal {
    KeeperRefusal::System(format!(
        "the process cannot get a control group: {error}; set sandbox.cgroup to another group, or to \"auto\""
    ))
}

/// The group of a child, as its keeper holds it.
#[derive(Debug)]
pub(crate) struct ChildGroup {
    leaf: ControlGroup,
    keepers: ControlGroup,
    /// The group between the leaf and the base, if there is one.
    named: Option<ControlGroup>,
    /// Whether the keeper itself is not in the leaf.
    is_outside: Cell<bool>,
}

impl ChildGroup {
    /// Makes the group for the child of this keeper. None if it cannot be made and need not be.
    pub(crate) fn make(spec: &GroupSpec, keeper: &ProcessIdentity) -> Result<Option<Self>, KeeperRefusal> {
        match Self::try_make(spec, keeper) {
            Ok(group) => Ok(Some(group)),
            Err(error) if spec.required => Err(refusal(&error)),
            Err(_) => Ok(None),
        }
    }

    fn try_make(spec: &GroupSpec, keeper: &ProcessIdentity) -> Result<Self, CgroupError> {
        let keepers = ControlGroup::at(&spec.keepers_base).child(KEEPERS)?;
        keepers.create()?;
        // Another keeper of the same name may remove the group above as the last one that used it.
        let mut tries = 0;
        let (parent, leaf) = loop {
            let made = spec.parent().and_then(|parent| {
                let leaf = parent.child(&leaf_name(KeeperKey::of(keeper)))?;
                leaf.create().map(|()| (parent, leaf))
            });
            match made {
                Err(error) if error.is_not_found() && spec.name.is_some() && tries < MAKE_TRIES => tries += 1,
                made => break made?,
            }
        };
        Ok(Self { leaf, keepers, named: spec.name.is_some().then_some(parent), is_outside: Cell::new(true) })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.leaf.path()
    }

    /// Does something inside the group: what it starts is in the group.
    pub(crate) fn inside<T>(
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

    /// Moves this keeper to the others. One that cannot must not kill the group.
    fn leave(&self) {
        let mut left = self.keepers.enter();
        let mut tries = 0;
        // A sweep may have removed their group while it was empty.
        while left.as_ref().is_err_and(CgroupError::is_not_found) && tries < MAKE_TRIES {
            left = self.keepers.create().and_then(|()| self.keepers.enter());
            tries += 1;
        }
        self.is_outside.set(left.is_ok());
    }

    /// Kills everything in it, unless one of these processes is in it.
    pub(crate) fn kill(&self, spared: &[u32]) {
        if self.is_safe_to_kill(spared) {
            // What is left is seen by `holds_processes`.
            self.leaf.kill().ok();
        }
    }

    /// Whether there are processes in it that this keeper is to end.
    pub(crate) fn holds_processes(&self, spared: &[u32]) -> bool {
        self.leaf.is_populated().unwrap_or(false) && self.is_safe_to_kill(spared)
    }

    fn is_safe_to_kill(&self, spared: &[u32]) -> bool {
        self.is_outside.get() && is_free_of(&self.leaf, spared)
    }

    /// Removes it. What cannot be removed now is left to a sweep.
    pub(crate) fn remove(&self) {
        self.leaf.remove(REMOVE_TIMEOUT).ok();
        if let Some(named) = &self.named {
            sweep_below(named);
            remove_if_unused(named);
        }
    }
}

/// How often a group is made again whose parent was removed meanwhile.
const MAKE_TRIES: u32 = 100;

/// The exec helper's side: makes a group for this process below a group, and enters it.
pub(crate) fn enter_own(parent: &Path) -> Result<(), CgroupError> {
    let own = ProcessIdentity::own();
    let leaf = ControlGroup::at(parent).child(&leaf_name(KeeperKey::of(&own)))?;
    leaf.create()?;
    leaf.enter().inspect_err(|_| {
        // It is empty, and its name will never be used.
        leaf.remove(REMOVE_TIMEOUT).ok();
    })
}

/// The group that this process is in, if it is one that [`enter_own`] made.
pub(crate) fn entered() -> Option<PathBuf> {
    abide_os::cgroup::find::own_group().ok().filter(|own| keeper_of_leaf(own).is_some())
}

/// Kills the recorded group of a keeper that is dead, and removes it.
///
/// The record may be forged. A group whose name is none of ours, or whose keeper lives, is left alone.
pub(crate) fn end_left_over(path: &Path) {
    if is_group(path) && keeper_of_leaf(path).is_some_and(KeeperKey::is_dead) {
        end(&ControlGroup::at(path));
        remove_named_parent(path);
    }
}

/// Kills the recorded group of a keeper that does not answer: without it if it is outside. Spares a group that holds one
/// of these processes.
pub(crate) fn kill_unanswered(path: &Path, keeper: &ProcessIdentity, spared: &[u32]) {
    let group = ControlGroup::at(path);
    let is_of_keeper = keeper_of_leaf(path) == Some(KeeperKey::of(keeper));
    if is_of_keeper && is_group(path) && is_free_of(&group, spared) {
        // What is left is found by its parents.
        group.kill().ok();
    }
}

/// Kills and removes the groups of dead keepers below a group, also those with a name between.
fn sweep_below(parent: &ControlGroup) {
    for name in parent.children() {
        let Ok(group) = parent.child(&name) else { continue };
        match leaf_of(&name) {
            Some(keeper) if keeper.is_dead() => end(&group),
            Some(_) => {}
            None if name == KEEPERS => remove_if_unused(&group),
            None if name.starts_with(PREFIX) => {
                for inner in group.children() {
                    if leaf_of(&inner).is_some_and(KeeperKey::is_dead)
                        && let Ok(leaf) = group.child(&inner)
                    {
                        end(&leaf);
                    }
                }
                remove_if_unused(&group);
            }
            None => {}
        }
    }
}

fn end(group: &ControlGroup) {
    // A group that is not empty in time, because another user's process is in it, is left to the next sweep.
    group.kill().ok();
    group.wait_until_empty(KILL_TIMEOUT);
    group.remove(REMOVE_TIMEOUT).ok();
}

fn remove_named_parent(leaf: &Path) {
    let parent = leaf.parent().filter(|parent| {
        let name = parent.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with(PREFIX)
    });
    if let Some(parent) = parent {
        remove_if_unused(&ControlGroup::at(parent));
    }
}

/// Removes a group if nothing is in it or below it. The kernel refuses to remove one that is used.
fn remove_if_unused(named: &ControlGroup) {
    std::fs::remove_dir(named.path()).ok();
}

fn is_free_of(group: &ControlGroup, pids: &[u32]) -> bool {
    if pids.is_empty() {
        return true;
    }
    // Unreadable is not free.
    group.processes().is_ok_and(|members| !members.iter().any(|member| pids.contains(member)))
}

/// The keeper in the name of a child's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeeperKey {
    /// The pid namespace in which the pid is valid, by inode.
    namespace: u64,
    pid: u32,
    start_time: u64,
}

impl KeeperKey {
    /// A keeper in this process's pid namespace.
    fn of(keeper: &ProcessIdentity) -> Self {
        Self { namespace: pid_namespace(), pid: keeper.pid, start_time: keeper.start_time }
    }

    /// Whether it has certainly ended. Of another pid namespace nothing is known. Groups do not outlive a boot.
    fn is_dead(self) -> bool {
        let is_alive = |stat: ProcessStat| stat.start_time == self.start_time && !stat.is_zombie();
        self.namespace == pid_namespace() && !ProcessStat::read(self.pid).is_some_and(is_alive)
    }
}

/// The inode of this process's pid namespace; 0 if it cannot be known.
fn pid_namespace() -> u64 {
    static INODE: OnceLock<u64> = OnceLock::new();
    let read = || std::fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino()).unwrap_or_default();
    *INODE.get_or_init(read)
}

fn leaf_name(keeper: KeeperKey) -> String {
    format!("{LEAF}{}-{}-{}", keeper.namespace, keeper.pid, keeper.start_time)
}

fn keeper_of_leaf(path: &Path) -> Option<KeeperKey> {
    leaf_of(path.file_name()?.to_str()?)
}

fn leaf_of(name: &str) -> Option<KeeperKey> {
    let mut numbers = name.strip_prefix(LEAF)?.split('-');
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let (namespace, pid, start_time) = (next()?, u32::try_from(next()?).ok()?, next()?);
    let keeper = KeeperKey { namespace, pid, start_time };
    // Only what we write: no sign, no leading zero, nothing behind.
    (leaf_name(keeper) == name).then_some(keeper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A base that looks like a hierarchy, with a group of this name that has controllers.
    fn fake(name: &str) -> (tempfile::TempDir, ControlGroupConfig) {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join(format!("{PREFIX}{name}"));
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
        let made = ChildGroup::make(&groups.of_child("run_1"), &own).unwrap().unwrap();
        let named = folder.path().join("abide-run_1");
        assert_eq!(fs::read_to_string(named.join("memory.max")).unwrap(), "1073741824");
        assert_eq!(fs::read_to_string(named.join("pids.max")).unwrap(), "100");
        let key = format!("{}-{}-{}", pid_namespace(), own.pid, own.start_time);
        assert_eq!(made.path(), named.join(format!("abide-k-{key}")));
        assert!(made.path().is_dir() && folder.path().join("abide-keepers").is_dir());
    }

    #[test]
    fn a_child_that_cannot_get_its_limits_is_refused_only_if_they_are_required() {
        let (_folder, mut groups) = fake("run_1");
        let own = ProcessIdentity::own();
        let refused = ChildGroup::make(&groups.of_child("without-controllers"), &own).unwrap_err();
        assert!(refused.to_string().contains("the controller memory is not available"), "{refused}");
        groups.required = false;
        assert!(ChildGroup::make(&groups.of_child("without-controllers"), &own).unwrap().is_some());
        for hostile in ["../x", "a/b", "", "..", "x\ny", "keepers", "k-1-2-3"] {
            // `abide-` stands before it, so only what leads elsewhere or is another kind of group is refused.
            let made = ChildGroup::make(&groups.of_child(hostile), &own).unwrap();
            assert_eq!(made.is_some(), ["", ".."].contains(&hostile), "{hostile:?}");
        }
    }

    #[test]
    fn a_base_that_is_gone_is_no_group_or_a_refusal() {
        let (folder, mut groups) = fake("run_1");
        drop(folder);
        let own = ProcessIdentity::own();
        assert!(matches!(ChildGroup::make(&groups.of_child("run_1"), &own), Err(KeeperRefusal::System(_))));
        groups.required = false;
        assert!(ChildGroup::make(&groups.of_child("run_1"), &own).unwrap().is_none());
        groups.sweep();
    }

    #[test]
    fn a_sweep_removes_groups_of_dead_keepers_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let own = KeeperKey::of(&ProcessIdentity::own());
        let living = leaf_name(own);
        let dead = leaf_name(KeeperKey { start_time: own.start_time + 1, ..own });
        let elsewhere = leaf_name(KeeperKey { namespace: own.namespace + 1, start_time: 1, ..own });
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
        .sweep();
        let mut left = ControlGroup::at(folder.path()).children();
        left.sort();
        let mut expected = vec![living.clone(), elsewhere, "other".into(), "abide-used".into()];
        expected.sort();
        assert_eq!(left, expected);
        assert_eq!(ControlGroup::at(folder.path().join("abide-used")).children(), [living]);
        assert_eq!(ControlGroup::at(folder.path().join("other")).children(), [dead]);
    }

    #[test]
    fn a_recorded_group_that_is_none_of_ours_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own = KeeperKey::of(&ProcessIdentity::own());
        let dead = folder.path().join(leaf_name(KeeperKey { start_time: own.start_time + 1, ..own }));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("cgroup.kill"), "").unwrap();
        // A directory of another file system, whatever its name.
        end_left_over(&dead);
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
            assert_eq!(leaf_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_in_a_group_of_ours_makes_groups_beside_its_own() {
        let groups = ControlGroupConfig::beside(Path::new("/c/service/abide-run_1/abide-k-6-7-8")).unwrap();
        assert_eq!(groups.base, Path::new("/c/service/abide-run_1"));
        assert_eq!(groups.keepers_base, Path::new("/c/service"));
        assert!(groups.limits.is_empty());
        assert_eq!(groups.of_child("x").name, None);
        assert_eq!(ControlGroupConfig::beside(Path::new("/c/service")), None);
        assert_eq!(ControlGroupConfig::beside(Path::new("/c/abide-k-6-7-8")).unwrap().base, Path::new("/c"));
    }
}
