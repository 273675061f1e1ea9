//! What a keeper can be told and what it says: plain values, with their bounds. How they travel is in [`crate::link`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::group::GroupSpec;
use crate::identity::ProcessIdentity;

/// The number of a command in its keeper, from 1. Number 0 is the held child's own output.
pub type JobId = u64;

/// The longest command text or input that a keeper takes in one order.
pub const MAX_ORDER_BYTES: usize = 8 << 20;
/// The most that a result carries per stream.
pub const MAX_KEPT_BYTES: u64 = 32 << 20;
/// The most bytes that one [`KeeperRequest::Read`] is answered with, whatever it asks for.
pub const MAX_PAGE_BYTES: u64 = 1 << 20;

/// What to hold, told to a new keeper once. It carries secrets (the environment), so it is never written to disk.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeeperSpec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    #[serde(with = "crate::path_bytes")]
    pub cwd: PathBuf,
    /// How the child is connected.
    pub shape: ChildMode,
    /// How many bytes of output are kept on disk.
    pub retention: u64,
    /// Whatever the client wants to find again; opaque here.
    pub meta: Vec<u8>,
    /// Who answers for this keeper.
    pub owner: KeeperOwner,
    /// What happens to output beyond the retention. A starter of an earlier version does not say.
    #[serde(deserialize_with = "or_default")]
    pub overflow: SpoolOverflow,
    /// How the child is confined ([`crate::confine::Confinement::encode`]); empty if it is not. A starter of an earlier version
    /// does not say.
    #[serde(deserialize_with = "or_default")]
    pub confinement: Vec<Vec<u8>>,
    /// The control group of the child; none if it gets none of its own. A starter of an earlier version does not say.
    #[serde(deserialize_with = "or_default")]
    pub group: Option<GroupSpec>,
}

impl KeeperSpec {
    /// Whether the child is a shell that opens files of its keeper. A confined process may not look into another one outside,
    /// so such a child is confined together with its keeper.
    pub(crate) fn is_confined_with_keeper(&self) -> bool {
        let takes_commands =
            matches!(self.shape, ChildMode::Shell(_) | ChildMode::Pty { script: Some(_), .. });
        takes_commands && !self.confinement.is_empty()
    }
}

/// What happens when a spool holds as much as its retention.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpoolOverflow {
    /// The oldest output is dropped. Readers are told how much is missing.
    #[default]
    DropOldest,
    /// The child's pipes are not read until a reader has released output ([`KeeperRequest::Release`]).
    Block,
}

/// Which orders a keeper understands: [`KeeperRequest::Release`] since 1. Keepers outlive the program that started them.
pub const PROTOCOL: u32 = 1;

/// The last field of a message may be missing: messages of earlier versions end before it.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(T::deserialize(deserializer).unwrap_or_default())
}

/// How the child is connected.
#[derive(Debug, Serialize, Deserialize)]
pub enum ChildMode {
    /// Three pipes; its output is job 0.
    Pipes,
    /// A shell that takes commands, see [`ShellTemplates`].
    Shell(ShellTemplates),
    /// A terminal, whose output is job 0, stream stdout. With a script, commands can be typed into it.
    Pty {
        /// Height in lines.
        rows: u16,
        /// Width in columns.
        cols: u16,
        /// How to type a command, if the program is a shell.
        script: Option<ShellTemplates>,
    },
}

/// The texts that make a shell take commands. `{c}` is the path a command is sourced from, `{r}` the path that its
/// status is reported to, `{n}` the nonce, `{i}`, `{o}` and `{e}` the paths of the three standard streams.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ShellTemplates {
    /// Run once; it has no report.
    pub init: String,
    /// If not empty, the line that sources the slot from `{s}`. For a shell that reads its script byte by byte, which
    /// makes a long line slow.
    pub line: String,
    /// One command: source `{c}`, then report `{n}`, the status and the shell's flags to `{r}`.
    pub slot: String,
    /// Brings the shell's own streams back, and switches tracing off.
    pub repair: String,
    /// Put before a command when tracing was on before the repair.
    pub trace: String,
    /// Put before the next slots when a shell went past all others without a report.
    pub rescue: String,
    /// On a terminal: reports `{n}` and `began` to `{r}`. Put before a command.
    pub began: String,
    /// Put before every command. It may report `{n}` and `broken` to `{r}`: the status of this command is unknown. On a
    /// terminal, `{w}` is what the shell sources before it shows its prompt.
    pub guard: String,
    /// SIGINT takes the shell back to its script or prompt, without a report.
    pub is_interruptible: bool,
    /// A shell that is stopped while it expands a substitution comes to its trap only after the word. Without a free
    /// descriptor no program starts and no file is opened; the trap raises the limit again.
    pub needs_descriptor_limit: bool,
    /// A signal that interrupts the shell while it opens a FIFO reaches its trap only after the next word.
    pub defers_trap_in_open: bool,
}

