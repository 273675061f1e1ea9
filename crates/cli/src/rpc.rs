//! `abide rpc`: the terminal runtime on our own standard streams.

use abide_terminal::TerminalRuntime;
use anyhow::Context;

use crate::{
    config::{self, GivenSetting},
    home,
};

pub(crate) fn serve(given: &[GivenSetting]) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let runtime = TerminalRuntime::new(home::terminal(&config::load(given)?.config, false)?)?;
    abide_api::rpc::serve(runtime, std::io::stdin(), std::io::stdout()).context("cannot serve")
}

/// Each session is a descriptor; the usual soft limit of 1024 would end the pool before its own bound does.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _kept_as_it_was =
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
