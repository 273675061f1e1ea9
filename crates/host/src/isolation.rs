//! Isolation of agents and their tools from Abide's own files: selects the mechanism and the fallback.
//!
//! There are two decisions. *Hiding*: the home, with the token, the database and the keepers of other runs, and the
//! folder of a database elsewhere are invisible to the program; only the workspace and the private folder of its run are visible. *File rules*: a program
//! without a sandbox of its own writes nothing, or only in its workspace. The mechanisms are in `abide_os::confine`,
//! and the exec helper that applies them in `abide_keeper::confine`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use abide_keeper::confine::{Confinement, ConfinementSupport, HidingMethod, probe_support};
use abide_os::confine::HiddenTree;
use abide_ports::engine::{IsolationMode, SandboxMode};

use crate::{home_folders, store_folders};

/// Decides how programs are confined on this machine. The supported mechanisms are probed once, on first use.
#[derive(Debug)]
pub struct ProgramIsolator {
    home: PathBuf,
    /// See [`store_folders`].
    store_folders: Vec<PathBuf>,
    program: PathBuf,
    path: String,
    /// The folder for temporary files, if it is another than the system's.
    temporary_dir: Option<PathBuf>,
    support: OnceLock<ConfinementSupport>,
    /// The reason why configured limits are not enforced.
    unenforced_limits: Option<String>,
}

/// A program to be confined.
#[derive(Clone, Copy, Debug)]
pub struct IsolationSubject<'a> {
    pub isolation: IsolationMode,
    /// File rules for a program without a sandbox of its own.
    pub sandbox: Option<SandboxMode>,
    /// Resolved by the caller: a link that is put into this path later is refused when the program starts.
    pub workspace: &'a Path,
    /// Paths inside the home that the program needs in addition to its workspace.
    pub visible_paths: &'a [PathBuf],
}

/// The confinement of a program, and warnings for the user.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IsolationPlan {
    pub confinement: Option<Confinement>,
    pub warning: Option<String>,
}

impl ProgramIsolator {
    /// Creates an isolator that hides `home`. `program` is the path of this program, `path` the search path for
    /// programs.
    pub fn new(home: &Path, program: &Path, path: &str) -> Self {
        Self {
            home: fs::canonicalize(home).unwrap_or_else(|_| home.to_owned()),
            store_folders: vec![],
            program: program.to_owned(),
            path: path.to_owned(),
            temporary_dir: None,
            support: OnceLock::new(),
            unenforced_limits: None,
        }
    }

    /// Sets the folders of the database, which are hidden with the home.
    pub fn with_store_folders(self, store_folders: Vec<PathBuf>) -> Self {
        Self { store_folders, ..self }
    }

    /// Sets the folder for temporary files, which a sandboxed program may write in addition to those of the system.
    pub fn with_temporary_dir(self, temporary_dir: Option<PathBuf>) -> Self {
        Self { temporary_dir, ..self }
    }

    /// Adds a warning about limits that are not enforced.
    pub fn with_unenforced_limits(self, warning: Option<String>) -> Self {
        Self { unenforced_limits: warning, ..self }
    }

    /// Returns the mechanisms that this machine supports.
    pub fn support(&self) -> &ConfinementSupport {
        // If the home does not exist yet, the probe hides another directory.
        let hidden = if self.home.is_dir() { self.hidden_directories() } else { vec!["/tmp".into()] };
        self.support.get_or_init(|| probe_support(&self.program, &hidden, &self.path))
    }

    /// Returns the confinement of a program, or the reason why it must not be started.
    pub fn plan(&self, subject: &IsolationSubject<'_>) -> Result<IsolationPlan, String> {
        let writable = self.writable_paths(subject)?;
        let (hiding, warning) = self.hiding_method(subject.isolation)?;
        let obstacle = hiding.as_ref().and_then(|_| self.store_obstacle());
        if let (IsolationMode::Namespace | IsolationMode::Landlock, Some(obstacle)) =
            (subject.isolation, &obstacle)
        {
            return Err(obstacle.clone());
        }
        // A home that does not exist needs no hiding.
        let hiding = hiding.filter(|_| self.home.is_dir());
        let hidden =
            hiding.map(|hiding| Ok::<_, String>((self.hidden_tree(subject)?, hiding))).transpose()?;
        let confinement =
            (hidden.is_some() || writable.is_some()).then_some(Confinement { hidden, writable });
        let warnings = warning.into_iter().chain(obstacle).chain(self.unenforced_limits.clone());
        let warnings: Vec<String> = warnings.collect();
        let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
        Ok(IsolationPlan { confinement, warning })
    }

