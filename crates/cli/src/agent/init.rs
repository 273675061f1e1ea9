//! `abide agent init`: writes an example agent.

use std::{io::Write, process::ExitCode};

use abide_agent::definition;
use serde_json::json;

use crate::{
    args::AgentInit,
    error::{CliError, eprint_line},
    exit::SUCCEEDED,
    runs::print_json,
};

pub(super) fn run(arguments: &AgentInit) -> anyhow::Result<ExitCode> {
    let written = definition::init(&arguments.folder)
        .map_err(|error| CliError::failure("NOT_WRITTEN", error.to_string()))?;
    let files: Vec<String> = written.files.iter().map(|file| file.display().to_string()).collect();
    if arguments.output.json {
        print_json(&json!({ "files": files }))?;
        return Ok(SUCCEEDED);
    }
    let mut out = std::io::stdout().lock();
    for file in files {
        writeln!(out, "{file}")?;
    }
    let folder = arguments.folder.display();
    eprint_line(format_args!(
        "abide: set the model in config.yaml, then: abide agent run --agent {folder} --message '…'"
    ));
    Ok(SUCCEEDED)
}
