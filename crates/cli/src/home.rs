//! Reads the home directory and the environment. Other modules get plain values.

use std::path::{Path, PathBuf};

use abide_host::{
    control_groups::{self as groups, ControlGroupConfig, GroupDecision},
    home_folders::HomeFolder,
    home_permissions::{self, HomeAccess},
    isolation::ProgramIsolator,
    keeper_command::{self, KeeperLauncher},
    store_folders,
};
use abide_parrot::ParrotDirs;
use abide_terminal::TerminalConfig;
use anyhow::Context;

use crate::{config, error::eprint_line};

/// Returns the home: `$ABIDE_HOME`, or `~/.abide`. The path of an existing home is resolved, because the paths below it
/// that are stored with runs are opened without following links.
pub(crate) fn home() -> anyhow::Result<PathBuf> {
    let named = match variable("ABIDE_HOME") {
        Some(home) => std::path::absolute(home).context("cannot use ABIDE_HOME")?,
        None => {
            let user = variable("HOME").context("neither ABIDE_HOME nor HOME is set")?;
            PathBuf::from(user).join(".abide")
        }
    };
    Ok(std::fs::canonicalize(&named).unwrap_or(named))
}

/// Returns the directories of the parrot. Its session files are in `$PARROT_HOME`, or in the folder `parrot` of the home.
pub(crate) fn parrot_dirs() -> anyhow::Result<ParrotDirs> {
    let home = home()?;
    let sessions = variable("PARROT_HOME").map_or_else(|| HomeFolder::Parrot.path(&home), PathBuf::from);
    Ok(ParrotDirs { home, sessions })
}

/// Creates the home if it is missing, and removes other users' access.
pub(crate) fn prepare(home: &Path) -> anyhow::Result<()> {
    match home_permissions::prepare_home(home)? {
        HomeAccess::OwnerOnly => {}
        HomeAccess::Restricted => eprint_line(format_args!(
            "abide: other users could read {}; the modes of the home and its files are private now",
            std::fs::canonicalize(home).as_deref().unwrap_or(home).display()
        )),
    }
    Ok(())
}

pub(crate) fn terminal_config(config: &config::CliConfig, detached: bool) -> anyhow::Result<TerminalConfig> {
    let home = home()?;
    prepare(&home)?;
    Ok(TerminalConfig {
        keepers_dir: HomeFolder::Keepers.path(&home),
        launcher: launcher_with(control_groups(config)?.groups)?,
        env: child_environment(),
        cwd: std::env::current_dir()
            .context("cannot use the current directory")?
            .to_string_lossy()
            .into_owned(),
        shell: config.terminal.shell.clone(),
        detached,
        limits: config.terminal.limits(),
    })
}

/// Returns the command that starts this program as a keeper.
pub(crate) fn launcher() -> anyhow::Result<KeeperLauncher> {
    launcher_with(None)
}

/// Like [`launcher`], with control groups for the started processes.
pub(crate) fn launcher_with(groups: Option<ControlGroupConfig>) -> anyhow::Result<KeeperLauncher> {
    let program = std::env::current_exe().context("cannot find this program")?;
    Ok(keeper_command::launcher(program, groups))
}

/// Selects the control groups of runs and sessions.
pub(crate) fn control_groups(config: &config::CliConfig) -> anyhow::Result<GroupDecision> {
    let program = std::env::current_exe().context("cannot find this program")?;
    groups::decide(&config.group_options(), &program).map_err(anyhow::Error::msg)
}

/// Returns the folders of an SQLite store that are outside the home.
pub(crate) fn store_folders(home: &Path, config: &config::CliConfig) -> Vec<PathBuf> {
    let database = config.store.strip_prefix("sqlite:").map(Path::new);
    database.map(|database| store_folders::of_database(home, database)).unwrap_or_default()
}

/// Returns the isolator that hides the files of this home and of its store from programs.
pub(crate) fn isolator(home: &Path, store_folders: Vec<PathBuf>) -> anyhow::Result<ProgramIsolator> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let isolator = ProgramIsolator::new(home, &program, &variable("PATH").unwrap_or_default());
    let isolator = isolator.with_store_folders(store_folders);
    Ok(isolator.with_temporary_dir(variable("TMPDIR").map(PathBuf::from)))
}

/// Returns the environment variables that are valid UTF-8.
pub(crate) fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Returns the environment without the variables meant for this process only: settings (they may hold the store's
/// password), the token (it permits answering questions meant for a person), and variables of the service manager (a
/// child could send notifications in our name).
pub(crate) fn child_environment() -> Vec<(String, String)> {
    environment().into_iter().filter(|(name, _)| !is_daemon_only(name)).collect()
}

/// Returns whether a variable is meant for this process only: its settings, its token, and variables of a service
/// manager.
fn is_daemon_only(name: &str) -> bool {
    const SERVICE_MANAGER_VARIABLES: [&str; 7] = [
        "NOTIFY_SOCKET",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "SYSTEMD_EXEC_PID",
        "MANAGERPID",
        "CREDENTIALS_DIRECTORY",
        "MAINPID",
    ];
    const SERVICE_MANAGER_PREFIXES: [&str; 3] = ["LISTEN_", "WATCHDOG_", "MEMORY_PRESSURE_"];
    name == TOKEN_VARIABLE
        || config::is_setting(name)
        || SERVICE_MANAGER_VARIABLES.contains(&name)
        || SERVICE_MANAGER_PREFIXES.iter().any(|family| name.starts_with(family))
}

pub(crate) const TOKEN_VARIABLE: &str = "ABIDE_TOKEN";

/// Returns a variable that is set and not empty.
#[expect(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the user's name, if the system reports one that is valid in a header.
pub(crate) fn user_name() -> Option<String> {
    let name = ["USER", "LOGNAME"].into_iter().find_map(variable)?;
    let fits = name.chars().count() <= 100 && !name.trim().is_empty() && !name.chars().any(char::is_control);
    fits.then_some(name)
}
