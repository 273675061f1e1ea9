//! Writes figures to the reliability document. Each kind of test has its own section, which is replaced as a whole.

use std::{fs, path::Path};

use anyhow::{Context, Result};

#[derive(Debug)]
pub(crate) struct ReportSection<'a> {
    pub(crate) heading: &'a str,
    /// A description of the test, in one or two sentences.
    pub(crate) about: &'a str,
    /// Pairs of name and value.
    pub(crate) figures: Vec<(String, String)>,
}

const HEAD: &str = "\
# Reliability

Tests of the real daemon from outside, and their results. The crash, load and upgrade tests write the figures themselves
(`cargo xtask kill --write`, `load --write`, `upgrade --write`). `CONTRIBUTING.md` explains how to repeat them.
";

impl ReportSection<'_> {
    /// Replaces the section with the same heading, or appends it.
    pub(crate) fn write(&self, document: &Path) -> Result<()> {
        let text = fs::read_to_string(document).unwrap_or_else(|_| HEAD.to_owned());
        fs::write(document, self.replace_in(&text))
            .with_context(|| format!("cannot write {}", document.display()))
    }

    fn replace_in(&self, text: &str) -> String {
        let (mut kept, mut own, mut placed) = (String::new(), false, false);
        for line in text.lines() {
            if line.starts_with("## ") {
                own = line == format!("## {}", self.heading);
                if own {
                    kept.push_str(&self.text());
                    kept.push('\n');
                    placed = true;
                }
            }
            if !own {
                kept.push_str(line);
                kept.push('\n');
            }
        }
        if !placed {
            kept = format!("{}\n\n{}", kept.trim_end(), self.text());
        }
        format!("{}\n", kept.trim_end())
    }

    fn text(&self) -> String {
        let day = jiff::Timestamp::now().strftime("%Y-%m-%d");
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!(
            "## {}\n\n{}\n\nVersion {version}, {day}.\n\n| | |\n|---|---:|\n",
            self.heading, self.about
        );
        for (name, figure) in &self.figures {
            text.push_str(&format!("| {name} | {figure} |\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(heading: &'static str, figure: &str) -> ReportSection<'static> {
        ReportSection { heading, about: "About.", figures: vec![("kills".to_owned(), figure.to_owned())] }
    }

    #[test]
    fn a_section_takes_the_place_of_its_predecessor_and_of_no_other() {
        let first = section("Kills", "1").replace_in(HEAD);
        let both = section("Load", "2").replace_in(&first);
        let again = section("Kills", "3").replace_in(&both);
        assert!(again.contains("| kills | 3 |") && again.contains("| kills | 2 |"), "{again}");
        assert!(!again.contains("| kills | 1 |"), "{again}");
        assert!(again.find("## Kills") < again.find("## Load"));
        assert_eq!(section("Kills", "3").replace_in(&again), again);
    }
}
