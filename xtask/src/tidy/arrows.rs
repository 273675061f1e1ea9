//! Checks the dependencies of each crate, on our crates and on others. The table of allowed dependencies is in
//! `table.rs`; this file compares it with `cargo metadata`.

use super::TidyFinding;
use super::table::TABLE;
use super::tree::FileTree;
use crate::workspace::{CargoWorkspace, CrateDependency, DependencyKind, WorkspaceMember};

/// The allowed dependencies of one crate.
pub(super) struct CrateRow {
    /// The name of its folder.
    pub(super) name: &'static str,
    /// Our crates, as normal or build dependencies.
    pub(super) uses: &'static [&'static str],
    /// Further crates of ours, as dev-dependencies.
    pub(super) dev_uses: &'static [&'static str],
    /// Crates of others, as normal or build dependencies.
    pub(super) external: OutsideRule,
}

pub(super) enum OutsideRule {
    Free,
    Only(&'static [&'static str]),
    Not(&'static [&'static str]),
}

pub(super) fn check(tree: &FileTree, workspace: &CargoWorkspace) -> Vec<TidyFinding> {
    workspace.members.iter().flat_map(|member| check_member(tree, workspace, member)).collect()
}

fn check_member(tree: &FileTree, workspace: &CargoWorkspace, member: &WorkspaceMember) -> Vec<TidyFinding> {
    let manifest = format!("{}/Cargo.toml", member.dir);
    let Some(row) = TABLE.iter().find(|row| row.name == member.short()) else {
        let wrong = format!("the crate {} is not in the table of dependencies", member.short());
        return vec![TidyFinding::new(&manifest, 1, wrong, "give it a row in xtask/src/tidy/table.rs")];
    };
    let findings = member.dependencies.iter().filter_map(|dependency| {
        let (wrong, remedy) = match workspace.member(&dependency.package) {
            Some(ours) => forbidden_dependency(row, ours.short(), dependency.kind)?,
            None => forbidden_external(row, dependency)?,
        };
        Some(TidyFinding::new(&manifest, line_of(tree, &manifest, &dependency.package), wrong, remedy))
    });
    findings.collect()
}

fn forbidden_dependency(row: &CrateRow, to: &str, kind: DependencyKind) -> Option<(String, String)> {
    let from = row.name;
    let in_tests = kind == DependencyKind::Dev;
    let allowed = row.uses.contains(&to) || (in_tests && (to == TESTKIT || row.dev_uses.contains(&to)));
    if allowed {
        return None;
    }
    let wrong = match kind {
        DependencyKind::Normal | DependencyKind::Build => format!("{from} must not depend on {to}"),
        DependencyKind::Dev => format!("the tests of {from} must not depend on {to}"),
    };
    let remedy = if to == TESTKIT {
        "make it a dev-dependency".to_owned()
    } else {
        "reverse the dependency, or add it with a reason to xtask/src/tidy/table.rs".to_owned()
    };
    Some((wrong, remedy))
}

fn forbidden_external(row: &CrateRow, dependency: &CrateDependency) -> Option<(String, String)> {
    let package = dependency.package.as_str();
    let is_allowed = match (dependency.kind, &row.external) {
        (DependencyKind::Dev, _) | (_, OutsideRule::Free) => true,
        (DependencyKind::Normal | DependencyKind::Build, OutsideRule::Only(few)) => few.contains(&package),
        (DependencyKind::Normal | DependencyKind::Build, OutsideRule::Not(banned)) => {
            !banned.contains(&package)
        }
    };
    if is_allowed {
        return None;
    }
    let remedy = match row.external {
        OutsideRule::Only(few) => format!("it may depend on {} and no other crate", few.join(", ")),
        OutsideRule::Free | OutsideRule::Not(_) => "move the code to a crate with that purpose".to_owned(),
    };
    Some((format!("{} must not depend on {package}", row.name), remedy))
}

fn line_of(tree: &FileTree, manifest: &str, package: &str) -> usize {
    let named = |line: &str| line.strip_prefix(package).is_some_and(|rest| rest.starts_with(['.', ' ', '=']));
    let at = tree.text(manifest).and_then(|text| text.lines().position(named));
    at.map_or(1, |index| index + 1)
}

