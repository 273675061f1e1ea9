//! The messages between clients and keepers, with their bounds. The transport is in [`crate::framed_socket`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control_group::GroupSpec;
use crate::identity::ProcessIdentity;

/// The number of a command in its keeper, from 1. Number 0 is the output of the child itself.
pub type JobId = u64;

/// Maximum size of a command text or input in one request, in bytes.
pub const MAX_REQUEST_BYTES: usize = 8 << 20;
/// Maximum size of each stream in a result, in bytes.
pub const MAX_RESULT_BYTES: u64 = 32 << 20;
/// Maximum size of the response to one [`KeeperRequest::Read`], in bytes.
pub const MAX_PAGE_BYTES: u64 = 1 << 20;

/// The child of a new keeper. It contains secrets (the environment), so it is never written to disk.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeeperSpec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    /// The working directory. [`Self::cwd_links`] says whether symbolic links in it are followed.
    #[serde(with = "crate::path_bytes")]
    pub cwd: PathBuf,
    pub shape: ChildMode,
    /// Output kept on disk, in bytes.
    pub retention: u64,
    /// Opaque data of the client, returned in the status.
    pub meta: Vec<u8>,
    pub owner: KeeperOwner,
    /// The reaction to output beyond the retention. Missing in messages of earlier versions.
    #[serde(deserialize_with = "default_if_missing")]
    pub overflow: SpoolOverflow,
    /// The encoded confinement of the child ([`crate::confine::Confinement::encode`]); empty for none. Missing in
    /// messages of earlier versions.
    #[serde(deserialize_with = "default_if_missing")]
    pub confinement: Vec<Vec<u8>>,
    /// The control group of the child; None if it gets none. Missing in messages of earlier versions.
    #[serde(deserialize_with = "default_if_missing")]
    pub group: Option<GroupSpec>,
    /// Missing in messages of earlier versions.
    #[serde(deserialize_with = "default_if_missing")]
    pub cwd_links: LinkPolicy,
}

/// The treatment of symbolic links in a working directory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkPolicy {
    #[default]
    Follow,
    /// The path was resolved earlier. A component that is a link was replaced since then, and the child is not started.
    Refuse,
}

/// The reaction to a spool that has reached its retention.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpoolOverflow {
    /// The oldest output is dropped. Readers are told the amount.
    #[default]
    DropOldest,
    /// The child's pipes are not read until a client releases output ([`KeeperRequest::Release`]).
    Block,
}

/// The version of the protocol. Version 1 added [`KeeperRequest::Release`], version 2
/// [`KeeperRequest::FindWritten`]. Keepers outlive the program that started them, so clients check it.
pub const PROTOCOL_VERSION: u32 = 2;

/// Deserializes a last field that is missing in messages of earlier versions.
pub(crate) fn default_if_missing<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(T::deserialize(deserializer).unwrap_or_default())
}

/// The kind of the connection between keeper and child.
#[derive(Debug, Serialize, Deserialize)]
pub enum ChildMode {
    /// Three pipes. The output is job 0.
    Pipes,
    /// A shell that takes commands; see [`ShellTemplates`].
    Shell(ShellTemplates),
    /// A pseudo-terminal. Its output is stdout of job 0. With a script, commands can be typed into it.
    Pty {
        /// Height in lines.
        rows: u16,
        /// Width in columns.
        cols: u16,
        /// The templates for typed commands, if the program is a shell.
        script: Option<ShellTemplates>,
    },
}

/// Script templates that make a shell take commands. `{c}` is the path from which a command is sourced, `{r}` the path
/// of the report pipe, `{n}` the nonce, and `{i}`, `{o}` and `{e}` the paths of the three standard streams.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ShellTemplates {
    /// Executed once, without a report.
    pub init: String,
    /// If not empty, the line that sources the slot from `{s}`. It is for shells that read their script byte by byte,
    /// which makes long lines slow.
    pub line: String,
    /// One command: sources `{c}`, then reports `{n}`, the status and the shell's flags to `{r}`.
    pub slot: String,
    /// Restores the shell's standard streams, and disables tracing.
    pub repair: String,
    /// Prefix of a command, if tracing was on before the repair.
    pub trace: String,
    /// Sent before new slots if a shell passed all earlier ones without a report.
    pub rescue: String,
    /// Prefix of a command on a terminal: reports `{n}` and `began` to `{r}`.
    pub began: String,
    /// Prefix of every command. It may report `{n}` and `broken` to `{r}`, which means that the status of this command
    /// is unknown. On a terminal, the shell sources `{w}` before it shows its prompt.
    pub guard: String,
    /// SIGINT makes the shell return to its script or prompt, without a report.
    pub is_interruptible: bool,
    /// True if a shell that is stopped while it expands a substitution executes the word before its trap. Other shells
    /// leave it at SIGINT, and could not do so without descriptors.
    pub executes_word_before_trap: bool,
}

