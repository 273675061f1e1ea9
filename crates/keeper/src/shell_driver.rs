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

use crate::output_pipes::{OutputPipes, fd_link_target, proc_fd_path};
use crate::pipe_proxy::{PipeAccess, PipeProxy};
use crate::protocol::{OutputStream, ShellTemplates};

/// Sends commands to a shell and receives its reports.
#[derive(Debug)]
pub(crate) struct ShellDriver {
    templates: ShellTemplates,
    access: PipeAccess,
    /// The shell's script; None when lines are typed into a terminal.
    script_pipe: Option<(OwnedFd, OwnedFd)>,
    commands: [CommandPipe; 2],
    /// The pipes from which slots are sourced. For a terminal, the pipes on which a typed command waits: two at its
    /// end, two at its beginning. They alternate too.
    prepared_line_pipes: [CommandPipe; 4],
    pipe_index: usize,
    nonce: String,
    /// The nonces of the slots that were sent and not reached yet.
    queued_nonces: VecDeque<String>,
    /// The present slot has ended. Its nonce stays valid for output that is still to be read.
    line_has_ended: bool,
    closed: bool,
    report_reader: OwnedFd,
    report_link_target: Option<PathBuf>,
    report_buffer: Vec<u8>,
    unsent: Vec<u8>,
    /// Number of bytes of the present command in the pipe.
    sent_bytes: usize,
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
    PastCurrentLine,
    /// Beyond all slots that were sent.
    PastAllLines,
}

