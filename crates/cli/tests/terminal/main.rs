//! The terminal runtime end to end: the real binary, real shells, real processes.

#[cfg(test)]
mod attach;
#[cfg(test)]
mod house;
#[cfg(test)]
mod mcp;
#[cfg(test)]
mod panic;
#[cfg(test)]
mod people;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod shells;
#[cfg(test)]
mod stopping;
#[cfg(test)]
mod stops;
#[cfg(test)]
mod support;

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    abide_testkit::environment::assert_not_inherited_by(&[
        "protocol::garbage_gets_an_error_and_the_next_request_is_served",
        "people::mistakes_have_their_exit_codes_and_a_way_on",
        "attach::a_session_without_a_terminal_cannot_be_attached_to_and_says_what_can",
    ]);
}
