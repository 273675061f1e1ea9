//! Writes `docs/engines.md`: the agent programs that work, according to the tests, with versions and dates.
//!
//! The results come from the tests' record, and the abilities from `abide doctor`. Only the text around the tables is
//! written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::report::{InstallRow, InstallState};
use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

/// The folder in which tests record their results, and the variable that names it.
pub(crate) const RECORD: &str = ".cache/engines/record";
pub(crate) const RECORD_VARIABLE: &str = "ABIDE_TEST_RECORD";

const DOCUMENT: &str = "docs/engines.md";

/// The time of the last success of each scenario, in seconds since the epoch, by engine.
type ScenarioDates = BTreeMap<String, BTreeMap<String, i64>>;

/// The output of `abide doctor` about one engine.
#[derive(Debug, Deserialize)]
struct DoctorEngine {
    name: String,
    version: Option<String>,
    profile: Option<String>,
    abilities: Vec<String>,
    verified: bool,
    probe: DoctorProbe,
    #[serde(default)]
    missing_abilities: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct DoctorProbe {
    detail: String,
}

#[derive(Debug, Deserialize)]
struct DoctorOutput {
    engines: Vec<DoctorEngine>,
}

pub(super) fn write(workspace: &CargoWorkspace, rows: &[InstallRow]) -> Result<()> {
    let record = read(&workspace.root.join(RECORD))?;
    if record.is_empty() {
        bail!("nothing was recorded yet; run `cargo xtask test engines` first");
    }
    let doctor = run_doctor(workspace, rows, &record)?;
    fs::write(workspace.root.join(DOCUMENT), render(&record, &doctor))
        .with_context(|| format!("could not write {DOCUMENT}"))?;
    eprintln!("engines: {DOCUMENT} is written");
    Ok(())
}

fn read(folder: &Path) -> Result<ScenarioDates> {
    let mut record = ScenarioDates::new();
    for engine in entries(folder) {
        let scenarios = entries(&folder.join(&engine)).into_iter().map(|scenario| {
            let seconds = fs::read_to_string(folder.join(&engine).join(&scenario))?;
            Ok((scenario, seconds.trim().parse().context("a record is a number of seconds")?))
        });
        let scenarios: Result<BTreeMap<String, i64>> = scenarios.collect();
        record.insert(engine, scenarios?);
    }
    Ok(record)
}

fn entries(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(std::io::Result::ok);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Runs `abide doctor` on the installed programs, with the commands that the tests use.
fn run_doctor(
    workspace: &CargoWorkspace,
    rows: &[InstallRow],
    record: &ScenarioDates,
) -> Result<DoctorOutput> {
    EchoedCommand::new("cargo")
        .args(["build", "--quiet", "--package", "abide"])
        .dir(&workspace.root)
        .run()?;
    let home = tempfile::tempdir().context("could not make a home for the doctor")?;
    let mut doctor = EchoedCommand::new(workspace.root.join("target/debug/abide"))
        .args(["doctor", "--json", "--all"])
        .path_only_env()
        .env("HOME", home.path())
        .env("ABIDE_HOME", home.path());
    for name in record.keys() {
        let own = rows.iter().find(|row| row.engine == name);
        let base = rows.iter().find(|row| Some(row.engine) == name.strip_suffix("-acp"));
        let Some(InstallState::Ready { command, env, .. }) = own.or(base).map(|row| &row.state) else {
            continue;
        };
        let mut command = command.clone();
        if own.is_none() {
            command.push("--acp".to_owned());
        }
        let key = format!("ABIDE_ENGINES_{}", name.to_uppercase().replace('-', "_"));
        doctor = doctor.env(&format!("{key}_COMMAND"), serde_json::to_string(&command)?);
        if !env.is_empty() {
            doctor = doctor.env(&format!("{key}_ENV"), serde_json::to_string(env)?);
        }
        if name.ends_with("-acp") {
            doctor = doctor.env(&format!("{key}_PROTOCOL"), "acp");
        }
    }
    serde_json::from_str(&doctor.read()?).context("the output of `abide doctor` cannot be parsed")
}

fn render(record: &ScenarioDates, doctor: &DoctorOutput) -> String {
    let mut text = String::from(HEAD);
    let by_name: BTreeMap<&str, &DoctorEngine> =
        doctor.engines.iter().map(|one| (one.name.as_str(), one)).collect();
    text.push_str("| engine | version | last tested | wait mode | abilities |\n|---|---|---|---|---|\n");
    for (engine, scenarios) in record {
        let seen = scenarios.values().max().map_or_else(|| "never".to_owned(), |seconds| day(*seconds));
        let one = by_name.get(engine.as_str());
        let real = one.is_some_and(|one| one.verified);
        let version = match one.and_then(|one| one.version.as_deref()) {
            Some(version) if real => version,
            _ => "UNVERIFIED: tested with a substitute program",
        };
        let profile = one.and_then(|one| one.profile.as_deref()).unwrap_or("depends on its `--help`");
        let abilities = one.map(|one| one.abilities.join(", ")).unwrap_or_default();
        // Writing to a string cannot fail, here and below.
        writeln!(text, "| {engine} | {version} | {seen} | {profile} | {abilities} |").ok();
    }
    text.push_str(SCENARIOS_HEADING);
    let scenarios: BTreeSet<&String> = record.values().flat_map(BTreeMap::keys).collect();
    let engines: Vec<&str> = record.keys().map(String::as_str).collect();
    writeln!(text, "| | {} |\n|---|{}", engines.join(" | "), "---|".repeat(engines.len())).ok();
    for scenario in scenarios {
        let cells: Vec<&str> =
            record.values().map(|seen| if seen.contains_key(scenario) { "passed" } else { "-" }).collect();
        writeln!(text, "| {} | {} |", scenario.replace('_', " "), cells.join(" | ")).ok();
    }
    text.push_str("\n## Reason for the wait mode\n\n");
    for one in doctor.engines.iter().filter(|one| record.contains_key(&one.name)) {
        writeln!(text, "- {}: {}", one.name, one.probe.detail).ok();
    }
    text.push_str("\n## Behaviour without an ability\n\n| missing ability | behaviour |\n|---|---|\n");
    let missing: BTreeMap<&String, &String> =
        doctor.engines.iter().flat_map(|one| &one.missing_abilities).collect();
    for (ability, instead) in missing {
        writeln!(text, "| {ability} | {instead} |").ok();
    }
    text.push_str(NOTES);
    text
}

/// Formats a date in UTC.
fn day(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds)
        .map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d").to_string())
}

const HEAD: &str = "\
# Engines

Written by `cargo xtask engines --write` from the results of `cargo xtask test`. The tests drive the real programs, at these
versions, end to end against a model server on the loopback interface. `abide doctor` shows the same for your machine.

";

const SCENARIOS_HEADING: &str = "
## Tested behaviour

";

const NOTES: &str = "
## Notes

- Without a sandbox setting, the program's own configuration decides its permissions. A sandbox setting applies to every
  turn.
- Over the Agent Client Protocol, Gemini CLI chooses its own session ids and deletes sessions when another starts. Set
  `general.sessionRetention.enabled` to `false` in its settings if you configure it as an ACP agent. The built-in adapter
  chooses session ids that Gemini CLI does not delete.
- A configured ACP agent that offers `session/load` but not `session/resume` is not resumed within one minute after its
  session began, because one program destroys a session that is loaded that early. An earlier reply
  waits until the minute has passed.
- Gemini CLI and Qwen Code are started with an addition to `NODE_OPTIONS`, because Node loses buffered output when a program
  exits. Programs that the agent starts do not inherit it.
- A turn in which Gemini CLI stops a repeating model fails, although the program reports success.
- iFlow has been withdrawn. Its adapter is written from its documentation and tested only with a substitute program.
- `codex exec` cannot wait inside a turn. If the installed version also lacks `resume`, a question ends the run.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_without_a_result_are_not_listed() {
        let record = ScenarioDates::from([
            ("alpha".to_owned(), BTreeMap::from([("it_asks".to_owned(), 1_794_000_000)])),
            ("beta".to_owned(), BTreeMap::from([("it_dies".to_owned(), 1_794_100_000)])),
        ]);
        let doctor = DoctorOutput {
            engines: vec![DoctorEngine {
                name: "alpha".to_owned(),
                version: Some("1.2".to_owned()),
                profile: Some("resumable".to_owned()),
                abilities: vec!["resume".to_owned()],
                verified: true,
                probe: DoctorProbe { detail: "it says so".to_owned() },
                missing_abilities: BTreeMap::from([("steer".to_owned(), "it waits".to_owned())]),
            }],
        };
        let text = render(&record, &doctor);
        for line in [
            "| alpha | 1.2 | 2026-11-06 | resumable | resume |",
            "| beta | UNVERIFIED: tested with a substitute program | 2026-11-08 | depends on its `--help` |  |",
            "| it asks | passed | - |",
            "| it dies | - | passed |",
            "| steer | it waits |",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}
