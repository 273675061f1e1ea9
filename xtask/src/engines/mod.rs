//! The real agent programs that the tests use: installed at pinned versions, run once to check the version, and listed
//! in a file for the tests.
//!
//! A missing engine does not stop the command, but is always reported: the table shows NOT VERIFIED with the reason,
//! its tests find the same reason in `found.json`, and it is a failure if engines are required. The tests themselves
//! define how a turn is run.

mod install;
mod list;
mod matrix;
mod pin;
mod report;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, io};

use anyhow::{Context, Result, bail};

pub(crate) use self::matrix::{RECORD, RECORD_VARIABLE};

use self::install::NpmInstaller;
use self::list::{ENGINES, NODE, PackagedEngine, ProgramStart};
use self::pin::PinnedPackage;
use self::report::{InstallRow, InstallState};
use crate::shell::{self, EchoedCommand};
use crate::stopwatch::Stopwatch;
use crate::workspace::CargoWorkspace;

/// The variable that contains the path of `found.json`.
pub(crate) const ENGINES_VARIABLE: &str = "ABIDE_TEST_ENGINES";
/// If `1`, a missing engine is a failure, here and in the tests.
pub(crate) const REQUIRE_VARIABLE: &str = "ABIDE_REQUIRE_ENGINES";

/// Whether a missing engine is a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingPolicy {
    Reported,
    Required,
}

impl MissingPolicy {
    pub(crate) fn from_environment() -> Self {
        Self::parse(env::var_os(REQUIRE_VARIABLE).as_deref())
    }

    fn parse(value: Option<&OsStr>) -> Self {
        if value.is_some_and(|value| value == "1") { Self::Required } else { Self::Reported }
    }
}

/// The result of the installation.
pub(crate) struct InstalledEngines {
    rows: Vec<InstallRow>,
    list_path: PathBuf,
    root: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineListFormat {
    Table,
    Json,
    /// Writes the tests' results to the documents.
    Document,
}

/// Runs the command `cargo xtask engines`.
pub(crate) fn run(workspace: &CargoWorkspace, format: EngineListFormat) -> Result<()> {
    let engines = InstalledEngines::prepare(workspace)?;
    engines.report();
    if format == EngineListFormat::Json {
        print!(
            "{}",
            fs::read_to_string(engines.list_path())
                .context("could not read the list that was just written")?
        );
    }
    if format == EngineListFormat::Document {
        matrix::write(workspace, &engines.rows)?;
    }
    engines.check(MissingPolicy::from_environment())
}

impl InstalledEngines {
    /// Installs missing engines, runs each once, and writes `found.json`.
    pub(crate) fn prepare(workspace: &CargoWorkspace) -> Result<Self> {
        Self::prepare_some(workspace, "found.json", |_| true)
    }

    /// Like [`InstalledEngines::prepare`] for one engine, which gets a list of its own.
    pub(crate) fn prepare_one(workspace: &CargoWorkspace, name: &str) -> Result<Self> {
        if !ENGINES.iter().any(|engine| engine.name == name) {
            let names: Vec<&str> = ENGINES.iter().map(|engine| engine.name).collect();
            bail!("there is no engine {name} to install; known are {}", names.join(", "));
        }
        let engines =
            Self::prepare_some(workspace, &format!("found-{name}.json"), |candidate| candidate == name)?;
        engines.check(MissingPolicy::Required)?;
        Ok(engines)
    }

    fn prepare_some(
        workspace: &CargoWorkspace,
        list: &str,
        is_selected: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let cache = workspace.root.join(".cache/engines");
        fs::create_dir_all(&cache).with_context(|| format!("could not create {}", cache.display()))?;
        // Two commands in one checkout wait for each other; the second finds everything installed.
        let lock = File::create(cache.join("lock")).context("could not create the lock of the engines")?;
        lock.lock().context("could not lock the engines")?;
        let watch = Stopwatch::start();
        let mut installer = NpmInstaller::new(&cache);
        let mut rows: Vec<InstallRow> = Vec::new();
        let selected = ENGINES.iter().filter(|engine| is_selected(engine.name));
        for engine in [&NODE].into_iter().chain(selected) {
            let pin = PinnedPackage::load(&workspace.root.join("xtask/engines").join(engine.name))?;
            let tried = install_engine(engine, &pin, &rows, &mut installer);
            if shell::interrupted() {
                bail!("interrupted");
            }
            let state = tried.unwrap_or_else(|error| InstallState::Missing(format!("{error:#}")));
            rows.push(InstallRow { engine: engine.name, package: pin.package, wanted: pin.version, state });
        }
        let list_path = cache.join(list);
        // Node is not an engine, so it is not in the list for tests.
        write_atomically(&list_path, &report::json(&rows[1..])?)?;
        eprintln!("engines: ready after {}", watch.read());
        Ok(Self { rows, list_path, root: workspace.root.clone() })
    }

