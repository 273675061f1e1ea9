//! Checks the names of types: each is declared once in the workspace and has at least two words.
//!
//! Sibling adapters have files of the same shape and may share the names in them. A single word is enough if the
//! glossary of the architecture document has it. Other exceptions are in `exceptions.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::TidyFinding;
use super::source::{RustSource, is_name};
use super::tree::FileTree;

pub(super) const UNIQUE_RULE: &str = "unique-type-name";
pub(super) const TWO_WORDS_RULE: &str = "two-word-type-name";

const GLOSSARY_FILE: &str = "ARCHITECTURE.md";
const GLOSSARY_HEADING: &str = "## Glossary";
/// Folders whose subfolders are adapters of the same shape.
const ADAPTER_FOLDERS: &[&str] = &["crates/channels/src/", "crates/engines/src/", "crates/store/src/"];
const KEYWORDS: &[&str] = &["struct", "enum", "trait", "union", "type"];

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let glossary = glossary(tree.text(GLOSSARY_FILE).unwrap_or_default());
    let mut declarations: BTreeMap<String, Vec<TypeDeclaration<'_>>> = BTreeMap::new();
    for (path, text) in tree.ending(".rs") {
        for (line, name) in declared_types(&RustSource::split(text).code) {
            declarations.entry(name).or_default().push(TypeDeclaration { path, line });
        }
    }
    let mut findings = Vec::new();
    for (name, places) in &declarations {
        let (first, others) = places.split_first().expect("a name is entered with its first declaration");
        for other in others.iter().filter(|other| !are_siblings(first.path, other.path)) {
            let wrong = format!("the type {name} is also declared in {}", first.path);
            let finding =
                TidyFinding::new(other.path, other.line, wrong, "add the noun that tells them apart");
            findings.push(finding.about(UNIQUE_RULE, name));
        }
        if word_count(name) < 2 && !glossary.contains(&name.to_lowercase()) {
            let wrong = format!("the type name {name} is a single word that is not in the glossary");
            let finding = TidyFinding::new(first.path, first.line, wrong, "add its noun");
            findings.push(finding.about(TWO_WORDS_RULE, name));
        }
    }
    findings
}

struct TypeDeclaration<'a> {
    path: &'a str,
    line: usize,
}

/// Returns the declared types with their lines. An indented `type` belongs to a trait or an implementation.
fn declared_types(code: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut words = line.split(|c: char| !is_name(c)).filter(|word| !word.is_empty());
        let keyword =
            words.by_ref().find(|word| !["pub", "crate", "super", "in", "self", "unsafe"].contains(word));
        let is_associated = keyword == Some("type") && line.starts_with(' ');
        let name = words.next().filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()));
        if let (Some(keyword), Some(name)) = (keyword, name)
            && KEYWORDS.contains(&keyword)
            && !is_associated
        {
            names.push((index + 1, name.to_owned()));
        }
    }
    names
}

/// Whether both files have the same path below two adapters of the same kind.
fn are_siblings(one: &str, other: &str) -> bool {
    ADAPTER_FOLDERS.iter().any(|folder| {
        let below_adapter = |path: &str| {
            let (adapter, file) = path.strip_prefix(folder)?.split_once('/')?;
            Some((adapter.to_owned(), file.to_owned()))
        };
        match (below_adapter(one), below_adapter(other)) {
            (Some((one, one_file)), Some((other, other_file))) => one != other && one_file == other_file,
            (None, _) | (_, None) => false,
        }
    })
}

fn word_count(name: &str) -> usize {
    name.chars().filter(char::is_ascii_uppercase).count()
}

/// Returns the words in the first column of the glossary's table. A cell can have several, separated by commas.
fn glossary(text: &str) -> BTreeSet<String> {
    let section = text.split_once(GLOSSARY_HEADING).map_or("", |(_, section)| section);
    let section = section.split("\n## ").next().unwrap_or_default();
    let cells = section.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    cells.flat_map(|cell| cell.split(',')).map(|word| word.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    const GLOSSARY: (&str, &str) = (
        "ARCHITECTURE.md",
        "| daemon | x |\n## Glossary\n\n| word | meaning |\n|---|---|\n| run | x |\n| resumable, sticky | x |\n## Next\n| turn | x |\n",
    );

    #[test]
    fn unique_names_of_two_words_and_words_of_the_glossary_pass() {
        let tree = [
            GLOSSARY,
            ("crates/a/src/lib.rs", "pub struct Run;\nenum Sticky {}\npub(crate) trait LaunchFailure {}\n"),
            ("crates/b/src/lib.rs", "impl X for Y {\n    type Output = Run;\n}\n// struct LaunchFailure\n"),
        ];
        assert_eq!(findings_of(check, &tree), [""; 0]);
    }

    #[test]
    fn a_name_that_is_declared_twice_is_found() {
        let tree = [
            ("crates/a/src/lib.rs", "pub struct LaunchFailure;\n"),
            ("crates/b/tests/main.rs", "\n    pub(super) enum LaunchFailure {}\n"),
        ];
        let expected =
            ["crates/b/tests/main.rs:2: the type LaunchFailure is also declared in crates/a/src/lib.rs; \
                         add the noun that tells them apart"];
        assert_eq!(findings_of(check, &tree), expected);
    }

    #[test]
    fn sibling_adapters_share_names_in_files_of_the_same_name_only() {
        let tree = [
            ("crates/engines/src/finch/reader.rs", "struct LineReader;"),
            ("crates/engines/src/wren/reader.rs", "struct LineReader;"),
        ];
        assert_eq!(findings_of(check, &tree), [""; 0]);
        let tree = [
            ("crates/engines/src/finch/reader.rs", "struct LineReader;"),
            ("crates/engines/src/wren/launch.rs", "struct LineReader;"),
        ];
        assert_eq!(findings_of(check, &tree).len(), 1);
    }

    #[test]
    fn a_single_word_outside_the_glossary_is_found() {
        let tree =
            [GLOSSARY, ("crates/a/src/lib.rs", "pub struct Trouble;\npub struct Turn;\ntype Daemon = u8;\n")];
        let findings: Vec<String> = findings_of(check, &tree);
        let words = ["Daemon", "Trouble", "Turn"];
        let lines = [3, 1, 2];
        let expected = words.iter().zip(lines).map(|(name, line)| {
            format!(
                "crates/a/src/lib.rs:{line}: the type name {name} is a single word that is not in the glossary; add its noun"
            )
        });
        assert_eq!(findings, expected.collect::<Vec<_>>());
    }
}
