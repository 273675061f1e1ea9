//! Running the siege of the real daemon: it is built with its places to die, and then besieged from outside.
//!
//! What is done to it and looked at is in its own crate; here is only how both are built and started.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::shell::Shell;
use crate::workspace::Workspace;

/// Where the figures go.
const DOCUMENT: &str = "docs/reliability.md";

/// The kinds of siege.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Kill -9, at every commit point and at random.
    Kill,
    /// Many runs and many readers.
    Load,
    /// Another binary takes over.
    Upgrade,
}

/// Whether the figures are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figures {
    Shown,
    Written,
}

impl From<bool> for Figures {
    fn from(write: bool) -> Self {
        if write { Self::Written } else { Self::Shown }
    }
}

pub(crate) fn run(workspace: &Workspace, kind: Kind, figures: Figures, args: &[String]) -> Result<()> {
    let cargo = |args: &[&str]| Shell::new("cargo").args(args).dir(&workspace.root);
    cargo(&["build", "--quiet", "--package", "abide-siege"]).run()?;
    let program = match kind {
        Kind::Kill | Kind::Upgrade => {
            cargo(&["build", "--quiet", "--package", "abide", "--features", "failpoints"]).run()?;
            kept(workspace, "debug", "failpoints")?
        }
        // Its figures are those of the program that people run.
        Kind::Load => {
            cargo(&["build", "--quiet", "--release", "--package", "abide"]).run()?;
            workspace.target.join("release/abide")
        }
    };
    let mut siege = Shell::new(workspace.target.join("debug/abide-siege"))
        .args([kind.name(), "--program"])
        .arg(program)
        .args(args)
        .dir(&workspace.root);
    if figures == Figures::Written {
        siege = siege.args(["--write", DOCUMENT]);
    }
    siege.run()
}

/// A copy under another name: the next build of other features must not take a besieged program's place.
fn kept(workspace: &Workspace, profile: &str, name: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("siege").join(name);
    fs::create_dir_all(&folder)?;
    let (built, kept, staged) =
        (workspace.target.join(profile).join("abide"), folder.join("abide"), folder.join("abide.new"));
    fs::copy(&built, &staged)
        .and_then(|_| fs::rename(&staged, &kept))
        .with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(kept)
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Load => "load",
            Self::Upgrade => "upgrade",
        }
    }
}
