//! Forbids `allow` attributes and marks of unfinished work. A known defect is marked FIXME, and a test asserts the
//! present behaviour.

use super::TidyFinding;
use super::source::{RustSource, is_name};
use super::tree::FileTree;

/// Macros that may not be in committed code.
const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];
/// Forbidden in comments, as whole words.
const COMMENT_MARKS: &[&str] = &["TODO", "XXX", "HACK", "WIP"];

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    tree.ending(".rs").flat_map(|(path, text)| check_file(path, &RustSource::split(text))).collect()
}

fn check_file(path: &str, source: &RustSource) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (index, line) in source.code.lines().enumerate() {
        if has_allow_attribute(line) {
            let remedy = "repair the code, or use `#[expect(…, reason = \"…\")]`";
            findings.push(TidyFinding::new(path, index + 1, "a lint is silenced with `allow`", remedy));
        }
        for name in MACROS.iter().filter(|name| calls(line, name)) {
            let wrong = format!("the code contains `{name}!`");
            findings.push(TidyFinding::new(path, index + 1, wrong, "finish or remove it"));
        }
    }
    for (index, line) in source.comments.lines().enumerate() {
        for word in line.split(|c| !is_name(c)).filter(|word| COMMENT_MARKS.contains(word)) {
            let wrong = format!("an unfinished mark, {word}");
            let remedy = "finish it, or assert what is wrong in a test and mark it FIXME";
            findings.push(TidyFinding::new(path, index + 1, wrong, remedy));
        }
    }
    findings
}

/// Whether the line has `#[allow(…)]`, also inside `cfg_attr`, with any spacing.
fn has_allow_attribute(line: &str) -> bool {
    let dense: String = line.split_whitespace().collect();
    let at_start = dense.starts_with("#[allow(") || dense.starts_with("#![allow(");
    at_start || dense.contains("#[allow(") || (dense.contains("cfg_attr(") && dense.contains(",allow("))
}

fn calls(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        !line[..at].ends_with(is_name) && line[at + name.len()..].trim_start().starts_with('!')
    })
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    fn lines(text: &str) -> Vec<String> {
        findings_of(check, &[("a.rs", text)])
            .iter()
            .filter_map(|finding| finding.split(';').next().map(str::to_owned))
            .collect()
    }

    #[test]
    fn a_silenced_lint_is_found_and_an_expected_one_is_not() {
        assert_eq!(lines("#[allow(dead_code)]"), ["a.rs:1: a lint is silenced with `allow`"]);
        assert_eq!(lines("\n#![ allow(dead_code)]"), ["a.rs:2: a lint is silenced with `allow`"]);
        assert_eq!(lines("#[cfg_attr(test, allow(x))]"), ["a.rs:1: a lint is silenced with `allow`"]);
        assert!(lines("#[expect(dead_code, reason = \"…\")]\nfn allow() { rules.allow(x) }").is_empty());
    }

    #[test]
    fn unfinished_code_is_found_and_a_fixme_is_not() {
        assert_eq!(lines("fn f() { todo!() }"), ["a.rs:1: the code contains `todo!`"]);
        assert_eq!(lines("let x = dbg! (y);"), ["a.rs:1: the code contains `dbg!`"]);
        assert_eq!(lines("// TODO: later"), ["a.rs:1: an unfinished mark, TODO"]);
        assert!(lines("// FIXME: one too many\nlet s = \"TODO todo!()\"; let TODO = my_todo!();").is_empty());
    }
}
