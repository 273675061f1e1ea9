//! Records the results of these tests for the matrix in `docs/engines.md`.

use std::{fs, path::PathBuf};

use abide_host::clock::SystemClock;
use abide_ports::clock::Clock;

use crate::programs::installed;

/// Records that an engine has passed a scenario, if `ABIDE_TEST_RECORD` names a folder.
#[expect(clippy::disallowed_methods, reason = "the tests are told by their environment who wants to know")]
pub(crate) fn record_pass(engine: &str, scenario: &str) {
    let Ok(folder) = std::env::var("ABIDE_TEST_RECORD") else { return };
    if installed(engine).is_none() {
        return;
    }
    let folder = PathBuf::from(folder).join(engine);
    fs::create_dir_all(&folder).expect("the record can be written");
    let seconds = SystemClock.stamp().at.0 / 1_000_000;
    fs::write(folder.join(scenario), seconds.to_string()).expect("the record can be written");
}
