//! `abide rpc`: the terminal runtime on standard input and output.

use abide_terminal::TerminalRuntime;
use anyhow::Context;

use crate::{
    config::{self, GivenSetting},
    home,
};

pub(crate) fn serve(given: &[GivenSetting]) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let runtime = TerminalRuntime::new(home::terminal_config(&config::load(given)?.config, false)?)?;
    abide_api::rpc::serve(runtime, std::io::stdin(), std::io::stdout()).context("cannot serve")
}

/// Raises the soft limit of file descriptors to the hard limit. Each session needs one, and the usual soft limit of
/// 1024 is below the limit of sessions.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it the present limit stays.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).ok();
}
