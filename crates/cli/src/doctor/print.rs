//! Prints the report as a table or as JSON.

use std::io::Write;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{AdapterBasis, EngineAbility, EngineHealth};
use serde_json::{Map, Value, json};

use super::{
    DoctorReport, checks,
    engines::{ExaminedEngine, ExaminedState},
};
use crate::{
    args::DoctorArguments,
    table::{self, ColourMode, TableCell, TextStyle},
};

pub(super) fn print(report: &DoctorReport, arguments: &DoctorArguments) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if arguments.output.json {
        writeln!(out, "{}", as_json(report))?;
        return Ok(());
    }
    let colour = ColourMode::of_stdout();
    let mut lines = table::format_rows(&machine(report), colour);
    lines.push(String::new());
    lines.extend(table::format_rows(&engines(report), colour));
    lines.push(String::new());
    if arguments.all {
        for engine in &report.engines {
            lines.extend(abilities(engine, colour));
        }
    } else {
        lines.extend(table::format_rows(&report.engines.iter().map(reason_row).collect::<Vec<_>>(), colour));
    }
    if !report.engines.iter().any(ExaminedEngine::is_usable) {
        lines.extend([String::new(), colour.paint(&TextStyle::Error.cell("no engine can be used"))]);
    }
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn machine(report: &DoctorReport) -> Vec<Vec<TableCell>> {
    let row = |check: &checks::MachineCheck| {
        let state = match check.state {
            checks::CheckState::Passed => TextStyle::Success.cell("ok"),
            checks::CheckState::Warning => TextStyle::Warning.cell("warning"),
            checks::CheckState::Failed => TextStyle::Error.cell("failed"),
        };
        vec![TextStyle::Plain.cell(check.name), state, TextStyle::Plain.cell(&check.detail)]
    };
    std::iter::once(heading_row(&["MACHINE", "", ""])).chain(report.machine.iter().map(row)).collect()
}

fn engines(report: &DoctorReport) -> Vec<Vec<TableCell>> {
    let row = |engine: &ExaminedEngine| {
        let nothing = || "-".to_owned();
        let (version, abilities) = match &engine.state {
            ExaminedState::Probed(health) => {
                let names: Vec<_> = health.abilities.iter().map(EngineAbility::name).collect();
                (health.version.clone(), names.join(", "))
            }
            ExaminedState::Disabled => (None, String::new()),
        };
        // For a script, the interpreter alone is not informative, so the arguments are printed too.
        let arguments = engine.command.iter().skip(1).map(|argument| format!(" {argument}"));
        let program = engine.program.as_ref().map(|path| path.display().to_string());
        let program = program.map(|path| path + &arguments.collect::<String>());
        let name = match engine.evidence {
            AdapterBasis::Recorded => engine.name.clone(),
            AdapterBasis::Documented => format!("{} (unverified)", engine.name),
        };
        vec![
            TextStyle::Plain.cell(name),
            state(engine),
            TextStyle::Plain.cell(version.unwrap_or_else(nothing)),
            TextStyle::Plain.cell(if engine.is_usable() && !abilities.is_empty() {
                abilities
            } else {
                nothing()
            }),
            TextStyle::Plain.cell(program.unwrap_or_else(nothing)),
        ]
    };
    let head = heading_row(&["ENGINE", "WAIT MODE", "VERSION", "ABILITIES", "PROGRAM"]);
    std::iter::once(head).chain(report.engines.iter().map(row)).collect()
}

fn heading_row(titles: &[&str]) -> Vec<TableCell> {
    titles.iter().map(|title| TextStyle::Heading.cell(*title)).collect()
}

