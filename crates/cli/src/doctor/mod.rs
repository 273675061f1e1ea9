//! `abide doctor`: which engines can be used here and what for, and what this machine lacks. Needs no daemon and leaves
//! nothing behind.
//!
//! Reading order: `engines` (all are examined at once), `checks` (the machine), `print`.

mod checks;
mod engines;
mod print;

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use abide_ports::catalogue::EngineLookup;
use anyhow::Context;

use crate::{
    args::Doctor,
    catalogue::EngineCatalogue,
    config::{self, Config, Given, Loaded},
    exit::{FAILED, SUCCEEDED, interrupted, usage},
};
use engines::{Ended, Engine};

/// What was found.
#[derive(Debug)]
struct Report {
    machine: Vec<checks::Check>,
    engines: Vec<Engine>,
}

pub(crate) fn run(arguments: &Doctor, given: &[Given]) -> anyhow::Result<ExitCode> {
    // A broken configuration is one more thing to report, not a reason to look at nothing.
    let (config, said) = match config::load(given) {
        Ok(Loaded { config, path, exists, .. }) => (config, Ok((path, exists))),
        Err(error) => (Config::standard(&config::circumstances()?), Err(error)),
    };
    let own = std::env::current_exe().context("cannot find this program")?;
    let catalogue = EngineCatalogue::new(&config.engines(), &own, config.isolation());
    let off: Vec<&String> =
        config.engines.iter().filter(|(_, engine)| !engine.enabled).map(|(name, _)| name).collect();
    let known: BTreeSet<String> = catalogue.names().into_iter().chain(off.iter().copied().cloned()).collect();
    if let Some(unknown) = arguments.engines.iter().find(|name| !known.contains(*name)) {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        eprintln!("abide: there is no engine {unknown}; there are {known}");
        return Ok(usage());
    }
    let wanted = |name: &&String| arguments.engines.is_empty() || arguments.engines.contains(name);
    let names = catalogue.names();
    let entries = names.iter().filter(wanted).filter_map(|name| catalogue.engine(name)).collect();
    let mut found = match engines::examine(entries, arguments.timeout.map(Duration::from_secs))? {
        Ended::Done(found) => found,
        Ended::Interrupted => return Ok(interrupted()),
    };
    found.extend(off.into_iter().filter(wanted).map(|name| Engine::off(name)));
    let report = Report { machine: checks::all(&config, &said)?, engines: found };
    print::print(&report, arguments)?;
    let usable = report.engines.iter().any(Engine::is_usable) && said.is_ok();
    Ok(if usable { SUCCEEDED } else { FAILED })
}
