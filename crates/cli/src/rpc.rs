//! `abide rpc`: the terminal runtime on standard input and output.

use abide_os::own_process::raise_descriptor_limit;
use abide_terminal::TerminalRuntime;
use anyhow::Context;

use crate::{
    config::{self, GivenSetting},
    home,
};

pub(crate) fn serve(overrides: &[GivenSetting]) -> anyhow::Result<()> {
    // Each session needs a descriptor, and the usual soft limit of 1024 is below the limit of sessions.
    raise_descriptor_limit();
    let runtime = TerminalRuntime::new(home::terminal_config(&config::load(overrides)?.config, false)?)?;
    abide_api::rpc::serve(runtime, std::io::stdin(), std::io::stdout()).context("cannot serve")
}
