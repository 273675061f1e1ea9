//! The home belongs to one user. The tests check file modes, because they may run as root, to whom modes do not apply.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use abide_testkit::daemon::TestHome;

use crate::new_home;

/// Returns the files that other users could access, except the content of workspaces.
fn open_to_others(home: &Path) -> Vec<(PathBuf, u32)> {
    let (mut modes, mut pending) = (Vec::new(), vec![home.to_owned()]);
    while let Some(path) = pending.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.mode() & 0o077 != 0 && !meta.is_symlink() {
            modes.push((path.clone(), meta.mode() & 0o777));
        }
        if meta.is_dir() && !path.ends_with("workspaces") {
            pending.extend(fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path()));
        }
    }
    modes
}

/// Sets all permissions for all users, as a careless copy would.
fn allow_all(path: &Path) {
    let meta = fs::symlink_metadata(path).unwrap();
    if meta.is_dir() {
        fs::read_dir(path).unwrap().flatten().for_each(|entry| allow_all(&entry.path()));
    }
    if meta.is_dir() || meta.is_file() {
        fs::set_permissions(path, fs::Permissions::from_mode(meta.mode() | 0o755)).unwrap();
    }
}

#[test]
fn nothing_in_the_home_is_open_to_other_users_whatever_the_umask() {
    for umask in ["000", "022", "077"] {
        let script = format!("umask {umask}; exec \"$0\" \"$@\"");
        let home = TestHome::new(env!("CARGO_BIN_EXE_abide"));
        let home = home.in_subfolder("home").with_launcher(&["/bin/sh", "-c", &script]);
        let daemon = home.start();
        let run = home.post(
            "/v1/runs",
            &serde_json::json!({ "engine": "parrot-sticky", "prompt": "ask open_text What now?" }),
        );
        home.wait_for_status(run["run_id"].as_str().unwrap(), "waiting_user");
        home.run_ok(&["backup", home.path().join("copy.db").to_str().unwrap()]);
        let session = home.run_json(&["sessions", "new"]);
        let open = open_to_others(home.path());
        // The session has no owner, so the daemon would keep it running.
        home.run_ok(&["sessions", "rm", session["session_id"].as_str().unwrap()]);
        assert_eq!(open, [], "umask {umask}");
        home.down(daemon);
    }
}

#[test]
fn a_home_and_a_token_that_others_can_read_are_repaired_with_a_warning() {
    let home = new_home("");
    home.down(home.start());
    allow_all(home.path());
    let stderr = home.down(home.start());
    assert!(stderr.contains("other users could read"), "{stderr}");
    assert_eq!(open_to_others(home.path()), []);
    // Only the token: the home was private, so no other file is checked.
    fs::set_permissions(home.path().join("token"), fs::Permissions::from_mode(0o644)).unwrap();
    let stderr = home.down(home.start());
    assert!(stderr.contains("other users could read") && stderr.contains("token"), "{stderr}");
    assert_eq!(open_to_others(home.path()), []);
}

#[test]
fn a_token_of_another_user_is_refused() {
    let home = new_home("");
    home.down(home.start());
    let token = home.path().join("token");
    if std::os::unix::fs::chown(&token, Some(4711), None).is_err() {
        return abide_testkit::skip::skip("only root can give a file away");
    }
    let refused = home.run(&["up"]);
    assert_eq!(refused.code, Some(1));
    let stderr = &refused.stderr;
    assert!(stderr.contains("belongs to another user"), "{stderr}");
}
