//! `abide sessions attach` on a terminal: input, screen output, and detaching.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Child;

use abide_testkit::environment;
use pty_process::Size;
use pty_process::blocking::{Command, Pty};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::people::{abide, text};
use crate::support::{home, home_processes};

/// The timeout of a wait; reaching it is a failure.
const WAIT_TIMEOUT: Timespec = Timespec { tv_sec: 40, tv_nsec: 0 };

/// A terminal that runs `abide sessions attach`.
struct AttachedTerminal {
    terminal: Pty,
    child: Child,
    seen: String,
}

impl AttachedTerminal {
    fn attach(home: &Path, session: &str) -> Self {
        let (terminal, inside) = pty_process::blocking::open().unwrap();
        terminal.resize(Size::new(33, 99)).unwrap();
        let program = Command::new(env!("CARGO_BIN_EXE_abide"));
        let child = environment::inherited_settings()
            .into_iter()
            .fold(program, Command::env_remove)
            .args(["sessions", "attach", session])
            .env("ABIDE_HOME", home)
            .spawn(inside)
            .unwrap();
        Self { terminal, child, seen: String::new() }
    }

    fn type_keys(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until `wanted` appears after the last match.
    fn wait_for_text(&mut self, wanted: &str) {
        let mut buffer = [0; 1024];
        while !self.seen.contains(wanted) {
            let mut fds = [PollFd::new(&self.terminal, PollFlags::IN)];
            let heard = poll(&mut fds, Some(&WAIT_TIMEOUT)).unwrap();
            let count = if heard > 0 { self.terminal.read(&mut buffer).unwrap_or(0) } else { 0 };
            assert!(count > 0, "the terminal fell silent before {wanted:?}: {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        let at = self.seen.find(wanted).unwrap() + wanted.len();
        self.seen.drain(..at);
    }
}

#[test]
fn a_person_attaches_types_leaves_and_finds_everything_again() {
    let home = home();
    let home = home.path();
    let created = abide(home, &["sessions", "new", "--pty", "--shell", "/bin/sh", "--env", "PS1=ready> "]);
    let id = text(&created.stdout).trim().to_owned();
    let mut terminal = AttachedTerminal::attach(home, &id);
    terminal.wait_for_text("ctrl-] leaves");
    terminal.wait_for_text("ready> ");
    // The terminal echoes the input; the quotes distinguish the echo from the output.
    terminal.type_keys("kept=1; stty size; echo at''tached\r");
    terminal.wait_for_text("\r\n33 99\r\nattached\r\n");
    terminal.type_keys("\x1d");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));

    let mut again = AttachedTerminal::attach(home, &id);
    again.wait_for_text("attached\r\n");
    again.type_keys("echo $kept$kept; exit\r");
    again.wait_for_text("\r\n11\r\n");
    assert_eq!(again.child.wait().unwrap().code(), Some(0), "the end of the session is the end of attaching");
    abide(home, &["sessions", "rm", &id]);
    assert!(home_processes(home).is_empty());
}

#[test]
fn a_session_without_a_terminal_cannot_be_attached_to_and_says_what_can() {
    let home = home();
    let home = home.path();
    let created = abide(home, &["sessions", "new", "--shell", "/bin/sh"]);
    let id = text(&created.stdout).trim().to_owned();
    let mut terminal = AttachedTerminal::attach(home, &id);
    terminal.wait_for_text("abide sessions new --pty");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(1));
    abide(home, &["sessions", "rm", &id]);
}
