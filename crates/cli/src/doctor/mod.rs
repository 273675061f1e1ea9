//! `abide doctor`: reports the usable engines and their capabilities, and what this machine lacks. It needs no daemon
//! and leaves no files behind.
//!
//! Reading order: `engines` (concurrent examination), `checks` (the machine), `print`.

mod checks;
mod engines;
mod print;

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use abide_engines::catalogue::EngineCatalogue;
use abide_ports::catalogue::EngineLookup;
use anyhow::Context;

use crate::{
    args::DoctorArguments,
    config::{self, CliConfig, GivenSetting, LoadedConfig},
    exit::{FAILED, SUCCEEDED, interrupted, usage},
};
use engines::{ExaminationEnd, ExaminedEngine};

#[derive(Debug)]
struct DoctorReport {
    machine: Vec<checks::MachineCheck>,
    engines: Vec<ExaminedEngine>,
}

pub(crate) fn run(arguments: &DoctorArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    // A broken configuration is reported; the other checks still run.
    let (config, config_check) = match config::load(overrides) {
        Ok(LoadedConfig { config, path, exists, .. }) => (config, Ok((path, exists))),
        Err(error) => (CliConfig::defaults_for(&config::machine_facts()?), Err(error)),
    };
    let program = std::env::current_exe().context("cannot find this program")?;
    let catalogue = EngineCatalogue::new(&config.engine_configs(), &program, config.isolation());
    let disabled: Vec<&String> =
        config.engines.iter().filter(|(_, engine)| !engine.enabled).map(|(name, _)| name).collect();
    let engine_names: BTreeSet<String> =
        catalogue.names().into_iter().chain(disabled.iter().copied().cloned()).collect();
    if let Some(unknown) = arguments.engines.iter().find(|name| !engine_names.contains(*name)) {
        let engine_names = engine_names.into_iter().collect::<Vec<_>>().join(", ");
        eprintln!("abide: there is no engine {unknown}; there are {engine_names}");
        return Ok(usage());
    }
    let is_selected = |name: &&String| arguments.engines.is_empty() || arguments.engines.contains(name);
    let names = catalogue.names();
    let entries = names.iter().filter(is_selected).filter_map(|name| catalogue.engine(name)).collect();
    let mut examined_engines = match engines::examine(entries, arguments.timeout.map(Duration::from_secs))? {
        ExaminationEnd::Done(engines) => engines,
        ExaminationEnd::Interrupted => return Ok(interrupted()),
    };
    examined_engines
        .extend(disabled.into_iter().filter(is_selected).map(|name| ExaminedEngine::disabled(name)));
    let report =
        DoctorReport { machine: checks::run_all(&config, &config_check)?, engines: examined_engines };
    print::print(&report, arguments)?;
    let usable = report.engines.iter().any(ExaminedEngine::is_usable) && config_check.is_ok();
    Ok(if usable { SUCCEEDED } else { FAILED })
}