    pub(crate) fn list_path(&self) -> &Path {
        &self.list_path
    }

    /// Returns the folder of the Node that was installed for the engines.
    pub(crate) fn node_folder(&self) -> Option<PathBuf> {
        let node = PathBuf::from(program(&self.rows, NODE.name).ok()?);
        node.parent().map(Path::to_path_buf)
    }

    /// Returns each missing program with the reason.
    pub(crate) fn missing(&self) -> Vec<String> {
        let reason = |row: &InstallRow| row.missing().map(|reason| format!("{}: {reason}", row.engine));
        self.rows.iter().filter_map(reason).collect()
    }

    /// Prints the whole table.
    pub(crate) fn report(&self) {
        eprint!("\n{}", report::table(&self.rows, &self.root));
        eprintln!("{}\n", self.summary());
    }

    /// Returns one line for the end of a long run, when the table is no longer visible.
    pub(crate) fn summary(&self) -> String {
        let missing: Vec<&str> =
            self.rows.iter().filter(|row| row.missing().is_some()).map(|row| row.engine).collect();
        match missing.len() {
            0 => format!("engines: all {} verified", self.rows.len()),
            count => format!(
                "engines: {count} of {} NOT VERIFIED: {}; reasons: cargo xtask engines",
                self.rows.len(),
                missing.join(", ")
            ),
        }
    }

    /// Fails if a required engine is missing.
    pub(crate) fn check(&self, demand: MissingPolicy) -> Result<()> {
        let missing = self.rows.iter().any(|row| row.missing().is_some());
        match demand {
            MissingPolicy::Required if missing => bail!("{} ({REQUIRE_VARIABLE}=1)", self.summary()),
            MissingPolicy::Required | MissingPolicy::Reported => Ok(()),
        }
    }
}

/// Installs one engine and checks that it runs.
fn install_engine(
    engine: &PackagedEngine,
    pin: &PinnedPackage,
    earlier: &[InstallRow],
    installer: &mut NpmInstaller,
) -> Result<InstallState> {
    let here = (env::consts::OS, env::consts::ARCH);
    if here != ("linux", "x86_64") {
        bail!("the list is for linux on x86_64, and this is {} on {}", here.0, here.1);
    }
    // Programs that it needs come first: without them the installation is pointless.
    let mut env: BTreeMap<String, String> =
        engine.env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    if let Some(borrow) = engine.shared_program {
        env.insert(borrow.variable.to_owned(), program(earlier, borrow.engine)?);
    }
    let mut command = match engine.start {
        ProgramStart::Native(_) => Vec::new(),
        ProgramStart::Script(_) => vec![program(earlier, NODE.name)?],
    };
    let packages = installer.ensure_installed(engine, pin)?;
    let entry = match engine.start {
        ProgramStart::Native(path) | ProgramStart::Script(path) => packages.join(path),
    };
    if !entry.is_file() {
        bail!("{} {} came without {}", pin.package, pin.version, entry.display());
    }
    command.push(entry.into_os_string().into_string().ok().context("the checkout's path is not text")?);
    let output = run_version_check(&command, &env)?;
    match parse_version(&output) {
        Some(version) if version == pin.version => {
            Ok(InstallState::Ready { version: version.to_owned(), command, env })
        }
        Some(version) => bail!("it reports version {version}"),
        None => bail!("it prints `{}` instead of its version", output.trim()),
    }
}

/// Returns the program of an engine that was installed before.
fn program(earlier: &[InstallRow], name: &str) -> Result<String> {
    let state = earlier.iter().find(|row| row.engine == name).map(|row| &row.state);
    match state {
        Some(InstallState::Ready { command, .. }) => {
            command.first().cloned().context("a command has a program")
        }
        Some(InstallState::Missing(reason)) => bail!("it needs {name}: {reason}"),
        None => bail!("it needs {name}, which is not in the list before it"),
    }
}

/// Runs the program in a temporary home, so that it neither reads nor leaves files.
fn run_version_check(command: &[String], env: &BTreeMap<String, String>) -> Result<String> {
    let (program, args) = command.split_first().context("a command has a program")?;
    let home = tempfile::tempdir().context("could not create a folder for temporary files")?;
    let mut shell = EchoedCommand::new(program).args(args).arg("--version").dir(home.path()).path_only_env();
    for variable in ["HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"]
    {
        shell = shell.env(variable, home.path());
    }
    for (name, value) in env {
        shell = shell.env(name, value);
    }
    shell.read_within(VERSION_LIMIT)
}

/// Returns the first word that looks like a version: `codex-cli 0.166.0`, `v22.23.3`, `2.1.325 (Claude Code)`.
fn parse_version(output: &str) -> Option<&str> {
    output
        .split_whitespace()
        .map(|word| word.strip_prefix('v').unwrap_or(word))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.matches('.').count() >= 2)
}

