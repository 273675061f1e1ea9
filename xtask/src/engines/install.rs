//! Installs one pinned package into `.cache/engines`, once.
//!
//! The package is installed in a temporary folder and moved into place when it is complete, together with a stamp that
//! contains the whole list. A folder therefore either matches the list or is installed again, and an interrupted
//! installation is never used. Install scripts do not run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::list::PackagedEngine;
use super::pin::PinnedPackage;
use crate::shell::{self, EchoedCommand, which};
use crate::stopwatch::Stopwatch;

/// The number of tries for one package if the registry fails.
const MAX_ATTEMPTS: u32 = 3;

pub(super) struct NpmInstaller {
    cache: PathBuf,
    /// After all tries for one package have failed, the registry is assumed to be down, and the other packages get one
    /// try each.
    tries: u32,
}

impl NpmInstaller {
    pub(super) fn new(cache: &Path) -> Self {
        Self { cache: cache.to_path_buf(), tries: MAX_ATTEMPTS }
    }

    /// Returns the folder of packages that contains the pinned engine, after installing it if needed.
    pub(super) fn ensure_installed(
        &mut self,
        engine: &PackagedEngine,
        pin: &PinnedPackage,
    ) -> Result<PathBuf> {
        let folder = self.cache.join(engine.name);
        let stamp = stamp(engine, pin);
        if fs::read_to_string(folder.join(STAMP)).is_ok_and(|stored| stored == stamp) {
            return Ok(folder.join(PACKAGES));
        }
        let Some(npm) = which("npm").filter(|_| which("node").is_some()) else {
            bail!("there is no npm; install Node 20 or newer (Debian: apt-get install nodejs npm)");
        };
        let watch = Stopwatch::start();
        eprintln!("engines: installing {} ({} {})", engine.name, pin.package, pin.version);
        let draft = self.cache.join(format!("{}.draft", engine.name));
        self.fetch(&npm, engine, pin, &draft)?;
        fs::write(draft.join(STAMP), stamp).context("could not write the stamp")?;
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
        }
        fs::rename(&draft, &folder).with_context(|| format!("could not make {}", folder.display()))?;
        eprintln!(
            "engines: {} is installed, {} MB in {}",
            engine.name,
            size(&folder) / 1_000_000,
            watch.read()
        );
        Ok(folder.join(PACKAGES))
    }

    fn fetch(
        &mut self,
        npm: &Path,
        engine: &PackagedEngine,
        pin: &PinnedPackage,
        draft: &Path,
    ) -> Result<()> {
        let mut tried = 0;
        loop {
            tried += 1;
            let result = fetch_once(npm, engine, pin, draft);
            let Err(error) = result else { return Ok(()) };
            if shell::interrupted() {
                return Err(error);
            }
            // An incomplete folder would use hundreds of megabytes.
            let _ = fs::remove_dir_all(draft);
            let error_text = error.to_string();
            let complaint = format!("npm, try {tried} of {}: {}", self.tries, error_summary(&error_text));
            if !is_transient(&error_text) {
                bail!(complaint);
            }
            if tried >= self.tries {
                self.tries = 1;
                bail!(complaint);
            }
            eprintln!("engines: {}: {complaint}; retrying", engine.name);
        }
    }
}

fn fetch_once(npm: &Path, engine: &PackagedEngine, pin: &PinnedPackage, draft: &Path) -> Result<()> {
    if draft.exists() {
        fs::remove_dir_all(draft).with_context(|| format!("could not remove {}", draft.display()))?;
    }
    fs::create_dir_all(draft).with_context(|| format!("could not create {}", draft.display()))?;
    fs::write(draft.join("package.json"), &pin.manifest).context("could not write the list")?;
    fs::write(draft.join("package-lock.json"), &pin.lock).context("could not write the lock")?;
    // The user's npm configuration is used, because it contains the address of the registry.
    EchoedCommand::new(npm).args(arguments(engine)).dir(draft).read()?;
    Ok(())
}

