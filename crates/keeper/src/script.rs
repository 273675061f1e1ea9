//! Makes a shell take commands: it sources each one from a pipe and reports the status on another.
//!
//! A command is data to the shell and not a continuation of the keeper's script. So an unterminated quote or
//! here-document cannot swallow later input. The line that sources and reports a command is called a *slot*. It
//! contains a nonce that the command cannot know. Several slots are sent at once, so that the shell is woken only for
//! its commands. Two command pipes alternate, because a shell may read the end of one after its report. The client
//! supplies the templates for each kind of shell.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::lane::{OutputPipes, name_of, path_of};
use crate::protocol::{OutputStream, ShellTemplates};

/// Sends commands to a shell and receives its reports.
#[derive(Debug)]
pub(crate) struct ShellDriver {
    texts: ShellTemplates,
    /// The shell's script; None when lines are typed into a terminal.
    main: Option<(OwnedFd, OwnedFd)>,
    commands: [CommandPipe; 2],
    /// The pipes from which slots are sourced. For a terminal, the pipes on which a typed command waits: two at its
    /// end, two at its beginning. They alternate too.
    slots: [CommandPipe; 4],
    turn: usize,
    nonce: String,
    /// The nonces of the slots that were sent and not reached yet.
    ahead: VecDeque<String>,
    /// The present slot has ended. Its nonce stays valid for output that is still to be read.
    left: bool,
    closed: bool,
    report: OwnedFd,
    report_name: Option<PathBuf>,
    reported: Vec<u8>,
    unsent: Vec<u8>,
    /// Number of bytes of the present command in the pipe.
    sent: usize,
    /// Keeps the report pipe open.
    _report_writer: OwnedFd,
}

#[derive(Debug)]
struct CommandPipe {
    reader: OwnedFd,
    writer: Option<OwnedFd>,
}

/// How far a shell has advanced without a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShellPosition {
    /// Beyond the present slot.
    Present,
    /// Beyond all slots that were sent.
    All,
}

/// A report of the shell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShellReport {
    pub(crate) nonce: String,
    pub(crate) what: ShellReportKind,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ShellReportKind {
    /// A typed command begins. Earlier terminal output was its echo.
    Began,
    /// The command ended with this status and these flags (`$-`).
    Ended { code: i32, flags: String },
    /// A redefined builtin may falsify the status that follows.
    Broken,
}

impl ShellDriver {
    pub(crate) fn new(texts: ShellTemplates, typed: bool) -> io::Result<Self> {
        let (report, report_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&report, true)?;
        let main = if typed { None } else { Some(pipe_with(PipeFlags::CLOEXEC)?) };
        Ok(Self {
            texts,
            main,
            commands: [CommandPipe::new()?, CommandPipe::new()?],
            slots: [CommandPipe::new()?, CommandPipe::new()?, CommandPipe::new()?, CommandPipe::new()?],
            turn: 0,
            nonce: String::new(),
            ahead: VecDeque::new(),
            left: true,
            closed: false,
            report_name: name_of(&report),
            report,
            reported: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            _report_writer: report_writer,
        })
    }

    /// The path of the shell's script.
    pub(crate) fn script_path(&self) -> String {
        self.main.as_ref().map(|(reader, _)| path_of(reader)).unwrap_or_default()
    }

