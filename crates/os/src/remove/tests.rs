//! Tests for removed entries, for reports, and for paths that a hostile tree must not reach.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use tempfile::TempDir;

use super::*;

/// Exceeds the time of any removal here.
const LONG: Duration = Duration::from_secs(120);

/// A directory with a tree to remove and a canary tree that must remain.
struct RemovalFixture {
    directory: TempDir,
    canary: Vec<(PathBuf, u32, String)>,
}

impl RemovalFixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("tree")).unwrap();
        fs::create_dir_all(directory.path().join("canary/inner")).unwrap();
        fs::write(directory.path().join("canary/file"), "precious").unwrap();
        fs::write(directory.path().join("canary/inner/file"), "precious too").unwrap();
        let mut place = Self { directory, canary: Vec::new() };
        place.canary = place.look_at_canary();
        place
    }

    fn tree(&self) -> PathBuf {
        self.directory.path().join("tree")
    }

    fn canary(&self) -> PathBuf {
        self.directory.path().join("canary")
    }

    fn look_at_canary(&self) -> Vec<(PathBuf, u32, String)> {
        let paths = ["", "file", "inner", "inner/file"].map(|path| self.canary().join(path));
        paths
            .into_iter()
            .map(|path| {
                let text = if path.is_dir() {
                    format!("{} entries", fs::read_dir(&path).unwrap().count())
                } else {
                    fs::read_to_string(&path).unwrap()
                };
                (path.clone(), fs::symlink_metadata(&path).unwrap().permissions().mode(), text)
            })
            .collect()
    }

    fn remove(&self, max_time: Duration) -> TreeRemoval {
        let directory = Directory::open(self.directory.path()).unwrap();
        remove(&directory, OsStr::new("tree"), max_time)
    }

    #[track_caller]
    fn goes(&self) -> u64 {
        let removal = self.remove(LONG);
        assert!(removal.is_complete(), "{removal}");
        assert!(fs::symlink_metadata(self.tree()).is_err());
        assert_eq!(self.look_at_canary(), self.canary);
        removal.removed
    }
}

/// Root bypasses permissions. Without these capabilities of the calling thread, modes and owners apply.
fn obey_permissions() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(
        CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::DAC_READ_SEARCH
            | CapabilitySet::FOWNER
            | CapabilitySet::CHOWN,
    );
    set_capabilities(None, sets).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Nests directories without using a long path.
fn nest(path: &Path, levels: usize, mode: u32) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
        let below = rustix::fs::openat(&directory, "d", flags, Mode::empty()).unwrap();
        let file = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        rustix::fs::openat(&below, "f", file, Mode::RUSR).unwrap();
        if mode != 0o700 {
            let itself = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory));
            rustix::fs::chmodat(CWD, itself, Mode::from_raw_mode(mode), AtFlags::empty()).unwrap();
        }
        directory = below;
    }
}

#[test]
fn a_tree_a_file_a_link_and_nothing_are_removed() {
    let place = RemovalFixture::new();
    fs::create_dir_all(place.tree().join("a/b/c")).unwrap();
    fs::write(place.tree().join("a/b/file"), "").unwrap();
    assert_eq!(place.goes(), 5);
    assert_eq!(place.goes(), 0);
    fs::write(place.tree(), "").unwrap();
    assert_eq!(place.goes(), 1);
    symlink(place.canary(), place.tree()).unwrap();
    assert_eq!(place.goes(), 1);
    make_fifo(&place.tree());
    assert_eq!(place.goes(), 1);
}

#[test]
fn what_is_not_one_name_is_refused() {
    let place = RemovalFixture::new();
    let directory = Directory::open(place.directory.path()).unwrap();
    for name in ["", ".", "..", "/", "canary/inner", "../x", "canary/", "a\0b"] {
        assert!(!remove(&directory, OsStr::new(name), LONG).is_complete(), "{name:?}");
    }
    assert_eq!(place.look_at_canary(), place.canary);
}

