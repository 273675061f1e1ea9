//! Checks that engine names occur only in adapters, the registry and documents: no code branches on the name of an
//! engine.
//!
//! The names are those of the adapters' folders, so a new adapter is included automatically. The scripted engine is
//! part of this program and is named where it is started. Help texts are documents; tests may name the engine they
//! test.

use std::collections::BTreeSet;

use super::TidyFinding;
use super::source::is_name;
use super::tree::FileTree;

const ADAPTERS: &str = "crates/engines/src/";
/// Folders next to the adapters that are not engine programs: a protocol, the questions, the native agent, and the
/// scripted engine.
const NON_ENGINE_FOLDERS: &[&str] = &["abide_agent", "acp", "asking", "parrot"];
/// The files in which all engines may be named: the registry, the list of modules, the help texts.
const EXEMPT_FILES: &[&str] = &[
    "crates/engines/src/registry.rs",
    "crates/engines/src/lib.rs",
    "crates/cli/src/args.rs",
    "crates/cli/src/args/runs.rs",
];
/// It imitates models and must distinguish their clients.
const TESTKIT: &str = "crates/testkit/";

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let names: BTreeSet<&str> = tree
        .ending("/mod.rs")
        .filter_map(|(path, _)| path.strip_prefix(ADAPTERS)?.strip_suffix("/mod.rs"))
        .filter(|folder| !folder.contains('/') && !NON_ENGINE_FOLDERS.contains(folder))
        .collect();
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| is_shipped(path)) {
        let own = path.strip_prefix(ADAPTERS).and_then(|rest| rest.split_once('/')).map(|(folder, _)| folder);
        for (index, line) in text.lines().enumerate() {
            if line.trim() == "#[cfg(test)]" {
                break;
            }
            let strangers = names.iter().filter(|name| Some(**name) != own);
            for name in strangers.filter(|name| mentions(line, name)) {
                let wrong = format!("the engine {name} is named outside its adapter");
                let remedy = "ask what an engine can do, not which one it is";
                findings.push(TidyFinding::new(path, index + 1, wrong, remedy));
            }
        }
    }
    findings
}

fn is_shipped(path: &str) -> bool {
    path.starts_with("crates/")
        && path.contains("/src/")
        && !path.starts_with(TESTKIT)
        && !path.ends_with("/tests.rs")
        && !EXEMPT_FILES.contains(&path)
}

fn mentions(line: &str, name: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    lower.match_indices(name).any(|(at, _)| {
        let before = lower[..at].chars().next_back();
        let after = lower[at + name.len()..].chars().next();
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    const ADAPTER: (&str, &str) =
        ("crates/engines/src/wren/mod.rs", "//! Wren.\nconst NAME: &str = \"wren\";\n");

    #[test]
    fn an_engine_is_named_in_its_adapter_the_registry_and_tests() {
        let tree = [
            ADAPTER,
            ("crates/engines/src/registry.rs", "use crate::wren::Wren;\n"),
            ("crates/daemon/src/lib.rs", "//! The wrench.\n#[cfg(test)]\nmod tests { /* wren */ }\n"),
            ("crates/cli/tests/engines/main.rs", "engine!(wren);\n"),
        ];
        assert!(findings_of(check, &tree).is_empty());
    }

    #[test]
    fn an_engine_that_is_named_elsewhere_is_found() {
        let tree = [ADAPTER, ("crates/daemon/src/lib.rs", "//! Loop.\nif engine == \"Wren\" {}\n")];
        let expected = [
            "crates/daemon/src/lib.rs:2: the engine wren is named outside its adapter; ask what an engine can do, not which one it is",
        ];
        assert_eq!(findings_of(check, &tree), expected);
    }
}
