//! Checks that names in documents exist. Text between backticks is looked up if it has the form of a path of ours
//! (`xtask/src`), of a type (`FileTree`), or of a function (`tree::load`, `load()`).
//!
//! Decisions and the changelog are history and may name removed things. `NAME`, `NNNN`, angle brackets and stars are
//! placeholders. In fenced blocks only paths are checked: the rest is often not Rust.

use std::collections::{BTreeMap, BTreeSet};

use super::TidyFinding;
use super::markdown::{LinePlace, lines, spans};
use super::source::{RustSource, is_name};
use super::tree::FileTree;

const ARCHITECTURE_FILE: &str = "ARCHITECTURE.md";
const FOLDERS: &[&str] = &["crates/", "xtask/", "docs/", "console/", ".ci/", ".cargo/"];

pub(super) fn check(tree: &FileTree) -> Vec<TidyFinding> {
    let index = NameIndex::of(tree);
    let mut findings: Vec<TidyFinding> = tree
        .ending(".md")
        .filter(|(path, _)| is_current_document(path))
        .flat_map(|(path, text)| check_document(&index, path, text))
        .collect();
    if tree.text(ARCHITECTURE_FILE).is_none() {
        let remedy = "write it: bird's eye, code map, invariants, glossary";
        findings.push(TidyFinding::new(ARCHITECTURE_FILE, 1, "there is no map of the code", remedy));
    }
    findings
}

fn is_current_document(path: &str) -> bool {
    let root = ["README.md", "CONTRIBUTING.md", ARCHITECTURE_FILE].contains(&path);
    let docs = path.starts_with("docs/") && !path.starts_with("docs/decisions/");
    root || docs || (path.starts_with("crates/") && path.ends_with("/README.md"))
}

fn check_document(index: &NameIndex<'_>, path: &str, text: &str) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for line in lines(text) {
        let named: Vec<NamedItem<'_>> = match line.place {
            LinePlace::Prose => spans(line.text).filter_map(NamedItem::read).collect(),
            LinePlace::Fence => line.text.split_whitespace().filter_map(NamedItem::read_path).collect(),
        };
        for name in named.iter().filter(|name| !index.contains(name)) {
            let (wrong, remedy) = name.finding();
            findings.push(TidyFinding::new(path, line.number, wrong, remedy));
        }
    }
    findings
}