    /// Sends the init text. A shell that reads its script byte by byte gets it with the first slots.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        if let Some((_, writer)) = self.main.as_ref().filter(|_| self.texts.line.is_empty()) {
            write_all(writer, self.texts.init.as_bytes())?;
        }
        Ok(())
    }

    /// Advances to the next slot, in which the shell waits for a command. Sends new slots if none is left. For a
    /// terminal, returns the line to type.
    pub(crate) fn offer(&mut self) -> io::Result<Option<String>> {
        if self.closed {
            return Ok(None);
        }
        self.left = false;
        if let Some(nonce) = self.ahead.pop_front() {
            self.nonce = nonce;
            return self.open_for_commands().map(|()| None);
        }
        if self.main.is_none() {
            return self.offer_typed().map(Some);
        }
        let nonces = nonces();
        let mut slots = match self.texts.line.is_empty() {
            true => String::new(),
            false => std::mem::take(&mut self.texts.init),
        };
        for (index, nonce) in nonces.iter().enumerate() {
            slots.push_str(&self.slot(self.turn ^ (index & 1), nonce));
        }
        let mut nonces = nonces.into_iter();
        self.nonce = nonces.next().unwrap_or_default();
        self.ahead.extend(nonces);
        self.open_for_commands()?;
        let Some((_, writer)) = &self.main else { return Ok(None) };
        if self.texts.line.is_empty() {
            return write_all(writer, slots.as_bytes()).map(|()| None);
        }
        let through = &mut self.slots[self.turn];
        let end = match through.writer.take() {
            Some(end) => end,
            None => through.reopen()?,
        };
        write_all(&end, slots.as_bytes())?;
        let line = fill(&self.texts.line, &[("{s}", &path_of(&through.reader))]);
        write_all(writer, line.as_bytes()).map(|()| None)
    }

    fn slot(&self, turn: usize, nonce: &str) -> String {
        let (command, report) = (path_of(&self.commands[turn].reader), path_of(&self.report));
        fill(&self.texts.slot, &[("{c}", &command), ("{n}", nonce), ("{r}", &report)])
    }

    fn offer_typed(&mut self) -> io::Result<String> {
        self.nonce = nonces().swap_remove(0);
        self.open_for_commands()?;
        let slot = self.slot(self.turn, &self.nonce);
        // The shell waits after a typed command, so that its prompt is not mistaken for output.
        for index in [self.turn, self.turn + 2] {
            let wait = &mut self.slots[index];
            if wait.writer.is_none() {
                wait.writer = Some(wait.reopen()?);
            }
        }
        Ok(format!("{}; . {}", slot.trim_end(), path_of(&self.slots[self.turn].reader)))
    }

    /// Opens the command pipes of the present and the next slot, because a shell reads end-of-file from a pipe without
    /// a writer. Bytes that an earlier command left unread by returning early are discarded.
    fn open_for_commands(&mut self) -> io::Result<()> {
        for command in self.commands.iter_mut().filter(|command| command.writer.is_none()) {
            command.empty();
            command.writer = Some(command.reopen()?);
        }
        Ok(())
    }

    /// Lets a typed command begin, after its echo has been read.
    pub(crate) fn let_begin(&mut self) {
        self.slots[self.turn + 2].writer = None;
    }

    /// Lets the shell show its prompt, after the output of a typed command has been read.
    pub(crate) fn release(&mut self) {
        let left = self.turn ^ 1;
        self.slots[left].writer = None;
        self.slots[left + 2].writer = None;
    }

    /// Sends the waiting shell a command, as far as the pipe accepts it.
    pub(crate) fn give(&mut self, text: &[u8]) -> io::Result<()> {
        self.unsent.clear();
        self.sent = 0;
        self.unsent.extend_from_slice(text);
        // Only a missing line end is added, because an extra one would extend an open here-document.
        if !text.ends_with(b"\n") {
            self.unsent.push(b'\n');
        }
        self.push()
    }

    /// Continues to send; call again while [`Self::wants_to_write`].
    pub(crate) fn push(&mut self) -> io::Result<()> {
        let Some(writer) = self.commands[self.turn].writer.as_ref().filter(|_| !self.unsent.is_empty())
        else {
            return Ok(());
        };
        while !self.unsent.is_empty() {
            match write(writer, &self.unsent) {
                Ok(count) => {
                    self.sent += count;
                    drop(self.unsent.drain(..count));
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // End-of-file ends the command.
        self.commands[self.turn].writer = None;
        Ok(())
    }

    /// Whether a part of the command is still to be sent.
    pub(crate) fn wants_to_write(&self) -> bool {
        !self.unsent.is_empty() && self.commands[self.turn].writer.is_some()
    }

    /// The report pipe.
    pub(crate) fn reports_on(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }

    /// The `/proc` link target of the report pipe.
    pub(crate) fn report_name(&self) -> Option<&PathBuf> {
        self.report_name.as_ref()
    }

    /// The reports that have arrived. Lines of other processes that found the pipe are ignored.
    pub(crate) fn reports(&mut self) -> Vec<ShellReport> {
        let mut buffer = [0; 512];
        while let Ok(count @ 1..) = read(&self.report, &mut buffer) {
            self.reported.extend_from_slice(buffer.get(..count).unwrap_or_default());
            if self.reported.len() > MAX_REPORTED {
                self.reported.clear();
            }
            if count < buffer.len() {
                break;
            }
        }
        let mut reports = Vec::new();
        while let Some(end) = self.reported.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.reported.drain(..=end).collect();
            reports.extend(parse(&line, &self.nonce));
        }
        reports
    }

    /// Whether the shell has read nothing of the current command. Then a reported status does not belong to it.
    pub(crate) fn is_unread(&self) -> bool {
        let left = rustix::io::ioctl_fionread(&self.commands[self.turn].reader).unwrap_or(0);
        self.sent > 0 && usize::try_from(left).is_ok_and(|left| left >= self.sent)
    }

    /// Whether this report belongs to the present slot. If it ends the command, the other pipe becomes current.
    pub(crate) fn accept(&mut self, report: &ShellReport) -> bool {
        let current = !self.left && report.nonce == self.nonce;
        if current && matches!(report.what, ShellReportKind::Ended { .. }) {
            self.leave();
        }
        current
    }

    /// Leaves the present slot; the other pipe becomes current.
    pub(crate) fn leave(&mut self) {
        self.commands[self.turn].writer = None;
        self.unsent.clear();
        self.turn ^= 1;
        self.left = true;
    }

    /// Whether the shell has passed the present slot without a report. It is then blocked in reading the next command
    /// or, beyond all slots, its script.
    pub(crate) fn is_past(&self, shell: u32) -> Option<ShellPosition> {
        let (main, _) = self.main.as_ref()?;
        let found = read_by(shell)?;
        if Some(&found) == name_of(main).as_ref() {
            return Some(ShellPosition::All);
        }
        let next = &self.commands[self.turn ^ 1].reader;
        (!self.ahead.is_empty() && Some(found) == name_of(next)).then_some(ShellPosition::Present)
    }

    /// Whether the shell reads from a foreign pipe, which means that it waits for a substitution.
    pub(crate) fn is_expanding(&self, shell: u32) -> bool {
        let Some(found) = read_by(shell) else { return false };
        let own = self.commands.iter().chain(&self.slots).map(|command| &command.reader);
        let own = own.chain(self.main.iter().map(|(reader, _)| reader));
        found.to_string_lossy().starts_with("pipe:")
            && own.into_iter().all(|end| name_of(end) != Some(found.clone()))
    }

    /// Whether the shell is blocked in opening a FIFO, and would run its trap only after the next word.
    pub(crate) fn is_opening_fifo(&self, shell: u32) -> bool {
        self.texts.defers_trap_in_open
            && system_call(shell).is_some_and(|(number, _)| OPEN_CALLS.contains(&number.as_str()))
            && std::fs::read_to_string(format!("/proc/{shell}/wchan")).is_ok_and(|at| at == FIFO_WAIT)
    }

    /// Whether SIGINT makes this shell return to its script or prompt, without a report.
    pub(crate) fn is_interruptible(&self) -> bool {
        self.texts.is_interruptible
    }

    /// Whether a descriptor limit must keep this shell from executing the next word.
    pub(crate) fn needs_descriptor_limit(&self) -> bool {
        self.texts.needs_descriptor_limit
    }

    /// Leaves the present slot and those that the shell has passed.
    pub(crate) fn leave_past(&mut self, past: ShellPosition) {
        if past == ShellPosition::All {
            self.ahead.clear();
            if let Some((_, writer)) = &self.main {
                // A failed write shows as a missing report.
                write_all(writer, self.texts.rescue.as_bytes()).ok();
            }
        }
        self.leave();
    }

    /// The text that redirects the shell's streams to these pipes and this input.
    pub(crate) fn repair(&self, lane: &OutputPipes, input: &str) -> String {
        let (out, err) = (lane.path(OutputStream::Stdout), lane.path(OutputStream::Stderr));
        fill(&self.texts.repair, &[("{i}", input), ("{o}", &out), ("{e}", &err)])
    }

    /// The text that enables tracing again.
    pub(crate) fn trace(&self) -> &str {
        &self.texts.trace
    }

    /// The prefix of every command.
    pub(crate) fn guard(&self) -> String {
        let (report, wait) = (path_of(&self.report), path_of(&self.slots[self.turn].reader));
        fill(&self.texts.guard, &[("{n}", &self.nonce), ("{r}", &report), ("{w}", &wait)])
    }

    /// The text that reports the beginning of a typed command.
    pub(crate) fn beginning(&self) -> String {
        let wait = path_of(&self.slots[self.turn + 2].reader);
        let began = fill(&self.texts.began, &[("{n}", &self.nonce), ("{r}", &path_of(&self.report))]);
        format!("{began}\\. {wait}; ")
    }

    /// The present nonce. A line of stderr that contains it is a traced script line.
    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Closes the script and all command pipes, so that the shell reads end-of-file.
    pub(crate) fn close(&mut self) {
        self.main = None;
        self.closed = true;
        self.unsent = Vec::new();
        for command in self.commands.iter_mut().chain(&mut self.slots) {
            command.writer = None;
        }
    }
}

impl CommandPipe {
    fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { reader, writer: Some(writer) })
    }

    fn empty(&self) {
        let mut rest = [0; 4096];
        while matches!(read(&self.reader, &mut rest), Ok(1..)) {}
    }

    fn reopen(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(open(path_of(&self.reader), flags, Mode::empty())?)
    }
}

