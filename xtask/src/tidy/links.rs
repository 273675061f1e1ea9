//! Checks that relative links in documents lead to files of the repository.

use super::TidyFinding;
use super::markdown::{LinePlace, lines, targets};
use super::tree::FileTree;

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    tree.ending(".md").flat_map(|(path, text)| check_document(tree, path, text)).collect()
}

fn check_document(tree: &FileTree, path: &str, text: &str) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for line in lines(text).filter(|line| line.place == LinePlace::Prose) {
        for target in targets(line.text) {
            let file = target.split('#').next().unwrap_or_default();
            let elsewhere = file.contains("://") || file.starts_with("mailto:") || file.is_empty();
            if !elsewhere && !resolve(path, file).is_some_and(|file| tree.has(&file)) {
                let wrong = format!("the target of the link to {target} does not exist");
                findings.push(TidyFinding::new(path, line.number, wrong, "correct or remove the link"));
            }
        }
    }
    findings
}

/// Returns the target of a link in the document at `from`, relative to the root; `None` if it is outside the
/// repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    #[test]
    fn links_to_what_is_there_or_elsewhere_pass() {
        let text = "[a](../README.md) [b](b.md#part) [c](#here) [d](https://example.test/x) [e](../crates/)\n\
                    ```\n[not](a-link)\n```\n`[nor](this)`\n";
        let files = [("docs/a.md", text), ("docs/b.md", ""), ("README.md", ""), ("crates/x/README.md", "")];
        assert_eq!(findings_of(check, &files), [""; 0]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let text = "fine\n[a](gone.md) and [b](../../outside.md)\n\n[c]: gone/too.md\n";
        let expected = [(2, "gone.md"), (2, "../../outside.md"), (4, "gone/too.md")].map(|(line, target)| {
            format!(
                "docs/a.md:{line}: the target of the link to {target} does not exist; correct or remove the link"
            )
        });
        assert_eq!(findings_of(check, &[("docs/a.md", text)]), expected);
    }
}
