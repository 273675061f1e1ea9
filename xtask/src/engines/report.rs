//! The result of each engine's installation: the table for people, and `found.json` for tests.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// One engine: the pinned and the installed version.
#[derive(Debug)]
pub(super) struct InstallRow {
    pub(super) engine: &'static str,
    pub(super) package: String,
    pub(super) wanted: String,
    pub(super) state: InstallState,
}

#[derive(Debug)]
pub(super) enum InstallState {
    /// The program ran and reported the pinned version.
    Ready { version: String, command: Vec<String>, env: BTreeMap<String, String> },
    /// Not installed, with the reason.
    Missing(String),
}

impl InstallRow {
    pub(super) fn missing(&self) -> Option<&str> {
        match &self.state {
            InstallState::Ready { .. } => None,
            InstallState::Missing(reason) => Some(reason),
        }
    }
}

/// Formats the table, with paths relative to `root`.
pub(super) fn table(rows: &[InstallRow], root: &Path) -> String {
    let mut lines = vec![["engine", "package", "wanted", "found", "runs as"].map(str::to_owned)];
    for row in rows {
        let (found, last) = match &row.state {
            InstallState::Ready { version, command, .. } => (version.clone(), command_line(command, root)),
            InstallState::Missing(reason) => ("NOT VERIFIED".to_owned(), format!("because {reason}")),
        };
        lines.push([row.engine.to_owned(), row.package.clone(), row.wanted.clone(), found, last]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3)];
    lines
        .iter()
        .map(|[engine, package, wanted, found, last]| {
            let [a, b, c, d] = widths;
            format!("{engine:<a$}  {package:<b$}  {wanted:<c$}  {found:<d$}  {last}\n")
        })
        .collect()
}

fn command_line(command: &[String], root: &Path) -> String {
    let prefix = format!("{}/", root.display());
    let short = |word: &String| word.strip_prefix(&prefix).unwrap_or(word).to_owned();
    command.iter().map(short).collect::<Vec<_>>().join(" ")
}

pub(super) fn json(rows: &[InstallRow]) -> Result<String> {
    let entries: Vec<InstallEntry<'_>> = rows.iter().map(InstallEntry::of).collect();
    let text = serde_json::to_string_pretty(&entries).context("could not encode the list as JSON")?;
    Ok(text + "\n")
}

/// An engine in `found.json`: a command, or the reason why it is missing.
#[derive(Serialize)]
#[serde(untagged)]
enum InstallEntry<'a> {
    Ready {
        engine: &'a str,
        version: &'a str,
        /// Absolute; to be run unchanged.
        command: &'a [String],
        /// Environment variables for the command.
        env: &'a BTreeMap<String, String>,
    },
    Missing {
        engine: &'a str,
        wanted: &'a str,
        missing: &'a str,
    },
}

impl<'a> InstallEntry<'a> {
    fn of(row: &'a InstallRow) -> Self {
        match &row.state {
            InstallState::Ready { version, command, env } => {
                Self::Ready { engine: row.engine, version, command, env }
            }
            InstallState::Missing(missing) => {
                Self::Missing { engine: row.engine, wanted: &row.wanted, missing }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::{InstallRow, InstallState, json, table};

    fn rows() -> Vec<InstallRow> {
        let env = BTreeMap::from([("QUIET".to_owned(), "1".to_owned())]);
        let command = vec!["/repo/.cache/node".to_owned(), "/repo/.cache/a.js".to_owned()];
        vec![
            InstallRow {
                engine: "a",
                package: "@x/a".into(),
                wanted: "1.0.0".into(),
                state: InstallState::Ready { version: "1.0.0".into(), command, env },
            },
            InstallRow {
                engine: "bee",
                package: "b".into(),
                wanted: "10.0.0".into(),
                state: InstallState::Missing("there is no npm".into()),
            },
        ]
    }

    #[test]
    fn the_table_says_what_runs_and_why_the_rest_does_not() {
        let expected = "\
engine  package  wanted  found         runs as
a       @x/a     1.0.0   1.0.0         .cache/node .cache/a.js
bee     b        10.0.0  NOT VERIFIED  because there is no npm
";
        assert_eq!(table(&rows(), Path::new("/repo")), expected);
    }

    #[test]
    fn tests_read_a_command_or_a_reason() {
        let expected = r#"[
  {
    "engine": "a",
    "version": "1.0.0",
    "command": [
      "/repo/.cache/node",
      "/repo/.cache/a.js"
    ],
    "env": {
      "QUIET": "1"
    }
  },
  {
    "engine": "bee",
    "wanted": "10.0.0",
    "missing": "there is no npm"
  }
]
"#;
        assert_eq!(json(&rows()).unwrap(), expected);
    }
}
