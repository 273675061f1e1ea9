//! A pseudo-terminal with a command in it, driven as by a user.

use std::{
    io::{Read, Write},
    process::Child,
};

use abide_testkit::environment;
use pty_process::{
    Size,
    blocking::{Command, Pty},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::house::{CommandTestHome, WAIT_TIMEOUT};

pub(crate) struct TerminalUser {
    terminal: Pty,
    child: Child,
    /// Output that no search has consumed yet.
    unread: String,
    /// The whole output.
    pub(crate) output: String,
}

impl TerminalUser {
    pub(crate) fn start(home: &CommandTestHome, words: &[&str]) -> Self {
        Self::start_with_env(home, words, &[])
    }

    pub(crate) fn start_with_env(home: &CommandTestHome, words: &[&str], env: &[(&str, &str)]) -> Self {
        let (terminal, inside) = pty_process::blocking::open().unwrap();
        terminal.resize(Size::new(40, 160)).unwrap();
        let program = Command::new(env!("CARGO_BIN_EXE_abide"));
        let child = environment::inherited_settings()
            .into_iter()
            .fold(program, Command::env_remove)
            .args(words)
            .env("ABIDE_HOME", home.path())
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(env.iter().copied())
            .spawn(inside)
            .unwrap();
        Self { terminal, child, unread: String::new(), output: String::new() }
    }

    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until `wanted` appears after the last match.
    pub(crate) fn wait_for_text(&mut self, wanted: &str) {
        while !self.unread.contains(wanted) {
            assert!(self.read_more(), "the terminal fell silent before {wanted:?}: {:?}", self.unread);
        }
        let at = self.unread.find(wanted).unwrap() + wanted.len();
        self.unread.drain(..at);
    }

    /// Waits for the prompt and types after it.
    pub(crate) fn answer_prompt(&mut self, keys: &str) {
        self.wait_for_text("> ");
        self.type_keys(keys);
    }

    /// Reads to the end and returns the exit code.
    pub(crate) fn wait_for_exit(&mut self) -> Option<i32> {
        while self.read_more() {}
        self.child.wait().unwrap().code()
    }

    fn read_more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let timeout = Timespec { tv_sec: i64::try_from(WAIT_TIMEOUT.as_secs()).unwrap(), tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.terminal, PollFlags::IN)];
        let read = poll(&mut fds, Some(&timeout)).unwrap();
        assert!(read > 0, "the terminal hangs: {:?}", self.output);
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
