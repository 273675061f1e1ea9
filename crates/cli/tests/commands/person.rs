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

use crate::house::{CommandTestHome, PATIENCE};

pub(crate) struct TerminalUser {
    terminal: Pty,
    child: Child,
    /// Output that no search has consumed yet.
    seen: String,
    /// The whole output.
    pub(crate) all: String,
}

impl TerminalUser {
    pub(crate) fn runs(house: &CommandTestHome, words: &[&str]) -> Self {
        Self::runs_with(house, words, &[])
    }

    pub(crate) fn runs_with(house: &CommandTestHome, words: &[&str], env: &[(&str, &str)]) -> Self {
        let (terminal, inside) = pty_process::blocking::open().unwrap();
        terminal.resize(Size::new(40, 160)).unwrap();
        let program = Command::new(env!("CARGO_BIN_EXE_abide"));
        let child = environment::inherited_settings()
            .into_iter()
            .fold(program, Command::env_remove)
            .args(words)
            .env("ABIDE_HOME", house.path())
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(env.iter().copied())
            .spawn(inside)
            .unwrap();
        Self { terminal, child, seen: String::new(), all: String::new() }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until `wanted` appears after the last match.
    pub(crate) fn sees(&mut self, wanted: &str) {
        while !self.seen.contains(wanted) {
            assert!(self.reads(), "the terminal fell silent before {wanted:?}: {:?}", self.seen);
        }
        let at = self.seen.find(wanted).unwrap() + wanted.len();
        self.seen.drain(..at);
    }

    /// Waits for the prompt and types after it.
    pub(crate) fn answers(&mut self, keys: &str) {
        self.sees("> ");
        self.types(keys);
    }

    /// Reads to the end and returns the exit code.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        while self.reads() {}
        self.child.wait().unwrap().code()
    }

    fn reads(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let patience = Timespec { tv_sec: i64::try_from(PATIENCE.as_secs()).unwrap(), tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.terminal, PollFlags::IN)];
        let heard = poll(&mut fds, Some(&patience)).unwrap();
        assert!(heard > 0, "the terminal hangs: {:?}", self.all);
        let count = self.terminal.read(&mut buffer).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..count]);
        self.seen.push_str(&text);
        self.all.push_str(&text);
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
