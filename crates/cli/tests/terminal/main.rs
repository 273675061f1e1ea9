//! The terminal runtime end to end: the real binary, real shells, real processes.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod attach;
mod housekeeping;
mod mcp;
mod panic;
mod people;
mod protocol;
mod sessions;
mod shells;
mod stopping;
mod stops;
mod support;

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    abide_testkit::environment::assert_not_inherited_by(&[
        "protocol::garbage_gets_an_error_and_the_next_request_is_served",
        "people::mistakes_have_their_exit_codes_and_a_way_on",
        "attach::a_session_without_a_terminal_cannot_be_attached_to_and_says_what_can",
    ]);
}
