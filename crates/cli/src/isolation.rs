//! Isolation of agents and their tools from Abide's own files: selects the mechanism and the fallback.
//!
//! There are two decisions. *Hiding*: the home, with the token, the database and the keepers of other runs, is
//! invisible to the program; only the workspace and the private folder of its run are visible. *File rules*: a program
//! without a sandbox of its own writes nothing, or only in its workspace. The mechanisms are in `abide_os::confine`,
//! and the exec helper that applies them in `abide_keeper::confine`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use abide_keeper::confine::{Confinement, ConfinementSupport, HidingMethod, support};
use abide_os::confine::HiddenTree;
use abide_ports::engine::{IsolationMode, SandboxMode};

/// Decides how programs are confined on this machine. The supported mechanisms are probed once, on first use.
#[derive(Debug)]
pub struct ProgramIsolator {
    home: PathBuf,
    program: PathBuf,
    path: String,
    support: OnceLock<ConfinementSupport>,
    /// The reason why configured limits are not enforced.
    unapplied_limits: Option<String>,
}

/// A program to be confined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IsolationSubject<'a> {
    pub(crate) isolation: IsolationMode,
    /// File rules for a program without a sandbox of its own.
    pub(crate) sandbox: Option<SandboxMode>,
    pub(crate) workspace: &'a Path,
    /// Paths inside the home that the program needs in addition to its workspace.
    pub(crate) shown: &'a [PathBuf],
}

/// The confinement of a program, and warnings for the user.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct IsolationPlan {
    pub(crate) confinement: Option<Confinement>,
    pub(crate) warning: Option<String>,
}

/// Folder of the home with the workspaces of runs that name no directory.
const WORKSPACES: &str = "workspaces";
/// Folders of the home that are not workspaces.
const PRIVATE: [&str; 11] = [
    "agents",
    "backups",
    "contents",
    "crash-guard",
    "keepers",
    "logs",
    "made",
    "outliving",
    "parrot",
    "runs",
    "trash",
];

impl ProgramIsolator {
    /// Creates an isolator that hides `home`. `program` is the path of this program, `path` the search path for
    /// programs.
    pub fn new(home: &Path, program: &Path, path: &str) -> Self {
        Self {
            home: fs::canonicalize(home).unwrap_or_else(|_| home.to_owned()),
            program: program.to_owned(),
            path: path.to_owned(),
            support: OnceLock::new(),
            unapplied_limits: None,
        }
    }

    /// Adds a warning about limits that are not enforced.
    pub fn with_unapplied_limits(self, warning: Option<String>) -> Self {
        Self { unapplied_limits: warning, ..self }
    }

    /// Returns the mechanisms that this machine supports.
    pub(crate) fn support(&self) -> &ConfinementSupport {
        // If the home does not exist yet, the probe hides another directory.
        let hidden = if self.home.is_dir() { self.home.as_path() } else { Path::new("/tmp") };
        self.support.get_or_init(|| support(&self.program, hidden, &self.path))
    }

    /// Returns the confinement of a program, or the reason why it must not be started.
    pub(crate) fn plan(&self, subject: &IsolationSubject<'_>) -> Result<IsolationPlan, String> {
        let writable = self.writable(subject)?;
        let (hiding, warning) = self.hiding(subject.isolation)?;
        // A home that does not exist needs no hiding.
        let hiding = hiding.filter(|_| self.home.is_dir());
        let hidden = hiding.map(|hiding| Ok::<_, String>((self.tree(subject)?, hiding))).transpose()?;
        let confinement =
            (hidden.is_some() || writable.is_some()).then_some(Confinement { hidden, writable });
        let warnings: Vec<String> = warning.into_iter().chain(self.unapplied_limits.clone()).collect();
        let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
        Ok(IsolationPlan { confinement, warning })
    }

    fn hiding(&self, isolation: IsolationMode) -> Result<(Option<HidingMethod>, Option<String>), String> {
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
    fn writable(&self, subject: &IsolationSubject<'_>) -> Result<Option<Vec<PathBuf>>, String> {
        let (sandbox, writable) = match subject.sandbox {
            None | Some(SandboxMode::FullAccess) => return Ok(None),
            Some(sandbox @ SandboxMode::ReadOnly) => (sandbox, vec![]),
            Some(sandbox @ SandboxMode::WorkspaceWrite) => {
                let temporary = crate::home::variable("TMPDIR").map(PathBuf::from);
                let places = [subject.workspace.to_owned(), "/tmp".into(), "/var/tmp".into()];
                (sandbox, places.into_iter().chain(temporary).collect())
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
    fn tree(&self, subject: &IsolationSubject<'_>) -> Result<HiddenTree, String> {
        let workspace = fs::canonicalize(subject.workspace).unwrap_or_else(|_| subject.workspace.to_owned());
        let below = workspace.strip_prefix(&self.home).ok();
        let shows_too_much = |below: &Path| {
            below.as_os_str().is_empty()
                || below == Path::new(WORKSPACES)
                || PRIVATE.iter().any(|name| below.starts_with(name))
        };
        if below.is_some_and(shows_too_much) {
            return Err(format!(
                "{} would show files of Abide's home that agents must not see; work in another directory, or switch isolation \
                 off",
                workspace.display()
            ));
        }
        let shown = subject.shown.iter().map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
        let shown = [workspace].into_iter().chain(shown).chain([self.program.clone()]).collect();
        Ok(HiddenTree { directory: self.home.clone(), shown })
    }
}
