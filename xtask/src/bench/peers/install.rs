//! Installs peers from pinned lists into `.cache/peers`, which is in `.gitignore`: with pip into an environment of its
//! own, or with npm.
//!
//! Each peer has its own folder, so that a failed installation does not affect the others. A copy of the list, written
//! after a successful installation, marks the folder as complete.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell::{EchoedCommand, which};
use crate::stopwatch::Stopwatch;
use crate::tools;
use crate::workspace::CargoWorkspace;

/// The packages that a driver needs.
#[derive(Clone, Copy)]
pub(super) enum PeerKit {
    /// A list of Python packages of this name.
    Pip(&'static str),
    /// A folder of this name with a manifest and a lock file of Node packages.
    Npm(&'static str),
    Node,
    Python,
}

/// The interpreter of a driver, and the location of the peer's packages.
pub(super) struct DriverProgram {
    interpreter: PathBuf,
    packages: Option<PathBuf>,
}

impl DriverProgram {
    /// Returns the driver's command. A Node driver gets the path of the packages, a driver of ours the path of the
    /// binary; Python needs neither.
    pub(super) fn command(&self, workspace: &CargoWorkspace, driver: &str, binary: &Path) -> EchoedCommand {
        let command = EchoedCommand::new(&self.interpreter).arg(lists(workspace).join(driver));
        match &self.packages {
            Some(packages) => command.arg(packages),
            None if driver.starts_with("abide") => command.arg(binary),
            None => command,
        }
    }
}

impl PeerKit {
    pub(super) fn ensure_installed(self, workspace: &CargoWorkspace) -> Result<DriverProgram> {
        let node = || which("node").context("node is not installed");
        match self {
            Self::Pip(name) => {
                if name == "openhands" {
                    tools::for_peers()?;
                }
                let interpreter = pip(workspace, name)?.join("bin/python");
                Ok(DriverProgram { interpreter, packages: None })
            }
            Self::Npm(name) => {
                Ok(DriverProgram { interpreter: node()?, packages: Some(npm(workspace, name)?) })
            }
            Self::Node => Ok(DriverProgram { interpreter: node()?, packages: None }),
            Self::Python => Ok(DriverProgram { interpreter: tools::python()?, packages: None }),
        }
    }
}

fn pip(workspace: &CargoWorkspace, name: &str) -> Result<PathBuf> {
    let list = lists(workspace).join(format!("{name}.txt"));
    let requirements =
        fs::read_to_string(&list).with_context(|| format!("could not read {}", list.display()))?;
    install_once(workspace, name, &requirements, |folder| {
        EchoedCommand::new(tools::python()?).args(["-m", "venv", "--clear"]).arg(folder).run()?;
        EchoedCommand::new(folder.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(&list)
            .run()
    })
}

fn npm(workspace: &CargoWorkspace, name: &str) -> Result<PathBuf> {
    let from = lists(workspace).join(name);
    let read = |file: &str| {
        fs::read_to_string(from.join(file)).with_context(|| format!("could not read {file} of {name}"))
    };
    let (manifest, lock) = (read("package.json")?, read("package-lock.json")?);
    install_once(workspace, name, &format!("{manifest}{lock}"), |folder| {
        fs::write(folder.join("package.json"), &manifest).context("could not write the manifest")?;
        fs::write(folder.join("package-lock.json"), &lock).context("could not write the lock")?;
        // Package scripts are not run: some of them send telemetry.
        EchoedCommand::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .dir(folder)
            .run()
    })
}

/// Returns the folder of this name, after running `install` in it unless that was done for the same list.
fn install_once(
    workspace: &CargoWorkspace,
    name: &str,
    requirements: &str,
    install: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = workspace.root.join(".cache/peers");
    let (folder, installed) = (cache.join(name), cache.join(format!("{name}.installed")));
    if folder.is_dir() && fs::read_to_string(&installed).is_ok_and(|had| had == requirements) {
        return Ok(folder);
    }
    let watch = Stopwatch::start();
    eprintln!("missing: {name}; installing it once into .cache/peers");
    fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    install(&folder).with_context(|| format!("could not install {name}"))?;
    fs::write(&installed, requirements).context("could not record the installed list")?;
    eprintln!("installed {name} in {}", watch.read());
    Ok(folder)
}

/// The folder of the drivers and of the lists of packages.
fn lists(workspace: &CargoWorkspace) -> PathBuf {
    workspace.root.join("xtask/bench/peers")
}