/// SECURITY finding 4: a recursive removal overflows the stack of its thread here and aborts the process.
#[test]
fn fifteen_thousand_nested_directories_are_removed_on_a_small_stack() {
    let place = RemovalFixture::new();
    nest(&place.tree(), 15_000, 0o700);
    let small = std::thread::Builder::new().stack_size(128 << 10);
    let removed =
        std::thread::scope(|scope| small.spawn_scoped(scope, || place.goes()).unwrap().join().unwrap());
    // A directory that is moved up is counted once.
    assert_eq!(removed, 30_001);
}

#[test]
fn many_directories_with_entries_are_removed() {
    let place = RemovalFixture::new();
    for number in 0..3_000 {
        let directory = place.tree().join(number.to_string());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), "").unwrap();
    }
    assert_eq!(place.goes(), 6_001);
}

/// SECURITY finding 18: a directory of mode 000 made every removal fail.
#[test]
fn modes_of_the_owner_are_changed_where_needed() {
    std::thread::spawn(|| {
        obey_permissions();
        for mode in [0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600] {
            let place = RemovalFixture::new();
            nest(&place.tree(), 300, mode);
            fs::set_permissions(place.tree(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(place.goes(), 601, "{mode:o}");
        }
    })
    .join()
    .unwrap();
}

#[test]
fn names_of_any_bytes_are_removed() {
    let place = RemovalFixture::new();
    let long = [b'x'; 255];
    let names: [&[u8]; 6] = [b"new\nline", b"\xff\xfe", b"-rf", b" ", b"removing-1", &long];
    for name in names {
        let directory = place.tree().join(OsStr::from_bytes(name));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(OsStr::from_bytes(name)), "").unwrap();
    }
    assert_eq!(place.goes(), 13);
}

#[test]
fn a_name_that_the_walk_would_use_itself_is_no_obstacle() {
    let place = RemovalFixture::new();
    fs::create_dir(place.tree().join("removing-1")).unwrap();
    fs::write(place.tree().join("removing-2"), "").unwrap();
    nest(&place.tree(), 1_000, 0o700);
    place.goes();
}

#[test]
fn links_fifos_and_sockets_are_removed_and_not_followed_or_opened() {
    let place = RemovalFixture::new();
    let inner = place.tree().join("inner");
    fs::create_dir(&inner).unwrap();
    for directory in [place.tree(), inner] {
        symlink(place.canary(), directory.join("link")).unwrap();
        symlink("/dev/zero", directory.join("device")).unwrap();
        symlink("nowhere", directory.join("dangling")).unwrap();
        symlink("..", directory.join("up")).unwrap();
        make_fifo(&directory.join("fifo"));
        UnixListener::bind(directory.join("socket")).unwrap();
    }
    assert_eq!(place.goes(), 14);
}

/// SECURITY finding 18: entries that cannot be removed are reported, and all others are removed.
#[test]
fn an_entry_that_cannot_be_removed_does_not_keep_the_rest() {
    if !rustix::process::geteuid().is_root() {
        return abide_testkit::skip::skip("only root can give a directory to another user");
    }
    let place = RemovalFixture::new();
    let foreign = place.tree().join("a/foreign");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("file"), "").unwrap();
    for name in ["a/before", "a/zoo", "top"] {
        fs::write(place.tree().join(name), "").unwrap();
    }
    std::os::unix::fs::chown(&foreign, Some(65_534), Some(65_534)).unwrap();
    let place = &place;
    for mode in [0o755, 0o700, 0o744] {
        set_mode(&foreign, mode);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                obey_permissions();
                let removal = place.remove(LONG);
                assert!(!removal.is_complete() && !removal.timed_out, "{removal}");
                assert_eq!(removal.failures.len(), 1, "{removal}");
                assert!(removal.failures[0].path.starts_with("tree/a/foreign"), "{removal}");
                assert!(removal.into_result().unwrap_err().to_string().contains("tree/a/foreign"));
            });
        });
        assert_eq!(fs::read_dir(place.tree()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(place.tree().join("a")).unwrap().count(), 1);
        assert!(foreign.join("file").exists());
    }
    place.goes();
}

