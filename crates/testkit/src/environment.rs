//! Commands that run `abide` without the `ABIDE_…` variables of the developer's shell.
//!
//! A variable such as `ABIDE_LISTEN` or `ABIDE_STORE` in a developer's shell would otherwise configure every binary
//! under test. A test sets the variables it needs on the command returned here. The variables for tests themselves
//! (`ABIDE_TEST_…`) are not passed on either.

use std::{
    ffi::{OsStr, OsString},
    process::Command,
};

/// Creates a command that runs `program` without inherited `ABIDE_…` variables.
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

/// Returns the names of this process's `ABIDE_…` variables, for commands that are built in another way.
pub fn inherited_settings() -> Vec<OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| is_setting(name)).collect()
}

/// Runs the named tests of the current test binary again with unusable settings in the environment, and expects them to
/// pass. This shows that the binary's harness does not pass the settings on.
///
/// # Panics
///
/// If one of the tests fails or is not found.
#[expect(clippy::disallowed_methods, reason = "a test binary is started by its own test")]
pub fn assert_not_inherited_by(tests: &[&str]) {
    let own = std::env::current_exe().expect("a test binary has a path");
    for test in tests {
        let mut command = Command::new(&own);
        command.args(["--exact", test]).envs(UNUSABLE.iter().copied());
        let output = command.output().expect("a test binary can be started again");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && stdout.contains("1 passed"), "{test}: {stdout}\n{stderr}");
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
