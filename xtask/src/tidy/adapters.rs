//! Checks that the command line contains no adapter: outside `up/`, where the daemon is assembled, it makes no system
//! calls, speaks to no keeper and deletes no files.
//!
//! The allowed dependencies of the crate are in `table.rs`. This rule restricts their use to one folder.

use super::TidyFinding;
use super::source::{RustSource, is_name};
use super::tree::FileTree;

const COMMAND_LINE: &str = "crates/cli/src/";
/// The folder that assembles the daemon from its adapters.
const ASSEMBLY: &str = "crates/cli/src/up/";

/// Names that only adapters use, and the crate that offers the operation.
const ADAPTER_NAMES: &[(&str, &str)] = &[
    ("rustix", "use a module of `os`, or add one"),
    ("abide_keeper", "use `host`, or `terminal` for sessions"),
    ("remove_file", "delete files in `host`"),
    ("remove_dir", "delete files in `host`"),
    ("remove_dir_all", "delete files in `host`"),
    ("remove_path", "delete files in `host`"),
    ("unlinkat", "delete files in `host`"),
];

/// The module of `os` that removes trees, as a path.
const REMOVAL_MODULE: &str = "remove::";

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let files = tree.ending(".rs");
    let files = files.filter(|(path, _)| path.starts_with(COMMAND_LINE) && !path.starts_with(ASSEMBLY));
    files.flat_map(|(path, text)| check_file(path, text)).collect()
}

fn check_file(path: &str, text: &str) -> Vec<TidyFinding> {
    let source = RustSource::split(text);
    let mut findings = Vec::new();
    for (index, line) in source.code.lines().enumerate() {
        if line.contains(REMOVAL_MODULE) {
            let problem = format!("the command line removes trees outside {ASSEMBLY}");
            findings.push(TidyFinding::new(path, index + 1, problem, "delete files in `host`"));
        }
        for word in line.split(|c: char| !is_name(c)) {
            if let Some((name, remedy)) = ADAPTER_NAMES.iter().find(|(name, _)| *name == word) {
                let problem = format!("the command line uses {name} outside {ASSEMBLY}");
                findings.push(TidyFinding::new(path, index + 1, problem, *remedy));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    #[test]
    fn system_calls_keepers_and_deletion_are_found_outside_the_assembly() {
        let text = "//! rustix\nuse abide_keeper::launch;\n\nfn f() { std::fs::remove_file(\"x\").ok(); }\n";
        let expected = [
            "crates/cli/src/a.rs:2: the command line uses abide_keeper outside crates/cli/src/up/; \
             use `host`, or `terminal` for sessions",
            "crates/cli/src/a.rs:4: the command line uses remove_file outside crates/cli/src/up/; \
             delete files in `host`",
        ];
        assert_eq!(findings_of(check, &[("crates/cli/src/a.rs", text)]), expected);
    }

    #[test]
    fn the_removal_of_trees_is_found_in_any_import() {
        for import in ["use abide_os::remove::remove;", "use abide_os::{\n    remove::remove,\n};"] {
            let findings = findings_of(check, &[("crates/cli/src/a.rs", import)]);
            assert_eq!(findings.len(), 1, "{findings:?}");
        }
    }

    #[test]
    fn the_assembly_tests_and_other_crates_may_use_them() {
        let text = "use rustix::fs;\nuse abide_keeper::launch;\n";
        let paths = ["crates/cli/src/up/mod.rs", "crates/cli/tests/a.rs", "crates/host/src/a.rs"];
        assert_eq!(findings_of(check, &paths.map(|path| (path, text))), [""; 0]);
    }

    #[test]
    fn words_in_comments_and_longer_names_pass() {
        let text = "// rustix, remove_file\nfn remove_file_later() { groups.remove_dead_groups(); }\n";
        assert_eq!(findings_of(check, &[("crates/cli/src/a.rs", text)]), [""; 0]);
    }
}
