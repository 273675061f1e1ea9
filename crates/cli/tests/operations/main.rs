//! Operator tasks with the real binary: metrics, logs, verification and backup.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod copies;
mod figures;
mod logs;
mod losses;
mod modes;
mod secrets;
mod traces;

use std::path::{Path, PathBuf};

use abide_testkit::daemon::TestHome;

/// Creates a home with this configuration.
fn new_home(config: &str) -> TestHome {
    TestHome::new(env!("CARGO_BIN_EXE_abide")).with_config(config)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns all files below a folder with their contents.
fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => {
                    files.push((entry.path(), std::fs::read(entry.path()).unwrap_or_default()));
                }
                _ => {}
            }
        }
    }
    files
}

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    abide_testkit::environment::assert_not_inherited_by(&["figures::metrics_require_the_token"]);
}
