//! Checks of the machine, apart from engines: an operating system that supports keepers, a writable home, valid
//! settings, and git.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_daemon::SpaceLimit;
use abide_host::{
    control_groups::{self as groups, GroupDecision},
    crash_record,
    disk_space::FileSystems,
    machine,
};
use abide_os::{own_process::can_create_in, program_lookup};
use abide_ports::{crash_log::CrashSuspect, engine::IsolationMode, space::DiskSpace};
use anyhow::Context;

use crate::{config::CliConfig, home, runs::times, terminal_text::one_line};

#[derive(Debug)]
pub(super) struct MachineCheck {
    pub(super) name: &'static str,
    pub(super) state: CheckState,
    /// The finding and, if the check failed, the remedy.
    pub(super) detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckState {
    Passed,
    /// Most features work without it.
    Warning,
    /// No feature works without it.
    Failed,
}

/// The path of the file and whether it exists, or its problems.
type ConfigCheck = anyhow::Result<(PathBuf, bool)>;

pub(super) fn run_all(config: &CliConfig, config_check: &ConfigCheck) -> anyhow::Result<Vec<MachineCheck>> {
    let home = home::home()?;
    let machine = [
        system(),
        home_directory(&home),
        settings(config_check),
        space(config),
        slots(config),
        git(),
        isolation(config, &home)?,
        control_groups(config)?,
    ];
    Ok(machine.into_iter().chain(quarantined_operations(&home)).collect())
}

fn system() -> MachineCheck {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let booted = fs::read_to_string("/proc/sys/kernel/random/boot_id").is_ok();
    let (state, detail) = match (cfg!(target_os = "linux"), booted) {
        (true, true) => (CheckState::Passed, format!("Linux {}, {}", release.trim(), std::env::consts::ARCH)),
        (true, false) => {
            (CheckState::Failed, "processes cannot be identified without /proc; mount it".to_owned())
        }
        (false, _) => (CheckState::Failed, format!("{} is not supported; use Linux", std::env::consts::OS)),
    };
    MachineCheck { name: "system", state, detail }
}

fn home_directory(home: &Path) -> MachineCheck {
    let shown = home.display();
    let (state, detail) = if home.is_dir() {
        match tempfile::tempfile_in(home) {
            Ok(_) => (CheckState::Passed, format!("{shown}")),
            Err(error) => (
                CheckState::Failed,
                format!("{shown} cannot be written to ({error}); set ABIDE_HOME to another directory"),
            ),
        }
    } else {
        // The home is not created here, so the nearest existing ancestor is checked.
        let above = home.ancestors().skip(1).find(|path| path.exists());
        if above.is_some_and(can_create_in) {
            (CheckState::Passed, format!("{shown} is created when it is needed"))
        } else {
            (CheckState::Failed, format!("{shown} cannot be created; set ABIDE_HOME to another directory"))
        }
    };
    MachineCheck { name: "home", state, detail }
}

fn settings(config_check: &ConfigCheck) -> MachineCheck {
    let (state, detail) = match config_check {
        Ok((path, true)) => (CheckState::Passed, path.display().to_string()),
        Ok((path, false)) => (CheckState::Passed, format!("no {}, so the defaults apply", path.display())),
        Err(error) => (CheckState::Failed, format!("{error:#}; until then the defaults apply")),
    };
    MachineCheck { name: "settings", state, detail }
}

fn space(config: &CliConfig) -> MachineCheck {
    let limit = SpaceLimit {
        space: Some(Arc::new(FileSystems)),
        min_free_bytes: config.limits.min_free_bytes,
        home: home::home().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let (state, detail) = match limit.shortage(None) {
        Some(shortage) => (
            CheckState::Failed,
            format!("{shortage}; no run starts until space is freed or the limit is lowered"),
        ),
        None => {
            let free = FileSystems.free_bytes(&limit.home).unwrap_or_default() >> 20;
            (CheckState::Passed, format!("{free} MiB are free in the home (limits.min_free_bytes)"))
        }
    };
    MachineCheck { name: "disk space", state, detail }
}

fn slots(config: &CliConfig) -> MachineCheck {
    let (running, cores) = (config.slots.max_running, machine::cores());
    let memory = machine::memory_bytes() >> 30;
    let detail = format!("{running} at a time, with {cores} cores and {memory} GiB (slots.max_running)");
    MachineCheck { name: "slots", state: CheckState::Passed, detail }
}

fn git() -> MachineCheck {
    let (state, detail) = match program_lookup::find("git", &home::variable("PATH").unwrap_or_default()) {
        Some(path) => (CheckState::Passed, path.display().to_string()),
        None => (CheckState::Warning, "not found, but most agents need it; install git".to_owned()),
    };
    MachineCheck { name: "git", state, detail }
}

/// Reports operations during which daemons of this home crashed repeatedly.
fn quarantined_operations(home: &Path) -> Vec<MachineCheck> {
    let check = |suspect: CrashSuspect| {
        let CrashSuspect { item, deaths, retry_at } = suspect;
        let in_seconds = retry_at / 1_000_000 - times::now_seconds();
        let at = if in_seconds > 0 {
            format!("in {}", times::format_duration(in_seconds))
        } else {
            "soon".to_owned()
        };
        let detail = format!(
            "{} is quarantined: {deaths} daemons in a row died during it; it is retried alone, {at}. The logs of \
             these daemons have details; cancel the run if it is not needed",
            one_line(&item)
        );
        MachineCheck { name: "crash guard", state: CheckState::Warning, detail }
    };
    crash_record::quarantined(home).into_iter().map(check).collect()
}

/// Checks whether agents can be isolated from our files as configured.
fn isolation(config: &CliConfig, home: &Path) -> anyhow::Result<MachineCheck> {
    let isolator = home::isolator(home, home::store_folders(home, config))?;
    let support = isolator.support();
    let namespace = match (&support.namespace, &support.bubblewrap) {
        (Ok(()), _) => Ok("namespace".to_owned()),
        (Err(_), Ok(program)) => Ok(format!("namespace by {}", program.display())),
        (Err(namespace), Err(bubblewrap)) => Err(format!("{namespace}; {bubblewrap}")),
    };
    let landlock = match &support.landlock {
        Ok(()) => "Landlock".to_owned(),
        Err(reason) => {
            format!("no Landlock, so the native agent's tools cannot be restricted to a sandbox: {reason}")
        }
    };
    let configured = config.isolation();
    let (state, detail) = match (configured, namespace) {
        (IsolationMode::Off, _) => {
            (CheckState::Warning, "off: agents can read the token and the database".to_owned())
        }
        (IsolationMode::Auto | IsolationMode::Namespace, Ok(namespace)) => {
            let state = if support.landlock.is_ok() { CheckState::Passed } else { CheckState::Warning };
            (state, format!("{namespace}, {landlock}"))
        }
        (IsolationMode::Auto, Err(reason)) => {
            let detail = format!(
                "agents can read the token and the database: {reason}; allow user namespaces or install bubblewrap"
            );
            (CheckState::Warning, detail)
        }
        (IsolationMode::Namespace, Err(reason)) => (
            CheckState::Failed,
            format!("runs are refused: {reason}; allow user namespaces or install bubblewrap"),
        ),
        (IsolationMode::Landlock, _) if support.landlock.is_ok() => (CheckState::Passed, landlock),
        (IsolationMode::Landlock, _) => (CheckState::Failed, format!("runs are refused: {landlock}")),
    };
    let (state, detail) = match (configured, isolator.store_obstacle()) {
        (IsolationMode::Off, _) | (_, None) => (state, detail),
        (IsolationMode::Auto, Some(obstacle)) => (CheckState::Warning, obstacle),
        (IsolationMode::Namespace | IsolationMode::Landlock, Some(obstacle)) => {
            (CheckState::Failed, format!("runs are refused: {obstacle}"))
        }
    };
    Ok(MachineCheck { name: "isolation", state, detail })
}

/// Checks whether runs and sessions get control groups as configured. The daemon may be in a different group than this
/// process.
fn control_groups(config: &CliConfig) -> anyhow::Result<MachineCheck> {
    const ADVICE: &str =
        "run Abide as the systemd service in packaging/abide.service, or name a group in sandbox.cgroup";
    let program = std::env::current_exe().context("cannot find this program")?;
    let (state, detail) = match groups::decide(&config.group_options(), &program) {
        Err(reason) => (CheckState::Failed, format!("the daemon does not start: {reason}")),
        Ok(GroupDecision { warning: Some(warning), .. }) => {
            (CheckState::Warning, format!("{warning}; {ADVICE}"))
        }
        Ok(GroupDecision { groups: Some(groups), .. }) => {
            let limits = if groups.limits.is_empty() { "without limits" } else { "with limits" };
            (
                CheckState::Passed,
                format!("each run and session gets one below {}, {limits}", groups.base.display()),
            )
        }
        Ok(GroupDecision { unavailable: Some(reason), .. }) => {
            let detail = format!(
                "none, so processes are tracked by their parents and have no limits: {reason}; {ADVICE}"
            );
            (CheckState::Warning, detail)
        }
        Ok(GroupDecision { .. }) => {
            (CheckState::Passed, "off: processes are tracked by their parents".to_owned())
        }
    };
    Ok(MachineCheck { name: "control groups", state, detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writable_or_creatable_home_passes() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(home_directory(folder.path()).state, CheckState::Passed);
        assert_eq!(home_directory(&folder.path().join("not/yet")).state, CheckState::Passed);
        fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(home_directory(&folder.path().join("file/home")).state, CheckState::Failed);
    }
}
