//! A process inside a shell's confinement that holds the keeper's pipes, so that the shell can open them by path.
//!
//! A shell opens the pipes of its keeper through `/proc/PID/fd`. A confined shell may not inspect processes outside its
//! user namespace or Landlock domain, and the keeper stays outside. So the exec helper starts a proxy after it has
//! confined itself. The keeper sends the proxy the reading end of each pipe (`SCM_RIGHTS`), and the shell opens
//! `/proc/PROXY/fd/N`.
//!
//! The confined programs can kill, stop or trace the proxy. It holds nothing but pipes that the shell can open anyway.
//! The keeper waits for its answers for a bounded time, and replaces the shell together with a proxy that is lost.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use abide_os::poll::wait_ready;
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use rustix::process::Signal;

use crate::child::command;
use crate::confine::{CONFINE_SUBCOMMAND, OWN_PROGRAM};
use crate::output_pipes::proc_fd_path;
use crate::process_tree::ProcessKey;

/// How a shell opens the pipes of its keeper.
#[derive(Debug)]
pub(crate) enum PipeAccess {
    /// Through `/proc/KEEPER/fd`.
    Direct,
    /// Through `/proc/PROXY/fd`.
    Proxied(PipeProxy),
}

impl PipeAccess {
    /// Makes pipes available to the shell. Call it for each new pipe, before its path is used.
    pub(crate) fn share<'a>(&mut self, ends: impl IntoIterator<Item = &'a OwnedFd>) -> Result<(), Errno> {
        match self {
            Self::Direct => Ok(()),
            Self::Proxied(proxy) => ends.into_iter().try_for_each(|end| proxy.share(end)),
        }
    }

    /// The path by which the shell opens a pipe.
    pub(crate) fn path(&self, end: &OwnedFd) -> String {
        match self {
            Self::Direct => proc_fd_path(end),
            Self::Proxied(proxy) => proxy.path(end),
        }
    }
}

/// The keeper's connection to a running proxy.
#[derive(Debug)]
pub(crate) struct PipeProxy {
    socket: OwnedFd,
    process: ProcessKey,
    /// The proxy's descriptor for each of the keeper's descriptors.
    shared: BTreeMap<RawFd, u32>,
    response_timeout: Duration,
}

impl PipeProxy {
    /// From now on a response is expected sooner, because programs of the session can stop the proxy.
    pub(crate) fn finish_start(&mut self) {
        self.response_timeout = RESPONSE_TIMEOUT;
    }

    fn share(&mut self, end: &OwnedFd) -> Result<(), Errno> {
        send_fd(&self.socket, end)?;
        // The first failure replaces the shell and this proxy, so each request has exactly one answer.
        let [own, number] = receive_pair(&self.socket, self.response_timeout)?;
        if RawFd::try_from(own) != Ok(end.as_raw_fd()) {
            return Err(Errno::PROTO);
        }
        self.shared.insert(end.as_raw_fd(), number);
        Ok(())
    }

    fn path(&self, end: &OwnedFd) -> String {
        let number = self.shared.get(&end.as_raw_fd());
        number.map(|number| descriptor_path(self.process.pid, *number)).unwrap_or_default()
    }
}

impl Drop for PipeProxy {
    /// The proxy exits when its socket closes, unless a program in the session has stopped it.
    fn drop(&mut self) {
        self.process.signal(Signal::KILL);
    }
}

/// A proxy that is about to be started by the exec helper, and has been sent the shell's script.
#[derive(Debug)]
pub(crate) struct PipeProxyStart {
    socket: OwnedFd,
    script: RawFd,
}

/// A started proxy, and the shell for which it was started.
#[derive(Debug)]
pub(crate) struct StartedPipeProxy {
    pub(crate) proxy: PipeProxy,
    pub(crate) shell: u32,
}

impl PipeProxyStart {
    /// Also returns the standard input of the exec helper, which passes it on to the proxy.
    pub(crate) fn new(script: &OwnedFd) -> Result<(Self, OwnedFd), Errno> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        send_fd(&socket, script)?;
        Ok((Self { socket, script: script.as_raw_fd() }, theirs))
    }

    /// Waits for the proxy, after the helper has executed the shell.
    pub(crate) fn connect(self) -> Result<StartedPipeProxy, Errno> {
        let [pid, shell] = receive_pair(&self.socket, START_TIMEOUT)?;
        let [own, number] = receive_pair(&self.socket, START_TIMEOUT)?;
        let process = ProcessKey::of(pid).ok_or(Errno::SRCH)?;
        if RawFd::try_from(own) != Ok(self.script) {
            return Err(Errno::PROTO);
        }
        let shared = BTreeMap::from([(self.script, number)]);
        Ok(StartedPipeProxy {
            proxy: PipeProxy { socket: self.socket, process, shared, response_timeout: START_TIMEOUT },
            shell,
        })
    }
}

