//! Selects the control group (cgroup) under which runs and terminal sessions get their own, and the fallback without
//! one.
//!
//! `sandbox.cgroup` names a group, or is `auto` or `off`. With `auto`, a group is used only if a service manager has
//! delegated it to us. The mechanism is in `abide_os::cgroup`, and the assignment of processes in
//! `abide_keeper::control_group`.

use std::path::{Path, PathBuf};

pub use abide_keeper::control_group::ControlGroupConfig;

use abide_keeper::confine::probe_group;
use abide_os::cgroup::{
    CgroupError, ControlGroup, ControlGroupLimits,
    find::{is_delegated, is_group, is_writable, own_group},
};

/// The configured group and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// `auto`, `off`, or the absolute path of a group.
    pub cgroup: String,
    /// 0 is no limit.
    pub memory_max_bytes: u64,
    /// Processes and threads; 0 is no limit.
    pub pids_max: u64,
}

/// The decision for this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupDecision {
    /// `None` if no groups are used.
    pub groups: Option<ControlGroupConfig>,
    /// The reason why `auto` found no usable group.
    pub unavailable: Option<String>,
    /// The reason why configured limits are not enforced.
    pub warning: Option<String>,
}

/// Minimum memory limit; below it no useful program starts.
const MIN_MEMORY_BYTES: u64 = 16 << 20;
const MIN_PIDS: u64 = 16;

/// Decides for this process. An error is a setting that cannot be applied. `program` is the path of this program.
pub fn decide(options: &GroupOptions, program: &Path) -> Result<GroupDecision, String> {
    let limits = limits(options)?;
    let own = own_group();
    // Processes started here also count against the limits of our own group.
    let beside = own.as_ref().ok().and_then(|own| ControlGroupConfig::beside(own));
    match (options.cgroup.as_str(), beside) {
        ("off", _) => Ok(no_groups(None, "sandbox.cgroup is \"off\"", &limits)),
        (_, Some(groups)) => Ok(GroupDecision { groups: Some(groups), ..GroupDecision::default() }),
        ("auto", None) => Ok(match own.and_then(|own| delegated_group(&own)) {
            Ok(base) => use_groups(base, limits),
            Err(reason) => no_groups(Some(&reason), &reason, &limits),
        }),
        (named, None) => {
            let refused = |reason: String| {
                format!(
                    "sandbox.cgroup = {named:?} cannot be used: {reason}; name a cgroup v2 group that this user may write to, \
                     or set \"auto\" or \"off\""
                )
            };
            let base = checked_base(named, program).map_err(refused)?;
            ControlGroup::at(&base)
                .enable_for_children(&limits)
                .map_err(|error| refused(explain_error(&error)))?;
            Ok(GroupDecision { groups: Some(groups(base, limits, true)), ..GroupDecision::default() })
        }
    }
}

/// Returns the groups that the starter of this process assigned to it, if any.
pub fn assigned() -> GroupDecision {
    let groups = own_group().ok().and_then(|own| ControlGroupConfig::beside(&own));
    GroupDecision { groups, ..GroupDecision::default() }
}

fn limits(options: &GroupOptions) -> Result<ControlGroupLimits, String> {
    let of = |name: &str, value: u64, least: u64| match value {
        0 => Ok(None),
        value if value < least => {
            Err(format!("{name} = {value} is too low: set at least {least}, or 0 for no limit"))
        }
        value => Ok(Some(value)),
    };
    Ok(ControlGroupLimits {
        memory_bytes: of("limits.memory_max_bytes", options.memory_max_bytes, MIN_MEMORY_BYTES)?,
        pids: of("limits.pids_max", options.pids_max, MIN_PIDS)?,
    })
}

fn groups(base: PathBuf, limits: ControlGroupLimits, required: bool) -> ControlGroupConfig {
    ControlGroupConfig { keepers_base: base.clone(), base, limits, required }
}

/// Uses groups below `base`. Limits that cannot be enforced are left out with a warning.
fn use_groups(base: PathBuf, limits: ControlGroupLimits) -> GroupDecision {
    match ControlGroup::at(&base).enable_for_children(&limits) {
        Ok(()) => GroupDecision { groups: Some(groups(base, limits, false)), ..GroupDecision::default() },
        Err(error) => GroupDecision {
            groups: Some(groups(base, ControlGroupLimits::default(), false)),
            warning: unenforced_warning(&explain_error(&error), &limits),
            unavailable: None,
        },
    }
}

fn no_groups(unavailable: Option<&str>, reason: &str, limits: &ControlGroupLimits) -> GroupDecision {
    let unavailable = unavailable.map(str::to_owned);
    GroupDecision { groups: None, unavailable, warning: unenforced_warning(reason, limits) }
}

fn unenforced_warning(reason: &str, limits: &ControlGroupLimits) -> Option<String> {
    let names =
        [limits.memory_bytes.map(|_| "limits.memory_max_bytes"), limits.pids.map(|_| "limits.pids_max")];
    let names: Vec<&str> = names.into_iter().flatten().collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    (!names.is_empty())
        .then(|| format!("{} {verb} not enforced for the agent: {reason}", names.join(" and ")))
}