/// The `/proc` link target of the descriptor in whose `read` a process is blocked.
fn read_by(pid: u32) -> Option<PathBuf> {
    let (number, descriptor) = system_call(pid)?;
    let descriptor = u32::from_str_radix(descriptor.strip_prefix("0x")?, 16).ok()?;
    if number != READ_CALL {
        return None;
    }
    crate::procs::descriptor(pid, descriptor)
}

/// The number and the first argument of a process's current system call, as text.
fn system_call(pid: u32) -> Option<(String, String)> {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut words = call.split_ascii_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?))
}

/// The number of `read` in `/proc/PID/syscall`.
const READ_CALL: &str = if cfg!(target_arch = "x86_64") { "0" } else { "63" };

/// The numbers of `open` and `openat`. Only x86_64 has both.
const OPEN_CALLS: [&str; 2] = if cfg!(target_arch = "x86_64") { ["2", "257"] } else { ["56", "56"] };

/// The kernel function in which opening a FIFO waits for the other end.
const FIFO_WAIT: &str = "wait_for_partner";

const MAX_REPORTED: usize = 64 << 10;

/// Number of slots sent at once. Together they fit into the block size with which a shell reads its script.
const SLOTS: usize = 16;

/// Parses a report: a line with the nonce, followed by the status. Some shells embed it in an error message.
fn parse(line: &[u8], nonce: &str) -> Option<ShellReport> {
    let line = str::from_utf8(line).ok()?;
    let (_, rest) = line.split_once(nonce).filter(|_| !nonce.is_empty())?;
    let mut words = rest.split_ascii_whitespace();
    let what = match words.next()?.trim_end_matches([':', '"']) {
        "began" => ShellReportKind::Began,
        "broken" => ShellReportKind::Broken,
        code => ShellReportKind::Ended {
            code: code.parse().ok()?,
            flags: words.next().unwrap_or_default().to_owned(),
        },
    };
    Some(ShellReport { nonce: nonce.to_owned(), what })
}

