//! How a shell takes commands: it sources each one from a pipe of its own and reports the status on another.
//!
//! A command is data to the shell, never a continuation of our text, so no quote or here-document that it leaves open
//! can swallow what we say next. The line that sources it and reports it is sent ahead of time (a *slot*), with a nonce
//! that the command cannot know; several slots are sent at once, so that a shell is woken for its command and for
//! nothing else. Two command pipes alternate, because a shell may look for the end of one only after its report. What
//! the texts are for each kind of shell is decided by the client.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::lane::{OutputPipes, name_of, path_of};
use crate::protocol::{OutputStream, ShellTemplates};

/// The keeper's side of a shell that takes commands.
#[derive(Debug)]
pub(crate) struct ShellDriver {
    texts: ShellTemplates,
    /// The shell's script; none when lines are typed into a terminal.
    main: Option<(OwnedFd, OwnedFd)>,
    commands: [CommandPipe; 2],
    /// Where slots are sourced from; for a terminal, the pipes that a typed command waits on: two at its end, two at its
    /// beginning. They alternate too.
    slots: [CommandPipe; 4],
    turn: usize,
    nonce: String,
    /// The nonces of the slots that the shell has been sent but has not come to yet.
    ahead: VecDeque<String>,
    /// The present slot is over; its nonce stays known for what is still to be read.
    left: bool,
    closed: bool,
    report: OwnedFd,
    report_name: Option<PathBuf>,
    reported: Vec<u8>,
    unsent: Vec<u8>,
    /// How many bytes of the present command the pipe has taken.
    sent: usize,
    /// Held only so that the report pipe never ends.
    _report_writer: OwnedFd,
}

#[derive(Debug)]
struct CommandPipe {
    reader: OwnedFd,
    writer: Option<OwnedFd>,
}

/// How far a shell has gone without reporting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShellPosition {
    /// Past the present slot.
    Present,
    /// Past everything that it was sent.
    All,
}

/// What a shell says when a command has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShellReport {
    pub(crate) nonce: String,
    pub(crate) what: ShellReportKind,
}