/// Who answers for a keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeeperOwner {
    /// A running program; when it is dead, another may adopt the keeper.
    Process(ProcessIdentity),
    /// Nobody: it belongs to the home, until a person ends it.
    Home,
}

/// An order with the tag that its answer will carry.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaggedRequest {
    /// Chosen by the client; 0 is kept for news that nobody asked for.
    pub tag: u64,
    /// What to do.
    pub act: KeeperRequest,
}

/// What a keeper can be told. Keepers outlive the program that started them, so new orders come last.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeeperRequest {
    /// The first order on a socket: proof that the client may read the keeper's directory.
    Hello(#[serde(with = "serde_bytes")] Vec<u8>),
    /// How things are.
    Status,
    /// Become the owner, if the present one is dead or is oneself.
    Own(KeeperOwner),
    /// Run a command in the shell.
    Run(ShellCommand),
    /// Text for the running command's (or the child's) input.
    Input {
        /// The text.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Nothing more will come.
        eof: bool,
    },
    /// Stop the running command: SIGTERM, a grace, SIGKILL.
    Interrupt,
    /// A signal for the child's process group.
    Signal(i32),
    /// A new size for the terminal.
    Resize {
        /// Height in lines.
        rows: u16,
        /// Width in columns.
        cols: u16,
    },
    /// Read from the spool.
    Read(JobOutputRange),
    /// Everything of a job from these offsets on, then [`KeeperResponse::Ended`].
    Follow {
        /// Which job.
        job: JobId,
        /// Where to begin: stdout, stderr.
        from: [u64; 2],
    },
    /// End the child and everything below it, then go away.
    End {
        /// Without SIGTERM and grace.
        force: bool,
    },
    /// Text for the input of a child on pipes, once for each key: said again, it is done already.
    Write {
        /// Chosen by the client.
        key: u64,
        /// The text.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Nothing more will come.
        eof: bool,
    },
    /// As [`KeeperRequest::Follow`], but the child is held back instead of running away from whoever follows.
    FollowClosely {
        /// Which job.
        job: JobId,
        /// Where to begin: stdout, stderr.
        from: [u64; 2],
    },
    /// Text for the child, answered by [`KeeperResponse::Settled`] when it has dealt with it.
    Say(WriteAndWait),
    /// As [`KeeperRequest::End`] with its grace, except for the keepers in this directory and what they hold: the child had them
    /// started for whoever comes after it.
    EndExcept {
        /// The directory.
        keepers: String,
    },
    /// Nobody needs a job's output before these offsets any more. Known since protocol 1.
    Release {
        /// Which job.
        job: JobId,
        /// Up to where: stdout, stderr.
        before: [u64; 2],
    },
}

/// Text for a child that is no shell of ours, and how its answer is waited for.
#[derive(Debug, Serialize, Deserialize)]
pub struct WriteAndWait {
    /// The text; with none, the child is only waited for.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// What the child prints when it wants more, if that is known.
    #[serde(with = "serde_bytes")]
    pub prompt: Vec<u8>,
    /// How long it has to be silent where the kernel does not tell what it waits for.
    pub quiet_ms: u64,
    /// When the waiting is given up.
    pub timeout_ms: u64,
}

/// A command for the shell.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShellCommand {
    /// The text that the shell sources.
    #[serde(with = "serde_bytes")]
    pub text: Vec<u8>,
    /// What it reads.
    pub input: CommandInput,
    /// After how many milliseconds it is stopped.
    pub timeout_ms: Option<u64>,
    /// How many bytes of each stream the result carries; the first ones are kept.
    pub keep: u64,
    /// Whether the client follows the output as it comes.
    pub follow: bool,
}

