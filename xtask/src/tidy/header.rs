//! Checks that each Rust file begins with a statement of its purpose.

use super::TidyFinding;
use super::tree::FileTree;

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let silent = tree.ending(".rs").filter(|(_, text)| !has_module_doc(text));
    silent
        .map(|(path, _)| {
            let wrong = "the file does not state its purpose";
            TidyFinding::new(path, 1, wrong, "begin it with `//!` and a sentence that states the purpose")
        })
        .collect()
}

fn has_module_doc(text: &str) -> bool {
    let doc = text.lines().next().and_then(|first| first.strip_prefix("//!"));
    doc.is_some_and(|doc| !doc.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    #[test]
    fn a_file_without_a_header_is_found() {
        let files = [
            ("crates/a/src/lib.rs", "//! The purpose of a.\nmod b;\n"),
            ("crates/a/src/b.rs", "use x;\n//! Too late.\n"),
            ("crates/a/src/c.rs", "//!\n"),
            ("crates/a/src/d.rs", ""),
            ("crates/a/README.md", "# A\n"),
        ];
        let end = "1: the file does not state its purpose; begin it with `//!` and a sentence that states the purpose";
        let expected = ["b", "c", "d"].map(|file| format!("crates/a/src/{file}.rs:{end}"));
        assert_eq!(findings_of(check, &files), expected);
    }
}
