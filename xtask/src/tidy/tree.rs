//! The files of the repository that git tracks or would track, read once and held in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::shell::EchoedCommand;

pub(super) struct FileTree {
    texts: BTreeMap<String, String>,
    /// The paths of files that are not text.
    others: BTreeSet<String>,
}

impl FileTree {
    pub(super) fn load(root: &Path) -> Result<Self> {
        let listed = EchoedCommand::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .dir(root)
            .read()?;
        let mut tree = Self { texts: BTreeMap::new(), others: BTreeSet::new() };
        for path in listed.split_terminator('\0') {
            let full = root.join(path);
            if full.is_symlink() {
                tree.others.insert(path.to_owned());
            } else if full.is_file() {
                match fs::read_to_string(&full) {
                    Ok(text) => drop(tree.texts.insert(path.to_owned(), text)),
                    Err(_) => drop(tree.others.insert(path.to_owned())),
                }
            }
        }
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Self { texts, others: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len() + self.others.len()
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the text files whose path has this suffix.
    pub(super) fn ending(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| path.ends_with(suffix))
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.texts.keys().chain(&self.others).map(String::as_str)
    }

    /// Whether there is such a file, or a folder with files in it. The root is the empty path.
    pub(super) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        path.is_empty()
            || self.paths().any(|existing| {
                existing.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::FileTree;

    #[test]
    fn files_and_their_folders_are_there_and_nothing_else() {
        let tree = FileTree::of(&[("crates/domain/src/lib.rs", "")]);
        for there in ["", "crates", "crates/domain/", "crates/domain/src/lib.rs"] {
            assert!(tree.has(there), "{there}");
        }
        for missing in ["crates/dom", "crates/domain/src/lib", "domain"] {
            assert!(!tree.has(missing), "{missing}");
        }
    }
}