/// What a command reads.
#[derive(Debug, Serialize, Deserialize)]
pub enum CommandInput {
    /// End-of-file at once.
    Nothing,
    /// This text, then end-of-file.
    Text(#[serde(with = "serde_bytes")] Vec<u8>),
    /// What later [`KeeperRequest::Input`] orders bring.
    Open,
}

/// A stretch of a job's output.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct JobOutputRange {
    /// Which job.
    pub job: JobId,
    /// Which of its streams.
    pub stream: OutputStream,
    /// From which byte.
    pub offset: u64,
    /// How many bytes at most.
    pub limit: u64,
}

/// An output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputStream {
    /// Standard output, and all output of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    /// Both, in the order of the arrays in this module.
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// Its place in the arrays of this module.
    pub fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }
}

/// News with the tag of the order that it answers, or 0.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaggedResponse {
    /// The order's tag.
    pub tag: u64,
    /// What there is to say.
    pub news: KeeperResponse,
}

/// What a keeper says.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeeperResponse {
    /// It was done.
    Done,
    /// It was not.
    Refused(KeeperRefusal),
    /// How things are.
    Status(Box<KeeperStatus>),
    /// The command has been given to the shell.
    Started(JobId),
    /// The command has ended; answers [`KeeperRequest::Run`].
    Ran(Box<CommandResult>),
    /// Bytes of a job; answers [`KeeperRequest::Follow`] and a followed [`KeeperRequest::Run`].
    Output(OutputChunk),
    /// Nothing more will come of this job; answers [`KeeperRequest::Follow`].
    Ended(ExecOutcome),
    /// Answers [`KeeperRequest::Read`].
    Piece(OutputPage),
    /// The held child has ended.
    Exited(ChildExit),
    /// Answers [`KeeperRequest::Say`].
    Settled(InputConsumed),
    /// The shell could not be called back and was replaced by a new one, which is named here. Said before the result of
    /// the command that was stopped; if no command was running, the next result is the first of the new shell.
    ShellRestarted(ProcessIdentity),
}

/// How a child was found after it was told something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputConsumed {
    /// What it does now.
    pub rest: IdleState,
    /// How much each stream had had by then. All of it is said before or after this news, if it is followed.
    pub printed: [u64; 2],
    /// How it ended, if it has.
    pub exit: Option<ChildExit>,
}

/// What a child does that was told something, from known to guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdleState {
    /// It has taken everything and reads its input, and nothing else.
    Reads,
    /// It waits for several things, its input among them, and has printed its prompt.
    Prompts,
    /// It waits for several things, its input among them, and was silent: whether it has finished is guessed.
    Waits,
    /// The kernel does not tell what it waits for, and it was silent: whether it has finished is guessed.
    Silent,
    /// It is at work, and the waiting was given up.
    Busy,
    /// It has ended.
    Ended,
}

/// Bytes of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct OutputChunk {
    /// Which job.
    pub job: JobId,
    /// Which stream.
    pub stream: OutputStream,
    /// Where in the stream they stand.
    pub offset: u64,
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Why the keeper said no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum KeeperRefusal {
    /// The secret was wrong.
    #[error("the secret is wrong")]
    Stranger,
    /// Another living process owns it.
    #[error("another runtime owns this session")]
    Owned,
    /// A command is running.
    #[error("a command is running")]
    Busy,
    /// No command is running.
    #[error("no command is running")]
    NotRunning,
    /// The child has ended.
    #[error("the process has ended")]
    Ended,
    /// The running command does not read from us.
    #[error("the command takes no input")]
    NoInput,
    /// The keeper holds as much as it may.
    #[error("{0}")]
    Full(String),
    /// This is not kept, or never was.
    #[error("no such output is kept")]
    Unknown,
    /// The program is not there or cannot be executed.
    #[error("cannot start {0}")]
    Program(String),
    /// The working directory cannot be used.
    #[error("cannot use the directory {0}")]
    Directory(String),
    /// The child cannot do that.
    #[error("{0}")]
    Unsupported(String),
    /// The system refused.
    #[error("{0}")]
    System(String),
}