/// A name in a document that refers to our code.
enum NamedItem<'a> {
    Path(&'a str),
    Type(&'a str),
    /// The owning module or type if given, the name that is looked up, and the whole text.
    Member(Option<&'a str>, &'a str, &'a str),
}

impl<'a> NamedItem<'a> {
    fn read(span: &'a str) -> Option<Self> {
        Self::read_path(span).or_else(|| Self::read_rust(span))
    }

    fn read_path(word: &'a str) -> Option<Self> {
        let word =
            word.trim_start_matches(['(', '"', '\'']).trim_end_matches([')', '"', '\'', ',', ';', '.']);
        let ours = FOLDERS.iter().any(|folder| word.starts_with(folder));
        (ours && !word.contains(char::is_whitespace)).then_some(Self::Path(word))
    }

    fn read_rust(span: &'a str) -> Option<Self> {
        let name = span.strip_suffix("()").unwrap_or(span);
        let called = name.len() < span.len();
        let parts: Vec<&str> = name.split("::").collect();
        let all_names = parts.iter().all(|part| {
            part.chars().all(is_name) && part.starts_with(|c: char| c.is_alphabetic() || c == '_')
        });
        if !all_names || parts.iter().any(|part| is_placeholder(part)) {
            return None;
        }
        match parts.as_slice() {
            [one] if called => Some(Self::Member(None, one, span)),
            [one] if is_type(one) => Some(Self::Type(one)),
            [] | [_] => None,
            ["std" | "core" | "alloc", ..] => None,
            [.., owner, last] => Some(Self::Member(Some(owner), last, span)),
        }
    }

    fn finding(&self) -> (String, &'static str) {
        match self {
            Self::Path(path) => (format!("`{path}` does not exist"), "name its replacement"),
            Self::Type(name) => {
                let remedy = "name its replacement, or remove the backticks if it is not a Rust type";
                (format!("no source has a `{name}`"), remedy)
            }
            Self::Member(_, _, whole) => (format!("no source has a `{whole}`"), "name its replacement"),
        }
    }
}

/// The names that occur in code, with their files.
struct NameIndex<'a> {
    tree: &'a FileTree,
    files_by_name: BTreeMap<String, BTreeSet<&'a str>>,
    /// Crates of others, as spelt in Rust code. Their content is not checked.
    external_crates: BTreeSet<String>,
}

impl<'a> NameIndex<'a> {
    fn of(tree: &'a FileTree) -> Self {
        let mut files_by_name: BTreeMap<String, BTreeSet<&'a str>> = BTreeMap::new();
        for (path, text) in tree.ending(".rs") {
            for name in RustSource::split(text).names() {
                match files_by_name.get_mut(name) {
                    Some(files) => drop(files.insert(path)),
                    None => drop(files_by_name.insert(name.to_owned(), BTreeSet::from([path]))),
                }
            }
        }
        let packages = tree.text("Cargo.lock").unwrap_or_default().lines().filter_map(|line| {
            let name = line.strip_prefix("name = \"")?.strip_suffix('"')?;
            (!name.starts_with("abide") && name != "xtask").then(|| name.replace('-', "_"))
        });
        Self { tree, files_by_name, external_crates: packages.collect() }
    }

    fn contains(&self, named: &NamedItem<'_>) -> bool {
        match named {
            NamedItem::Path(path) => {
                expand(path).iter().all(|path| self.tree.paths().any(|existing| matches(path, existing)))
            }
            NamedItem::Type(name) => self.files_by_name.contains_key(*name),
            NamedItem::Member(None, name, _) => self.files_by_name.contains_key(*name),
            NamedItem::Member(Some(owner), name, _) => {
                let has =
                    |file: &&str| self.files_by_name.get(*name).is_some_and(|files| files.contains(file));
                let mut files = self.tree.ending(".rs").map(|(path, _)| path);
                self.external_crates.contains(*owner)
                    || files.any(|file| {
                        (has(&file) || is_in_module(file, name)) && self.file_belongs_to(file, owner)
                    })
            }
        }
    }

    /// Whether the file is the module or crate `owner`, is in it, or defines a type or module of that name.
    fn file_belongs_to(&self, file: &str, owner: &str) -> bool {
        let folder = owner.strip_prefix("abide_").unwrap_or(owner);
        let inside = self.files_by_name.get(owner).is_some_and(|files| files.contains(file));
        is_in_module(file, folder) || (is_type(owner) && inside)
    }
}

/// Whether the file is a module of this name, or is in one.
fn is_in_module(file: &str, module: &str) -> bool {
    file.split('/').any(|part| part.strip_suffix(".rs").unwrap_or(part) == module)
}

fn is_type(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.contains(|c: char| c.is_ascii_lowercase())
}

/// Whether a part is a placeholder: `NAME`, `NNNN-title.md`, `<story>`, `*.jsonl`.
fn is_placeholder(part: &str) -> bool {
    part.contains(['*', '<', '…']) || part.split(|c| !is_name(c)).any(|word| ["NAME", "NNNN"].contains(&word))
}

/// Expands braces: `a/{b,c}.rs` names both `a/b.rs` and `a/c.rs`.
fn expand(path: &str) -> Vec<String> {
    let braces = path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    match braces {
        Some((head, (choices, tail))) => {
            choices.split(',').flat_map(|choice| expand(&format!("{head}{}{tail}", choice.trim()))).collect()
        }
        None => vec![path.split('#').next().unwrap_or(path).to_owned()],
    }
}

/// Whether a known file is the named path, or is in it. A placeholder stands for any one part.
fn matches(path: &str, existing: &str) -> bool {
    let mut existing = existing.split('/');
    path.trim_end_matches('/')
        .split('/')
        .all(|part| existing.next().is_some_and(|there| part == there || is_placeholder(part)))
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::check;

    /// Returns the findings for a document with this text in a small repository.
    fn findings_for(says: &str) -> Vec<String> {
        let files = [
            ("ARCHITECTURE.md", says),
            ("Cargo.lock", "name = \"abide-domain\"\nname = \"tokio\"\n"),
            ("crates/domain/src/run/apply.rs", "//! `GoneType`\npub fn apply() -> Step { \"Quoted\" }\n"),
            ("crates/domain/src/reply.rs", "pub struct Reply; impl Reply { fn late(&self) {} }\n"),
        ];
        let findings = findings_of(check, &files);
        findings.iter().filter_map(|finding| finding.split(';').next().map(str::to_owned)).collect()
    }

    #[test]
    fn existing_names_pass() {
        let says = "`crates/domain`, `crates/domain/src/{reply,run/apply}.rs`, `crates/*/src`, `crates/NAME/src/<x>.rs`\n\
                    `Reply`, `run::apply`, `Reply::late()`, `apply()`, `domain::reply`, `abide_domain::Reply`\n\
                    `tokio::spawn`, `std::time::Instant`, `NAME`, `lower_case`, `cargo xtask ci`, `Content-Type`\n\
                    ```\ncrates/domain   the rules\nGoneType\n```\n";
        assert_eq!(findings_for(says), [""; 0]);
    }

    #[test]
    fn a_path_that_is_gone_is_found_in_prose_and_in_fences() {
        let says =
            "see `crates/store/` and `crates/NAME/gone.rs`\n```\ncrates/domain/src/{reply,gone}.rs\n```\n";
        let expected = [
            "ARCHITECTURE.md:1: `crates/store/` does not exist",
            "ARCHITECTURE.md:1: `crates/NAME/gone.rs` does not exist",
            "ARCHITECTURE.md:3: `crates/domain/src/{reply,gone}.rs` does not exist",
        ];
        assert_eq!(findings_for(says), expected);
    }

    #[test]
    fn a_type_that_is_gone_is_found_even_if_a_comment_or_a_string_still_says_it() {
        let expected =
            ["GoneType", "Quoted"].map(|name| format!("ARCHITECTURE.md:1: no source has a `{name}`"));
        assert_eq!(findings_for("`GoneType` and `Quoted`"), expected);
    }

    #[test]
    fn a_function_that_is_gone_or_belongs_to_another_module_is_found() {
        let removed = ["run::refuse", "reply::apply", "refuse()", "Reply::apply"];
        let says = removed.map(|name| format!("`{name}`")).join("\n");
        let expected: Vec<_> = (1..)
            .zip(removed)
            .map(|(line, name)| format!("ARCHITECTURE.md:{line}: no source has a `{name}`"))
            .collect();
        assert_eq!(findings_for(&says), expected);
    }

    #[test]
    fn history_may_name_what_is_gone_and_a_missing_map_is_found() {
        let files = [("docs/decisions/0001-x.md", "`crates/gone`"), ("docs/now.md", "`crates/gone`")];
        let expected = [
            "docs/now.md:1: `crates/gone` does not exist; name its replacement",
            "ARCHITECTURE.md:1: there is no map of the code; write it: bird's eye, code map, invariants, glossary",
        ];
        assert_eq!(findings_of(check, &files), expected);
    }
}
