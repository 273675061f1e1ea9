//! Running the siege of the real daemon: it is built with its places to die, and then besieged from outside.
//!
//! What is done to it and looked at is in its own crate; here is only how both are built and started.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::earlier::{BuildProfile, EarlierCommit};
use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

/// Where the figures go.
const DOCUMENT: &str = "docs/reliability.md";

/// The kinds of siege that need nothing but a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashTestKind {
    /// Kill -9, at every commit point and at random.
    Kill,
    /// Many runs and many readers.
    Load,
}

/// Whether the figures are written down.
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
        // Its figures are those of the program that people run.
        CrashTestKind::Load => {
            cargo(workspace, &["build", "--quiet", "--release", "--package", "abide"]).run()?;
            let program = kept(workspace, &workspace.target.join("release/abide"), "release")?;
            let args = [args, &["--build".into(), "release".into()]].concat();
            besiege(workspace, "load", figures, &program, &args)
        }
    }
}

/// The daemon of that commit is replaced by the present one.
pub(crate) fn upgrade(workspace: &CargoWorkspace, figures: FigureOutput, from: &str) -> Result<()> {
    let old = EarlierCommit::check_out(workspace, from)?.binary(BuildProfile::Debug)?;
    let new = plain(workspace)?;
    besiege(workspace, "upgrade", figures, &new, &["--old".into(), old.to_string_lossy().into_owned()])
}

/// As much as every change must survive, within a few minutes. What is replaced here is the same sources built
/// otherwise; daemons of earlier commits are for the nightly form.
pub(crate) fn run_for_ci(workspace: &CargoWorkspace) -> Result<()> {
    let failpoints = with_failpoints(workspace)?;
    let plain = plain(workspace)?;
    let besiege = |kind: &str, program: &Path, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        besiege(workspace, kind, FigureOutput::Shown, program, &args)
    };
    // The points of the first story are about a hundred; the rest come at random.
    besiege("kill", &failpoints, &["--kills", "140"])?;
    besiege("upgrade", &plain, &["--old", &failpoints.to_string_lossy()])?;
    besiege(
        "load",
        &plain,
        &["--waiting", "1000", "--runs", "40", "--readers", "20", "--output", "300000000"],
    )?;
    // The native agent, killed around every write to its journal.
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

/// A copy under another name: the next build of other features must not take a besieged program's place.
fn kept(workspace: &CargoWorkspace, built: &Path, name: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("siege").join(name);
    fs::create_dir_all(&folder)?;
    let (kept, staged) = (folder.join("abide"), folder.join("abide.new"));
    fs::copy(built, &staged)
        .and_then(|_| fs::rename(&staged, &kept))
        .with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(kept)
}
