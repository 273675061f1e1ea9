//! `abide mcp`: the terminal runtime as MCP tools on our own standard streams.

use abide_terminal::RuntimeHandle;
use anyhow::anyhow;

use crate::{
    config::{self, GivenSetting},
    home,
};

pub(crate) fn serve(given: &[GivenSetting]) -> anyhow::Result<()> {
    let runtime = RuntimeHandle::start(home::terminal(&config::load(given)?.config, false)?)?;
    let turning = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    turning.block_on(abide_api::mcp::serve(runtime)).map_err(|error| anyhow!("cannot serve: {error}"))?;
    // A read of standard input that is still blocked on its thread must not hold up the end.
    turning.shutdown_background();
    Ok(())
}