/// Timeout for each response of the proxy while no program of the session runs. A busy machine may need seconds.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout for each later response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends a descriptor with its number.
fn send_fd(socket: &OwnedFd, end: &OwnedFd) -> Result<(), Errno> {
    let number = u32::try_from(end.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let ends = [end.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&ends)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&number.to_le_bytes())], &mut control, flags).map(drop)
}

/// Receives a message of two numbers.
fn receive_pair(socket: &OwnedFd, timeout: Duration) -> Result<[u32; 2], Errno> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    if wait_ready(&mut fds, timeout)? == 0 {
        return Err(Errno::TIMEDOUT);
    }
    let mut bytes = [0; 8];
    match recv(socket, &mut bytes, RecvFlags::DONTWAIT)? {
        (8, _) => Ok([decode_u32(&bytes, 0), decode_u32(&bytes, 4)]),
        (0, _) => Err(Errno::PIPE),
        (_, _) => Err(Errno::PROTO),
    }
}

fn decode_u32(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    bytes.map(u32::from_le_bytes).unwrap_or_default()
}

fn encode_pair(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    let (left, right) = bytes.split_at_mut(4);
    left.copy_from_slice(&first.to_le_bytes());
    right.copy_from_slice(&second.to_le_bytes());
    bytes
}

fn descriptor_path(pid: u32, number: u32) -> String {
    format!("/proc/{pid}/fd/{number}")
}

/// Called by the confined exec helper before it becomes the shell: starts the proxy with the helper's standard input,
/// and returns the path of the shell's script.
///
/// The proxy is started through an intermediate process that exits, so that it becomes a child of the keeper. The shell
/// must not have a child that it did not start.
pub(crate) fn start() -> io::Result<String> {
    let mut intermediate = command(OWN_PROGRAM.as_ref())
        .args([CONFINE_SUBCOMMAND, "--start-proxy-of", &std::process::id().to_string()])
        .current_dir("/")
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let path = first_line(intermediate.stdout.take());
    intermediate.wait()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    path
}

/// The intermediate process: starts the proxy, and exits when the proxy holds the script.
pub(crate) fn run_intermediate(shell: u32) -> ExitCode {
    let proxy = command(OWN_PROGRAM.as_ref())
        .args([CONFINE_SUBCOMMAND, "--proxy-of", &shell.to_string()])
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let path = proxy.and_then(|mut proxy| first_line(proxy.stdout.take()));
    match path.and_then(|path| writeln!(io::stdout(), "{path}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn first_line(output: Option<std::process::ChildStdout>) -> io::Result<String> {
    let mut line = String::new();
    if let Some(output) = output {
        BufReader::new(output).read_line(&mut line)?;
    }
    match line.strip_suffix('\n') {
        Some(path) => Ok(path.to_owned()),
        None => Err(io::Error::other("the process that holds the shell's pipes did not start")),
    }
}

/// The proxy: holds each descriptor that it receives on its standard input, until the keeper closes the other end.
pub(crate) fn serve(shell: u32) -> ExitCode {
    // Its own session, so that no signal to the shell's process group reaches it.
    rustix::process::setsid().ok();
    match serve_requests(rustix::stdio::stdin(), shell) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve_requests(socket: BorrowedFd<'_>, shell: u32) -> io::Result<()> {
    let own = std::process::id();
    let mut fds = BTreeMap::new();
    send(socket, &encode_pair(own, shell), SendFlags::NOSIGNAL)?;
    while let Some((name, end)) = receive_fd(socket)? {
        let descriptor = u32::try_from(end.as_raw_fd()).unwrap_or_default();
        let is_first = fds.is_empty();
        // A descriptor that the keeper has closed since is replaced under the same name.
        fds.insert(name, end);
        send(socket, &encode_pair(name, descriptor), SendFlags::NOSIGNAL)?;
        if is_first {
            writeln!(io::stdout(), "{}", descriptor_path(own, descriptor))?;
        }
    }
    Ok(())
}

/// The next descriptor with its number in the keeper; None if the keeper has closed the socket.
fn receive_fd(socket: BorrowedFd<'_>) -> io::Result<Option<(u32, OwnedFd)>> {
    let mut bytes = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let message = retry_on_intr(|| recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    if message.bytes == 0 {
        return Ok(None);
    }
    let ends = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(ends) => Some(ends),
        RecvAncillaryMessage::ScmCredentials(_) | _ => None,
    });
    let end = ends.flatten().next().ok_or_else(|| io::Error::other("a message without a descriptor"))?;
    Ok(Some((decode_u32(&bytes, 0), end)))
}
