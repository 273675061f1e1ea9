//! Runs all tests after installing their requirements: unit and integration tests, doc tests, the simulator.

use std::ffi::OsString;
use std::path::PathBuf;
use std::{env, thread};

use anyhow::{Result, anyhow};

use crate::engines::{self, InstalledEngines, MissingPolicy};
use crate::postgres::{self, PostgresServer};
use crate::shell::EchoedCommand;
use crate::sim;
use crate::skips::SkippedTests;
use crate::tools;
use crate::workspace::CargoWorkspace;

pub(crate) fn run(workspace: &CargoWorkspace, filter: &[String]) -> Result<()> {
    tests(workspace, filter, MissingPolicy::from_environment())?;
    if filter.is_empty() {
        doc_tests(workspace)?;
        sim::run_for_tests(workspace)?;
    }
    Ok(())
}

/// Runs the tests of all crates whose name contains one of `filter`, or all of them.
pub(crate) fn tests(workspace: &CargoWorkspace, filter: &[String], demand: MissingPolicy) -> Result<()> {
    tools::for_tests()?;
    let nextest = tools::nextest(workspace);
    let cargo = |args: &[&str]| {
        let shell = match &nextest {
            Some(nextest) => EchoedCommand::new(nextest).args(["nextest", "run", "--workspace"]),
            None => EchoedCommand::new("cargo").args(["test", "--workspace", "--all-targets"]),
        };
        shell.args(args).dir(&workspace.root)
    };
    // One waits for the network and the other for the processor, so they run concurrently.
    let engines = thread::scope(|scope| {
        let engines = scope.spawn(|| InstalledEngines::prepare(workspace));
        let built = cargo(&["--no-run"]).run();
        let engines = engines.join().map_err(|_| anyhow!("the thread that installs the engines panicked"))?;
        built.and(engines)
    })?;
    engines.report();
    engines.check(demand)?;
    let server = PostgresServer::start(workspace)?;
    let skips = SkippedTests::create(workspace)?;
    let mut tests = match &nextest {
        Some(_) => cargo(&[]).args(filter),
        None if filter.is_empty() => cargo(&[]),
        None => cargo(&["--"]).args(filter),
    };
    tests = tests
        .env(postgres::URL_VARIABLE, server.url())
        .env(postgres::CERTIFICATES_VARIABLE, server.certificates())
        .env(engines::ENGINES_VARIABLE, engines.list_path())
        .env(engines::RECORD_VARIABLE, workspace.root.join(engines::RECORD));
    if let Some(path) = path_with(engines.node_folder()) {
        tests = tests.env("PATH", path);
    }
    tests = skips.add_to_env(tests, demand);
    if demand == MissingPolicy::Required {
        tests = tests.env(engines::REQUIRE_VARIABLE, "1");
    }
    let result = tests.run();
    // Repeated at the end, where it is visible: a program that was not verified has not passed.
    eprintln!("\n{}", engines.summary());
    for missing in engines.missing() {
        eprintln!("  missing: {missing}");
    }
    if nextest.is_none() {
        eprintln!(
            "cargo-nextest is missing: the tests ran under `cargo test`, where a test that hangs is not ended"
        );
    }
    eprintln!("{}", skips.summary()?);
    result
}

/// Returns `PATH` with this folder appended, for tests that need any version of Node.
fn path_with(folder: Option<PathBuf>) -> Option<OsString> {
    let folder = folder?;
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths(env::split_paths(&path).chain([folder])).ok()
}

/// Runs the examples in the documentation; nextest does not run these.
pub(crate) fn doc_tests(workspace: &CargoWorkspace) -> Result<()> {
    EchoedCommand::new("cargo").args(["test", "--quiet", "--workspace", "--doc"]).dir(&workspace.root).run()
}