/// Replaces the file atomically.
fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    let written: io::Result<()> = fs::write(&draft, text).and_then(|()| fs::rename(&draft, path));
    written.with_context(|| format!("could not write {}", path.display()))
}

/// The timeout of a version check; far more than needed, even during a build.
const VERSION_LIMIT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::path::PathBuf;

    use super::{
        InstallRow, InstallState, InstalledEngines, MissingPolicy, parse_version, program, run_version_check,
    };

    fn engines(states: Vec<(&'static str, InstallState)>) -> InstalledEngines {
        let row = |(engine, state)| InstallRow { engine, package: "p".into(), wanted: "1.0.0".into(), state };
        let rows = states.into_iter().map(row).collect();
        InstalledEngines { rows, list_path: PathBuf::new(), root: PathBuf::new() }
    }

    fn ready() -> InstallState {
        InstallState::Ready { version: "1.0.0".into(), command: vec!["/a/b".into()], env: BTreeMap::new() }
    }

    #[test]
    fn a_version_is_parsed_from_surrounding_text() {
        for (output, version) in [
            ("codex-cli 0.166.0\n", "0.166.0"),
            ("2.1.325 (Claude Code)\n", "2.1.325"),
            ("v22.23.3\n", "22.23.3"),
            ("@agentclientprotocol/codex-acp 2.6.0", "2.6.0"),
        ] {
            assert_eq!(parse_version(output), Some(version));
        }
        assert_eq!(parse_version("usage: v 1.2"), None);
    }

    #[test]
    fn a_missing_engine_is_told_and_fails_only_where_it_is_required() {
        let all = engines(vec![("a", ready())]);
        assert_eq!(all.summary(), "engines: all 1 verified");
        assert!(all.check(MissingPolicy::Required).is_ok());

        let some = engines(vec![("a", ready()), ("b", InstallState::Missing("why".into()))]);
        assert_eq!(some.summary(), "engines: 1 of 2 NOT VERIFIED: b; reasons: cargo xtask engines");
        assert!(some.check(MissingPolicy::Reported).is_ok());
        assert!(some.check(MissingPolicy::Required).is_err());
    }

    #[test]
    fn engines_are_required_by_a_one_and_by_nothing_else() {
        let parse = |value: Option<&str>| MissingPolicy::parse(value.map(OsStr::new));
        assert_eq!(parse(Some("1")), MissingPolicy::Required);
        for value in [None, Some(""), Some("0")] {
            assert_eq!(parse(value), MissingPolicy::Reported);
        }
    }

    #[test]
    fn a_wrapper_of_a_missing_engine_reports_it() {
        let rows = engines(vec![("a", ready()), ("b", InstallState::Missing("why".into()))]).rows;
        assert_eq!(program(&rows, "a").unwrap(), "/a/b");
        assert_eq!(program(&rows, "b").unwrap_err().to_string(), "it needs b: why");
    }

    #[test]
    fn an_engine_is_asked_in_a_home_of_its_own() {
        let command = ["sh", "-c", "echo $HOME"].map(str::to_owned);
        let home = run_version_check(&command, &BTreeMap::new()).unwrap();
        assert!(!PathBuf::from(home.trim()).exists());
        assert_ne!(Some(OsStr::new(home.trim())), std::env::var_os("HOME").as_deref());
    }
}
