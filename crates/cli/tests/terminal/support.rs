//! The shells and the home of the terminal tests.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

use abide_testkit::daemon::TestHome;

/// The supported shells; each test must pass on all of them.
pub(crate) const SHELLS: [&str; 3] = ["/bin/sh", "bash", "zsh"];

/// Creates a home whose path is too long for a socket address.
pub(crate) fn home() -> TestHome {
    let name = "a-home-whose-sockets-would-not-fit-in-an-address";
    let home = TestHome::new(env!("CARGO_BIN_EXE_abide")).in_subfolder(name);
    DirBuilder::new().mode(0o700).create(home.path()).unwrap();
    home
}
