//! Operator tasks with the real binary: metrics, logs, verification and backup.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod copies;
mod figures;
mod logs;
mod losses;
mod modes;
mod place;
mod secrets;
mod traces;

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    abide_testkit::environment::assert_not_inherited_by(&["figures::metrics_require_the_token"]);
}
