//! Starts confined children through a small exec helper, which is this program with a hidden subcommand.
//!
//! The helper confines itself with the mechanisms of [`abide_os::confine`] and then executes the program, so the
//! program has the pid of the helper. Bubblewrap is different: it stays the parent of the program. It is used only
//! where the helper may not create namespaces.
//!
//! The helper opens a FIFO and closes it by executing the program. The process that started the helper reads the FIFO.
//! It learns from it that the program runs, or why it does not.
//!
//! The caller decides which paths are hidden from which child, and how to react to a missing mechanism.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use abide_os::confine::files::{self, FileRules};
use abide_os::confine::namespace::{self, IdMapper, OwnIds};
use abide_os::confine::{AliasScope, ConfineError, HiddenTree};
use abide_os::poll::wait_ready;
use abide_os::process::PidFd;
use abide_os::{
    cgroup::find::{is_group, mounts},
    program_lookup,
};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};

use crate::child::command;
use crate::control_group;
use crate::pipe_proxy;
use crate::protocol::KeeperRefusal;

/// The hidden subcommand by which this program becomes the exec helper.
pub const CONFINE_SUBCOMMAND: &str = "__confine";

/// The restrictions of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// The hidden directories and the mechanism that hides them.
    pub hidden: Option<(HiddenTree, HidingMethod)>,
    /// If set, the child can write only below these paths (Landlock).
    pub writable: Option<Vec<PathBuf>>,
}

/// How directories are hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HidingMethod {
    /// The helper creates a user and mount namespace.
    Namespace,
    /// The bubblewrap at this path creates the namespace.
    Bubblewrap(PathBuf),
    /// Landlock denies access to the contents of the directories.
    Landlock,
}

/// The confinement mechanisms of this machine. A missing mechanism has its reason as the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfinementSupport {
    /// A namespace created by the helper.
    pub namespace: Result<(), String>,
    /// A namespace created by bubblewrap, if it is installed and works.
    pub bubblewrap: Result<PathBuf, String>,
    pub landlock: Result<(), String>,
}

/// Time limit for the helper to execute the program.
const EXEC_TIMEOUT: Duration = Duration::from_secs(20);

impl Confinement {
    /// Encodes the confinement as arguments of the helper.
    pub fn encode(&self) -> Vec<Vec<u8>> {
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |flag: &str, value: &OsStr| words.extend([flag.into(), value.to_owned()]);
        if let Some((tree, hiding)) = &self.hidden {
            for directory in &tree.directories {
                add("--hide", directory.as_os_str());
            }
            match hiding {
                HidingMethod::Namespace => add("--by", "namespace".as_ref()),
                HidingMethod::Landlock => add("--by", "landlock".as_ref()),
                HidingMethod::Bubblewrap(program) => add("--by", program.as_os_str()),
            }
            for path in &tree.shown {
                add("--show", path.as_os_str());
            }
        }
        if let Some(writable) = &self.writable {
            add("--files", "read-only".as_ref());
            for path in writable {
                add("--write", path.as_os_str());
            }
        }
        words.into_iter().map(OsString::into_vec).collect()
    }
}

/// How the program reaches the pipes of its keeper.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShellPipes {
    /// It has only its standard streams.
    #[default]
    None,
    /// It is a shell, and gets a [`pipe_proxy`] on the helper's standard input. The path of its script becomes its last
    /// argument.
    Proxied,
}

/// The task of a process that was started for a pipe proxy of the shell with this pid.
#[derive(Debug, Clone, Copy)]
enum PipeProxyStage {
    Intermediate(u32),
    Proxy(u32),
}

/// The parsed arguments of the helper.
#[derive(Debug, Default)]
struct HelperArguments {
    confinement: Option<Confinement>,
    report: Option<PathBuf>,
    /// The pid of the process whose ids are to be mapped.
    map_ids_of: Option<u32>,
    pipes: ShellPipes,
    proxy: Option<PipeProxyStage>,
    probe_only: bool,
    /// The parent of the control group that this process creates and enters.
    group: Option<PathBuf>,
    argv: Vec<OsString>,
}