#[test]
fn a_removal_that_ran_out_of_time_is_continued_by_the_next() {
    let place = RemovalFixture::new();
    nest(&place.tree(), 2_000, 0o700);
    let removal = place.remove(Duration::ZERO);
    assert!(removal.timed_out && !removal.is_complete(), "{removal}");
    assert!(place.tree().exists());
    // A busy machine may do little in a millisecond, so the time is doubled in each round.
    let mut max_time = Duration::from_millis(1);
    while !place.remove(max_time).is_complete() {
        max_time *= 2;
        assert!(max_time < LONG, "every round removes something");
    }
    assert!(!place.tree().exists());
    assert_eq!(place.look_at_canary(), place.canary);
}

/// A hostile program replaces directories by links to the canary, and moves directories away, during the removal.
#[test]
fn directories_that_are_swapped_for_links_meanwhile_do_not_lead_out() {
    let place = RemovalFixture::new();
    for round in 0..30 {
        let tree = place.tree();
        let aside = place.directory.path().join("aside");
        fs::create_dir_all(&tree).unwrap();
        fs::create_dir_all(&aside).unwrap();
        for number in 0..20 {
            let directory = tree.join(format!("d{number}/inner"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("file"), "").unwrap();
            fs::write(tree.join(format!("d{number}/file")), "").unwrap();
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = round;
                // Each call may fail, because the tree is being removed.
                while !stop.load(Ordering::Relaxed) {
                    number = (number + 1) % 20;
                    let victim = tree.join(format!("d{number}"));
                    let inner = victim.join("inner");
                    let place_aside = aside.join(format!("{number}"));
                    fs::rename(&inner, &place_aside).ok();
                    symlink(place.canary(), &inner).ok();
                    fs::rename(&victim, tree.join("swapped")).ok();
                    symlink(place.canary(), &victim).ok();
                    fs::remove_file(&victim).ok();
                    fs::rename(tree.join("swapped"), &victim).ok();
                    fs::remove_file(&inner).ok();
                    fs::rename(&place_aside, &inner).ok();
                }
            });
            let removal = place.remove(LONG);
            stop.store(true, Ordering::Relaxed);
            assert!(!removal.timed_out, "{removal}");
        });
        assert_eq!(place.look_at_canary(), place.canary);
        let aside = remove_path(&aside, LONG).unwrap();
        assert!(aside.is_complete(), "{aside}");
        place.goes();
    }
}

/// A copy of this test binary that every user can execute.
fn own_binary(place: &RemovalFixture) -> PathBuf {
    set_mode(place.directory.path(), 0o755);
    let binary = place.directory.path().join("binary");
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    set_mode(&binary, 0o755);
    binary
}