const TESTKIT: &str = "testkit";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::table::TABLE;
    use super::super::tree::FileTree;
    use super::check;
    use crate::workspace::{CargoWorkspace, CrateDependency, DependencyKind, WorkspaceMember};

    /// Returns the findings for these crates, given by folder name with their dependencies.
    fn findings(crates: &[(&str, &[(&str, DependencyKind)])]) -> Vec<String> {
        let dependency = |(name, kind): &(&str, DependencyKind)| CrateDependency {
            package: (*name).to_owned(),
            kind: *kind,
        };
        let member = |(name, dependencies): &(&str, &[(&str, DependencyKind)])| WorkspaceMember {
            package: format!("abide-{name}"),
            dir: format!("crates/{name}"),
            dependencies: dependencies.iter().map(dependency).collect(),
        };
        let members = crates.iter().map(member).collect();
        let workspace = CargoWorkspace { root: PathBuf::new(), target: PathBuf::new(), members };
        let tree = FileTree::of(&[("crates/domain/Cargo.toml", "[dependencies]\ntokio.workspace = true\n")]);
        check(&tree, &workspace).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arrows_of_the_table_pass() {
        let store: &[_] = &[
            ("abide-domain", DependencyKind::Normal),
            ("abide-testkit", DependencyKind::Dev),
            ("rusqlite", DependencyKind::Normal),
        ];
        let crates: &[(&str, &[_])] = &[
            ("domain", &[("serde", DependencyKind::Normal), ("proptest", DependencyKind::Dev)]),
            ("testkit", &[]),
            ("store", store),
        ];
        assert!(findings(crates).is_empty());
    }

    #[test]
    fn a_forbidden_arrow_is_found_in_normal_and_build_and_dev_dependencies() {
        let arrow = "reverse the dependency, or add it with a reason to xtask/src/tidy/table.rs";
        for (kind, subject) in [
            (DependencyKind::Normal, "domain must not depend on store"),
            (DependencyKind::Build, "domain must not depend on store"),
            (DependencyKind::Dev, "the tests of domain must not depend on store"),
        ] {
            let findings = findings(&[("domain", &[("abide-store", kind)]), ("store", &[])]);
            assert_eq!(findings, [format!("crates/domain/Cargo.toml:1: {subject}; {arrow}")]);
        }
    }

    #[test]
    fn testkit_is_only_ever_a_dev_dependency() {
        let findings = findings(&[("store", &[("abide-testkit", DependencyKind::Normal)]), ("testkit", &[])]);
        let expected =
            "crates/store/Cargo.toml:1: store must not depend on testkit; make it a dev-dependency";
        assert_eq!(findings, [expected]);
    }

    #[test]
    fn the_domain_knows_two_crates_of_others() {
        let findings = findings(&[("domain", &[("tokio", DependencyKind::Normal)])]);
        let expected = "crates/domain/Cargo.toml:2: domain must not depend on tokio; \
                        it may depend on serde, thiserror and no other crate";
        assert_eq!(findings, [expected]);
    }

    #[test]
    fn the_store_knows_no_http() {
        let findings = findings(&[("store", &[("axum", DependencyKind::Normal)])]);
        let expected = "crates/store/Cargo.toml:1: store must not depend on axum; \
                        move the code to a crate with that purpose";
        assert_eq!(findings, [expected]);
    }

    #[test]
    fn a_crate_without_a_row_is_told_where_to_add_it() {
        let expected = "crates/utils/Cargo.toml:1: the crate utils is not in the table of dependencies; \
                        give it a row in xtask/src/tidy/table.rs";
        assert_eq!(findings(&[("utils", &[])]), [expected]);
    }

    #[test]
    fn the_table_has_no_circle() {
        // Each normal dependency has a row. Without a cycle, following the dependencies ends after at most as many
        // steps as there are rows.
        let step = |names: Vec<&'static str>| -> Vec<&'static str> {
            let rows = names.iter().map(|name| TABLE.iter().find(|row| row.name == *name).unwrap());
            let mut next: Vec<_> = rows.flat_map(|row| row.uses.iter().copied()).collect();
            next.sort_unstable();
            next.dedup();
            next
        };
        let all = TABLE.iter().map(|row| row.name).collect();
        assert!((0..TABLE.len()).fold(all, |names, _| step(names)).is_empty());
    }
}
