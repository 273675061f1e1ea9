//! The command line end to end: the real binary, a real daemon in a temporary home, and a real terminal.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod access;
mod following;
mod harness;
mod mistakes;
mod output;
mod questions;
mod service;
mod talking;

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    abide_testkit::environment::assert_not_inherited_by(&[
        "service::a_home_has_one_daemon",
        "questions::a_question_is_asked_on_the_terminal_and_answered_by_number",
    ]);
}
