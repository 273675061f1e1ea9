//! Both resolution methods give the same results, and no path leads out of the directory.

use std::{
    fs::{self, Permissions},
    io::{ErrorKind, Write},
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    sync::atomic::{AtomicBool, Ordering},
};

use tempfile::TempDir;

use super::*;

const RESOLUTIONS: [PathResolution; 2] = [PathResolution::Openat2, PathResolution::Components];

/// `base` with `sub/file`, and `outside` next to it.
fn temp_dir_with_base() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("base/sub")).unwrap();
    fs::create_dir(dir.path().join("outside")).unwrap();
    fs::write(dir.path().join("base/sub/file"), "inside").unwrap();
    fs::write(dir.path().join("outside/file"), "outside").unwrap();
    dir
}

fn open_base(dir: &TempDir, resolution: PathResolution) -> Directory {
    Directory::open_with(&dir.path().join("base"), resolution).unwrap()
}

/// Asserts that the error is a refused link, and names it.
#[track_caller]
fn assert_names_link<T: std::fmt::Debug>(result: Result<T, OsError>, link: &Path) {
    match result {
        Err(OsError::SymbolicLink { path }) => assert_eq!(path, link),
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_and_directories_are_made_read_moved_and_deleted() {
    for way in RESOLUTIONS {
        let dir = temp_dir_with_base();
        let base = open_base(&dir, way);
        assert_eq!(base.read_bounded("sub/file", 6).unwrap(), b"inside");
        assert_eq!(base.read_bounded("./sub/./file", 100).unwrap(), b"inside");
        let deep = base.create_directories("a/b/c", 0o755).unwrap();
        assert_eq!(deep.path(), dir.path().join("base/a/b/c"));
        deep.create_file("new", 0o600).unwrap().write_all(b"text").unwrap();
        assert_eq!(deep.create_file("new", 0o600).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(base.metadata("a/b/c/new").unwrap().mode, 0o600);
        base.append_file("a/b/c/new", 0o600).unwrap().write_all(b" more").unwrap();
        base.rename("a/b/c/new", &base, "sub/moved").unwrap();
        assert_eq!(base.read_bounded("sub/moved", 100).unwrap(), b"text more");
        let taken = base.rename_no_replace("sub/moved", &base, "sub/file").unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
        base.write_file("sub/moved", b"replaced", 0o600).unwrap();
        base.write_file("top", b"new", 0o600).unwrap();
        assert_eq!(base.read_bounded("sub/moved", 100).unwrap(), b"replaced");
        let mut names: Vec<_> =
            base.open_directory("sub").unwrap().entries().unwrap().map(Result::unwrap).collect();
        names.sort_by(|one, other| one.name.cmp(&other.name));
        let regular = |name: &str| DirectoryEntry { name: name.into(), kind: FileKind::Regular };
        assert_eq!(names, [regular("file"), regular("moved")]);
        base.unlink("sub/moved").unwrap();
        assert!(base.metadata("sub/moved").unwrap_err().is_not_found());
        assert!(base.read_bounded("none/file", 1).unwrap_err().is_not_found());
        base.sync().unwrap();
    }
}

#[test]
fn reads_are_bounded() {
    for way in RESOLUTIONS {
        let dir = temp_dir_with_base();
        let error = open_base(&dir, way).read_bounded("sub/file", 5).unwrap_err();
        assert!(matches!(error, OsError::TooLarge { max_bytes: 5, .. }), "{error}");
        assert!(error.to_string().contains("base/sub/file has more than 5 bytes"), "{error}");
    }
}

#[test]
fn paths_that_leave_the_directory_are_refused() {
    for way in RESOLUTIONS {
        let dir = temp_dir_with_base();
        let base = open_base(&dir, way);
        let absolute = dir.path().join("outside/file").to_string_lossy().into_owned();
        for path in
            ["", ".", "..", "../outside/file", "sub/../../outside/file", "sub/../file", "a\0b", &absolute]
        {
            let error = base.read_bounded(path, 100).unwrap_err();
            assert!(matches!(error, OsError::InvalidPath { .. }), "{path:?}: {error}");
            assert!(base.create_file(path, 0o600).is_err(), "{path:?}");
            assert!(base.create_directories(path, 0o700).is_err(), "{path:?}");
            assert!(base.unlink(path).is_err(), "{path:?}");
            assert!(base.rename("sub/file", &base, path).is_err(), "{path:?}");
        }
        assert_eq!(fs::read_to_string(dir.path().join("outside/file")).unwrap(), "outside");
    }
}

/// A link at every position of a path is refused by every operation, with an error that names it.
#[test]
fn a_link_is_refused_and_named() {
    for way in RESOLUTIONS {
        let dir = temp_dir_with_base();
        let base = open_base(&dir, way);
        let (link, last) = (dir.path().join("base/link"), dir.path().join("base/sub/last"));
        symlink(dir.path().join("outside"), &link).unwrap();
        symlink("file", &last).unwrap();
        symlink("sub", dir.path().join("base/within")).unwrap();
        assert_names_link(base.read_bounded("link/file", 100), &link);
        assert_names_link(base.read_bounded("within/file", 100), &dir.path().join("base/within"));
        assert_names_link(base.read_bounded("sub/last", 100), &last);
        assert_names_link(base.append_file("sub/last", 0o600), &last);
        assert_names_link(base.create_file("link/new", 0o600), &link);
        assert_names_link(base.open_directory("link"), &link);
        assert_names_link(base.create_directory("link/new", 0o700), &link);
        assert_names_link(base.create_directories("link/new", 0o700), &link);
        assert_names_link(base.unlink("link/file"), &link);
        assert_names_link(base.rename("link/file", &base, "stolen"), &link);
        assert_names_link(base.rename("sub/file", &base, "link/planted"), &link);
        assert_names_link(base.metadata("link/file"), &link);
        assert_names_link(base.read_link("link/file"), &link);
        assert_names_link(base.write_file("link/file", b"", 0o600), &link);
        assert_eq!(base.create_file("link", 0o600).unwrap_err().kind(), ErrorKind::AlreadyExists);
        // The link itself can be looked at, replaced and deleted.
        assert_eq!(base.metadata("link").unwrap().kind, FileKind::SymbolicLink);
        assert_eq!(base.read_link("link").unwrap(), dir.path().join("outside"));
        base.write_file("sub/last", b"mine", 0o600).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("base/sub/file")).unwrap(), "inside");
        base.unlink("link").unwrap();
        let outside = fs::read_dir(dir.path().join("outside")).unwrap().count();
        assert_eq!(outside, 1);
        let text = base.read_bounded("within/file", 100).unwrap_err().to_string();
        assert!(text.contains("base/within is a symbolic link"), "{text}");
    }
}

#[test]
fn a_fifo_a_socket_a_device_and_a_directory_are_no_files_and_nothing_blocks() {
    for way in RESOLUTIONS {
        let dir = temp_dir_with_base();
        let base = open_base(&dir, way);
        let fifo = dir.path().join("base/fifo");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, &fifo, kind, Mode::from_raw_mode(0o600), 0).unwrap();
        let _socket = UnixListener::bind(dir.path().join("base/socket")).unwrap();
        let devices = Directory::open_with(Path::new("/dev"), way).unwrap();
        let results = [
            base.read_bounded("fifo", 1),
            base.read_bounded("socket", 1),
            base.read_bounded("sub", 1),
            devices.read_bounded("zero", 1),
            base.append_file("fifo", 0o600).map(|_| vec![]),
            base.append_file("sub", 0o600).map(|_| vec![]),
        ];
        for result in results {
            assert!(matches!(result, Err(OsError::NotRegular { .. })), "{result:?}");
        }
        assert_eq!(base.metadata("fifo").unwrap().kind, FileKind::Special);
    }
}

