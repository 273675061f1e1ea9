//! `abide mcp`: the terminal runtime as MCP tools on standard input and output.

use abide_terminal::RuntimeHandle;
use anyhow::anyhow;

use crate::{
    config::{self, GivenSetting},
    home,
};

pub(crate) fn serve(overrides: &[GivenSetting]) -> anyhow::Result<()> {
    let runtime = RuntimeHandle::start(home::terminal_config(&config::load(overrides)?.config, false)?)?;
    let tokio_runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio_runtime
        .block_on(abide_api::mcp::serve(runtime))
        .map_err(|error| anyhow!("cannot serve: {error}"))?;
    // A blocked read of standard input on its thread must not delay the exit.
    tokio_runtime.shutdown_background();
    Ok(())
}
