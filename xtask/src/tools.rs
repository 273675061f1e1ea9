//! The programs that the commands need, the reason for each, and their installation.
//!
//! Only the usual package managers are used, with package names. System packages are installed with `apt-get`; tools
//! written in Rust are built from the registry into `.cache/tools`, which is in `.gitignore`, so that a checkout does
//! not change the user's installed programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

use crate::postgres;
use crate::shell::{EchoedCommand, which};
use crate::stopwatch::Stopwatch;
use crate::workspace::CargoWorkspace;

/// A program from the system's packages.
struct SystemTool {
    package: &'static str,
    reason: &'static str,
    present: fn() -> bool,
}

/// The requirements of the tests besides Rust.
const FOR_TESTS: &[SystemTool] = &[
    SystemTool {
        package: "postgresql",
        reason: "the store's suite runs on a real server",
        present: || postgres::binaries().is_some(),
    },
    SystemTool {
        package: "openssl",
        reason: "it makes the certificates of that server",
        present: || which("openssl").is_some(),
    },
    SystemTool {
        package: "sqlite3",
        reason: "the native agent's sessions are tested with it",
        present: || which("sqlite3").is_some(),
    },
    SystemTool {
        package: "zsh",
        reason: "terminal sessions are tested in it",
        present: || which("zsh").is_some(),
    },
    SystemTool {
        package: "bubblewrap",
        reason: "isolation and the sandbox of Claude Code are tested with it",
        present: || which("bwrap").is_some(),
    },
    SystemTool {
        package: "socat",
        reason: "the sandbox of Claude Code needs it",
        present: || which("socat").is_some(),
    },
];

/// The requirements of the terminal's peers besides their own packages.
const FOR_PEERS: &[SystemTool] = &[SystemTool {
    package: "tmux",
    reason: "the terminal of OpenHands runs in it",
    present: || which("tmux").is_some(),
}];

/// The requirements of compiling the C parts of dependencies (SQLite, ring) for [`CROSS_TARGET`].
const FOR_CROSS_CHECK: &[SystemTool] = &[
    SystemTool {
        package: "gcc-aarch64-linux-gnu",
        reason: "the C parts of dependencies are compiled for aarch64 with it",
        present: || which("aarch64-linux-gnu-gcc").is_some(),
    },
    SystemTool {
        package: "libc6-dev-arm64-cross",
        reason: "these C parts include the headers of the C library",
        present: || Path::new("/usr/aarch64-linux-gnu/include/stdio.h").is_file(),
    },
];

/// The platform that is checked but not tested.
pub(crate) const CROSS_TARGET: &str = "aarch64-unknown-linux-gnu";

/// A program from the crates registry at a fixed version, because its result depends on the version.
pub(crate) struct CrateTool {
    package: &'static str,
    binary: &'static str,
    version: &'static str,
}

pub(crate) const DENY: CrateTool =
    CrateTool { package: "cargo-deny", binary: "cargo-deny", version: "0.20.2" };
pub(crate) const MACHETE: CrateTool =
    CrateTool { package: "cargo-machete", binary: "cargo-machete", version: "0.9.2" };
pub(crate) const TYPOS: CrateTool = CrateTool { package: "typos-cli", binary: "typos", version: "1.52.0" };
const NEXTEST: CrateTool =
    CrateTool { package: "cargo-nextest", binary: "cargo-nextest", version: "0.9.151" };

/// Installs missing requirements of the tests.
pub(crate) fn for_tests() -> Result<()> {
    install(FOR_TESTS)
}

/// Installs missing requirements of the terminal's peers.
pub(crate) fn for_peers() -> Result<()> {
    install(FOR_PEERS)
}

/// Installs missing requirements of compiling for [`CROSS_TARGET`].
pub(crate) fn for_cross_check(workspace: &CargoWorkspace) -> Result<()> {
    install(FOR_CROSS_CHECK)?;
    let sysroot = EchoedCommand::new("rustc").args(["--print", "sysroot"]).dir(&workspace.root).read()?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(CROSS_TARGET).is_dir() {
        return Ok(());
    }
    EchoedCommand::new("rustup")
        .args(["target", "add", CROSS_TARGET])
        .dir(&workspace.root)
        .run()
        .with_context(|| format!("the standard library for {CROSS_TARGET} is missing"))
}