/// The owner of a keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeeperOwner {
    /// A running program. After its death another one may adopt the keeper.
    Process(ProcessIdentity),
    /// No process: the keeper belongs to the home and stays until it is ended explicitly.
    Home,
}

/// Identifies a request on its connection, and its responses. Chosen by the client; 0 is reserved for unsolicited
/// responses.
pub type RequestTag = u64;

/// A request and the tag of its response.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaggedRequest {
    pub tag: RequestTag,
    pub act: KeeperRequest,
}

/// A request to a keeper. Keepers outlive the program that started them, so new variants are appended.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeeperRequest {
    /// The first request on a socket. The secret proves that the client may read the keeper's directory.
    Hello(#[serde(with = "serde_bytes")] Vec<u8>),
    Status,
    /// Changes the owner, if the present one is dead or is the caller.
    Own(KeeperOwner),
    /// Runs a command in the shell.
    Run(ShellCommand),
    /// Input for the running command, or for the child if there is none.
    Input {
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Closes the input after these bytes.
        eof: bool,
    },
    /// Stops the running command: SIGTERM, grace period, SIGKILL.
    Interrupt,
    /// Sends a signal to the child's process group.
    Signal(i32),
    /// Changes the size of the terminal.
    Resize {
        /// Height in lines.
        rows: u16,
        /// Width in columns.
        cols: u16,
    },
    /// Reads from the spool.
    Read(JobOutputRange),
    /// Sends all output of a job from these offsets on, then [`KeeperResponse::Ended`].
    Follow {
        job: JobId,
        /// First offsets of stdout and stderr.
        from: [u64; 2],
    },
    /// Ends the child and all its descendants, then exits.
    End {
        /// Skips SIGTERM and the grace period.
        force: bool,
    },
    /// Input for a child on pipes. `key` is an idempotency key: a repeated request has no effect.
    Write {
        key: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Closes the input after these bytes.
        eof: bool,
    },
    /// Like [`KeeperRequest::Follow`], with backpressure: the child's pipes are not read while the client lags.
    FollowClosely {
        job: JobId,
        /// First offsets of stdout and stderr.
        from: [u64; 2],
    },
    /// Input for the child, answered by [`KeeperResponse::Settled`] when the child has processed it.
    Say(WriteAndWait),
    /// Like [`KeeperRequest::End`] with the grace period, but spares the keepers in this directory and their children.
    /// The child started them for its successor.
    EndExcept {
        keepers: String,
    },
    /// Releases the output of a job before these offsets. Since protocol 1.
    Release {
        job: JobId,
        /// Offsets of stdout and stderr; bytes before them may be deleted.
        before: [u64; 2],
    },
    /// Asks which of these keys of [`KeeperRequest::Write`] were accepted. Since protocol 2.
    FindWritten {
        keys: Vec<u64>,
    },
}

/// Input for a child that is not a command shell, and the conditions of the wait.
#[derive(Debug, Serialize, Deserialize)]
pub struct WriteAndWait {
    /// May be empty; then the request only waits.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The prompt of the child, if it is known; otherwise empty.
    #[serde(with = "serde_bytes")]
    pub prompt: Vec<u8>,
    /// Required time without output, in milliseconds, where the kernel does not show what the child waits for.
    pub quiet_ms: u64,
    /// Timeout of the wait, in milliseconds.
    pub timeout_ms: u64,
}

