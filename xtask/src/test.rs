//! Every test there is, with what it needs installed and running: unit and suite tests, doc tests, the simulator.

use anyhow::Result;

use crate::postgres::{self, Postgres};
use crate::shell::Shell;
use crate::sim;
use crate::tools;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, filter: &[String]) -> Result<()> {
    tests(workspace, filter)?;
    if filter.is_empty() {
        doc_tests(workspace)?;
        sim::run_for_tests(workspace)?;
    }
    Ok(())
}

/// The tests of all crates whose name contains one of `filter`, or all of them.
pub(crate) fn tests(workspace: &Workspace, filter: &[String]) -> Result<()> {
    tools::for_tests()?;
    let nextest = tools::nextest(workspace);
    let server = Postgres::start(workspace)?;
    let cargo = |args: &[&str]| {
        Shell::new("cargo").args(args).dir(&workspace.root).env(postgres::URL_VARIABLE, server.url())
    };
    match nextest {
        Some(nextest) => Shell::new(nextest)
            .args(["nextest", "run", "--workspace"])
            .args(filter)
            .dir(&workspace.root)
            .env(postgres::URL_VARIABLE, server.url())
            .run(),
        None if filter.is_empty() => cargo(&["test", "--workspace", "--all-targets"]).run(),
        None => cargo(&["test", "--workspace", "--all-targets", "--"]).args(filter).run(),
    }
}

/// The examples in the documentation; nextest does not run these.
pub(crate) fn doc_tests(workspace: &Workspace) -> Result<()> {
    Shell::new("cargo").args(["test", "--quiet", "--workspace", "--doc"]).dir(&workspace.root).run()
}
