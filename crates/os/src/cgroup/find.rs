//! Finds the mounts of the cgroup v2 hierarchy, and the group of a process.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, FsWord, access, getxattr, statfs};

use crate::mount_table::unescape;

/// A mount of the hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup2Mount {
    /// The group that appears at the mount point: `/` unless only a part is mounted.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// Its mount options, such as `rw` and `nosuid`.
    pub options: Vec<String>,
}

const CGROUP2_SUPER_MAGIC: FsWord = 0x6367_7270;

/// All mounts of the hierarchy in this process's mount namespace. Hosts with both versions have it at
/// `/sys/fs/cgroup/unified`.
pub fn mounts() -> Vec<Cgroup2Mount> {
    fs::read("/proc/self/mountinfo").map(|table| parse_mounts(&table)).unwrap_or_default()
}

/// The directory of this process's group, or why there is none.
pub fn own_group() -> Result<PathBuf, String> {
    let table = fs::read("/proc/self/cgroup").map_err(|error| format!("/proc/self/cgroup: {error}"))?;
    let path = parse_own_group(&table).ok_or("this process is in no cgroup v2 group")?;
    let mounts = mounts();
    if mounts.is_empty() {
        return Err("the cgroup v2 hierarchy is not mounted".to_owned());
    }
    let visible = mounts.iter().filter_map(|mount| locate(mount, &path)).find(|directory| directory.is_dir());
    visible.ok_or_else(|| format!("the control group {} of this process is not visible", path.display()))
}

/// Whether a directory is a group of the hierarchy.
pub fn is_group(directory: &Path) -> bool {
    statfs(directory).is_ok_and(|stat| stat.f_type == CGROUP2_SUPER_MAGIC) && directory.is_dir()
}

/// Whether this process may create groups below a group and move processes into them.
pub fn is_writable(directory: &Path) -> bool {
    let may_write = |path: &Path| access(path, Access::WRITE_OK).is_ok();
    may_write(directory) && may_write(&directory.join("cgroup.procs"))
}

/// Whether a service manager has marked a group as delegated. The manager does not manage the groups below it.
pub fn is_delegated(directory: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0; 8];
        getxattr(directory, *name, &mut value).is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

fn locate(mount: &Cgroup2Mount, path: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix(&mount.root).ok()?;
    // A group outside of this cgroup namespace is named with `..`.
    let is_inside = below.components().all(|component| matches!(component, Component::Normal(_)));
    is_inside.then(|| mount.mount_point.join(below)).map(|directory| directory.components().collect())
}

fn parse_own_group(table: &[u8]) -> Option<PathBuf> {
    let line = table.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    (line.first() == Some(&b'/')).then(|| PathBuf::from(OsString::from_vec(line.to_vec())))
}

fn parse_mounts(table: &[u8]) -> Vec<Cgroup2Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

/// `ID PARENT DEVICE ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPER-OPTIONS`, with blanks as `\040`.
fn parse_mount(line: &[u8]) -> Option<Cgroup2Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    if *fields.get(separator + 1)? != b"cgroup2" {
        return None;
    }
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let options = String::from_utf8_lossy(fields.get(5)?).split(',').map(str::to_owned).collect();
    Some(Cgroup2Mount { root: path(fields.get(3)?), mount_point: path(fields.get(4)?), options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_on_hosts_with_both_versions() {
        let table = b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            41 31 0:38 /a /sys/fs/cgroup/with\\040blank rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw\n";
        let found = parse_mounts(table);
        let point = PathBuf::from("/sys/fs/cgroup/with blank");
        let options = ["rw", "nosuid"].map(str::to_owned).to_vec();
        assert_eq!(found, [Cgroup2Mount { root: "/a".into(), mount_point: point, options }]);
    }

    #[test]
    fn a_group_is_located_only_below_its_mount() {
        let mount =
            |root: &str| Cgroup2Mount { root: root.into(), mount_point: "/mnt".into(), options: vec![] };
        let at = |root: &str, path: &str| locate(&mount(root), Path::new(path));
        assert_eq!(at("/", "/"), Some("/mnt".into()));
        assert_eq!(at("/", "/user.slice/a"), Some("/mnt/user.slice/a".into()));
        assert_eq!(at("/user.slice", "/user.slice/a"), Some("/mnt/a".into()));
        assert_eq!(at("/user.slice", "/other"), None);
        assert_eq!(at("/", "/../outside"), None);
    }

    #[test]
    fn only_the_line_of_version_2_names_the_own_group() {
        assert_eq!(parse_own_group(b"9:name=systemd:/\n4:memory:/x\n0::/a b\n"), Some("/a b".into()));
        assert_eq!(parse_own_group(b"4:memory:/x\n"), None);
    }
}
