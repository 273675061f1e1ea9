//! Access to the daemon from the command line: tokens, the Unix socket, and refused callers.

use std::{
    io::Read,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};

use abide_testkit::{
    daemon::{RawConnection, TestCommandOutput, TestHome},
    user::{self, UNPRIVILEGED_USER},
    wait,
};
use serde_json::{Value, json};

use crate::harness::CommandTestHome;

/// Sends a request over TCP with a token and returns the status.
fn status_with(home: &TestHome, token: &str, path: &str) -> u16 {
    home.client().unwrap().with_token(Some(token)).get(path).unwrap().status
}

#[test]
fn tokens_are_made_listed_rotated_and_revoked_with_and_without_a_daemon() {
    let home = CommandTestHome::new();
    let owner = || std::fs::read_to_string(home.path().join("token")).unwrap();
    // No daemon runs yet, and this command does not start one.
    let created = home.run_json(&["token", "new", "ci", "--permit", "read,run", "--expires", "30d"]);
    assert!(!home.path().join("daemon.json").exists());
    let ci = created["secret"].as_str().unwrap().to_owned();
    assert_eq!(
        (&created["token"]["name"], &created["token"]["permissions"]),
        (&json!("ci"), &json!(["read", "run"]))
    );
    assert!(created["token"]["expires_at"].is_string());
    let kept = home.path().join("access.json");
    assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&kept).unwrap();
    assert!(!text.contains(&ci) && !text.contains(&owner()), "secrets are kept as digests: {text}");
    home.up();
    assert_eq!(status_with(&home, &ci, "/v1/status"), 200);
    assert_eq!(status_with(&home, &ci, "/v1/tokens"), 403);
    let listed = home.run_json(&["token", "ls"]);
    assert_eq!((&listed[0]["name"], &listed[1]["name"]), (&json!("ci"), &json!("owner")));
    assert!(listed[0]["last_used_at"].is_string(), "{listed}");
    let printed = home.run(&["token", "ls"]).stdout;
    assert!(printed.contains("read,run") && printed.contains("never"), "{printed}");
    let rotated = home.run_json(&["token", "rotate", "ci"])["secret"].as_str().unwrap().to_owned();
    assert_eq!(
        (status_with(&home, &ci, "/v1/status"), status_with(&home, &rotated, "/v1/status")),
        (401, 200)
    );
    // The owner's token is in the file that commands read.
    let before = owner();
    let printed = home.run(&["token", "rotate", "owner"]);
    assert_eq!((printed.code, printed.stdout.trim()), (Some(0), owner().as_str()), "{}", printed.stderr);
    assert_eq!(status_with(&home, &before, "/v1/status"), 401);
    assert_eq!(home.run(&["status"]).code, Some(0));
    assert_eq!(home.run(&["token", "revoke", "ci"]).code, Some(0));
    assert_eq!(status_with(&home, &rotated, "/v1/status"), 401);
    assert_eq!(home.run(&["down"]).code, Some(0));
    let again = home.run_json(&["token", "ls"]);
    assert_eq!((again.as_array().unwrap().len(), &again[0]["name"]), (1, &json!("owner")));
}

#[test]
fn mistakes_with_tokens_are_named() {
    let home = CommandTestHome::new();
    for (words, code, part) in [
        (&["token", "new", "x"][..], 2, "--permit"),
        (&["token", "new", "x", "--permit", "write"], 2, "read, answer, approve, run or admin"),
        (&["token", "new", "x", "--permit", "read", "--expires", "soon"], 2, "30d"),
        (&["token", "new", "a b", "--permit", "read"], 2, "letters, digits"),
        (&["token", "rotate", "unknown"], 1, "abide token ls"),
        (&["token", "revoke", "owner"], 1, "abide token rotate owner"),
    ] {
        let done = home.run(words);
        assert_eq!(done.code, Some(code), "{words:?}: {}", done.stderr);
        assert!(done.stderr.contains(part), "{words:?}: {}", done.stderr);
    }
}

