//! What was found, as a table for people or as JSON for programs.

use std::io::Write;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{AdapterBasis, EngineAbility, EngineHealth};
use serde_json::{Map, Value, json};

use super::{
    Report, checks,
    engines::{Engine, State},
};
use crate::{
    args::Doctor,
    table::{self, Cell, Colour, Look},
};

pub(super) fn print(report: &Report, arguments: &Doctor) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if arguments.output.json {
        writeln!(out, "{}", as_json(report))?;
        return Ok(());
    }
    let colour = Colour::of_stdout();
    let mut lines = table::lines(&machine(report), colour);
    lines.push(String::new());
    lines.extend(table::lines(&engines(report), colour));
    lines.push(String::new());
    if arguments.all {
        for engine in &report.engines {
            lines.extend(abilities(engine, colour));
        }
    } else {
        lines.extend(table::lines(&report.engines.iter().map(note).collect::<Vec<_>>(), colour));
    }
    if !report.engines.iter().any(Engine::is_usable) {
        lines.extend([String::new(), colour.paint(&Look::Bad.cell("no engine can be used"))]);
    }
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn machine(report: &Report) -> Vec<Vec<Cell>> {
    let row = |check: &checks::Check| {
        let state = match check.state {
            checks::State::Well => Look::Good.cell("ok"),
            checks::State::Lacking => Look::Careful.cell("lacking"),
            checks::State::Broken => Look::Bad.cell("broken"),
        };
        vec![Look::Plain.cell(check.name), state, Look::Plain.cell(&check.detail)]
    };
    std::iter::once(heads(&["MACHINE", "", ""])).chain(report.machine.iter().map(row)).collect()
}

fn engines(report: &Report) -> Vec<Vec<Cell>> {
    let row = |engine: &Engine| {
        let nothing = || "-".to_owned();
        let (version, abilities) = match &engine.state {
            State::Seen(health) => {
                let names: Vec<_> = health.abilities.iter().map(EngineAbility::name).collect();
                (health.version.clone(), names.join(", "))
            }
            State::Off => (None, String::new()),
        };
        // Of a script that an interpreter runs, the interpreter alone would tell nothing.
        let arguments = engine.command.iter().skip(1).map(|argument| format!(" {argument}"));
        let program = engine.program.as_ref().map(|path| path.display().to_string());
        let program = program.map(|path| path + &arguments.collect::<String>());
        let name = match engine.evidence {
            AdapterBasis::Recorded => engine.name.clone(),
            AdapterBasis::Documented => format!("{} (unverified)", engine.name),
        };
        vec![
            Look::Plain.cell(name),
            state(engine),
            Look::Plain.cell(version.unwrap_or_else(nothing)),
            Look::Plain.cell(if engine.is_usable() && !abilities.is_empty() { abilities } else { nothing() }),
            Look::Plain.cell(program.unwrap_or_else(nothing)),
        ]
    };
    let head = heads(&["ENGINE", "WAITS", "VERSION", "ABILITIES", "PROGRAM"]);
    std::iter::once(head).chain(report.engines.iter().map(row)).collect()
}

fn heads(titles: &[&str]) -> Vec<Cell> {
    titles.iter().map(|title| Look::Head.cell(*title)).collect()
}

/// How it waits for a person, or why it cannot be used, in a word.
fn state(engine: &Engine) -> Cell {
    match &engine.state {
        State::Off => Look::Faint.cell("off"),
        State::Seen(EngineHealth { trouble: Some(_), .. }) if engine.program.is_none() => {
            Look::Bad.cell("missing")
        }
        State::Seen(EngineHealth { trouble: Some(_), .. }) => Look::Bad.cell("unusable"),
        State::Seen(health) => match health.profile_kind() {
            ProfileKind::Resumable => Look::Good.cell("resumable"),
            ProfileKind::StickyProcess => Look::Careful.cell("sticky"),
        },
    }
}

/// Why it waits so, or what to do.
fn reason(engine: &Engine) -> String {
    match &engine.state {
        State::Off => format!("switched off by engines.{}.enabled", engine.name),
        State::Seen(EngineHealth { trouble: Some(trouble), .. }) => trouble.message.clone(),
        State::Seen(health) => match health.profile_kind() {
            ProfileKind::Resumable => {
                format!("waits for a person without a process: {}", health.resume.detail)
            }
            ProfileKind::StickyProcess => {
                format!("keeps its process and slot while it waits: {}", health.resume.detail)
            }
        },
    }
}

fn note(engine: &Engine) -> Vec<Cell> {
    let doubt = match engine.evidence {
        AdapterBasis::Recorded => "",
        AdapterBasis::Documented => {
            "; unverified: its adapter is made from what is documented, and was never tried on the program itself"
        }
    };
    vec![Look::Plain.cell(&engine.name), Look::Plain.cell(reason(engine) + doubt)]
}

/// Every ability of an engine, and what happens without those that it lacks.
fn abilities(engine: &Engine, colour: Colour) -> Vec<String> {
    let mut lines = table::lines(&[note(engine)], colour);
    if let (State::Seen(health), true) = (&engine.state, engine.is_usable()) {
        let rows = EngineAbility::ALL.into_iter().map(|ability| {
            let (look, word, without) = if health.abilities.has(ability) {
                (Look::Good, "yes", "")
            } else {
                (Look::Faint, "no", ability.without())
            };
            vec![
                Look::Plain.cell(""),
                look.cell(word),
                Look::Plain.cell(ability.name()),
                Look::Plain.cell(without),
            ]
        });
        lines.extend(table::lines(&rows.collect::<Vec<_>>(), colour));
    }
    lines
}

fn as_json(report: &Report) -> Value {
    let machine = report.machine.iter().map(|check| {
        let state = match check.state {
            checks::State::Well => "ok",
            checks::State::Lacking => "lacking",
            checks::State::Broken => "broken",
        };
        json!({ "check": check.name, "state": state, "detail": check.detail })
    });
    let engines = report.engines.iter().map(|engine| {
        let usable = engine.is_usable();
        let mut told = json!({
            "name": engine.name, "available": usable, "state": state(engine).text, "reason": reason(engine),
            "command": engine.command, "program": engine.program,
            "verified": matches!(engine.evidence, AdapterBasis::Recorded),
        });
        if let State::Seen(health) = &engine.state {
            let lacks =
                EngineAbility::ALL.into_iter().filter(|ability| usable && !health.abilities.has(*ability));
            let without: Map<_, _> =
                lacks.map(|ability| (ability.name().to_owned(), Value::from(ability.without()))).collect();
            told["version"] = json!(health.version);
            told["abilities"] = json!(health.abilities.iter().filter(|_| usable).collect::<Vec<_>>());
            told["without"] = json!(without);
            told["profile"] = json!(usable.then(|| health.profile_kind()));
            told["probe"] = json!(health.resume);
            told["trouble"] = json!(health.trouble);
        }
        told
    });
    json!({
        "usable": report.engines.iter().any(Engine::is_usable),
        "machine": machine.collect::<Vec<_>>(), "engines": engines.collect::<Vec<_>>(),
    })
}
