//! How a peer is had: with pip into an environment of its own, or with npm, both from pinned lists, into
//! `.cache/peers`, which git ignores.
//!
//! Each peer has its own folder, so that one that cannot be installed does not take the others with it. What is there
//! is known by the copy of the list that is written after a success.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell::{EchoedCommand, which};
use crate::stopwatch::Stopwatch;
use crate::tools;
use crate::workspace::CargoWorkspace;

/// What a driver needs.
#[derive(Clone, Copy)]
pub(super) enum PeerKit {
    /// A list of Python packages of this name.
    Pip(&'static str),
    /// A folder of this name with a manifest and a lock of Node packages.
    Npm(&'static str),
    /// Node alone.
    Node,
    /// Python alone.
    Python,
}

/// What runs a driver, and where the peer's packages are.
pub(super) struct DriverProgram {
    interpreter: PathBuf,
    packages: Option<PathBuf>,
}

impl DriverProgram {
    /// The driver's command. A Node driver is told where the packages are, one of ours where the binary is; Python
    /// knows by itself.
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
    pub(super) fn ready(self, workspace: &CargoWorkspace) -> Result<DriverProgram> {
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
    let wanted = fs::read_to_string(&list).with_context(|| format!("could not read {}", list.display()))?;
    once(workspace, name, &wanted, |folder| {
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
    once(workspace, name, &format!("{manifest}{lock}"), |folder| {
        fs::write(folder.join("package.json"), &manifest).context("could not write the manifest")?;
        fs::write(folder.join("package-lock.json"), &lock).context("could not write the lock")?;
        // Scripts of packages are not run: some of them call home.
        EchoedCommand::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .dir(folder)
            .run()
    })
}

/// The folder of this name after `install` has been run in it, now or earlier, for the same list.
fn once(
    workspace: &CargoWorkspace,
    name: &str,
    wanted: &str,
    install: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = workspace.root.join(".cache/peers");
    let (folder, installed) = (cache.join(name), cache.join(format!("{name}.installed")));
    if folder.is_dir() && fs::read_to_string(&installed).is_ok_and(|had| had == wanted) {
        return Ok(folder);
    }
    let watch = Stopwatch::start();
    eprintln!("missing: {name}; installing it once into .cache/peers");
    fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    install(&folder).with_context(|| format!("could not install {name}"))?;
    fs::write(&installed, wanted).context("could not note what is installed")?;
    eprintln!("installed {name} in {}", watch.read());
    Ok(folder)
}

/// The drivers, and beside them what is to be installed.
fn lists(workspace: &CargoWorkspace) -> PathBuf {
    workspace.root.join("xtask/bench/peers")
}
