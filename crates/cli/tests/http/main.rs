//! The HTTP interface of the real binary: complete runs of the scripted engine, terminals, and restarts.

mod daemon;
mod memory;
mod story;
mod terminals;

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    abide_testkit::environment::assert_not_inherited_by(&["story::a_stop_reports_the_ended_runs"]);
}