/// A command for the shell.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShellCommand {
    /// Sourced by the shell.
    #[serde(with = "serde_bytes")]
    pub text: Vec<u8>,
    pub input: CommandInput,
    /// Timeout in milliseconds; None for no timeout.
    pub timeout_ms: Option<u64>,
    /// Maximum bytes of each stream in the result. The first bytes are kept.
    pub keep: u64,
    /// Whether the client gets the output while the command runs.
    pub follow: bool,
}

/// Standard input of a command.
#[derive(Debug, Serialize, Deserialize)]
pub enum CommandInput {
    /// End-of-file at once.
    Nothing,
    /// This text, then end-of-file.
    Text(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The bytes of later [`KeeperRequest::Input`] requests.
    Open,
}

/// A range of a job's output.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct JobOutputRange {
    pub job: JobId,
    pub stream: OutputStream,
    pub offset: u64,
    /// Maximum number of bytes.
    pub limit: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputStream {
    /// Standard output, and all output of a terminal.
    Stdout,
    Stderr,
}

impl OutputStream {
    /// In the order of the arrays in this module.
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// `stdout` or `stderr`: the name on the wire and of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// The index in the arrays of this module.
    pub fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }
}

/// A response with the tag of its request.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaggedResponse {
    /// The tag of the request, or 0 for an unsolicited response.
    pub tag: RequestTag,
    pub news: KeeperResponse,
}

/// A response of a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeeperResponse {
    /// The request was executed.
    Done,
    /// The request was refused.
    Refused(KeeperRefusal),
    Status(Box<KeeperStatus>),
    /// The command was sent to the shell.
    Started(JobId),
    /// The command has ended; answers [`KeeperRequest::Run`].
    Ran(Box<CommandResult>),
    /// Output of a job; answers [`KeeperRequest::Follow`] and a followed [`KeeperRequest::Run`].
    Output(OutputChunk),
    /// The job has ended and all its output was sent; answers [`KeeperRequest::Follow`].
    Ended(ExecOutcome),
    /// Answers [`KeeperRequest::Read`].
    Piece(OutputPage),
    /// The child has exited.
    Exited(ChildExit),
    /// Answers [`KeeperRequest::Say`].
    Settled(InputConsumed),
    /// The shell could not be recovered and was replaced by this one. It precedes the result of the stopped command. If
    /// no command was running, the next result is the first of the new shell.
    ShellRestarted(ProcessIdentity),
    /// Answers [`KeeperRequest::FindWritten`].
    Written {
        keys: Vec<u64>,
    },
    /// A signal had stopped the child, and it was continued. The number of times so far.
    ChildResumed(u64),
}

/// The state of a child after it got input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputConsumed {
    pub rest: IdleState,
    /// Length of each stream at that time. If the output is followed, all of it is sent before or after this response.
    pub printed: [u64; 2],
    /// Set if the child has exited.
    pub exit: Option<ChildExit>,
}

/// The state of a child after it got input, from certain to guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdleState {
    /// It has consumed all input and is blocked in reading more.
    Reads,
    /// It waits for several events including input, and has printed its prompt.
    Prompts,
    /// It waits for several events including input, and printed nothing for the required time. Whether it has finished
    /// is a guess.
    Waits,
    /// The kernel does not show what it waits for, and it printed nothing for the required time. Whether it has
    /// finished is a guess.
    Silent,
    /// It was still working at the timeout.
    Busy,
    Ended,
}

/// Output of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct OutputChunk {
    pub job: JobId,
    pub stream: OutputStream,
    /// Offset of the first byte in the stream.
    pub offset: u64,
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Why the keeper refused a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum KeeperRefusal {
    /// The client sent a wrong secret.
    #[error("the secret is wrong")]
    Stranger,
    /// Another living process owns the keeper.
    #[error("another runtime owns this session")]
    Owned,
    #[error("a command is running")]
    Busy,
    #[error("no command is running")]
    NotRunning,
    #[error("the process has ended")]
    Ended,
    /// The running command has no input pipe.
    #[error("the command takes no input")]
    NoInput,
    /// A limit of the keeper is reached.
    #[error("{0}")]
    Full(String),
    /// The output does not exist or has been dropped.
    #[error("this output is no longer kept")]
    Unknown,
    /// The program does not exist or cannot be executed.
    #[error("cannot start {0}")]
    Program(String),
    /// The working directory cannot be used.
    #[error("cannot use the directory {0}")]
    Directory(String),
    /// The child does not support the request.
    #[error("{0}")]
    Unsupported(String),
    /// A system call failed.
    #[error("{0}")]
    System(String),
}

