//! The ports for real agent programs in a temporary home: processes under keepers, and workspaces.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_host::{
    isolation::ProgramIsolator,
    processes::{KeeperProcesses, StandbyPolicy, TrackedKeepers},
    workspace::LocalWorkspaces,
};
use abide_keeper::launch::KeeperLauncher;
use abide_ports::processes::Processes;

/// The environment of the programs.
pub(crate) fn program_env() -> Vec<(String, String)> {
    [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("TERM", "dumb")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

/// The binary that is tested.
pub(crate) fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_abide"))
}

/// Processes under keepers, whose directories are in the home.
pub(crate) fn keeper_processes(home: &Path, isolator: Option<ProgramIsolator>) -> KeeperProcesses {
    KeeperProcesses {
        directory: home.join("keepers"),
        launcher: KeeperLauncher { program: binary(), arguments: vec!["__keeper".to_owned()], groups: None },
        env: program_env(),
        isolator,
        retained_output_bytes: 1 << 30,
        keepers: TrackedKeepers::default(),
        standby: StandbyPolicy::One(Arc::default()),
    }
}

pub(crate) fn local_workspaces(home: PathBuf) -> LocalWorkspaces {
    LocalWorkspaces {
        home,
        store_folders: vec![],
        artifacts_folder: abide_engines::asking::patch::ARTIFACTS_FOLDER,
        skill_patch: abide_engines::asking::patch::skill_patch,
    }
}

/// Ends the processes before their temporary home is deleted.
pub(crate) fn terminate_all(processes: &dyn Processes, names: &[String]) {
    for name in names {
        // Best effort: the home is deleted next.
        processes.terminate(name).ok();
    }
}