fn install(tools: &[SystemTool]) -> Result<()> {
    let missing: Vec<&SystemTool> = tools.iter().filter(|tool| !(tool.present)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for tool in &missing {
        eprintln!("missing: {} ({})", tool.package, tool.reason);
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    if which("apt-get").is_none() || !geteuid().is_root() {
        bail!("{}", manual_install_hint(&packages));
    }
    EchoedCommand::new("apt-get").args(["update", "--quiet"]).run()?;
    EchoedCommand::new("apt-get")
        .args(["install", "--quiet", "--yes", "--no-install-recommends"])
        .args(&packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run()?;
    match missing.iter().find(|tool| !(tool.present)()) {
        Some(tool) => bail!("{} was installed but is still not found", tool.package),
        None => Ok(()),
    }
}

/// Returns the test runner: the one on the path in any version, else our own, else none.
///
/// It only runs the tests, so its version does not matter, and tests can run without it.
pub(crate) fn nextest(workspace: &CargoWorkspace) -> Option<PathBuf> {
    which(NEXTEST.binary).or_else(|| match NEXTEST.ensure_installed(workspace) {
        Ok(path) => Some(path),
        Err(error) => {
            eprintln!("warning: no nextest, falling back to `cargo test`: {error:#}");
            None
        }
    })
}

impl CrateTool {
    /// Returns the path of the tool, after building it if needed.
    pub(crate) fn ensure_installed(&self, workspace: &CargoWorkspace) -> Result<PathBuf> {
        let cache = workspace.root.join(".cache/tools");
        let cached = cache.join("bin").join(self.binary);
        if let Some(path) =
            which(self.binary).into_iter().chain([cached.clone()]).find(|path| self.has_pinned_version(path))
        {
            return Ok(path);
        }
        let watch = Stopwatch::start();
        eprintln!("missing: {} {}; building it once into .cache/tools", self.package, self.version);
        EchoedCommand::new("cargo")
            .args(["install", "--locked", "--quiet", "--version", self.version, self.package, "--root"])
            .arg(&cache)
            .dir(&workspace.root)
            .env("CARGO_TARGET_DIR", cache.join("build"))
            // These tools run for one or two seconds, so full optimisation would cost more time than it saves.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .run()
            .with_context(|| format!("could not build {} {}", self.package, self.version))?;
        // The build folder has half a gigabyte and is not used again.
        let _ = std::fs::remove_dir_all(cache.join("build"));
        eprintln!("built {} in {}", self.package, watch.read());
        if self.has_pinned_version(&cached) {
            Ok(cached)
        } else {
            bail!("{} does not say that it is version {}", cached.display(), self.version)
        }
    }

    fn has_pinned_version(&self, path: &PathBuf) -> bool {
        path.is_file()
            && EchoedCommand::new(path)
                .args(["--version"])
                .read()
                .is_ok_and(|output| output.split_whitespace().any(|word| word == self.version))
    }
}

fn manual_install_hint(packages: &[&str]) -> String {
    format!(
        "cannot install {0} here (that takes root and apt-get); install the Debian packages, or what your system \
         calls them, and run this again: sudo apt-get install {0}",
        packages.join(" ")
    )
}

/// Returns a Python that is at least as new as all lists require, from the path or pyenv.
pub(crate) fn python() -> Result<PathBuf> {
    let minor = |path: &PathBuf| -> Option<u32> {
        let output =
            EchoedCommand::new(path).args(["-c", "import sys, venv; print(sys.version_info[1])"]).read();
        output.ok()?.trim().parse().ok()
    };
    let on_path = ["python3.12", "python3.13", "python3"].into_iter().filter_map(which);
    let root = EchoedCommand::new("pyenv").arg("root").read().ok();
    let versions = root.and_then(|root| fs::read_dir(Path::new(root.trim()).join("versions")).ok());
    let managed = versions.into_iter().flatten().flatten().map(|entry| entry.path().join("bin/python3"));
    on_path
        .chain(managed)
        .filter_map(|path| Some((minor(&path)?, path)))
        .filter(|(minor, _)| *minor >= MIN_PYTHON_MINOR)
        .min()
        .map(|(_, path)| path)
        .with_context(|| format!("no Python 3.{MIN_PYTHON_MINOR} or later with venv is installed"))
}

/// The minor version that OpenHands requires.
const MIN_PYTHON_MINOR: u32 = 12;

#[cfg(test)]
mod tests {
    use super::manual_install_hint;

    #[test]
    fn a_failed_install_lists_the_packages() {
        assert!(manual_install_hint(&["postgresql", "zsh"]).ends_with("sudo apt-get install postgresql zsh"));
    }
}
