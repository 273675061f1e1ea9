//! Checks that the domain is built without `std`, so that it cannot use a clock, a file or a map with random order.
//!
//! Its allowed dependencies are in `table.rs`.

use super::TidyFinding;
use super::source::RustSource;
use super::tree::FileTree;

const DOMAIN_ROOT: &str = "crates/domain/src/lib.rs";

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let Some(text) = tree.text(DOMAIN_ROOT) else {
        return vec![TidyFinding::new(
            DOMAIN_ROOT,
            1,
            "the root file of the domain is missing",
            "put its new path into xtask/src/tidy/purity.rs",
        )];
    };
    let code = RustSource::split(text).code;
    let mut findings = Vec::new();
    if !code.lines().any(|line| line.trim() == "#![no_std]") {
        findings.push(TidyFinding::new(
            DOMAIN_ROOT,
            1,
            "the domain is built with `std`",
            "put `#![no_std]` back",
        ));
    }
    // Tests may link `std`, with a separate line under `cfg(test)`.
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    for (index, _) in lines.iter().enumerate().filter(|(_, line)| **line == "extern crate std;") {
        let for_tests = index > 0 && lines[index - 1] == "#[cfg(test)]";
        if !for_tests {
            let remedy = "use `alloc`, or pass the value with the event";
            findings.push(TidyFinding::new(DOMAIN_ROOT, index + 1, "the domain links `std`", remedy));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::{DOMAIN_ROOT, check};

    #[test]
    fn a_domain_without_std_passes() {
        let text = "//! Pure.\n#![no_std]\nextern crate alloc;\n#[cfg(test)]\nextern crate std;\n";
        assert!(findings_of(check, &[(DOMAIN_ROOT, text)]).is_empty());
    }

    #[test]
    fn std_in_the_domain_is_found() {
        let expected = ["crates/domain/src/lib.rs:1: the domain is built with `std`; put `#![no_std]` back"];
        assert_eq!(findings_of(check, &[(DOMAIN_ROOT, "//! Pure. #![no_std]\n// #![no_std]\n")]), expected);
        let expected = ["crates/domain/src/lib.rs:2: the domain links `std`; \
                         use `alloc`, or pass the value with the event"];
        assert_eq!(findings_of(check, &[(DOMAIN_ROOT, "#![no_std]\nextern crate std;\n")]), expected);
    }

    #[test]
    fn a_missing_domain_is_found() {
        assert_eq!(findings_of(check, &[]).len(), 1);
    }
}