#[expect(clippy::disallowed_methods, reason = "a test runs itself as another user or in another namespace")]
#[track_caller]
fn succeeds(program: &str, arguments: &[&OsStr]) {
    let output = std::process::Command::new(program).args(arguments).env("TMPDIR", "/tmp").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The number of open descriptors does not depend on the depth, and no privileges are needed.
#[test]
fn an_unprivileged_user_with_few_descriptors_removes_deep_and_closed_trees() {
    if !rustix::process::geteuid().is_root() {
        return abide_testkit::skip::skip("only root can become another user");
    }
    let place = RemovalFixture::new();
    let binary = own_binary(&place);
    for test in [
        "a_name_that_the_walk_would_use_itself_is_no_obstacle",
        "modes_of_the_owner_are_changed_where_needed",
    ] {
        let name = format!("remove::tests::{test}");
        let user = ["--nofile=16", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut arguments: Vec<&OsStr> = user.iter().map(OsStr::new).collect();
        arguments.extend([binary.as_os_str(), OsStr::new("--exact"), OsStr::new(&name)]);
        succeeds("prlimit", &arguments);
    }
}

/// A bind mount has the device of the tree, but its contents do not belong to the tree.
#[test]
fn a_mount_in_the_tree_is_not_entered() {
    if !rustix::process::geteuid().is_root() {
        return abide_testkit::skip::skip("only root can mount");
    }
    let place = RemovalFixture::new();
    fs::create_dir_all(place.tree().join("a/mount")).unwrap();
    fs::write(place.tree().join("a/file"), "").unwrap();
    let script = r#"mount --bind "$1/canary" "$1/tree/a/mount" && cd "$1" &&
        exec "$2" --exact --ignored remove::tests::the_tree_here_is_removed_up_to_a_mount"#;
    let binary = own_binary(&place);
    let shell = ["--mount", "--propagation=private", "sh", "-c", script, "sh"];
    let mut arguments: Vec<&OsStr> = shell.iter().map(OsStr::new).collect();
    arguments.extend([place.directory.path().as_os_str(), binary.as_os_str()]);
    succeeds("unshare", &arguments);
    assert_eq!(place.look_at_canary(), place.canary);
    place.goes();
}

#[test]
#[ignore = "a part of a_mount_in_the_tree_is_not_entered, in its namespace"]
fn the_tree_here_is_removed_up_to_a_mount() {
    let removal = remove_path(Path::new("tree"), LONG).unwrap();
    assert_eq!(removal.removed, 1, "{removal}");
    assert_eq!(removal.failures.len(), 1, "{removal}");
    assert_eq!(removal.failures[0].path, Path::new("tree/a/mount"));
}

/// The environment variable with the directory for [`a_removal_in_a_process_of_its_own`].
const TREE_VARIABLE: &str = "ABIDE_TEST_TREE";

/// Does nothing by itself: the next test runs it in a process that it kills.
#[test]
fn a_removal_in_a_process_of_its_own() {
    let Some((_, path)) = std::env::vars_os().find(|(name, _)| name == TREE_VARIABLE) else { return };
    let directory = Directory::open(Path::new(&path)).unwrap();
    assert!(remove(&directory, OsStr::new("tree"), Duration::from_secs(600)).is_complete());
}

/// Issue 14, item 3: the next process continues the removal of a killed one, and removes nothing else.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test runs itself in a process that it kills")]
fn a_removal_that_was_killed_is_continued_by_the_next_process() {
    let place = tempfile::tempdir().unwrap();
    let (tree, beside) = (place.path().join("tree"), place.path().join("beside"));
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("file"), "kept").unwrap();
    let mut level = tree.clone();
    for number in 0..40 {
        fs::create_dir_all(&level).unwrap();
        for file in 0..50 {
            fs::write(level.join(format!("file-{file}")), "x").unwrap();
        }
        std::os::unix::fs::symlink(&beside, level.join("link")).unwrap();
        level = level.join(format!("level-{number}"));
    }
    let entries = |path: &Path| walk_count(path);
    let mut kills = 0;
    while tree.exists() && kills < 50 {
        let before = entries(&tree);
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "remove::tests::a_removal_in_a_process_of_its_own"])
            .env(TREE_VARIABLE, place.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while child.try_wait().unwrap().is_none() && entries(&tree) == before {
            std::thread::yield_now();
        }
        child.kill().ok();
        child.wait().unwrap();
        kills += 1;
    }
    let directory = Directory::open(place.path()).unwrap();
    assert!(remove(&directory, OsStr::new("tree"), Duration::from_secs(600)).is_complete());
    let mut left: Vec<_> =
        fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["beside"], "nothing of the tree is left, and nothing was put beside it");
    assert_eq!(fs::read_to_string(beside.join("file")).unwrap(), "kept");
}

/// Number of entries in a tree. Entries that vanish meanwhile are not counted.
fn walk_count(path: &Path) -> usize {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            1 + if entry.file_type().is_ok_and(|kind| kind.is_dir()) { walk_count(&entry.path()) } else { 0 }
        })
        .sum()
}
