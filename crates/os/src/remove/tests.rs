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
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(120);

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
        let mut fixture = Self { directory, canary: Vec::new() };
        fixture.canary = fixture.canary_snapshot();
        fixture
    }

    fn tree(&self) -> PathBuf {
        self.directory.path().join("tree")
    }

    fn canary(&self) -> PathBuf {
        self.directory.path().join("canary")
    }

    fn canary_snapshot(&self) -> Vec<(PathBuf, u32, String)> {
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
    fn remove_completely(&self) -> u64 {
        let removal = self.remove(REMOVAL_TIMEOUT);
        assert!(removal.is_complete(), "{removal}");
        assert!(fs::symlink_metadata(self.tree()).is_err());
        assert_eq!(self.canary_snapshot(), self.canary);
        removal.removed
    }
}

/// Root bypasses permissions. Without these capabilities of the calling thread, modes and owners apply.
fn drop_permission_capabilities() {
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
    let fixture = RemovalFixture::new();
    fs::create_dir_all(fixture.tree().join("a/b/c")).unwrap();
    fs::write(fixture.tree().join("a/b/file"), "").unwrap();
    assert_eq!(fixture.remove_completely(), 5);
    assert_eq!(fixture.remove_completely(), 0);
    fs::write(fixture.tree(), "").unwrap();
    assert_eq!(fixture.remove_completely(), 1);
    symlink(fixture.canary(), fixture.tree()).unwrap();
    assert_eq!(fixture.remove_completely(), 1);
    make_fifo(&fixture.tree());
    assert_eq!(fixture.remove_completely(), 1);
}

#[test]
fn a_name_with_several_components_is_refused() {
    let fixture = RemovalFixture::new();
    let directory = Directory::open(fixture.directory.path()).unwrap();
    for name in ["", ".", "..", "/", "canary/inner", "../x", "canary/", "a\0b"] {
        assert!(!remove(&directory, OsStr::new(name), REMOVAL_TIMEOUT).is_complete(), "{name:?}");
    }
    assert_eq!(fixture.canary_snapshot(), fixture.canary);
}

/// SECURITY finding 4: a recursive removal overflows the stack of its thread here and aborts the process.
#[test]
fn fifteen_thousand_nested_directories_are_removed_on_a_small_stack() {
    let fixture = RemovalFixture::new();
    nest(&fixture.tree(), 15_000, 0o700);
    let small = std::thread::Builder::new().stack_size(128 << 10);
    let removed = std::thread::scope(|scope| {
        small.spawn_scoped(scope, || fixture.remove_completely()).unwrap().join().unwrap()
    });
    // A directory that is moved up is counted once.
    assert_eq!(removed, 30_001);
}

#[test]
fn many_directories_with_entries_are_removed() {
    let fixture = RemovalFixture::new();
    for number in 0..3_000 {
        let directory = fixture.tree().join(number.to_string());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), "").unwrap();
    }
    assert_eq!(fixture.remove_completely(), 6_001);
}

