//! Tests groups on a directory tree that imitates a hierarchy, and on the real one of this machine.

use std::fs;
use std::process::{Child, Stdio};

use abide_testkit::{skip::skip, wait};
use tempfile::TempDir;

use super::*;

const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory with the files that the kernel would create in a group.
fn fake_group(files: &[(&str, &str)]) -> (TempDir, ControlGroup) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let group = ControlGroup::at(folder.path());
    (folder, group)
}

/// A test group on the real hierarchy, removed on drop. None, with a recorded skip, if it cannot be created.
struct RealGroup(ControlGroup);

impl RealGroup {
    fn create(name: &str) -> Option<Self> {
        let own = match find::own_group() {
            Ok(own) => ControlGroup::at(own),
            Err(reason) => {
                skip(&reason);
                return None;
            }
        };
        let group = own.child(&format!("os-test-{name}-{}", std::process::id())).unwrap();
        match group.create() {
            Ok(()) => Some(Self(group)),
            Err(error) => {
                skip(&format!("no control group can be made: {error}"));
                None
            }
        }
    }

    /// A shell that enters the group before it runs this script.
    #[expect(clippy::disallowed_methods, reason = "the test needs processes to kill")]
    fn spawn_shell(&self, script: &str) -> Child {
        let entering = format!("echo 0 >\"$GROUP/cgroup.procs\" || exit 9; {script}");
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(entering).env("GROUP", self.0.path()).stdin(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait_until_empty(REMOVE_TIMEOUT);
        self.0.remove(REMOVE_TIMEOUT).ok();
    }
}

#[test]
fn limits_are_written_as_values() {
    let (_folder, group) = fake_group(&[("memory.max", "max"), ("pids.max", "max")]);
    group.set_limits(&ControlGroupLimits { memory_bytes: None, pids: Some(64) }).unwrap();
    assert_eq!(group.read("memory.max").unwrap(), "max");
    group.set_limits(&ControlGroupLimits { memory_bytes: Some(2 << 30), pids: Some(512) }).unwrap();
    assert_eq!(group.read("memory.max").unwrap(), "2147483648");
    assert_eq!(group.read("pids.max").unwrap(), "512");
}

#[test]
fn a_limit_without_its_controller_names_the_controller() {
    let (_folder, group) = fake_group(&[("pids.max", "max")]);
    let limits = ControlGroupLimits { memory_bytes: Some(1), pids: Some(2) };
    let refused = group.set_limits(&limits).unwrap_err();
    assert!(matches!(refused, CgroupError::Controller { controller: "memory", .. }), "{refused}");
    assert!(!group.path().join("memory.max").exists(), "the files of a group are the kernel's");
}

#[test]
fn only_controllers_that_are_available_and_missing_are_enabled() {
    let limits = ControlGroupLimits { memory_bytes: Some(1), pids: Some(2) };
    let (_folder, group) =
        fake_group(&[("cgroup.controllers", "cpu memory pids\n"), ("cgroup.subtree_control", "memory")]);
    group.enable_for_children(&limits).unwrap();
    assert_eq!(group.read("cgroup.subtree_control").unwrap(), "+pidsy", "one write, over the first bytes");
    let (_folder, group) = fake_group(&[("cgroup.controllers", "hugetlb\n"), ("cgroup.subtree_control", "")]);
    let refused = group.enable_for_children(&limits).unwrap_err();
    assert!(matches!(refused, CgroupError::Controller { controller: "memory", .. }), "{refused}");
}

#[test]
fn a_name_that_leads_elsewhere_is_refused() {
    let group = ControlGroup::at("/base");
    for name in
        ["", ".", "..", "../x", "a/b", "/abs", ".hidden", "a b", "a\nb", "a\0b", "ä", &"x".repeat(129)]
    {
        assert!(matches!(group.child(name), Err(CgroupError::Name { .. })), "{name:?}");
    }
    assert_eq!(group.child("run_01-A.b").unwrap().path(), Path::new("/base/run_01-A.b"));
}

#[test]
fn operations_on_a_missing_group_fail_or_succeed_as_no_ops() {
    let (folder, group) = fake_group(&[]);
    let gone = group.child("gone").unwrap();
    drop(folder);
    assert!(gone.create().unwrap_err().is_not_found());
    assert!(gone.enter().unwrap_err().is_not_found());
    gone.kill().unwrap();
    assert!(gone.wait_until_empty(Duration::ZERO));
    gone.remove(Duration::ZERO).unwrap();
    assert_eq!(gone.children(), Vec::<String>::new());
}

#[test]
fn groups_nested_deeper_than_a_path_is_long_are_removed() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let (_folder, base) = fake_group(&[]);
    let group = base.child("nested").unwrap();
    group.create().unwrap();
    let mut directory = openat(CWD, group.path(), OFlags::PATH, Mode::empty()).unwrap();
    let long = "n".repeat(100);
    for _ in 0..100 {
        mkdirat(&directory, &long, Mode::RWXU).unwrap();
        mkdirat(&directory, "beside", Mode::RWXU).unwrap();
        directory = openat(&directory, &long, OFlags::PATH, Mode::empty()).unwrap();
    }
    group.remove(REMOVE_TIMEOUT).unwrap();
    assert!(!group.exists());
}

