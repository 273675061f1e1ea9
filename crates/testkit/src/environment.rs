//! How tests and harnesses start `abide`: without the `ABIDE_…` variables of the shell they were started from.
//!
//! A variable such as `ABIDE_LISTEN` or `ABIDE_STORE` in a developer's shell would otherwise configure every binary
//! under test. A test sets what it needs on the command that it gets from here. What tests themselves are told
//! (`ABIDE_TEST_…`) is read by them and is not passed on either.

use std::{
    ffi::{OsStr, OsString},
    process::Command,
};

/// A command that runs this program without any inherited `ABIDE_…` variable.
#[expect(
    clippy::disallowed_methods,
    reason = "every test starts the binary that it tests through this function"
)]
pub fn abide(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in inherited_settings() {
        command.env_remove(name);
    }
    command
}

/// The names of the `ABIDE_…` variables of this process, for commands that are built otherwise.
pub fn inherited_settings() -> Vec<OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| is_setting(name)).collect()
}

/// Runs these tests of the running test binary again, with settings in their environment with which nothing could
/// work, and expects them to pass: so the binary's harness does not pass them on.
///
/// # Panics
///
/// If one of them fails, or is not found.
#[expect(clippy::disallowed_methods, reason = "a test binary is started by its own test")]
pub fn assert_not_inherited_by(tests: &[&str]) {
    let own = std::env::current_exe().expect("a test binary has a path");
    for test in tests {
        let mut command = Command::new(&own);
        command.args(["--exact", test]).envs(UNUSABLE.iter().copied());
        let output = command.output().expect("a test binary can be started again");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (said, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && said.contains("1 passed"), "{test}: {said}\n{complained}");
    }
}

/// Settings with which no command works.
const UNUSABLE: [(&str, &str); 6] = [
    ("ABIDE_HOME", "/dev/null/no-home"),
    ("ABIDE_LISTEN", "not an address"),
    ("ABIDE_STORE", "nowhere:at-all"),
    ("ABIDE_SLOTS_MAX_RUNNING", "none"),
    ("ABIDE_TOKEN", "of another home"),
    ("ABIDE_MODEL_BASE_URL", "http://127.0.0.1:1"),
];

fn is_setting(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"ABIDE_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_of_ours_is_a_setting_and_no_other_is() {
        for name in ["ABIDE_LISTEN", "ABIDE_HOME", "ABIDE_TEST_ENGINES", "ABIDE_"] {
            assert!(is_setting(name.as_ref()), "{name}");
        }
        for name in ["PATH", "ABIDE", "MY_ABIDE_LISTEN", "abide_listen"] {
            assert!(!is_setting(name.as_ref()), "{name}");
        }
    }
}
