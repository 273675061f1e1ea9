//! Programs and tests that run as an ordinary user, for suites that run as root.

use std::{ffi::OsStr, process::Command};

use crate::environment;

/// The user of tests that need no account of their own: `nobody`.
pub const UNPRIVILEGED_USER: u32 = 65_534;

/// Returns the words before a program on a command line that run it as this user.
pub fn launcher(user: u32) -> [String; 4] {
    let words = ["setpriv".to_owned(), format!("--reuid={user}"), format!("--regid={user}")];
    let [setpriv, reuid, regid] = words;
    [setpriv, reuid, regid, "--clear-groups".to_owned()]
}

/// Returns a command that runs `program` as this user, without the `ABIDE_…` variables of this process.
pub fn command(user: u32, program: impl AsRef<OsStr>) -> Command {
    let [setpriv, options @ ..] = launcher(user);
    let mut command = environment::abide(setpriv);
    command.args(options).arg(program);
    command
}

/// Runs the named tests of the current test binary again as an ordinary user, and expects them to pass. Does nothing
/// unless this process is root, because they have then run as an ordinary user.
///
/// # Panics
///
/// If one of the tests fails or is not found.
#[track_caller]
pub fn rerun_unprivileged(tests: &[&str]) {
    if !is_root() {
        return;
    }
    let own = std::env::current_exe().expect("a test binary has a path");
    for test in tests {
        let mut command = command(UNPRIVILEGED_USER, &own);
        command.args(["--exact", test]).env("TMPDIR", "/tmp");
        let output = command.output().expect("setpriv is installed");
        let text =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
    }
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("Linux reports it");
    uids.split_whitespace().nth(1) == Some("0")
}