/// A report of the shell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShellReport {
    pub(crate) nonce: String,
    pub(crate) kind: ShellReportKind,
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
    pub(crate) fn new(templates: ShellTemplates, on_terminal: bool) -> io::Result<Self> {
        let (report, report_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&report, true)?;
        let main = if on_terminal { None } else { Some(pipe_with(PipeFlags::CLOEXEC)?) };
        Ok(Self {
            templates,
            access: PipeAccess::Direct,
            script_pipe: main,
            commands: [CommandPipe::new()?, CommandPipe::new()?],
            prepared_line_pipes: [
                CommandPipe::new()?,
                CommandPipe::new()?,
                CommandPipe::new()?,
                CommandPipe::new()?,
            ],
            pipe_index: 0,
            nonce: String::new(),
            queued_nonces: VecDeque::new(),
            line_has_ended: true,
            closed: false,
            report_link_target: fd_link_target(&report),
            report_reader: report,
            report_buffer: Vec::new(),
            unsent: Vec::new(),
            sent_bytes: 0,
            _report_writer: report_writer,
        })
    }

    /// The path of the shell's script.
    pub(crate) fn script_path(&self) -> String {
        self.script_reader().map(|reader| self.access.path(reader)).unwrap_or_default()
    }

    /// The reading end of the shell's script.
    pub(crate) fn script_reader(&self) -> Option<&OwnedFd> {
        self.script_pipe.as_ref().map(|(reader, _)| reader)
    }

    /// From now on the shell opens pipes through a proxy, which already holds the script.
    pub(crate) fn use_proxy(&mut self, proxy: PipeProxy) -> Result<(), Errno> {
        self.access = PipeAccess::Proxied(proxy);
        let own = self.commands.iter().chain(&self.prepared_line_pipes).map(|command| &command.reader);
        self.access.share(own.chain([&self.report_reader]))?;
        if let PipeAccess::Proxied(proxy) = &mut self.access {
            proxy.finish_start();
        }
        Ok(())
    }

    /// Makes new output pipes available to the shell.
    pub(crate) fn share_output(&mut self, pipes: &OutputPipes) -> Result<(), Errno> {
        let streams = [OutputStream::Stdout, OutputStream::Stderr];
        self.access.share(streams.into_iter().filter_map(|stream| pipes.reader(stream)))
    }

    /// Makes a new input pipe available to the shell, and returns its path.
    pub(crate) fn share_input(&mut self, reader: &OwnedFd) -> Result<String, Errno> {
        self.access.share([reader])?;
        Ok(self.access.path(reader))
    }

    /// Sends the init text. A shell that reads its script byte by byte gets it with the first slots.
    pub(crate) fn send_init(&mut self) -> io::Result<()> {
        if let Some((_, writer)) = self.script_pipe.as_ref().filter(|_| self.templates.line.is_empty()) {
            write_all(writer, self.templates.init.as_bytes())?;
        }
        Ok(())
    }

    /// Advances to the next slot, in which the shell waits for a command. Sends new slots if none is left. For a
    /// terminal, returns the line to type.
    pub(crate) fn next_prepared_line(&mut self) -> io::Result<Option<String>> {
        if self.closed {
            return Ok(None);
        }
        self.line_has_ended = false;
        if let Some(nonce) = self.queued_nonces.pop_front() {
            self.nonce = nonce;
            return self.open_for_commands().map(|()| None);
        }
        if self.script_pipe.is_none() {
            return self.next_typed_line().map(Some);
        }
        let nonces = new_nonces();
        let mut slots = match self.templates.line.is_empty() {
            true => String::new(),
            false => std::mem::take(&mut self.templates.init),
        };
        for (index, nonce) in nonces.iter().enumerate() {
            slots.push_str(&self.prepared_line(self.pipe_index ^ (index & 1), nonce));
        }
        let mut nonces = nonces.into_iter();
        self.nonce = nonces.next().unwrap_or_default();
        self.queued_nonces.extend(nonces);
        self.open_for_commands()?;
        let Some((_, writer)) = &self.script_pipe else { return Ok(None) };
        if self.templates.line.is_empty() {
            return write_all(writer, slots.as_bytes()).map(|()| None);
        }
        let pipe = &mut self.prepared_line_pipes[self.pipe_index];
        let end = match pipe.writer.take() {
            Some(end) => end,
            None => pipe.open_writer()?,
        };
        write_all(&end, slots.as_bytes())?;
        let line = fill_template(&self.templates.line, &[("{s}", &self.access.path(&pipe.reader))]);
        write_all(writer, line.as_bytes()).map(|()| None)
    }

    fn prepared_line(&self, turn: usize, nonce: &str) -> String {
        let (command, report) =
            (self.access.path(&self.commands[turn].reader), self.access.path(&self.report_reader));
        fill_template(&self.templates.slot, &[("{c}", &command), ("{n}", nonce), ("{r}", &report)])
    }

    fn next_typed_line(&mut self) -> io::Result<String> {
        self.nonce = new_nonces().swap_remove(0);
        self.open_for_commands()?;
        let slot = self.prepared_line(self.pipe_index, &self.nonce);
        // The shell waits after a typed command, so that its prompt is not mistaken for output.
        for index in [self.pipe_index, self.pipe_index + 2] {
            let wait = &mut self.prepared_line_pipes[index];
            if wait.writer.is_none() {
                wait.writer = Some(wait.open_writer()?);
            }
        }
        Ok(format!(
            "{}; . {}",
            slot.trim_end(),
            self.access.path(&self.prepared_line_pipes[self.pipe_index].reader)
        ))
    }

    /// Opens the command pipes of the present and the next slot, because a shell reads end-of-file from a pipe without
    /// a writer. Bytes that an earlier command left unread by returning early are discarded.
    fn open_for_commands(&mut self) -> io::Result<()> {
        for command in self.commands.iter_mut().filter(|command| command.writer.is_none()) {
            command.drain();
            command.writer = Some(command.open_writer()?);
        }
        Ok(())
    }

    /// Lets a typed command begin, after its echo has been read.
    pub(crate) fn release_typed_command(&mut self) {
        self.prepared_line_pipes[self.pipe_index + 2].writer = None;
    }

    /// Lets the shell show its prompt, after the output of a typed command has been read.
    pub(crate) fn release_prompt(&mut self) {
        let previous = self.pipe_index ^ 1;
        self.prepared_line_pipes[previous].writer = None;
        self.prepared_line_pipes[previous + 2].writer = None;
    }

    /// Sends the waiting shell a command, as far as the pipe accepts it.
    pub(crate) fn send_command(&mut self, text: &[u8]) -> io::Result<()> {
        self.unsent.clear();
        self.sent_bytes = 0;
        self.unsent.extend_from_slice(text);
        // Only a missing line end is added, because an extra one would extend an open here-document.
        if !text.ends_with(b"\n") {
            self.unsent.push(b'\n');
        }
        self.write_pending()
    }

    /// Continues to send; call again while [`Self::has_pending_write`].
    pub(crate) fn write_pending(&mut self) -> io::Result<()> {
        let Some(writer) = self.commands[self.pipe_index].writer.as_ref().filter(|_| !self.unsent.is_empty())
        else {
            return Ok(());
        };
        while !self.unsent.is_empty() {
            match write(writer, &self.unsent) {
                Ok(count) => {
                    self.sent_bytes += count;
                    drop(self.unsent.drain(..count));
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // End-of-file ends the command.
        self.commands[self.pipe_index].writer = None;
        Ok(())
    }

    /// Whether a part of the command is still to be sent.
    pub(crate) fn has_pending_write(&self) -> bool {
        !self.unsent.is_empty() && self.commands[self.pipe_index].writer.is_some()
    }

    pub(crate) fn report_fd(&self) -> BorrowedFd<'_> {
        self.report_reader.as_fd()
    }

    /// The `/proc` link target of the report pipe.
    pub(crate) fn report_link_target(&self) -> Option<&PathBuf> {
        self.report_link_target.as_ref()
    }

    /// The reports that have arrived. Lines of other processes that found the pipe are ignored.
    pub(crate) fn read_reports(&mut self) -> Vec<ShellReport> {
        let mut buffer = [0; 512];
        while let Ok(count @ 1..) = read(&self.report_reader, &mut buffer) {
            self.report_buffer.extend_from_slice(buffer.get(..count).unwrap_or_default());
            if self.report_buffer.len() > MAX_REPORT_BYTES {
                self.report_buffer.clear();
            }
            if count < buffer.len() {
                break;
            }
        }
        let mut reports = Vec::new();
        while let Some(end) = self.report_buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.report_buffer.drain(..=end).collect();
            reports.extend(parse_report(&line, &self.nonce));
        }
        reports
    }

    /// Whether the shell has read nothing of the current command. Then a reported status does not belong to it.
    pub(crate) fn is_unread(&self) -> bool {
        let left = rustix::io::ioctl_fionread(&self.commands[self.pipe_index].reader).unwrap_or(0);
        self.sent_bytes > 0 && usize::try_from(left).is_ok_and(|left| left >= self.sent_bytes)
    }

    /// Whether this report belongs to the present slot. If it ends the command, the other pipe becomes current.
    pub(crate) fn accept(&mut self, report: &ShellReport) -> bool {
        let current = !self.line_has_ended && report.nonce == self.nonce;
        if current && matches!(report.kind, ShellReportKind::Ended { .. }) {
            self.leave_line();
        }
        current
    }

    /// Leaves the present slot; the other pipe becomes current.
    pub(crate) fn leave_line(&mut self) {
        self.commands[self.pipe_index].writer = None;
        self.unsent.clear();
        self.pipe_index ^= 1;
        self.line_has_ended = true;
    }

    /// Whether the shell has passed the present slot without a report. It is then blocked in reading the next command
    /// or, beyond all slots, its script.
    pub(crate) fn unreported_position(&self, shell: u32) -> Option<ShellPosition> {
        let (main, _) = self.script_pipe.as_ref()?;
        let found = blocked_read_target(shell)?;
        if Some(&found) == fd_link_target(main).as_ref() {
            return Some(ShellPosition::PastAllLines);
        }
        let next = &self.commands[self.pipe_index ^ 1].reader;
        (!self.queued_nonces.is_empty() && Some(found) == fd_link_target(next))
            .then_some(ShellPosition::PastCurrentLine)
    }

    /// Whether the shell reads from a foreign pipe, which means that it waits for a substitution.
    pub(crate) fn is_expanding(&self, shell: u32) -> bool {
        let Some(found) = blocked_read_target(shell) else { return false };
        let own = self.commands.iter().chain(&self.prepared_line_pipes).map(|command| &command.reader);
        let own = own.chain(self.script_pipe.iter().map(|(reader, _)| reader));
        found.to_string_lossy().starts_with("pipe:")
            && own.into_iter().all(|end| fd_link_target(end) != Some(found.clone()))
    }

    /// Whether SIGINT makes this shell return to its script or prompt, without a report.
    pub(crate) fn is_interruptible(&self) -> bool {
        self.templates.is_interruptible
    }

    /// Whether the shell executes the word that it is expanding before its trap.
    pub(crate) fn executes_word_before_trap(&self) -> bool {
        self.templates.executes_word_before_trap
    }

    /// Leaves the present slot and those that the shell has passed.
    pub(crate) fn leave_lines_before(&mut self, position: ShellPosition) {
        if position == ShellPosition::PastAllLines {
            self.queued_nonces.clear();
            if let Some((_, writer)) = &self.script_pipe {
                // A failed write shows as a missing report.
                write_all(writer, self.templates.rescue.as_bytes()).ok();
            }
        }
        self.leave_line();
    }

    /// The text that redirects the shell's streams to these pipes and this input.
    pub(crate) fn repair_text(&self, pipes: &OutputPipes, input: &str) -> String {
        let path = |stream| pipes.reader(stream).map(|end| self.access.path(end)).unwrap_or_default();
        let (out, err) = (path(OutputStream::Stdout), path(OutputStream::Stderr));
        fill_template(&self.templates.repair, &[("{i}", input), ("{o}", &out), ("{e}", &err)])
    }

    /// The text that enables tracing again.
    pub(crate) fn restore_trace_text(&self) -> &str {
        &self.templates.trace
    }

    /// The prefix of every command.
    pub(crate) fn guard_text(&self) -> String {
        let (report, wait) = (
            self.access.path(&self.report_reader),
            self.access.path(&self.prepared_line_pipes[self.pipe_index].reader),
        );
        fill_template(&self.templates.guard, &[("{n}", &self.nonce), ("{r}", &report), ("{w}", &wait)])
    }

    /// The text that reports the beginning of a typed command.
    pub(crate) fn begin_report_text(&self) -> String {
        let wait = self.access.path(&self.prepared_line_pipes[self.pipe_index + 2].reader);
        let began = fill_template(
            &self.templates.began,
            &[("{n}", &self.nonce), ("{r}", &self.access.path(&self.report_reader))],
        );
        format!("{began}\\. {wait}; ")
    }

    /// The present nonce. A line of stderr that contains it is a traced script line.
    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Closes the script and all command pipes, so that the shell reads end-of-file.
    pub(crate) fn close(&mut self) {
        self.script_pipe = None;
        self.closed = true;
        self.unsent = Vec::new();
        for command in self.commands.iter_mut().chain(&mut self.prepared_line_pipes) {
            command.writer = None;
        }
    }
}

