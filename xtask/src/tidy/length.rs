//! Limits the length of Rust files.

use super::TidyFinding;
use super::tree::FileTree;

const MAX_LINES: usize = 600;

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let long = tree.ending(".rs").filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > MAX_LINES).then(|| {
            let wrong = format!("the file has {lines} lines, {MAX_LINES} are the limit");
            TidyFinding::new(path, MAX_LINES + 1, wrong, "give each noun a file of its own")
        })
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::{MAX_LINES, check};

    #[test]
    fn one_line_over_the_limit_is_found() {
        let longest = "//!\n".repeat(MAX_LINES);
        let too_long = "//!\n".repeat(MAX_LINES + 1);
        let files = [("a.rs", longest.as_str()), ("b.rs", too_long.as_str()), ("c.md", too_long.as_str())];
        let expected =
            ["b.rs:601: the file has 601 lines, 600 are the limit; give each noun a file of its own"];
        assert_eq!(findings_of(check, &files), expected);
    }
}
