//! Checks that the Rust examples in a crate's README are compiled: the crate's root file includes the README as
//! documentation of a doctest.

use super::TidyFinding;
use super::tree::FileTree;

const INCLUSION: &str = "#[doc = include_str!(\"../README.md\")]";

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending("/README.md") {
        let Some(folder) = path.strip_suffix("/README.md").filter(|folder| folder.starts_with("crates/"))
        else {
            continue;
        };
        let mut blocks = text.lines().enumerate().filter(|(_, line)| line.starts_with("```rust"));
        let Some((first, _)) = blocks.clone().next() else { continue };
        for (index, _) in blocks.by_ref().filter(|(_, line)| line.contains("ignore")) {
            let wrong = "the example is not compiled";
            findings.push(TidyFinding::new(
                path,
                index + 1,
                wrong,
                "make it compile, and mark it `no_run` if it has effects",
            ));
        }
        let root = tree.text(&format!("{folder}/src/lib.rs")).unwrap_or_default();
        if !root.lines().any(|line| line.trim() == INCLUSION) {
            let remedy = "include the README under `cfg(doctest)` in src/lib.rs";
            findings.push(TidyFinding::new(path, first + 1, "no doctest compiles the examples", remedy));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::{INCLUSION, check};

    #[test]
    fn an_included_readme_and_one_without_examples_pass() {
        let root = format!("//! A.\n#[cfg(doctest)]\n{INCLUSION}\nstruct AReadme;\n");
        let files = [
            ("crates/a/README.md", "# A\n```rust,no_run\nf();\n```\n"),
            ("crates/a/src/lib.rs", root.as_str()),
            ("crates/b/README.md", "# B\n```sh\nabide up\n```\n"),
        ];
        assert_eq!(findings_of(check, &files), [""; 0]);
    }

    #[test]
    fn an_example_that_is_not_compiled_is_found() {
        let files =
            [("crates/a/README.md", "# A\n```rust,ignore\nf();\n```\n"), ("crates/a/src/lib.rs", "//! A.\n")];
        let expected = [
            "crates/a/README.md:2: the example is not compiled; make it compile, and mark it `no_run` if it has effects",
            "crates/a/README.md:2: no doctest compiles the examples; include the README under `cfg(doctest)` in src/lib.rs",
        ];
        assert_eq!(findings_of(check, &files), expected);
    }
}
