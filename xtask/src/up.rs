//! From a checkout to a running daemon: build the binary, then become `abide up`.

use anyhow::{Result, bail};

use crate::shell::Shell;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    Shell::new("cargo").args(["build", "--release", "--package", "abide"]).dir(&workspace.root).run()?;
    let abide = workspace.target.join("release/abide");
    if Shell::new(&abide).args(["up", "--help"]).read().is_err() {
        bail!(
            "{} is built, but the daemon has not landed yet\n\
             what it can do today:\n  \
             abide sessions new   a shell that remembers and outlives this command\n  \
             abide rpc            the same as JSON-RPC on stdin and stdout\n  \
             abide mcp            the same as MCP tools",
            abide.display()
        );
    }
    // The daemon takes our place, so that signals and its exit code are its own.
    Err(Shell::new(abide).arg("up").args(args).replace())
}
