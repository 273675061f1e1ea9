//! Builds and starts the crash, load and upgrade tests of the real daemon.
//!
//! The tests themselves are in the crate `siege`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::earlier::{BuildProfile, EarlierCommit};
use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

/// The document for the figures.
const DOCUMENT: &str = "docs/reliability.md";

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
    Shown,
    Written,
}

impl From<bool> for FigureOutput {
    fn from(write: bool) -> Self {
        if write { Self::Written } else { Self::Shown }
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
            let program = with_failpoints(workspace)?;
            besiege(workspace, "kill", figures, &program, args)
        }
        // The figures must be those of the release build.
        CrashTestKind::Load => {
            cargo(workspace, &["build", "--quiet", "--release", "--package", "abide"]).run()?;
            let program = kept(workspace, &workspace.target.join("release/abide"), "release")?;
            let args = [args, &["--build".into(), "release".into()]].concat();
            besiege(workspace, "load", figures, &program, &args)
        }
    }
}

/// Replaces the daemon of that commit by the present one.
pub(crate) fn upgrade(workspace: &CargoWorkspace, figures: FigureOutput, from: &str) -> Result<()> {
    let old = EarlierCommit::check_out(workspace, from)?.binary(BuildProfile::Debug)?;
    let new = plain(workspace)?;
    besiege(workspace, "upgrade", figures, &new, &["--old".into(), old.to_string_lossy().into_owned()])
}

/// Runs the tests that each change must pass, within a few minutes. The replaced binary is another build of the same
/// sources; earlier commits are tested nightly.
pub(crate) fn run_for_ci(workspace: &CargoWorkspace) -> Result<()> {
    let failpoints = with_failpoints(workspace)?;
    let plain = plain(workspace)?;
    let besiege = |kind: &str, program: &Path, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        besiege(workspace, kind, FigureOutput::Shown, program, &args)
    };
    // The first scenario group has about a hundred points; the other kills are random.
    besiege("kill", &failpoints, &["--kills", "140"])?;
    besiege("upgrade", &plain, &["--old", &failpoints.to_string_lossy()])?;
    besiege(
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

fn besiege(
    workspace: &CargoWorkspace,
    kind: &str,
    figures: FigureOutput,
    program: &Path,
    args: &[String],
) -> Result<()> {
    cargo(workspace, &["build", "--quiet", "--package", "abide-siege"]).run()?;
    let mut siege = EchoedCommand::new(workspace.target.join("debug/abide-siege"))
        .args([kind, "--program"])
        .arg(program)
        .args(args)
        .dir(&workspace.root);
    if figures == FigureOutput::Written {
        siege = siege.args(["--write", DOCUMENT]);
    }
    siege.run()
}

fn with_failpoints(workspace: &CargoWorkspace) -> Result<PathBuf> {
    cargo(workspace, &["build", "--quiet", "--package", "abide", "--features", "failpoints"]).run()?;
    kept(workspace, &workspace.target.join("debug/abide"), "failpoints")
}

fn plain(workspace: &CargoWorkspace) -> Result<PathBuf> {
    cargo(workspace, &["build", "--quiet", "--package", "abide"]).run()?;
    kept(workspace, &workspace.target.join("debug/abide"), "plain")
}

fn cargo(workspace: &CargoWorkspace, args: &[&str]) -> EchoedCommand {
    EchoedCommand::new("cargo").args(args).dir(&workspace.root)
}

/// Copies a binary under another name, so that the next build with other features does not replace it.
fn kept(workspace: &CargoWorkspace, built: &Path, name: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("siege").join(name);
    fs::create_dir_all(&folder)?;
    let (kept, staged) = (folder.join("abide"), folder.join("abide.new"));
    fs::copy(built, &staged)
        .and_then(|_| fs::rename(&staged, &kept))
        .with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(kept)
}