#[test]
fn names_of_any_bytes_work() {
    for way in RESOLUTIONS {
        let dir = temp_dir_with_base();
        let base = open_base(&dir, way);
        for name in [&b"new\nline"[..], b"\xff\xfe", b"...", b"-"] {
            let name = OsStr::from_bytes(name);
            base.create_file(name, 0o600).unwrap();
            assert!(base.entries().unwrap().any(|entry| entry.unwrap().name == name));
            base.unlink(name).unwrap();
        }
    }
}

#[test]
fn a_directory_that_cannot_be_listed_can_be_worked_in() {
    let dir = temp_dir_with_base();
    fs::set_permissions(dir.path().join("base"), Permissions::from_mode(0o300)).unwrap();
    for way in RESOLUTIONS {
        assert_eq!(open_base(&dir, way).read_bounded("sub/file", 100).unwrap(), b"inside");
    }
}

/// SECURITY finding 17: a directory is replaced by a link between the check of a path and its use.
#[test]
fn a_directory_that_is_swapped_for_a_link_meanwhile_does_not_lead_out() {
    for way in RESOLUTIONS {
        let dir = temp_dir_with_base();
        let base = open_base(&dir, way);
        let (sub, aside) = (dir.path().join("base/sub"), dir.path().join("base/aside"));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    fs::rename(&sub, &aside).unwrap();
                    symlink(dir.path().join("outside"), &sub).unwrap();
                    fs::remove_file(&sub).unwrap();
                    fs::rename(&aside, &sub).unwrap();
                }
            });
            for number in 0..5_000 {
                if let Ok(bytes) = base.read_bounded("sub/file", 100) {
                    assert_eq!(bytes, b"inside");
                }
                // Fails while the link exists.
                base.create_file(format!("sub/{number}"), 0o600).ok();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1);
    }
}

#[test]
fn a_resolved_path_is_opened_again_only_without_links() {
    let place = temp_dir_with_base();
    let path = place.path().canonicalize().unwrap();
    let sub = path.join("base/sub");
    let opened = Directory::open_without_links(&sub).unwrap();
    assert_eq!(opened.path(), sub);
    assert_eq!(opened.identity().unwrap(), Directory::open(&sub).unwrap().identity().unwrap());
    assert_eq!(Directory::open_without_links(Path::new("/")).unwrap().path(), Path::new("/"));
    for invalid in ["base/sub", "", "/../tmp"] {
        let refused = Directory::open_without_links(Path::new(invalid));
        assert!(matches!(refused, Err(OsError::InvalidPath { .. })), "{invalid}: {refused:?}");
    }
    // The parent of the directory is replaced, then the directory itself.
    fs::rename(path.join("base"), path.join("aside")).unwrap();
    fs::create_dir(path.join("outside/sub")).unwrap();
    symlink(path.join("outside"), path.join("base")).unwrap();
    assert_names_link(Directory::open_without_links(&sub), &path.join("base"));
    symlink(path.join("outside"), path.join("aside/link")).unwrap();
    assert_names_link(Directory::open_without_links(&path.join("aside/link")), &path.join("aside/link"));
    assert!(Directory::open_without_links(&path.join("missing")).unwrap_err().is_not_found());
}