impl CommandPipe {
    fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { reader, writer: Some(writer) })
    }

    fn drain(&self) {
        let mut rest = [0; 4096];
        while matches!(read(&self.reader, &mut rest), Ok(1..)) {}
    }

    fn open_writer(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(open(proc_fd_path(&self.reader), flags, Mode::empty())?)
    }
}

/// The `/proc` link target of the descriptor in whose `read` a process is blocked.
fn blocked_read_target(pid: u32) -> Option<PathBuf> {
    let (number, descriptor) = current_syscall(pid)?;
    let descriptor = u32::from_str_radix(descriptor.strip_prefix("0x")?, 16).ok()?;
    if number != READ_SYSCALL {
        return None;
    }
    crate::process_tree::fd_link_target(pid, descriptor)
}

/// The number and the first argument of a process's current system call, as text.
fn current_syscall(pid: u32) -> Option<(String, String)> {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut words = call.split_ascii_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?))
}

/// The number of `read` in `/proc/PID/syscall`.
const READ_SYSCALL: &str = if cfg!(target_arch = "x86_64") { "0" } else { "63" };

const MAX_REPORT_BYTES: usize = 64 << 10;

/// Number of slots sent at once. Together they fit into the block size with which a shell reads its script.
const PREPARED_LINES_PER_BATCH: usize = 16;

/// Parses a report: a line with the nonce, followed by the status. Some shells embed it in an error message.
fn parse_report(line: &[u8], nonce: &str) -> Option<ShellReport> {
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
    Some(ShellReport { nonce: nonce.to_owned(), kind: what })
}

fn fill_template(text: &str, values: &[(&str, &str)]) -> String {
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
fn new_nonces() -> Vec<String> {
    let mut bytes = [0u8; PREPARED_LINES_PER_BATCH * 8];
    abide_os::random::fill(&mut bytes);
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
        let what = |line: &[u8]| parse_report(line, "00ff").map(|report| report.kind);
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
            let _ = parse_report(&line, "0");
        }
    }
}
