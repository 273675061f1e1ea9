//! A command on a pseudo-terminal, driven as by a user.

use std::{
    io::{Read, Write},
    process::{Child, Command},
};

use pty_process::{Size, blocking::Pty};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::wait;

/// A pseudo-terminal with a running command. Dropping it kills the command.
pub struct TerminalUser {
    terminal: Pty,
    child: Child,
    /// Output that no search has consumed yet.
    unread: String,
    pub output: String,
}

impl std::fmt::Debug for TerminalUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TerminalUser").field("output", &self.output).finish_non_exhaustive()
    }
}

impl TerminalUser {
    /// Starts a command on a terminal of this size.
    pub fn start(command: &Command, rows: u16, columns: u16) -> Self {
        let (terminal, inside) = pty_process::blocking::open().expect("a terminal can be opened");
        terminal.resize(Size::new(rows, columns)).expect("a terminal can be resized");
        let mut on_terminal = pty_process::blocking::Command::new(command.get_program())
            .args(command.get_args())
            .env_clear()
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(directory) = command.get_current_dir() {
            on_terminal = on_terminal.current_dir(directory);
        }
        let child = on_terminal.spawn(inside).expect("the program can be started");
        Self { terminal, child, unread: String::new(), output: String::new() }
    }

    pub fn type_keys(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// Reads until `wanted` appears after the last match.
    #[track_caller]
    pub fn wait_for_text(&mut self, text: &str) {
        while !self.unread.contains(text) {
            assert!(self.read_more(), "the output ended before {text:?}: {:?}", self.unread);
        }
        let at = self.unread.find(text).unwrap_or_default() + text.len();
        self.unread.drain(..at);
    }

    /// Waits for the prompt and types after it.
    #[track_caller]
    pub fn answer_prompt(&mut self, keys: &str) {
        self.wait_for_text("> ");
        self.type_keys(keys);
    }

    /// Reads to the end and returns the exit code.
    #[track_caller]
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        while self.read_more() {}
        self.child.wait().expect("the child is ours").code()
    }

    #[track_caller]
    fn read_more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let timeout = Timespec { tv_sec: wait::LIMIT.as_secs().cast_signed(), tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.terminal, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&timeout)).expect("the terminal is open");
        assert!(ready > 0, "no output within {:?}: {:?}", wait::LIMIT, self.output);
        let count = self.terminal.read(&mut buffer).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..count]);
        self.unread.push_str(&text);
        self.output.push_str(&text);
        count > 0
    }
}

impl Drop for TerminalUser {
    fn drop(&mut self) {
        // The command may have exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
