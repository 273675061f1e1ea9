//! From a checkout to a running daemon: build the binary, then become `abide up`.

use anyhow::{Result, bail};

use crate::shell::Shell;
use crate::workspace::Workspace;

const PACKAGE: &str = "abide";

pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    if workspace.member(PACKAGE).is_none() {
        bail!(
            "the daemon has not landed yet: this workspace has no package `{PACKAGE}`\n\
             what can be run today:\n  \
             cargo xtask test    every test, on a throw-away Postgres\n  \
             cargo xtask sim     the simulator"
        );
    }
    Shell::new("cargo").args(["build", "--release", "--package", PACKAGE]).dir(&workspace.root).run()?;
    // The daemon takes our place, so that signals and its exit code are its own.
    Err(Shell::new(workspace.target.join("release/abide")).arg("up").args(args).replace())
}