/// How things are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeeperStatus {
    /// The keeper itself.
    pub keeper: ProcessIdentity,
    /// The held child.
    pub child: ProcessIdentity,
    /// Who answers for it.
    pub owner: KeeperOwner,
    /// The running job and when it started, in microseconds since the epoch.
    pub running: Option<(JobId, u64)>,
    /// The newest ended job.
    pub last: Option<ExecOutcome>,
    /// How the child ended, if it has.
    pub exit: Option<ChildExit>,
    /// How many commands were run.
    pub jobs: u64,
    /// In microseconds since the epoch.
    pub created_at: u64,
    /// In microseconds since the epoch.
    pub last_activity_at: u64,
    /// What the client wanted to find again.
    #[serde(with = "serde_bytes")]
    pub meta: Vec<u8>,
    /// Which orders the keeper understands, see [`PROTOCOL`]; 0 for keepers of earlier versions.
    #[serde(deserialize_with = "or_default")]
    pub protocol: u32,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOutcome {
    /// Which job.
    pub job: JobId,
    /// Exit code, 128 + n for death by signal n.
    pub code: i32,
    /// How long it took.
    pub duration_us: u64,
    /// It was stopped because its time was over.
    pub timed_out: bool,
    /// It was stopped because somebody asked.
    pub cancelled: bool,
    /// The shell ended with it.
    pub exit: Option<ChildExit>,
    /// The shell did not take the command, or could not be brought back from it.
    pub lost: Option<String>,
}

/// The result of a command, with the first bytes that it printed.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommandResult {
    /// How it ended.
    pub outcome: ExecOutcome,
    /// The first bytes of stdout.
    #[serde(with = "serde_bytes")]
    pub stdout: Vec<u8>,
    /// The first bytes of stderr.
    #[serde(with = "serde_bytes")]
    pub stderr: Vec<u8>,
    /// How many bytes each stream had.
    pub printed: [u64; 2],
}

/// How the held child ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildExit {
    /// Exit code, 128 + n for death by signal n.
    pub code: i32,
    /// In microseconds since the epoch.
    pub at: u64,
}

/// A stretch of output, and how it stands in the whole.
#[derive(Debug, Serialize, Deserialize)]
pub struct OutputPage {
    /// Where the bytes begin; later than asked if what was asked for has been dropped.
    pub offset: u64,
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// How many bytes the stream has had so far.
    pub printed: u64,
    /// How many of its first bytes are no longer kept.
    pub dropped: u64,
    /// How the job ended, if it has.
    pub outcome: Option<ExecOutcome>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_version_before_are_read_without_their_last_field() {
        let own = ProcessIdentity::own();
        let spec = KeeperSpec {
            argv: vec!["sh".to_owned()],
            env: vec![],
            cwd: "/".into(),
            shape: ChildMode::Pipes,
            retention: 7,
            meta: vec![1, 2],
            owner: KeeperOwner::Process(own.clone()),
            overflow: SpoolOverflow::Block,
            confinement: vec![],
            group: None,
        };
        let mut bytes = postcard::to_stdvec(&spec).unwrap();
        assert_eq!(postcard::from_bytes::<KeeperSpec>(&bytes).unwrap().overflow, SpoolOverflow::Block);
        // Without the group, and then without the confinement.
        bytes.pop();
        assert_eq!(postcard::from_bytes::<KeeperSpec>(&bytes).unwrap().overflow, SpoolOverflow::Block);
        bytes.pop();
        assert_eq!(postcard::from_bytes::<KeeperSpec>(&bytes).unwrap().overflow, SpoolOverflow::Block);
        bytes.pop();
        let read: KeeperSpec = postcard::from_bytes(&bytes).unwrap();
        assert_eq!((read.overflow, read.owner), (SpoolOverflow::DropOldest, spec.owner));
        let status = KeeperStatus {
            keeper: own.clone(),
            child: own,
            owner: KeeperOwner::Home,
            running: None,
            last: None,
            exit: None,
            jobs: 3,
            created_at: 1,
            last_activity_at: 2,
            meta: vec![3],
            protocol: PROTOCOL,
        };
        let answer = TaggedResponse { tag: 1, news: KeeperResponse::Status(Box::new(status)) };
        let mut bytes = postcard::to_stdvec(&answer).unwrap();
        bytes.pop();
        let read: TaggedResponse = postcard::from_bytes(&bytes).unwrap();
        let KeeperResponse::Status(read) = read.news else { panic!("it is a status") };
        assert_eq!((read.protocol, read.meta), (0, vec![3]));
    }
}
