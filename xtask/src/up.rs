//! From a checkout to a running daemon: build what is missing, start it in the background, say what to try.
//!
//! The debug build is taken unless a release is asked for or is there and newer than every source: whoever tries
//! something out should not wait for an optimiser.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

const RELEASE: &str = "--release";
/// It always goes on in the background; who says so has said nothing new.
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

/// Whether this binary is there and no source is younger than it.
fn is_newest(binary: &Path, root: &Path) -> bool {
    let built = |path: &Path| path.metadata().and_then(|meta| meta.modified());
    match (built(binary), youngest(&root.join("crates"))) {
        (Ok(built), Some(source)) => source <= built,
        (Ok(_) | Err(_), _) => false,
    }
}

fn youngest(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            if entry.file_type().ok()?.is_dir() {
                youngest(&entry.path())
            } else {
                entry.metadata().ok()?.modified().ok()
            }
        })
        .max()
}
