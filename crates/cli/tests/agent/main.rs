//! The native agent as users run it: the real binary, real shells, and a scripted model server.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod clones;
mod definitions;
mod engine;
mod harness;
mod journals;
mod limits;
mod mistakes;
mod people;
mod recovery;
mod stories;
// Kills the agent around each write to its journal. This needs a binary with failpoints: `cargo xtask ci` builds one
// and runs these tests, `cargo xtask test` does not.
#[cfg(feature = "failpoints")]
mod sweep;
mod terminal;

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    abide_testkit::environment::assert_not_inherited_by(&[
        "definitions::the_example_works_as_it_is_written",
        "terminal::a_question_is_asked_at_the_terminal_and_answered_by_number",
        "mistakes::an_example_is_written_that_works_and_nothing_is_overwritten",
    ]);
}