impl HelperArguments {
    fn parse(words: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut helper_arguments = Self::default();
        let mut tree = None::<HiddenTree>;
        let (mut hiding, mut writable) = (HidingMethod::Namespace, None::<Vec<PathBuf>>);
        let mut words = words;
        while let Some(flag) = words.next() {
            if flag == "--" {
                helper_arguments.argv = words.by_ref().collect();
                break;
            }
            let value = words.next()?;
            match flag.to_str()? {
                "--hide" => {
                    let empty = || HiddenTree { directories: vec![], shown: vec![] };
                    tree.get_or_insert_with(empty).directories.push(value.into());
                }
                "--by" if value == "namespace" => hiding = HidingMethod::Namespace,
                "--by" if value == "landlock" => hiding = HidingMethod::Landlock,
                "--by" => hiding = HidingMethod::Bubblewrap(value.into()),
                "--show" => tree.as_mut()?.shown.push(value.into()),
                "--files" => writable = Some(vec![]),
                "--write" => writable.as_mut()?.push(value.into()),
                "--report" => helper_arguments.report = Some(value.into()),
                "--map" => helper_arguments.map_ids_of = Some(value.to_str()?.parse().ok()?),
                "--pipes" => helper_arguments.pipes = ShellPipes::Proxied,
                "--start-proxy-of" => {
                    helper_arguments.proxy =
                        Some(PipeProxyStage::Intermediate(value.to_str()?.parse().ok()?));
                }
                "--proxy-of" => {
                    helper_arguments.proxy = Some(PipeProxyStage::Proxy(value.to_str()?.parse().ok()?));
                }
                "--try" => helper_arguments.probe_only = true,
                "--group" => helper_arguments.group = Some(value.into()),
                _ => return None,
            }
        }
        helper_arguments.confinement =
            Some(Confinement { hidden: tree.map(|tree| (tree, hiding)), writable });
        Some(helper_arguments)
    }
}

/// Runs the helper with its arguments. Returns only if the program was not executed.
pub fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(helper_arguments) = HelperArguments::parse(words) else { return ExitCode::from(2) };
    if let Some(pid) = helper_arguments.map_ids_of {
        return serve_id_mapping(pid);
    }
    match helper_arguments.proxy {
        Some(PipeProxyStage::Intermediate(shell)) => return pipe_proxy::run_intermediate(shell),
        Some(PipeProxyStage::Proxy(shell)) => return pipe_proxy::serve(shell),
        None => {}
    }
    // The report is opened before any directory is hidden. It closes when the program is executed.
    let mut report =
        helper_arguments.report.as_ref().and_then(|path| File::options().write(true).open(path).ok());
    let failure = confine_and_exec(&helper_arguments);
    let Err(failure) = failure else { return ExitCode::SUCCESS };
    let program_name =
        helper_arguments.argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    let text = match &failure {
        ExecFailure::Program(error) => format!("program {program_name}: {error}"),
        ExecFailure::Confine(error) => format!("confine {error}"),
    };
    match &mut report {
        // Without a reader, the exit code reports the failure.
        Some(report) => report.write_all(text.as_bytes()).ok(),
        None => io::stdout().write_all(text.as_bytes()).ok(),
    };
    ExitCode::from(126)
}

/// Why the program was not executed.
enum ExecFailure {
    Program(io::Error),
    Confine(ConfineError),
}

fn confine_and_exec(helper_arguments: &HelperArguments) -> Result<(), ExecFailure> {
    if let Some(parent) = &helper_arguments.group
        && let Err(error) = control_group::enter_new_group(parent)
    {
        let (action, path) = ("enter a control group below", parent.clone());
        return Err(ExecFailure::Confine(ConfineError::Step {
            action,
            path,
            source: io::Error::other(error),
        }));
    }
    let Some(confinement) = &helper_arguments.confinement else { return Ok(()) };
    let mut rules = FileRules { hidden: None, writable: confinement.writable.clone() };
    match &confinement.hidden {
        Some((tree, HidingMethod::Namespace)) => hide(tree).map_err(ExecFailure::Confine)?,
        Some((tree, HidingMethod::Landlock)) => rules.hidden = Some(tree.clone()),
        Some((tree, HidingMethod::Bubblewrap(program))) => {
            return Err(exec_bubblewrap(helper_arguments, tree, program));
        }
        None => {}
    }
    if rules != FileRules::default() {
        files::restrict(&rules).map_err(ExecFailure::Confine)?;
    }
    if helper_arguments.probe_only {
        return Ok(());
    }
    let Some((program, arguments)) = helper_arguments.argv.split_first() else { return Ok(()) };
    let mut program = command(program);
    program.args(arguments);
    if helper_arguments.pipes == ShellPipes::Proxied {
        program.arg(pipe_proxy::start().map_err(ExecFailure::Program)?);
    }
    Err(ExecFailure::Program(program.exec()))
}

/// Hides directories in a namespace. For root, a separate process outside the namespace maps the ids.
fn hide(tree: &HiddenTree) -> Result<(), ConfineError> {
    let mut ids = NamespaceIds { own: OwnIds::current(), mapper: None };
    let hidden = namespace::hide(tree, &mut ids);
    ids.end_mapper();
    hidden
}

