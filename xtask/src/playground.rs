//! Tries Abide with a real agent program and without an account: the program is installed, a model on the loopback
//! interface answers it, and Abide gets a home in which the engine is configured.

use std::fs;

use anyhow::{Context, Result};

use crate::engines::{ENGINES_VARIABLE, InstalledEngines};
use crate::shell::{self, EchoedCommand};
use crate::workspace::CargoWorkspace;

/// Installs the program, prints the commands to try, and runs the model until it is stopped.
pub(crate) fn run(workspace: &CargoWorkspace, engine: &str) -> Result<()> {
    let engines = InstalledEngines::prepare_one(workspace, engine)?;
    let build = ["build", "--package", "abide", "--bin", "abide", "--example", "playground"];
    EchoedCommand::new("cargo").args(build).dir(&workspace.root).run()?;
    let playground = workspace.target.join("playground").join(engine);
    let (home, project) = (playground.join("home"), playground.join("project"));
    fs::create_dir_all(&project).with_context(|| format!("could not create {}", project.display()))?;
    let abide = workspace.target.join("debug/abide");
    println!("\nIn another terminal:");
    println!("  export ABIDE_HOME={}", home.display());
    println!("  alias abide={}", abide.display());
    println!("  cd {}", project.display());
    println!(
        "  abide run {engine} --workspace . 'Add a changelog. Ask me which format before you write anything.'"
    );
    println!("\nCtrl-C stops the model and the daemon of that home.\n");
    let model = EchoedCommand::new(workspace.target.join("debug/examples/playground"))
        .arg(engine)
        .arg(&home)
        .env(ENGINES_VARIABLE, engines.list_path())
        .run();
    // Fails if no daemon is running, which is the wanted state.
    EchoedCommand::new(&abide).arg("down").env("ABIDE_HOME", &home).run().ok();
    if shell::interrupted() { Ok(()) } else { model }
}