/// The status of a keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeeperStatus {
    pub keeper: ProcessIdentity,
    pub child: ProcessIdentity,
    pub owner: KeeperOwner,
    /// The running job and its start time, in microseconds since the Unix epoch.
    pub running: Option<(JobId, u64)>,
    /// The last ended job.
    pub last: Option<ExecOutcome>,
    /// Set if the child has exited.
    pub exit: Option<ChildExit>,
    /// Number of commands so far.
    pub jobs: u64,
    /// Microseconds since the Unix epoch.
    pub created_at: u64,
    /// Microseconds since the Unix epoch.
    pub last_activity_at: u64,
    /// The opaque data of [`KeeperSpec::meta`].
    #[serde(with = "serde_bytes")]
    pub meta: Vec<u8>,
    /// The protocol version of the keeper, see [`PROTOCOL_VERSION`]; 0 for keepers of earlier versions.
    #[serde(deserialize_with = "default_if_missing")]
    pub protocol: u32,
}

/// The end of a job: exit code, duration and the reason of a stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOutcome {
    pub job: JobId,
    /// Exit code; 128 + n for a death by signal n.
    pub code: i32,
    pub duration_us: u64,
    /// The command was stopped by its timeout.
    pub timed_out: bool,
    /// The command was stopped by a request.
    pub cancelled: bool,
    /// Set if the shell exited with the command.
    pub exit: Option<ChildExit>,
    /// Why the shell did not run the command, or had to be replaced.
    pub lost: Option<String>,
}

/// The result of a command, with the first bytes of its output.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommandResult {
    pub outcome: ExecOutcome,
    #[serde(with = "serde_bytes")]
    pub stdout: Vec<u8>,
    #[serde(with = "serde_bytes")]
    pub stderr: Vec<u8>,
    /// Total length of each stream, in bytes.
    pub printed: [u64; 2],
}

impl CommandResult {
    /// The result of a command whose output was followed.
    pub(crate) fn without_output(outcome: ExecOutcome) -> Self {
        Self { outcome, stdout: Vec::new(), stderr: Vec::new(), printed: [0; 2] }
    }
}

/// The exit of a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildExit {
    /// Exit code; 128 + n for a death by signal n.
    pub code: i32,
    /// Microseconds since the Unix epoch.
    pub at: u64,
}

/// A range of output, and its position in the stream.
#[derive(Debug, Serialize, Deserialize)]
pub struct OutputPage {
    /// Offset of the first byte. Larger than requested if earlier bytes have been dropped.
    pub offset: u64,
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// Length of the stream so far, in bytes.
    pub printed: u64,
    /// Number of dropped bytes at the start of the stream.
    pub dropped: u64,
    /// Set if the job has ended.
    pub outcome: Option<ExecOutcome>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_previous_version_lack_the_last_field_and_are_read() {
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
            cwd_links: LinkPolicy::Refuse,
        };
        let mut bytes = postcard::to_stdvec(&spec).unwrap();
        assert_eq!(postcard::from_bytes::<KeeperSpec>(&bytes).unwrap().overflow, SpoolOverflow::Block);
        // The encoding without the link policy, then without the group, and then also without the confinement.
        bytes.pop();
        assert_eq!(postcard::from_bytes::<KeeperSpec>(&bytes).unwrap().cwd_links, LinkPolicy::Follow);
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
            protocol: PROTOCOL_VERSION,
        };
        let answer = TaggedResponse { tag: 1, news: KeeperResponse::Status(Box::new(status)) };
        let mut bytes = postcard::to_stdvec(&answer).unwrap();
        bytes.pop();
        let read: TaggedResponse = postcard::from_bytes(&bytes).unwrap();
        let KeeperResponse::Status(read) = read.news else { panic!("it is a status") };
        assert_eq!((read.protocol, read.meta), (0, vec![3]));
    }
}