/// Issue "Trust boundary", item 4: no descendant escapes, even if it detaches or stops itself.
#[test]
fn all_processes_of_a_group_are_killed() {
    let Some(group) = RealGroup::create("kill") else { return };
    let script = "(setsid sh -c 'sleep 1000 & sleep 1000 & kill -STOP $$' &) & \
        (trap '' TERM HUP INT; (exec sleep 1000) & sleep 1000) & \
        while :; do sleep 0.01 & done";
    let mut child = group.spawn_shell(script);
    wait::until("there are many processes", || group.0.processes().is_ok_and(|pids| pids.len() > 10));
    assert!(group.0.is_populated().unwrap());
    assert!(matches!(group.0.remove(REMOVE_TIMEOUT), Err(CgroupError::Populated { .. })));
    let members = group.0.processes().unwrap();
    group.0.kill().unwrap();
    assert!(group.0.wait_until_empty(REMOVE_TIMEOUT));
    child.wait().unwrap();
    let is_left = |pid: &u32| {
        let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let is_zombie = crate::process::ProcessStat::read(*pid).is_none_or(|stat| stat.is_zombie());
        group.contains("os-test-kill-") && !is_zombie
    };
    assert!(!members.iter().any(is_left));
    group.0.remove(REMOVE_TIMEOUT).unwrap();
    assert!(!group.0.exists());
}

#[test]
fn groups_below_are_killed_and_removed_with_it() {
    let Some(group) = RealGroup::create("nested") else { return };
    let script =
        "mkdir \"$GROUP/a\" \"$GROUP/a/b\" && echo 0 >\"$GROUP/a/b/cgroup.procs\" && exec sleep 1000";
    let mut child = group.spawn_shell(script);
    let inner = ControlGroup::at(group.0.path().join("a/b"));
    wait::until("it is in the inner group", || {
        inner.processes().is_ok_and(|pids| pids.contains(&child.id()))
    });
    assert_eq!(group.0.processes().unwrap(), [0; 0]);
    group.0.kill().unwrap();
    assert!(group.0.wait_until_empty(REMOVE_TIMEOUT));
    child.wait().unwrap();
    group.0.remove(REMOVE_TIMEOUT).unwrap();
    assert!(!group.0.exists());
}

/// Kernels before 5.14 have no `cgroup.kill`.
#[test]
fn without_cgroup_kill_the_processes_of_a_group_are_frozen_and_killed_one_by_one() {
    let Some(group) = RealGroup::create("frozen") else { return };
    let script = "mkdir \"$GROUP/a\"; (echo 0 >\"$GROUP/a/cgroup.procs\"; setsid sleep 1000) & while :; do sleep 0.01 & done";
    let mut child = group.spawn_shell(script);
    wait::until("there are many processes", || group.0.processes().is_ok_and(|pids| pids.len() > 10));
    // The test reaps its own children. The others are orphans and are reaped by init.
    kill::kill_one_by_one(&group.0).unwrap();
    child.wait().unwrap();
    assert!(!group.0.is_populated().unwrap());
    group.0.remove(REMOVE_TIMEOUT).unwrap();
}

#[test]
fn a_process_enters_a_group_with_what_it_starts_afterwards() {
    let Some(group) = RealGroup::create("enter") else { return };
    let mut child = group.spawn_shell("sleep 1000 & wait");
    wait::until("both are in it", || group.0.processes().is_ok_and(|pids| pids.len() == 2));
    group.0.kill().unwrap();
    child.wait().unwrap();
    assert!(find::is_group(group.0.path()) && !find::is_group(Path::new("/proc")));
    assert!(find::is_writable(group.0.path()));
    assert!(!find::is_delegated(group.0.path()));
}