    /// Returns the home and the folders of the database that can be hidden.
    fn hidden_directories(&self) -> Vec<PathBuf> {
        let can_be_hidden =
            |folder: &&PathBuf| folder.is_dir() && store_folders::obstacle(&self.home, folder).is_none();
        [&self.home].into_iter().chain(self.store_folders.iter().filter(can_be_hidden)).cloned().collect()
    }

    /// Returns why the database cannot be hidden; `None` if it can, or is in the home.
    pub fn store_obstacle(&self) -> Option<String> {
        self.store_folders.iter().find_map(|folder| store_folders::obstacle(&self.home, folder))
    }

    fn hiding_method(
        &self,
        isolation: IsolationMode,
    ) -> Result<(Option<HidingMethod>, Option<String>), String> {
        let by_namespace = || {
            let support = self.support();
            match (&support.namespace, &support.bubblewrap) {
                (Ok(()), _) => Ok(HidingMethod::Namespace),
                (Err(_), Ok(program)) => Ok(HidingMethod::Bubblewrap(program.clone())),
                (Err(namespace), Err(bubblewrap)) => Err(format!("{namespace}; {bubblewrap}")),
            }
        };
        match isolation {
            IsolationMode::Off => Ok((None, None)),
            IsolationMode::Auto => Ok(match by_namespace() {
                Ok(hiding) => (Some(hiding), None),
                Err(reason) => (None, Some(format!("the agent is not isolated from Abide's own files: {reason}"))),
            }),
            IsolationMode::Namespace => by_namespace().map(|hiding| (Some(hiding), None)).map_err(|reason| {
                format!(
                    "isolation \"namespace\" is not possible here: {reason}; allow user namespaces or install \
                     bubblewrap, or choose another isolation"
                )
            }),
            IsolationMode::Landlock => match &self.support().landlock {
                Ok(()) => Ok((Some(HidingMethod::Landlock), None)),
                Err(reason) => Err(format!(
                    "isolation \"landlock\" is not possible here: {reason}; use a kernel with Landlock, or choose \
                     another isolation"
                )),
            },
        }
    }

    /// Returns the paths that a program may write; `None` if writing is not restricted.
    fn writable_paths(&self, subject: &IsolationSubject<'_>) -> Result<Option<Vec<PathBuf>>, String> {
        let (sandbox, writable) = match subject.sandbox {
            None | Some(SandboxMode::FullAccess) => return Ok(None),
            Some(sandbox @ SandboxMode::ReadOnly) => (sandbox, vec![]),
            Some(sandbox @ SandboxMode::WorkspaceWrite) => {
                let temporary = self.temporary_dir.clone();
                let shared = ["/tmp".into(), "/var/tmp".into()].into_iter().chain(temporary);
                let shared = shared.filter_map(|path: PathBuf| fs::canonicalize(path).ok());
                (sandbox, [subject.workspace.to_owned()].into_iter().chain(shared).collect())
            }
        };
        let refused = |reason: &str| {
            let name = sandbox.name();
            Err(format!(
                "the sandbox {name} cannot be enforced: {reason}; leave it out, or use another engine"
            ))
        };
        match (subject.isolation, &self.support().landlock) {
            (IsolationMode::Off, _) => refused("isolation is off"),
            (_, Err(reason)) => refused(reason),
            (_, Ok(())) => Ok(Some(writable)),
        }
    }

    /// Returns the part of the home that stays visible: the workspace if it is in the home, other needed paths, and
    /// this program.
    fn hidden_tree(&self, subject: &IsolationSubject<'_>) -> Result<HiddenTree, String> {
        if let Some(refusal) = home_folders::refusal(&self.home, subject.workspace) {
            return Err(refusal);
        }
        if let Some(refusal) = store_folders::refusal(&self.home, &self.store_folders, subject.workspace) {
            return Err(refusal);
        }
        let workspace = subject.workspace.to_owned();
        let shown =
            subject.visible_paths.iter().map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
        let shown = [workspace].into_iter().chain(shown).chain([self.program.clone()]).collect();
        Ok(HiddenTree { directories: self.hidden_directories(), shown })
    }
}