/// What happened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ShellReportKind {
    /// A typed command begins; what was on the terminal until now was its echo.
    Began,
    /// It ended with this status, leaving these flags (`$-`).
    Ended { code: i32, flags: String },
    /// Something stands between the command and its report: the status that follows is not to be trusted.
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

    /// Sends the first text. To a shell that reads its script byte by byte it goes with the first slots.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        if let Some((_, writer)) = self.main.as_ref().filter(|_| self.texts.line.is_empty()) {
            write_all(writer, self.texts.init.as_bytes())?;
        }
        Ok(())
    }

    /// Goes on to the next slot, in which the shell will wait for a command; if it has none ahead, it is sent some. For
    /// a terminal, the line that has to be typed.
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
        // The prompt after a typed command must not be taken for its output, so the shell waits for us.
        for index in [self.turn, self.turn + 2] {
            let wait = &mut self.slots[index];
            if wait.writer.is_none() {
                wait.writer = Some(wait.reopen()?);
            }
        }
        Ok(format!("{}; . {}", slot.trim_end(), path_of(&self.slots[self.turn].reader)))
    }

    /// Makes both pipes ready, that of the present slot and that of the next: a shell that came to one without a writer
    /// would find its end at once. What an earlier command left unread, by returning early, is nobody's.
    fn open_for_commands(&mut self) -> io::Result<()> {
        for command in self.commands.iter_mut().filter(|command| command.writer.is_none()) {
            command.empty();
            command.writer = Some(command.reopen()?);
        }
        Ok(())
    }

    /// Lets a typed command begin, after its echo has been taken.
    pub(crate) fn let_begin(&mut self) {
        self.slots[self.turn + 2].writer = None;
    }

    /// Lets the shell go on to its prompt, after the output of a typed command has been taken.
    pub(crate) fn release(&mut self) {
        let left = self.turn ^ 1;
        self.slots[left].writer = None;
        self.slots[left + 2].writer = None;
    }

    /// Gives the waiting shell a command, or as much of it as the pipe takes.
    pub(crate) fn give(&mut self, text: &[u8]) -> io::Result<()> {
        self.unsent.clear();
        self.sent = 0;
        self.unsent.extend_from_slice(text);
        // A last line that has an end already would otherwise grow a here-document that was left open.
        if !text.ends_with(b"\n") {
            self.unsent.push(b'\n');
        }
        self.push()
    }

    /// Goes on giving; call again while [`Self::wants_to_write`].
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
        // The end of the pipe is the end of the command.
        self.commands[self.turn].writer = None;
        Ok(())
    }

    /// Whether the pipe had no room for the rest of a command, and may have some later.
    pub(crate) fn wants_to_write(&self) -> bool {
        !self.unsent.is_empty() && self.commands[self.turn].writer.is_some()
    }

    /// The pipe on which reports arrive.
    pub(crate) fn reports_on(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }

    /// How `/proc` names that pipe.
    pub(crate) fn report_name(&self) -> Option<&PathBuf> {
        self.report_name.as_ref()
    }

    /// The reports that have arrived. Lines of anybody else who found the pipe are no reports.
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

    /// Whether the shell has read nothing of the command that it was given: a status without that is no status of it.
    pub(crate) fn is_unread(&self) -> bool {
        let left = rustix::io::ioctl_fionread(&self.commands[self.turn].reader).unwrap_or(0);
        self.sent > 0 && usize::try_from(left).is_ok_and(|left| left >= self.sent)
    }

    /// Whether this is the report that the present slot gives. If so, the next slot is another pipe's.
    pub(crate) fn accept(&mut self, report: &ShellReport) -> bool {
        let current = !self.left && report.nonce == self.nonce;
        if current && matches!(report.what, ShellReportKind::Ended { .. }) {
            self.leave();
        }
        current
    }

    /// Leaves the present slot; the next is the other pipe's.
    pub(crate) fn leave(&mut self) {
        self.commands[self.turn].writer = None;
        self.unsent.clear();
        self.turn ^= 1;
        self.left = true;
    }

    /// Whether the shell has gone past the present slot without a report: it is blocked on the command of the next slot,
    /// or, with all slots behind it, on its script. In that case the slots ahead are gone too.
    pub(crate) fn is_past(&self, shell: u32) -> Option<ShellPosition> {
        let (main, _) = self.main.as_ref()?;
        let found = read_by(shell)?;
        if Some(&found) == name_of(main).as_ref() {
            return Some(ShellPosition::All);
        }
        let next = &self.commands[self.turn ^ 1].reader;
        (!self.ahead.is_empty() && Some(found) == name_of(next)).then_some(ShellPosition::Present)
    }

    /// Whether the shell reads from a pipe that is not ours: it waits for the output of a substitution.
    pub(crate) fn is_expanding(&self, shell: u32) -> bool {
        let Some(found) = read_by(shell) else { return false };
        let own = self.commands.iter().chain(&self.slots).map(|command| &command.reader);
        let own = own.chain(self.main.iter().map(|(reader, _)| reader));
        found.to_string_lossy().starts_with("pipe:")
            && own.into_iter().all(|end| name_of(end) != Some(found.clone()))
    }

    /// Whether the shell is blocked in the opening of a FIFO, and its trap runs only after the next word.
    pub(crate) fn is_opening_fifo(&self, shell: u32) -> bool {
        self.texts.defers_trap_in_open
            && system_call(shell).is_some_and(|(number, _)| OPEN_CALLS.contains(&number.as_str()))
            && std::fs::read_to_string(format!("/proc/{shell}/wchan")).is_ok_and(|at| at == FIFO_WAIT)
    }

    /// Whether SIGINT takes this shell back to its script or prompt, without a report.
    pub(crate) fn is_interruptible(&self) -> bool {
        self.texts.is_interruptible
    }

    /// Whether this shell is kept from executing a word by a limit of descriptors.
    pub(crate) fn needs_descriptor_limit(&self) -> bool {
        self.texts.needs_descriptor_limit
    }

    /// Leaves the present slot, and with it those that the shell has gone past.
    pub(crate) fn leave_past(&mut self, past: ShellPosition) {
        if past == ShellPosition::All {
            self.ahead.clear();
            if let Some((_, writer)) = &self.main {
                let _noticed_by_silence = write_all(writer, self.texts.rescue.as_bytes());
            }
        }
        self.leave();
    }

    /// The text that points the shell's own streams at this lane and this input.
    pub(crate) fn repair(&self, lane: &OutputPipes, input: &str) -> String {
        let (out, err) = (lane.path(OutputStream::Stdout), lane.path(OutputStream::Stderr));
        fill(&self.texts.repair, &[("{i}", input), ("{o}", &out), ("{e}", &err)])
    }

    /// The text that switches tracing on again.
    pub(crate) fn trace(&self) -> &str {
        &self.texts.trace
    }

    /// The text that comes before every command.
    pub(crate) fn guard(&self) -> String {
        let (report, wait) = (path_of(&self.report), path_of(&self.slots[self.turn].reader));
        fill(&self.texts.guard, &[("{n}", &self.nonce), ("{r}", &report), ("{w}", &wait)])
    }

    /// The text that says that a typed command begins.
    pub(crate) fn beginning(&self) -> String {
        let wait = path_of(&self.slots[self.turn + 2].reader);
        let began = fill(&self.texts.began, &[("{n}", &self.nonce), ("{r}", &path_of(&self.report))]);
        format!("{began}\\. {wait}; ")
    }

    /// The present nonce: a line of stderr that holds it is our own text, traced.
    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Lets the shell find the end of its script, and of every command that it still comes to.
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

/// What a process is blocked reading from, as `/proc` names it.
fn read_by(pid: u32) -> Option<PathBuf> {
    let (number, descriptor) = system_call(pid)?;
    let descriptor = u32::from_str_radix(descriptor.strip_prefix("0x")?, 16).ok()?;
    if number != READ_CALL {
        return None;
    }
    crate::procs::descriptor(pid, descriptor)
}

/// The number of the system call that a process is in, and its first argument, as `/proc` shows them.
fn system_call(pid: u32) -> Option<(String, String)> {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut words = call.split_ascii_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?))
}

/// The number of `read` as `/proc/PID/syscall` shows it.
const READ_CALL: &str = if cfg!(target_arch = "x86_64") { "0" } else { "63" };

/// The numbers of `open` and `openat`. Only x86_64 has both.
const OPEN_CALLS: [&str; 2] = if cfg!(target_arch = "x86_64") { ["2", "257"] } else { ["56", "56"] };

/// The function of the kernel in which the opening of a FIFO waits for its other end.
const FIFO_WAIT: &str = "wait_for_partner";

const MAX_REPORTED: usize = 64 << 10;

/// How many slots a shell is sent at once: together they fit into the block that a shell reads its script in.
const SLOTS: usize = 16;

/// A report is a line that holds the present nonce, followed by what is reported. Some shells report with a message that
/// has words of its own around it.
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

/// Nonces for the slots that are sent at once.
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
