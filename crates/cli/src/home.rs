//! The home directory and the environment: read here, passed on as plain values.

use std::path::{Path, PathBuf};

use abide_keeper::{group::ControlGroupConfig, launch::KeeperLauncher};
use abide_terminal::TerminalConfig;
use anyhow::Context;

use crate::{
    config,
    groups::{self, GroupDecision},
    isolation::ProgramIsolator,
    private,
};

/// The hidden subcommand by which this program becomes a keeper.
pub(crate) const KEEPER: &str = "__keeper";

/// The home: `$ABIDE_HOME`, or `~/.abide`.
pub(crate) fn home() -> anyhow::Result<PathBuf> {
    if let Some(home) = variable("ABIDE_HOME") {
        return std::path::absolute(home).context("cannot use ABIDE_HOME");
    }
    let user = variable("HOME").context("neither ABIDE_HOME nor HOME is set")?;
    Ok(PathBuf::from(user).join(".abide"))
}

/// The terminal runtime's configuration.
pub(crate) fn terminal(config: &config::CliConfig, detached: bool) -> anyhow::Result<TerminalConfig> {
    let home = home()?;
    private::home(&home)?;
    Ok(TerminalConfig {
        keepers: home.join("keepers"),
        launcher: launcher_with(groups(config)?.groups)?,
        env: environment_of_children(),
        cwd: std::env::current_dir()
            .context("cannot use the current directory")?
            .to_string_lossy()
            .into_owned(),
        shell: config.terminal.shell.clone(),
        detached,
        limits: config.terminal.limits(),
    })
}

/// How this program becomes a keeper.
pub(crate) fn launcher() -> anyhow::Result<KeeperLauncher> {
    launcher_with(None)
}

/// The same, with control groups for what is started.
pub(crate) fn launcher_with(groups: Option<ControlGroupConfig>) -> anyhow::Result<KeeperLauncher> {
    Ok(KeeperLauncher {
        program: std::env::current_exe().context("cannot find this program")?,
        arguments: vec![KEEPER.to_owned()],
        groups,
    })
}

/// Which control groups runs and sessions get.
pub(crate) fn groups(config: &config::CliConfig) -> anyhow::Result<GroupDecision> {
    let program = std::env::current_exe().context("cannot find this program")?;
    groups::decide(config, &program).map_err(anyhow::Error::msg)
}

/// How programs are kept from the files of this home.
pub(crate) fn isolator(home: &Path) -> anyhow::Result<ProgramIsolator> {
    let program = std::env::current_exe().context("cannot find this program")?;
    Ok(ProgramIsolator::new(home, &program, &variable("PATH").unwrap_or_default()))
}

/// The environment, as far as it is text.
pub(crate) fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The same without what is only ours: settings, which may hold the store's password, the token, which answers the
/// questions that are meant for a person, and the service manager's variables, with which a child could speak for us.
pub(crate) fn environment_of_children() -> Vec<(String, String)> {
    environment().into_iter().filter(|(name, _)| !is_own(name)).collect()
}

/// Whether a variable is meant for this process alone: its settings and token, and what a service manager told it.
fn is_own(name: &str) -> bool {
    const MANAGER: [&str; 7] = [
        "NOTIFY_SOCKET",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "SYSTEMD_EXEC_PID",
        "MANAGERPID",
        "CREDENTIALS_DIRECTORY",
        "MAINPID",
    ];
    const MANAGER_FAMILIES: [&str; 3] = ["LISTEN_", "WATCHDOG_", "MEMORY_PRESSURE_"];
    name == TOKEN
        || config::is_setting(name)
        || MANAGER.contains(&name)
        || MANAGER_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// The variable with the token of the interface.
pub(crate) const TOKEN: &str = "ABIDE_TOKEN";

/// A variable that is set to something.
#[expect(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The name of whoever sits here, as far as the system tells it and a header can carry it.
pub(crate) fn person() -> Option<String> {
    let name = ["USER", "LOGNAME"].into_iter().find_map(variable)?;
    let fits = name.chars().count() <= 100 && !name.trim().is_empty() && !name.chars().any(char::is_control);
    fits.then_some(name)
}