/// SECURITY finding 18: a directory of mode 000 made every removal fail.
#[test]
fn modes_of_the_owner_are_changed_where_needed() {
    std::thread::spawn(|| {
        drop_permission_capabilities();
        for mode in [0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600] {
            let fixture = RemovalFixture::new();
            nest(&fixture.tree(), 300, mode);
            fs::set_permissions(fixture.tree(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(fixture.remove_completely(), 601, "{mode:o}");
        }
    })
    .join()
    .unwrap();
}

#[test]
fn names_of_any_bytes_are_removed() {
    let fixture = RemovalFixture::new();
    let long = [b'x'; 255];
    let names: [&[u8]; 6] = [b"new\nline", b"\xff\xfe", b"-rf", b" ", b"removing-1", &long];
    for name in names {
        let directory = fixture.tree().join(OsStr::from_bytes(name));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(OsStr::from_bytes(name)), "").unwrap();
    }
    assert_eq!(fixture.remove_completely(), 13);
}

#[test]
fn a_name_that_the_walk_would_use_itself_is_no_obstacle() {
    let fixture = RemovalFixture::new();
    fs::create_dir(fixture.tree().join("removing-1")).unwrap();
    fs::write(fixture.tree().join("removing-2"), "").unwrap();
    nest(&fixture.tree(), 1_000, 0o700);
    fixture.remove_completely();
}

#[test]
fn links_fifos_and_sockets_are_removed_and_not_followed_or_opened() {
    let fixture = RemovalFixture::new();
    let inner = fixture.tree().join("inner");
    fs::create_dir(&inner).unwrap();
    for directory in [fixture.tree(), inner] {
        symlink(fixture.canary(), directory.join("link")).unwrap();
        symlink("/dev/zero", directory.join("device")).unwrap();
        symlink("nowhere", directory.join("dangling")).unwrap();
        symlink("..", directory.join("up")).unwrap();
        make_fifo(&directory.join("fifo"));
        UnixListener::bind(directory.join("socket")).unwrap();
    }
    assert_eq!(fixture.remove_completely(), 14);
}

/// SECURITY finding 18: entries that cannot be removed are reported, and all others are removed.
#[test]
fn an_entry_that_cannot_be_removed_does_not_keep_the_rest() {
    if !rustix::process::geteuid().is_root() {
        return abide_testkit::skip::skip("only root can give a directory to another user");
    }
    let fixture = RemovalFixture::new();
    let foreign = fixture.tree().join("a/foreign");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("file"), "").unwrap();
    for name in ["a/before", "a/zoo", "top"] {
        fs::write(fixture.tree().join(name), "").unwrap();
    }
    std::os::unix::fs::chown(&foreign, Some(65_534), Some(65_534)).unwrap();
    let fixture = &fixture;
    for mode in [0o755, 0o700, 0o744] {
        set_mode(&foreign, mode);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                drop_permission_capabilities();
                let removal = fixture.remove(REMOVAL_TIMEOUT);
                assert!(!removal.is_complete() && !removal.timed_out, "{removal}");
                assert_eq!(removal.failures.len(), 1, "{removal}");
                assert!(removal.failures[0].path.starts_with("tree/a/foreign"), "{removal}");
                assert!(removal.into_result().unwrap_err().to_string().contains("tree/a/foreign"));
            });
        });
        assert_eq!(fs::read_dir(fixture.tree()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(fixture.tree().join("a")).unwrap().count(), 1);
        assert!(foreign.join("file").exists());
    }
    fixture.remove_completely();
}

#[test]
fn a_removal_that_ran_out_of_time_is_continued_by_the_next() {
    let fixture = RemovalFixture::new();
    nest(&fixture.tree(), 2_000, 0o700);
    let removal = fixture.remove(Duration::ZERO);
    assert!(removal.timed_out && !removal.is_complete(), "{removal}");
    assert!(fixture.tree().exists());
    // A busy machine may do little in a millisecond, so the time is doubled in each round.
    let mut max_time = Duration::from_millis(1);
    while !fixture.remove(max_time).is_complete() {
        max_time *= 2;
        assert!(max_time < REMOVAL_TIMEOUT, "every round removes something");
    }
    assert!(!fixture.tree().exists());
    assert_eq!(fixture.canary_snapshot(), fixture.canary);
}

impl RemovalFixture {
    /// Removes the tree and calls `change` once, after this many steps of the walk.
    fn remove_with_change_after(&self, steps: usize, change: impl Fn()) -> TreeRemoval {
        let directory = Directory::open(self.directory.path()).unwrap();
        let mut removal = TreeRemoval::default();
        let deadline = clock::monotonic().saturating_add(REMOVAL_TIMEOUT);
        let mut taken = 0;
        RemovalWalk::new(&directory, c"tree".to_owned(), deadline, &mut removal).run_with(|| {
            taken += 1;
            if taken == steps {
                change();
            }
        });
        assert!(taken > steps, "the removal took {taken} steps");
        removal
    }
}

#[test]
fn a_directory_that_becomes_a_link_between_reading_and_entering_is_not_followed() {
    let place = RemovalFixture::new();
    let (tree, aside) = (place.tree(), place.directory.path().join("aside"));
    fs::create_dir(&aside).unwrap();
    let names: Vec<String> = (0..10).map(|number| format!("d{number}")).collect();
    for name in &names {
        fs::create_dir(tree.join(name)).unwrap();
        fs::write(tree.join(name).join("file"), "").unwrap();
    }
    // The first step reads the tree and finds that its directories are not empty. The second enters one.
    let removal = place.remove_with_change_after(1, || {
        for name in &names {
            fs::rename(tree.join(name), aside.join(name)).unwrap();
            // An absolute link would be refused by RESOLVE_NO_XDEV alone.
            symlink("../canary", tree.join(name)).unwrap();
        }
    });
    assert_eq!(place.canary_snapshot(), place.canary);
    assert!(removal.is_complete() && !tree.exists(), "{removal}");
    assert!(names.iter().all(|name| aside.join(name).join("file").exists()), "moved entries are kept");
}

