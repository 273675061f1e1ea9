//! All checks that must pass before a change is merged, in sequence; the same locally and in CI.
//!
//! The run stops at the first failing step and prints the command that runs the step alone.

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::engines::MissingPolicy;
use crate::shell::EchoedCommand;
use crate::stopwatch::{ElapsedTime, Stopwatch};
use crate::workspace::CargoWorkspace;
use crate::{crash_tests, schemathesis, sim, test, tidy, tools};

/// The steps in their order: fast steps that fail often come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CiStep {
    /// The sources are formatted.
    Fmt,
    /// Checks that the compiler does not make: documents, dependencies, headers, names, words.
    Tidy,
    /// No lint fires in any target.
    Clippy,
    /// The binary compiles for aarch64; nothing is run there.
    CrossCheck,
    /// The tests of all crates, on a throw-away Postgres and with every agent program.
    Test,
    /// The HTTP interface does what its document says, asked from outside.
    Schemathesis,
    /// The examples in the documentation.
    Doctest,
    /// The simulator's seeds, and its deliberate faults.
    Sim,
    /// The real daemon: killed more than a hundred times at its commit points and at random, replaced, and loaded a little.
    CrashTests,
    /// The documentation builds without a warning, private items included.
    Rustdoc,
    /// Licences, banned crates, and where crates come from.
    Deny,
    /// No crate declares a dependency that it does not use.
    Machete,
    /// No typing mistakes.
    Typos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepOutcome {
    Passed,
    Failed,
}

pub(crate) fn run(workspace: &CargoWorkspace, only: &[CiStep]) -> Result<()> {
    let all = CiStep::value_variants();
    let steps: Vec<CiStep> =
        all.iter().copied().filter(|step| only.is_empty() || only.contains(step)).collect();
    let whole = Stopwatch::start();
    let mut done: Vec<(CiStep, StepOutcome, ElapsedTime)> = Vec::new();
    let mut failure = None;
    for step in steps {
        eprintln!("\n== {} ==", step.name());
        let watch = Stopwatch::start();
        let result = step.run(workspace);
        let outcome = if result.is_ok() { StepOutcome::Passed } else { StepOutcome::Failed };
        done.push((step, outcome, watch.read()));
        if let Err(error) = result {
            let name = step.name();
            failure = Some(error.context(format!("step {name} failed; alone: cargo xtask ci --step {name}")));
            break;
        }
    }
    eprintln!("\n== summary ==");
    for (step, outcome, took) in &done {
        eprintln!("{:<12} {:<15} {took}", step.name(), outcome.label());
    }
    eprintln!("{:<12} {:<15} {}", "in all", "", whole.read());
    let count = |expected: StepOutcome| done.iter().filter(|(_, outcome, _)| *outcome == expected).count();
    eprintln!("\nsteps: {} passed, {} failed", count(StepOutcome::Passed), count(StepOutcome::Failed));
    match failure {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl CiStep {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn run(self, workspace: &CargoWorkspace) -> Result<()> {
        let cargo = |args: &[&str]| EchoedCommand::new("cargo").args(args).dir(&workspace.root);
        match self {
            Self::Fmt => cargo(&["fmt", "--all", "--check"]).run().context("`cargo fmt --all` repairs it")?,
            Self::Tidy => tidy::run(workspace)?,
            Self::Clippy => {
                cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
                    .run()?;
            }
            Self::CrossCheck => {
                tools::for_cross_check(workspace)?;
                cargo(&["check", "--quiet", "--package", "abide", "--target", tools::CROSS_TARGET]).run()?;
            }
            Self::Test => test::tests(workspace, &[], MissingPolicy::Required)?,
            Self::Schemathesis => schemathesis::run(workspace, &[])?,
            Self::Doctest => test::doc_tests(workspace)?,
            Self::Sim => sim::run_for_tests(workspace)?,
            Self::CrashTests => crash_tests::run_for_ci(workspace)?,
            Self::Rustdoc => {
                cargo(&["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])
                    .env("RUSTDOCFLAGS", "-D warnings")
                    .run()?;
            }
            // Advisories are left out: their database is not in a package registry, so a machine with access only to
            // registries could never pass.
            Self::Deny => EchoedCommand::new(tools::DENY.ensure_installed(workspace)?)
                .args(["--locked", "check", "licenses", "bans", "sources"])
                .dir(&workspace.root)
                .run()?,
            Self::Machete => {
                EchoedCommand::new(tools::MACHETE.ensure_installed(workspace)?)
                    .args(["crates", "xtask"])
                    .dir(&workspace.root)
                    .run()?;
            }
            Self::Typos => {
                EchoedCommand::new(tools::TYPOS.ensure_installed(workspace)?).dir(&workspace.root).run()?
            }
        }
        Ok(())
    }
}

impl StepOutcome {
    fn label(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
        }
    }
}
