//! `abide sessions attach` on a terminal: input, screen output, and detaching.

use abide_testkit::daemon::{TerminalUser, TestHome};

use crate::support::home;

/// Starts `abide sessions attach` on a terminal.
fn attach(home: &TestHome, session: &str) -> TerminalUser {
    let mut command = home.command();
    command.args(["sessions", "attach", session]);
    TerminalUser::start(&command, 33, 99)
}

#[test]
fn a_person_attaches_types_leaves_and_finds_everything_again() {
    let home = home();
    let created = home.run(&["sessions", "new", "--pty", "--shell", "/bin/sh", "--env", "PS1=ready> "]);
    let id = created.stdout.trim().to_owned();
    let mut terminal = attach(&home, &id);
    terminal.wait_for_text("ctrl-] leaves");
    terminal.wait_for_text("ready> ");
    // The terminal echoes the input; the quotes distinguish the echo from the output.
    terminal.type_keys("kept=1; stty size; echo at''tached\r");
    terminal.wait_for_text("\r\n33 99\r\nattached\r\n");
    terminal.type_keys("\x1d");
    assert_eq!(terminal.wait_for_exit(), Some(0));

    let mut again = attach(&home, &id);
    again.wait_for_text("attached\r\n");
    again.type_keys("echo $kept$kept; exit\r");
    again.wait_for_text("\r\n11\r\n");
    assert_eq!(again.wait_for_exit(), Some(0), "the end of the session is the end of attaching");
    home.run(&["sessions", "rm", &id]);
    assert!(home.processes().is_empty());
}

#[test]
fn a_session_without_a_terminal_cannot_be_attached_to_and_says_what_can() {
    let home = home();
    let created = home.run(&["sessions", "new", "--shell", "/bin/sh"]);
    let id = created.stdout.trim().to_owned();
    let mut terminal = attach(&home, &id);
    terminal.wait_for_text("abide sessions new --pty");
    assert_eq!(terminal.wait_for_exit(), Some(1));
    home.run(&["sessions", "rm", &id]);
}
