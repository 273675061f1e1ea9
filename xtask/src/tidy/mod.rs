//! Checks that the compiler does not make. There is one file per rule; each rule is a function from the tree to
//! findings, with tests that show it failing.
//!
//! Generated files are checked by the tests that generate them.

mod adapters;
mod arrows;
mod bindings;
mod engines;
mod examples;
mod exceptions;
mod header;
mod length;
mod links;
mod markdown;
mod marks;
mod names;
mod passages;
mod places;
mod purity;
mod source;
mod table;
mod tree;
mod type_names;
mod word_list;
mod words;

use std::fmt;

use anyhow::{Result, bail};

use self::tree::FileTree;
use crate::workspace::CargoWorkspace;

pub(crate) fn run(workspace: &CargoWorkspace) -> Result<()> {
    let tree = FileTree::load(&workspace.root)?;
    let mut findings: Vec<TidyFinding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.extend(arrows::check(&tree, workspace));
    findings = exceptions::apply(exceptions::EXCEPTIONS, findings);
    findings.sort();
    findings.dedup();
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => {
            eprintln!("tidy: {} files, {} crates, no findings", tree.len(), workspace.members.len());
            Ok(())
        }
        1 => bail!("tidy has one finding"),
        many => bail!("tidy has {many} findings"),
    }
}

/// The rules that need only the files. The dependency rule also needs the workspace.
const RULES: &[fn(&FileTree) -> Vec<TidyFinding>] = &[
    adapters::check,
    bindings::check,
    engines::check,
    examples::check,
    header::check,
    length::check,
    links::check,
    marks::check,
    names::check,
    places::check,
    purity::check,
    type_names::check,
    words::check,
];

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TidyFinding {
    path: String,
    /// Counted from 1.
    line: usize,
    problem: String,
    remedy: String,
    /// The rule and the name or phrase, by which an exception is looked up. Rules without exceptions set none.
    subject: Option<(&'static str, String)>,
}

impl TidyFinding {
    fn new(path: &str, line: usize, wrong: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, problem: wrong.into(), remedy: remedy.into(), subject: None }
    }

    fn about(self, rule: &'static str, subject: &str) -> Self {
        Self { subject: Some((rule, subject.to_owned())), ..self }
    }
}

impl fmt::Display for TidyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.problem, self.remedy)
    }
}

/// Applies a rule to some files and returns the findings as text; shared by the rules' tests.
#[cfg(test)]
fn findings_of(rule: impl Fn(&FileTree) -> Vec<TidyFinding>, files: &[(&str, &str)]) -> Vec<String> {
    rule(&FileTree::of(files)).iter().map(TidyFinding::to_string).collect()
}