/// Returns the wait mode, or the reason why the engine cannot be used, as one word.
fn state(engine: &ExaminedEngine) -> TableCell {
    match &engine.state {
        ExaminedState::Disabled => TextStyle::Dim.cell("off"),
        ExaminedState::Probed(EngineHealth { failure: Some(_), .. }) if engine.program.is_none() => {
            TextStyle::Error.cell("missing")
        }
        ExaminedState::Probed(EngineHealth { failure: Some(_), .. }) => TextStyle::Error.cell("unusable"),
        ExaminedState::Probed(health) => match health.profile_kind() {
            ProfileKind::Resumable => TextStyle::Success.cell("resumable"),
            ProfileKind::StickyProcess => TextStyle::Warning.cell("sticky"),
        },
    }
}

/// Returns the reason for the wait mode, or the remedy.
fn reason(engine: &ExaminedEngine) -> String {
    match &engine.state {
        ExaminedState::Disabled => format!("switched off by engines.{}.enabled", engine.name),
        ExaminedState::Probed(EngineHealth { failure: Some(failure), .. }) => failure.message.clone(),
        ExaminedState::Probed(health) => match health.profile_kind() {
            ProfileKind::Resumable => {
                format!("waits for a person without a process: {}", health.resume.detail)
            }
            ProfileKind::StickyProcess => {
                format!("keeps its process and slot while it waits: {}", health.resume.detail)
            }
        },
    }
}

fn reason_row(engine: &ExaminedEngine) -> Vec<TableCell> {
    let unverified_text = match engine.evidence {
        AdapterBasis::Recorded => "",
        AdapterBasis::Documented => {
            "; unverified: its adapter follows the documentation and was never tested with the program"
        }
    };
    vec![TextStyle::Plain.cell(&engine.name), TextStyle::Plain.cell(reason(engine) + unverified_text)]
}

/// Returns all capabilities of an engine, and the fallback for each missing one.
fn abilities(engine: &ExaminedEngine, colour: ColourMode) -> Vec<String> {
    let mut lines = table::format_rows(&[reason_row(engine)], colour);
    if let (ExaminedState::Probed(health), true) = (&engine.state, engine.is_usable()) {
        let rows = EngineAbility::ALL.into_iter().map(|ability| {
            let (look, word, without) = if health.abilities.has(ability) {
                (TextStyle::Success, "yes", "")
            } else {
                (TextStyle::Dim, "no", ability.fallback())
            };
            vec![
                TextStyle::Plain.cell(""),
                look.cell(word),
                TextStyle::Plain.cell(ability.name()),
                TextStyle::Plain.cell(without),
            ]
        });
        lines.extend(table::format_rows(&rows.collect::<Vec<_>>(), colour));
    }
    lines
}

fn as_json(report: &DoctorReport) -> Value {
    let machine = report.machine.iter().map(|check| {
        let state = match check.state {
            checks::CheckState::Passed => "ok",
            checks::CheckState::Warning => "warning",
            checks::CheckState::Failed => "failed",
        };
        json!({ "check": check.name, "state": state, "detail": check.detail })
    });
    let engines = report.engines.iter().map(|engine| {
        let usable = engine.is_usable();
        let mut value = json!({
            "name": engine.name, "available": usable, "state": state(engine).text, "reason": reason(engine),
            "command": engine.command, "program": engine.program,
            "verified": matches!(engine.evidence, AdapterBasis::Recorded),
        });
        if let ExaminedState::Probed(health) = &engine.state {
            let lacks =
                EngineAbility::ALL.into_iter().filter(|ability| usable && !health.abilities.has(*ability));
            let missing: Map<_, _> =
                lacks.map(|ability| (ability.name().to_owned(), Value::from(ability.fallback()))).collect();
            value["version"] = json!(health.version);
            value["abilities"] = json!(health.abilities.iter().filter(|_| usable).collect::<Vec<_>>());
            value["missing_abilities"] = json!(missing);
            value["profile"] = json!(usable.then(|| health.profile_kind()));
            value["probe"] = json!(health.resume);
            value["failure"] = json!(health.failure);
        }
        value
    });
    json!({
        "usable": report.engines.iter().any(ExaminedEngine::is_usable),
        "machine": machine.collect::<Vec<_>>(), "engines": engines.collect::<Vec<_>>(),
    })
}