/// Adds an explanation to an error of the kernel.
fn explain_error(error: &CgroupError) -> String {
    match error {
        CgroupError::System { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy => format!(
            "{error}: processes are in the group itself; have the service manager start Abide in a group below it \
             (DelegateSubgroup= of systemd 254)"
        ),
        CgroupError::System { .. }
        | CgroupError::Name { .. }
        | CgroupError::Controller { .. }
        | CgroupError::Populated { .. } => error.to_string(),
    }
}

/// Returns the delegated group, or the reason why there is none.
fn delegated_group(own: &Path) -> Result<PathBuf, String> {
    // The own group, or its parent if the service manager started this process in a subgroup of its unit
    // (`DelegateSubgroup=`). Unit names have a suffix: the parent of a unit belongs to the manager of that unit.
    let is_part = own.file_name().is_some_and(|name| !name.to_string_lossy().contains('.'));
    let above = own.parent().filter(|parent| is_part && is_group(parent));
    match [Some(own), above].into_iter().flatten().find(|path| is_delegated(path)) {
        Some(base) if is_writable(base) => Ok(base.to_owned()),
        Some(base) => Err(format!("this user may not write to the control group {}", base.display())),
        None => {
            Err(format!("the control group {} is not delegated (Delegate=yes of systemd)", own.display()))
        }
    }
}

/// Checks a configured base by moving a process into a group below it.
fn checked_base(named: &str, program: &Path) -> Result<PathBuf, String> {
    let base = Path::new(named);
    if !base.is_absolute() {
        return Err("it is neither \"auto\" nor \"off\" nor an absolute path".to_owned());
    }
    if !is_group(base) {
        return Err("it is not a directory of the cgroup v2 hierarchy".to_owned());
    }
    let base = std::fs::canonicalize(base).map_err(|error| error.to_string())?;
    probe_group(program, &base)?;
    groups(base.clone(), ControlGroupLimits::default(), true).remove_dead_groups();
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(cgroup: &str, memory_max_bytes: u64, pids_max: u64) -> GroupOptions {
        GroupOptions { cgroup: cgroup.to_owned(), memory_max_bytes, pids_max }
    }

    fn refusal(options: &GroupOptions) -> String {
        decide(options, Path::new("/nowhere")).expect_err("it cannot be followed")
    }

    #[test]
    fn an_unusable_configured_group_is_refused_with_a_remedy() {
        let folder = tempfile::tempdir().expect("the test machine allows it");
        for (named, reason) in [
            (folder.path().to_str().unwrap_or_default(), "not a directory of the cgroup v2 hierarchy"),
            ("/nowhere/at/all", "not a directory of the cgroup v2 hierarchy"),
            ("relative/path", "nor an absolute path"),
            ("Auto", "nor an absolute path"),
            ("", "nor an absolute path"),
        ] {
            let message = refusal(&options(named, 0, 0));
            assert!(message.contains(reason) && message.contains("or set \"auto\""), "{message}");
        }
    }

    #[test]
    fn limits_below_the_minimum_are_refused() {
        assert!(refusal(&options("off", 1, 0)).contains("limits.memory_max_bytes = 1 is too low"));
        assert!(refusal(&options("off", 0, 15)).contains("limits.pids_max = 15 is too low"));
    }

    #[test]
    fn only_unenforced_limits_give_a_warning() {
        let decision = |memory, pids| decide(&options("off", memory, pids), Path::new("/nowhere"));
        let warning = |memory, pids| decision(memory, pids).ok().and_then(|decision| decision.warning);
        assert_eq!(warning(0, 0), None);
        let message = warning(1 << 30, 100).unwrap_or_default();
        let expected = "limits.memory_max_bytes and limits.pids_max are not enforced for the agent: sandbox.cgroup is \"off\"";
        assert_eq!(message, expected);
        assert!(warning(0, 100).unwrap_or_default().starts_with("limits.pids_max is not enforced"));
    }

    /// Simulates the controllers of a delegated group with plain files.
    #[test]
    fn limits_without_their_controllers_leave_the_groups_without_limits() {
        let folder = tempfile::tempdir().expect("the test machine allows it");
        let limits = ControlGroupLimits { memory_bytes: Some(1 << 30), pids: Some(100) };
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("the test machine allows it");
        };
        write("cgroup.controllers", "hugetlb\n");
        write("cgroup.subtree_control", "");
        let decision = use_groups(folder.path().to_owned(), limits);
        let message = decision.warning.unwrap_or_default();
        assert!(message.contains("the controller memory is not available"), "{message}");
        assert!(decision.groups.is_some_and(|groups| groups.limits.is_empty() && !groups.required));
        write("cgroup.controllers", "memory pids\n");
        let decision = use_groups(folder.path().to_owned(), limits);
        assert_eq!(decision.warning, None);
        assert!(decision.groups.is_some_and(|groups| groups.limits == limits));
    }
}
