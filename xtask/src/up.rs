//! Builds the binary if needed, starts the daemon in the background, and prints the commands to try.
//!
//! The debug build is used unless a release build is requested, or exists and is newer than all sources: a trial should
//! not wait for the optimiser.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

const RELEASE: &str = "--release";
/// The daemon always runs in the background, so this argument is dropped.
const DETACH: &str = "--detach";

pub(crate) fn run(workspace: &CargoWorkspace, args: &[String]) -> Result<()> {
    let wants_release = args.iter().any(|arg| arg == RELEASE);
    let release = workspace.target.join("release/abide");
    let build = ["build", "--package", "abide"];
    let abide = if wants_release || is_newest(&release, &workspace.root) {
        EchoedCommand::new("cargo").args(build).arg(RELEASE).dir(&workspace.root).run()?;
        release
    } else {
        EchoedCommand::new("cargo").args(build).dir(&workspace.root).run()?;
        workspace.target.join("debug/abide")
    };
    let options: Vec<&String> = args.iter().filter(|arg| *arg != RELEASE && *arg != DETACH).collect();
    let url = EchoedCommand::with_settings(&abide)
        .args(["up", DETACH])
        .args(options)
        .read()
        .context("the daemon did not start")?;
    let url = url.trim();
    let name = abide.strip_prefix(&workspace.root).unwrap_or(&abide).display();
    println!("Abide runs at {url}");
    println!();
    println!("Try next:");
    println!(
        "  {name} run parrot 'ask choose_one Tea or coffee? | tea | coffee'   # a scripted agent that asks you"
    );
    println!(
        "  {name} doctor                                                       # which real agents are here"
    );
    println!("  {name} down                                                         # stop it");
    Ok(())
}

/// Whether this binary exists and no source is newer.
fn is_newest(binary: &Path, root: &Path) -> bool {
    let built = |path: &Path| path.metadata().and_then(|meta| meta.modified());
    match (built(binary), newest_modification(&root.join("crates"))) {
        (Ok(built), Some(source)) => source <= built,
        (Ok(_) | Err(_), _) => false,
    }
}

fn newest_modification(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            if entry.file_type().ok()?.is_dir() {
                newest_modification(&entry.path())
            } else {
                entry.metadata().ok()?.modified().ok()
            }
        })
        .max()
}