#[test]
fn commands_use_the_unix_socket_and_fall_back_to_tcp_without_it() {
    let home = CommandTestHome::new();
    home.up();
    let socket = home.path().join("daemon.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(home.path().join("token")).unwrap();
    let status = |token: &str| RawConnection::unix(&socket).unwrap().get(token, "/v1/status").unwrap().0;
    assert_eq!(status(&token), 200);
    assert_eq!(status("wrong"), 401, "the socket alone is not enough");
    // Commands use the socket, so a wrong port does not affect them.
    let address = home.path().join("daemon.json");
    let text = std::fs::read_to_string(&address).unwrap();
    let mut moved: Value = serde_json::from_str(&text).unwrap();
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    moved["listen"] = json!(nowhere.local_addr().unwrap().to_string());
    std::fs::write(&address, moved.to_string()).unwrap();
    let status = home.run(&["status"]);
    assert_eq!(status.code, Some(0), "{}", status.stderr);
    std::fs::write(&address, &text).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let status = home.run(&["status"]);
    assert_eq!(status.code, Some(0), "{}", status.stderr);
}

/// Issue 14, item 9: a process started by an agent must not answer on the user's behalf.
#[test]
fn descendants_of_a_keeper_are_refused_at_the_socket_also_after_their_parents_end() {
    let home = CommandTestHome::new();
    home.up();
    let abide = env!("CARGO_BIN_EXE_abide");
    let path = home.path().display().to_string();
    let session = home.run_json(&["sessions", "new"])["session_id"].as_str().unwrap().to_owned();
    let exec = |command: String| home.run(&["sessions", "exec", &session, &command]);
    let direct = exec(format!("ABIDE_HOME={path} {abide} status"));
    assert_eq!(direct.code, Some(1), "{}", direct.stdout);
    assert!(direct.stderr.contains("was started by an agent or in a terminal session"), "{}", direct.stderr);
    // The parents are gone and it has a session of its own, but the keeper adopts it as subreaper.
    let report = home.path().join("report");
    let orphan = format!(
        "(setsid sh -c 'sh -c \"sleep 0.2; ABIDE_HOME={path} {abide} status --json; echo code \\$?\" >{} 2>&1 &' &)",
        report.display()
    );
    exec(orphan);
    let text = wait::until_some("the orphan has asked", || {
        std::fs::read_to_string(&report).ok().filter(|text| text.contains("code "))
    });
    assert!(text.contains("FORBIDDEN_PEER") && text.contains("code 1"), "{text}");
    assert_eq!(home.run(&["status"]).code, Some(0), "the person's own shell is served");
    assert_eq!(home.run(&["sessions", "rm", &session]).code, Some(0));
}

/// A directory for an ordinary user: the programs, and that user's home.
struct UserHome {
    directory: tempfile::TempDir,
}

const USER: u32 = UNPRIVILEGED_USER;
const OTHER_USER: u32 = USER - 1;

impl UserHome {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let user_home = Self { directory };
        let open =
            |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        open(user_home.directory.path());
        for (program, name) in [(Path::new(env!("CARGO_BIN_EXE_abide")), "abide"), (&own_binary(), "test")] {
            std::fs::copy(program, user_home.path(name)).unwrap();
            open(&user_home.path(name));
        }
        std::fs::create_dir(user_home.path("home")).unwrap();
        std::fs::write(user_home.path("home/config.toml"), "listen = \"127.0.0.1:0\"\n").unwrap();
        for owned in ["home", "home/config.toml"] {
            std::os::unix::fs::chown(user_home.path(owned), Some(USER), Some(USER)).unwrap();
        }
        user_home
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, user: u32, words: &[&str]) -> TestCommandOutput {
        let mut command = user::command(user, words[0]);
        command.args(&words[1..]);
        command.env("ABIDE_HOME", self.path("home")).env("HOME", self.path("home"));
        command.current_dir(self.directory.path()).stdin(std::process::Stdio::null());
        TestCommandOutput::of(command)
    }

    fn abide(&self, words: &[&str]) -> String {
        let done = self.run(USER, &[&["./abide"], words].concat());
        assert_eq!(done.code, Some(0), "{words:?}: {} {}", done.stdout, done.stderr);
        done.stdout.trim().to_owned()
    }
}

fn own_binary() -> std::path::PathBuf {
    std::env::current_exe().unwrap()
}

/// Issue 14, item 9. File modes and the dumpable flag do not restrict root, so this runs as an ordinary user.
#[test]
fn the_daemon_is_not_dumpable_works_for_an_ordinary_user_and_keepers_refuse_other_users() {
    if !rustix::process::geteuid().is_root() {
        return abide_testkit::skip::skip("only root can become another user");
    }
    let user_home = UserHome::new();
    user_home.abide(&["up", "--detach"]);
    let daemon = std::fs::read_to_string(user_home.path("home/daemon.json")).unwrap();
    let daemon: Value = serde_json::from_str(&daemon).unwrap();
    let pid = &daemon["process"]["pid"];
    for part in ["environ", "mem", "fd/0", "maps"] {
        let looked = user_home.run(USER, &["head", "-c1", &format!("/proc/{pid}/{part}")]);
        assert_ne!(looked.code, Some(0), "another process of the user reads {part}");
    }
    assert!(user_home.abide(&["run", "parrot", "say hello"]).contains("hello"));
    let session = user_home.abide(&["sessions", "new"]);
    assert_eq!(user_home.abide(&["sessions", "exec", &session, "echo $((6 * 7))"]), "42");
    // Also if the modes allow access by another user.
    let keeper = user_home.path("home/keepers").join(&session);
    let socket = std::fs::read_dir(&keeper).unwrap().flatten().map(|entry| entry.path());
    let socket = socket.into_iter().find(|path| {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
    });
    let socket = socket.expect("a keeper has a socket");
    for path in [&user_home.path("home"), &user_home.path("home/keepers"), &keeper, &socket] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    std::os::unix::fs::symlink(&socket, user_home.path("socket")).unwrap();
    let part = "access::another_user_gets_no_byte_out_of_a_socket";
    let other = user_home.run(OTHER_USER, &["./test", "--exact", "--ignored", part]);
    assert!(other.code == Some(0) && other.stdout.contains("1 passed"), "{} {}", other.stdout, other.stderr);
    let own = user_home.run(USER, &["./test", "--exact", "--ignored", part]);
    assert_ne!(own.code, Some(0), "the keeper waits for what its own user says");
    std::fs::set_permissions(user_home.path("home"), std::fs::Permissions::from_mode(0o700)).unwrap();
    user_home.abide(&["sessions", "rm", &session]);
    user_home.abide(&["down"]);
}

#[test]
#[ignore = "a part of the test above, as another user"]
fn another_user_gets_no_byte_out_of_a_socket() {
    let mut stream = UnixStream::connect("socket").unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    let mut byte = [0];
    let closed = match stream.read(&mut byte) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    assert!(closed, "the keeper keeps the connection");
}
