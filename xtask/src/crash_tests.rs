//! Builds and starts the crash, load and upgrade tests of the real daemon.
//!
//! The tests themselves are in the crate `crash-tests`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::earlier::{BuildProfile, EarlierCommit};
use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

/// The document for the figures.
const DOCUMENT: &str = "docs/reliability.md";
/// Whether the homes of failed tests are kept.
const KEEP_VARIABLE: &str = "ABIDE_TEST_KEEP_HOME";

/// The tests that need only one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashTestKind {
    /// SIGKILL at each commit point and at random.
    Kill,
    /// Many runs and many readers.
    Load,
}

/// Whether the figures are written to the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FigureOutput {
    Print,
    WriteDocument,
}

impl From<bool> for FigureOutput {
    fn from(write: bool) -> Self {
        if write { Self::WriteDocument } else { Self::Print }
    }
}

pub(crate) fn run(
    workspace: &CargoWorkspace,
    kind: CrashTestKind,
    figures: FigureOutput,
    args: &[String],
) -> Result<()> {
    match kind {
        CrashTestKind::Kill => {
            let program = build_with_failpoints(workspace)?;
            run_test(workspace, "kill", figures, &program, args)
        }
        // The figures must be those of the release build.
        CrashTestKind::Load => {
            cargo(workspace, &["build", "--quiet", "--release", "--package", "abide"]).run()?;
            let program = copy_binary(workspace, &workspace.target.join("release/abide"), "release")?;
            let args = [args, &["--build".into(), "release".into()]].concat();
            run_test(workspace, "load", figures, &program, &args)
        }
    }
}

/// Replaces the daemon of that commit by the present one.
pub(crate) fn upgrade(workspace: &CargoWorkspace, figures: FigureOutput, from: &str) -> Result<()> {
    let old = EarlierCommit::check_out(workspace, from)?.binary(BuildProfile::Debug)?;
    let new = build_plain(workspace)?;
    run_test(workspace, "upgrade", figures, &new, &["--old".into(), old.to_string_lossy().into_owned()])
}

/// Runs the tests that each change must pass, within a few minutes. The replaced binary is another build of the same
/// sources; earlier commits are tested nightly.
pub(crate) fn run_for_ci(workspace: &CargoWorkspace) -> Result<()> {
    let failpoints = build_with_failpoints(workspace)?;
    let plain = build_plain(workspace)?;
    let run_one = |kind: &str, program: &Path, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        run_test(workspace, kind, FigureOutput::Print, program, &args)
    };
    // The first scenario group has about a hundred points; the other kills are random.
    run_one("kill", &failpoints, &["--kills", "140"])?;
    run_one("upgrade", &plain, &["--old", &failpoints.to_string_lossy()])?;
    run_one(
        "load",
        &plain,
        &["--waiting", "1000", "--runs", "40", "--readers", "20", "--output", "300000000"],
    )?;
    // The native agent, killed around each write to its journal.
    cargo(
        workspace,
        &["test", "--quiet", "--package", "abide", "--features", "failpoints", "--test", "agent", "sweep"],
    )
    .run()
}

fn run_test(
    workspace: &CargoWorkspace,
    kind: &str,
    figures: FigureOutput,
    program: &Path,
    args: &[String],
) -> Result<()> {
    cargo(workspace, &["build", "--quiet", "--package", "abide-crash-tests"]).run()?;
    let mut test = EchoedCommand::new(workspace.target.join("debug/abide-crash-tests"))
        .args([kind, "--program"])
        .arg(program)
        .args(args)
        .dir(&workspace.root);
    if figures == FigureOutput::WriteDocument {
        test = test.args(["--write", DOCUMENT]);
    }
    // `ABIDE_…` variables of the shell are not inherited.
    if let Some(keep) = env::var_os(KEEP_VARIABLE) {
        test = test.env(KEEP_VARIABLE, keep);
    }
    test.run()
}

fn build_with_failpoints(workspace: &CargoWorkspace) -> Result<PathBuf> {
    cargo(workspace, &["build", "--quiet", "--package", "abide", "--features", "failpoints"]).run()?;
    copy_binary(workspace, &workspace.target.join("debug/abide"), "failpoints")
}

fn build_plain(workspace: &CargoWorkspace) -> Result<PathBuf> {
    cargo(workspace, &["build", "--quiet", "--package", "abide"]).run()?;
    copy_binary(workspace, &workspace.target.join("debug/abide"), "plain")
}

fn cargo(workspace: &CargoWorkspace, args: &[&str]) -> EchoedCommand {
    EchoedCommand::new("cargo").args(args).dir(&workspace.root)
}

/// Copies a binary under another name, so that the next build with other features does not replace it.
fn copy_binary(workspace: &CargoWorkspace, built: &Path, name: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("crash-tests").join(name);
    fs::create_dir_all(&folder)?;
    let (kept, staged) = (folder.join("abide"), folder.join("abide.new"));
    fs::copy(built, &staged)
        .and_then(|_| fs::rename(&staged, &kept))
        .with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(kept)
}