fn fill(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
}

fn write_all(end: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(end, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Creates the nonces of a batch of slots.
fn nonces() -> Vec<String> {
    let mut bytes = [0u8; SLOTS * 8];
    let _filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| format!("{:016x}", u64::from_le_bytes(*word))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_report_is_a_nonce_a_status_and_the_flags() {
        let ended = |code, flags: &str| Some(ShellReportKind::Ended { code, flags: flags.to_owned() });
        let what = |line: &[u8]| parse(line, "00ff").map(|report| report.what);
        assert_eq!(what(b"00ff 130 hB\n"), ended(130, "hB"));
        assert_eq!(what(b"/00ff 1 : not found\n"), ended(1, ":"));
        assert_eq!(
            what(b"bash: line 1: ((: @00ff 7 hiBE : syntax error: operand expected\n"),
            ended(7, "hiBE")
        );
        assert_eq!(what(b"bash: line 1: ((: @00ff broken : syntax error\n"), Some(ShellReportKind::Broken));
        assert_eq!(what(b"00fe 130 hB\n"), None);
        assert_eq!(what(b"\xff\xfe 0\n"), None);
        assert_eq!(what(b"00ff junk\n"), None);
    }

    proptest! {
        #[test]
        fn no_line_on_the_report_pipe_panics(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&line, "0");
        }
    }
}