/// The ids of this process, and the process that maps all ids if this one is root.
struct NamespaceIds {
    own: OwnIds,
    mapper: Option<IdMapperProcess>,
}

impl NamespaceIds {
    fn end_mapper(&mut self) {
        if let Some(mapper) = self.mapper.take() {
            mapper.end();
        }
    }
}

impl IdMapper for NamespaceIds {
    fn prepare(&mut self) {
        self.end_mapper();
        self.mapper = namespace::needs_mapper().then(IdMapperProcess::start).and_then(Result::ok);
    }

    fn map(&mut self) -> io::Result<()> {
        match &mut self.mapper {
            // A container may restrict root to mapping its own id.
            Some(mapper) => mapper.map().or_else(|_| self.own.map()),
            None => self.own.map(),
        }
    }
}

/// A process in the original namespace that maps all ids of this process on request.
struct IdMapperProcess {
    process: std::process::Child,
}

impl IdMapperProcess {
    fn start() -> io::Result<Self> {
        let process = command(OWN_PROGRAM.as_ref())
            .args([CONFINE_SUBCOMMAND, "--map"])
            .arg(std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { process })
    }

    fn map(&mut self) -> io::Result<()> {
        let (Some(to), Some(from)) = (&mut self.process.stdin, &mut self.process.stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        to.write_all(b"m")?;
        let mut answer = [0];
        from.read_exact(&mut answer)?;
        if answer == *b"y" { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    fn end(mut self) {
        drop(self.process.stdin.take());
        // The mapper exits when its input ends. It is reaped because the program must not have a child that it did not
        // start.
        self.process.wait().ok();
    }
}

/// The main loop of the mapper: maps the ids for each byte of input, until the input ends.
fn serve_id_mapping(pid: u32) -> ExitCode {
    let mut request_byte = [0];
    while io::stdin().read_exact(&mut request_byte).is_ok() {
        let answer = if namespace::map_all_ids(pid).is_ok() { b"y" } else { b"n" };
        if io::stdout().write_all(answer).and_then(|()| io::stdout().flush()).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// This program. The path stays valid if the file has been replaced since the start.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Executes bubblewrap, which executes the program, or this helper again if files are to be restricted or a pipe proxy is
/// needed.
fn exec_bubblewrap(helper_arguments: &HelperArguments, tree: &HiddenTree, bubblewrap: &Path) -> ExecFailure {
    let mut bubble = command(bubblewrap.as_os_str());
    // Without its own user namespace, root could reach the directory through `/proc/PID/root` of a process outside.
    bubble.args(["--unshare-user-try", "--dev-bind", "/", "/"]);
    let places = match tree.places(AliasScope::Reachable) {
        Ok(places) => places,
        Err(error) => return ExecFailure::Confine(error),
    };
    for place in &places {
        if !place.is_dir() {
            bubble.args(["--dev-bind", namespace::EMPTY_FILE]).arg(place);
            continue;
        }
        bubble.arg("--tmpfs").arg(place);
        for path in tree.shown_below(place) {
            bubble.arg("--bind-try").arg(path).arg(path);
        }
        bubble.arg("--remount-ro").arg(place);
    }
    for mount in mounts().into_iter().filter(|mount| is_group(&mount.mount_point)) {
        // Read-only, so that the program cannot leave its control group.
        bubble.arg("--remount-ro").arg(mount.mount_point);
    }
    if let Ok(directory) = std::env::current_dir() {
        bubble.arg("--chdir").arg(directory);
    }
    bubble.arg("--");
    let writable = helper_arguments.confinement.as_ref().and_then(|confinement| confinement.writable.clone());
    if writable.is_some() || helper_arguments.pipes == ShellPipes::Proxied {
        let inner = Confinement { hidden: None, writable };
        let own = std::env::current_exe().unwrap_or_else(|_| OWN_PROGRAM.into());
        bubble.arg(own).arg(CONFINE_SUBCOMMAND);
        bubble.args(inner.encode().into_iter().map(OsString::from_vec));
        if helper_arguments.pipes == ShellPipes::Proxied {
            bubble.args(["--pipes", "proxied"]);
        }
        bubble.arg("--");
    }
    ExecFailure::Program(bubble.args(&helper_arguments.argv).exec())
}

/// The reading end of a helper's report.
#[derive(Debug)]
pub(crate) struct ExecReportPipe {
    path: PathBuf,
    reader: OwnedFd,
}

impl ExecReportPipe {
    /// Creates a FIFO in this directory, with mode 0600.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join("confine");
        fs::remove_file(&path).ok();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let reader = open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path, reader })
    }

    /// The arguments that start a program through the helper. They precede the program and its arguments.
    pub(crate) fn prefix(&self, confinement: &[Vec<u8>], pipes: ShellPipes) -> Vec<OsString> {
        let words = confinement.iter().map(|word| OsStr::from_bytes(word).to_owned());
        let report = ["--report".into(), self.path.clone().into_os_string()];
        let pipes = match pipes {
            ShellPipes::None => vec![],
            ShellPipes::Proxied => vec!["--pipes".into(), "proxied".into()],
        };
        let head = [CONFINE_SUBCOMMAND.into()].into_iter().chain(report).chain(words);
        head.chain(pipes).chain(["--".into()]).collect()
    }

    /// Waits until the helper has executed its program.
    pub(crate) fn wait(self, helper: u32) -> Result<(), KeeperRefusal> {
        let process = PidFd::of_child(helper);
        let mut text = Vec::new();
        loop {
            let mut fds = vec![PollFd::new(&self.reader, PollFlags::IN)];
            fds.extend(process.as_ref().map(|process| PollFd::new(process, PollFlags::IN)));
            if !wait_ready(&mut fds, EXEC_TIMEOUT).is_ok_and(|ready| ready > 0) {
                return Err(KeeperRefusal::System("the exec helper does not start the program".to_owned()));
            }
            if fds.first().is_none_or(|reader| reader.revents().is_empty()) {
                return Err(KeeperRefusal::System(
                    "the exec helper ended before it started the program".to_owned(),
                ));
            }
            let mut piece = [0; 4096];
            match rustix::io::read(&self.reader, &mut piece) {
                Ok(count @ 1..) => text.extend_from_slice(piece.get(..count).unwrap_or_default()),
                // The helper opened the FIFO and closed it again.
                Ok(_) => break,
                Err(_) => {}
            }
        }
        fs::remove_file(&self.path).ok();
        let text = String::from_utf8_lossy(&text).into_owned();
        match text.split_once(' ') {
            None => Ok(()),
            Some(("program", error)) => Err(KeeperRefusal::Program(error.to_owned())),
            Some((_, error)) => {
                Err(KeeperRefusal::System(format!("the process cannot be isolated: {error}")))
            }
        }
    }
}

/// The program that starts a confined program.
pub(crate) fn helper_program() -> &'static OsStr {
    OWN_PROGRAM.as_ref()
}

/// Tests whether a process of this user can be moved into a control group below `base`. The created group is removed by
/// a later sweep. `program` is the path of this program.
pub fn probe_group(program: &Path, base: &Path) -> Result<(), String> {
    let output = command(program.as_os_str())
        .args([CONFINE_SUBCOMMAND, "--try", "it", "--group"])
        .arg(base)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() {
        Ok(())
    } else {
        Err(text.strip_prefix("confine ").map_or(text.clone(), str::to_owned))
    }
}

/// Tests each mechanism in a separate process. `program` is the path of this program, `hidden` the directories to hide,
/// and `path` the search path for programs.
pub fn probe_support(program: &Path, hidden: &[PathBuf], path: &str) -> ConfinementSupport {
    let probe = |confinement: &Confinement| {
        let output = command(program.as_os_str())
            .args([CONFINE_SUBCOMMAND, "--try", "it"])
            .args(confinement.encode().into_iter().map(OsString::from_vec))
            // Bubblewrap needs a program to execute. It gets this helper with no task.
            .arg("--")
            .arg(program)
            .args([CONFINE_SUBCOMMAND, "--try", "it"])
            .current_dir("/")
            .env_clear()
            .env("PATH", path)
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text).trim().to_owned();
                Err(text.strip_prefix("confine ").map_or(text.clone(), str::to_owned))
            }
            Err(error) => Err(error.to_string()),
        }
    };
    let hide_by = |hiding: HidingMethod| {
        let tree = HiddenTree { directories: hidden.to_vec(), shown: vec![program.to_owned()] };
        probe(&Confinement { hidden: Some((tree, hiding)), writable: None })
    };
    let bubblewrap =
        program_lookup::find("bwrap", path).ok_or_else(|| "bubblewrap (bwrap) is not installed".to_owned());
    ConfinementSupport {
        namespace: hide_by(HidingMethod::Namespace),
        bubblewrap: bubblewrap
            .and_then(|program| hide_by(HidingMethod::Bubblewrap(program.clone())).map(|()| program)),
        landlock: probe(&Confinement { hidden: None, writable: Some(vec![]) }),
    }
}