#[test]
fn a_directory_that_is_moved_away_while_it_is_walked_does_not_lead_to_its_new_parent() {
    let place = RemovalFixture::new();
    let (inner, moved) = (place.tree().join("outer/inner"), place.canary().join("moved"));
    fs::create_dir_all(inner.join("innermost")).unwrap();
    fs::write(inner.join("innermost/file"), "").unwrap();
    // Two steps lead into `outer`, two into `inner`, and two into `innermost`: each reads a directory and enters one.
    let removal = place.remove_with_change_after(6, || fs::rename(&inner, &moved).unwrap());
    // The new parent of `inner` is the canary. Only what was in the walked directories may be gone.
    fs::remove_dir_all(&moved).unwrap();
    assert_eq!(place.canary_snapshot(), place.canary);
    assert!(removal.is_complete() && !place.tree().exists(), "{removal}");
}

/// A hostile program replaces directories by links to the canary, and moves directories away, during the removal.
#[test]
fn directories_that_are_swapped_for_links_meanwhile_do_not_lead_out() {
    let fixture = RemovalFixture::new();
    for round in 0..30 {
        let tree = fixture.tree();
        let aside = fixture.directory.path().join("aside");
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
                    symlink(fixture.canary(), &inner).ok();
                    fs::rename(&victim, tree.join("swapped")).ok();
                    symlink(fixture.canary(), &victim).ok();
                    fs::remove_file(&victim).ok();
                    fs::rename(tree.join("swapped"), &victim).ok();
                    fs::remove_file(&inner).ok();
                    fs::rename(&place_aside, &inner).ok();
                }
            });
            let removal = fixture.remove(REMOVAL_TIMEOUT);
            stop.store(true, Ordering::Relaxed);
            assert!(!removal.timed_out, "{removal}");
        });
        assert_eq!(fixture.canary_snapshot(), fixture.canary);
        let aside = remove_path(&aside, REMOVAL_TIMEOUT).unwrap();
        assert!(aside.is_complete(), "{aside}");
        fixture.remove_completely();
    }
}

/// A copy of this test binary that every user can execute.
fn own_binary(fixture: &RemovalFixture) -> PathBuf {
    set_mode(fixture.directory.path(), 0o755);
    let binary = fixture.directory.path().join("binary");
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    set_mode(&binary, 0o755);
    binary
}

#[expect(clippy::disallowed_methods, reason = "a test runs itself as another user or in another namespace")]
#[track_caller]
fn run_successfully(program: &str, arguments: &[&OsStr]) {
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
    let fixture = RemovalFixture::new();
    let binary = own_binary(&fixture);
    for test in [
        "a_name_that_the_walk_would_use_itself_is_no_obstacle",
        "modes_of_the_owner_are_changed_where_needed",
    ] {
        let name = format!("remove::tests::{test}");
        let user = ["--nofile=16", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut arguments: Vec<&OsStr> = user.iter().map(OsStr::new).collect();
        arguments.extend([binary.as_os_str(), OsStr::new("--exact"), OsStr::new(&name)]);
        run_successfully("prlimit", &arguments);
    }
}

/// A bind mount has the device of the tree, but its contents do not belong to the tree.
#[test]
fn a_mount_in_the_tree_is_not_entered() {
    if !rustix::process::geteuid().is_root() {
        return abide_testkit::skip::skip("only root can mount");
    }
    let fixture = RemovalFixture::new();
    fs::create_dir_all(fixture.tree().join("a/mount")).unwrap();
    fs::write(fixture.tree().join("a/file"), "").unwrap();
    let script = r#"mount --bind "$1/canary" "$1/tree/a/mount" && cd "$1" &&
        exec "$2" --exact --ignored remove::tests::the_tree_here_is_removed_up_to_a_mount"#;
    let binary = own_binary(&fixture);
    let shell = ["--mount", "--propagation=private", "sh", "-c", script, "sh"];
    let mut arguments: Vec<&OsStr> = shell.iter().map(OsStr::new).collect();
    arguments.extend([fixture.directory.path().as_os_str(), binary.as_os_str()]);
    run_successfully("unshare", &arguments);
    assert_eq!(fixture.canary_snapshot(), fixture.canary);
    fixture.remove_completely();
}

#[test]
#[ignore = "a part of a_mount_in_the_tree_is_not_entered, in its namespace"]
fn the_tree_here_is_removed_up_to_a_mount() {
    let removal = remove_path(Path::new("tree"), REMOVAL_TIMEOUT).unwrap();
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
    let fixture = tempfile::tempdir().unwrap();
    let (tree, beside) = (fixture.path().join("tree"), fixture.path().join("beside"));
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
            .env(TREE_VARIABLE, fixture.path())
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
    let directory = Directory::open(fixture.path()).unwrap();
    assert!(remove(&directory, OsStr::new("tree"), Duration::from_secs(600)).is_complete());
    let mut left: Vec<_> =
        fs::read_dir(fixture.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
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