/// All options are given, so that only the address of the registry depends on the user's configuration.
fn arguments(engine: &PackagedEngine) -> Vec<&'static str> {
    let optional = if engine.shared_program.is_some() { "--omit=optional" } else { "--include=optional" };
    let always = [
        "ci",
        "--ignore-scripts",
        // npm may run on an older Node than the engine, which gets a newer one.
        "--engine-strict=false",
        "--install-strategy=hoisted",
        "--audit=false",
        "--fund=false",
        "--update-notifier=false",
        "--loglevel=error",
        "--fetch-timeout=60000",
        "--fetch-retries=2",
        "--fetch-retry-mintimeout=1000",
        "--fetch-retry-maxtimeout=5000",
    ];
    always.into_iter().chain([optional]).collect()
}

/// Returns all inputs of the installation as plain text; a hash is not needed.
fn stamp(engine: &PackagedEngine, pin: &PinnedPackage) -> String {
    format!("{}\n{}\n{}", arguments(engine).join(" "), pin.manifest, pin.lock)
}

/// Whether a retry may help. A missing package or an invalid lock file is permanent.
fn is_transient(error_text: &str) -> bool {
    !["E404", "ETARGET", "EUSAGE", "EINTEGRITY", "EBADPLATFORM", "ENOSPC", "EACCES"]
        .iter()
        .any(|code| error_text.contains(&format!("code {code}")))
}

/// Returns the relevant lines of npm's error message as one line; npm keeps the rest in a log file.
fn error_summary(error_text: &str) -> String {
    let lines: Vec<&str> = error_text
        .lines()
        .filter_map(|line| line.split_once("npm error").map(|(_, rest)| rest.trim()))
        .filter(|line| !line.is_empty() && !line.starts_with("syscall") && !line.starts_with("errno"))
        .take(2)
        .collect();
    if lines.is_empty() { error_text.lines().next().unwrap_or_default().to_owned() } else { lines.join(", ") }
}

/// Returns the size of a folder in bytes; unreadable files are not counted.
fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

const STAMP: &str = "stamp";
const PACKAGES: &str = "node_modules";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::list::{ENGINES, PackagedEngine};
    use super::super::pin::PinnedPackage;
    use super::{NpmInstaller, error_summary, is_transient, stamp};

    fn engine(name: &str) -> &'static PackagedEngine {
        ENGINES.iter().find(|engine| engine.name == name).unwrap()
    }

    fn pin(lock: &str) -> PinnedPackage {
        PinnedPackage {
            package: "a".into(),
            version: "1.0.0".into(),
            manifest: "{}".into(),
            lock: lock.into(),
        }
    }

    #[test]
    fn a_stamped_package_is_not_installed_again() {
        let cache = tempfile::tempdir().unwrap();
        let place = cache.path().join("codex");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("stamp"), stamp(engine("codex"), &pin("{}"))).unwrap();
        let folder = NpmInstaller::new(cache.path()).ensure_installed(engine("codex"), &pin("{}")).unwrap();
        assert_eq!(folder, place.join("node_modules"));
    }

    #[test]
    fn a_changed_lock_or_a_changed_way_of_installing_changes_the_stamp() {
        let stamps = [
            stamp(engine("codex"), &pin("{}")),
            stamp(engine("codex"), &pin("{ }")),
            stamp(engine("codex-acp"), &pin("{}")),
        ];
        assert_ne!(stamps[0], stamps[1]);
        assert_ne!(stamps[0], stamps[2]);
    }

    #[test]
    fn only_transient_errors_are_retried() {
        assert!(is_transient("npm error code ECONNRESET\nnpm error network aborted"));
        assert!(is_transient("npm error code E503"));
        assert!(!is_transient("npm error code E404\nnpm error 404 Not Found"));
        assert!(!is_transient("npm error code EUSAGE"));
    }

    #[test]
    fn an_npm_error_is_summarised_in_one_line() {
        let error_text = "`npm ci` failed with exit status: 1: npm error code E404\nnpm error\nnpm error 404 Not Found - a\n\
                    npm error 404\n";
        assert_eq!(error_summary(error_text), "code E404, 404 Not Found - a");
        let error_text =
            "npm error code EX\nnpm error syscall connect\nnpm error errno EX\nnpm error FetchError: no";
        assert_eq!(error_summary(error_text), "code EX, FetchError: no");
        assert_eq!(error_summary("could not start `npm`\nbecause"), "could not start `npm`");
    }
}
