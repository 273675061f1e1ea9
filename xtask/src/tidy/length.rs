//! Limits the length of Rust files.

use super::TidyFinding;
use super::tree::FileTree;

const LIMIT: usize = 600;

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let long = tree.ending(".rs").filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > LIMIT).then(|| {
            let wrong = format!("the file has {lines} lines, {LIMIT} are the limit");
            TidyFinding::new(path, LIMIT + 1, wrong, "give each noun a file of its own")
        })
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::super::told;
    use super::{LIMIT, check};

    #[test]
    fn one_line_over_the_limit_is_found() {
        let longest = "//!\n".repeat(LIMIT);
        let too_long = "//!\n".repeat(LIMIT + 1);
        let files = [("a.rs", longest.as_str()), ("b.rs", too_long.as_str()), ("c.md", too_long.as_str())];
        let expected =
            ["b.rs:601: the file has 601 lines, 600 are the limit; give each noun a file of its own"];
        assert_eq!(told(check, &files), expected);
    }
}
