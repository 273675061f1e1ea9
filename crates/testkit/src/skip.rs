//! Skips tests that cannot run on this machine, and reports them.
//!
//! `cargo xtask test` names a file in `ABIDE_TEST_SKIPS`, to which each skip appends a line, and prints the list in its
//! summary. With `ABIDE_TEST_NO_SKIPS=1`, which `cargo xtask ci` sets, a skip is a failure.

use std::{fs::File, io::Write, path::Path};

/// Records that the running test, or a part of it, is skipped for lack of a program or a permission.
///
/// The caller returns, or continues without that part.
///
/// # Panics
///
/// If skips are treated as failures.
#[track_caller]
pub fn skip(reason: &str) {
    let variable = |name: &str| std::env::vars_os().find(|(key, _)| key == name).map(|(_, value)| value);
    let line = format!("{}: {reason}", test_name());
    assert!(variable("ABIDE_TEST_NO_SKIPS").is_none_or(|value| value != "1"), "skipped: {line}");
    eprintln!("skipped: {line}");
    if let Some(path) = variable("ABIDE_TEST_SKIPS") {
        append(path.as_ref(), &line);
    }
}

fn append(path: &Path, line: &str) {
    // The line is short and written with one call to a file opened for appending, so lines of concurrent tests do not
    // mix.
    let line = format!("{}\n", line.replace('\n', " "));
    let file = File::options().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot record a skip in {}: {error}", path.display()));
}

/// Returns the test's binary and name. The test runner names the thread after the test.
fn test_name() -> String {
    let binary = std::env::current_exe().ok();
    let binary = binary.as_deref().and_then(Path::file_stem).map(|name| name.to_string_lossy().into_owned());
    // Cargo appends a dash and a hash.
    let binary = binary.map(|name| name.rsplit_once('-').map_or(name.clone(), |(name, _)| name.to_owned()));
    let thread = std::thread::current();
    format!("{} {}", binary.unwrap_or_default(), thread.name().unwrap_or("unnamed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_recorded_as_one_line_with_the_name_of_its_test() {
        let name = test_name();
        assert!(name.starts_with("abide_testkit ") && name.ends_with("with_the_name_of_its_test"), "{name}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("skips");
        append(&path, "a test: no\nnode");
        append(&path, "another: no mount");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a test: no node\nanother: no mount\n");
    }
}
