//! Our share of a turn for each installed agent program: the bare program and the same turn through Abide, in
//! alternating rounds.

use std::{fs, path::Path};

use abide_domain::engine::ProfileKind;
use abide_engines::catalogue::EngineConfig;
use abide_testkit::model::{ModelScript, ModelServer, ScriptedAnswer};

use crate::{
    bare::{self, BareTurnTimes},
    dressing::{API_KEY, write_config},
    figures::ms,
    judging::{JudgedEngine, report},
    ours::{BenchDaemon, DaemonTurnTimes},
    programs::installed,
};

/// The engines whose programs are used in the tests too, and the parrot, which is part of our binary and needs no
/// model.
const ENGINES: [&str; 9] =
    ["codex", "claude", "gemini", "qwen", "opencode", "codex-acp", "claude-acp", "gemini-acp", PARROT];
/// Measured for reference only: a program that takes no time of its own.
pub(crate) const PARROT: &str = "parrot";

/// Turns longer than this are repeated less often, in microseconds.
const LONG_TURN_MICROS: f64 = 3e6;
const LONG_TURN_ROUNDS: usize = 5;

/// All rounds of one engine.
pub(crate) struct BenchRounds {
    pub(crate) bare: Vec<BareTurnTimes>,
    pub(crate) ours: Vec<DaemonTurnTimes>,
}

/// Returns whether each measured engine is within its limit.
pub(crate) fn bench(chosen: impl Fn(&str) -> bool, rounds: usize) -> bool {
    let mut judged = Vec::new();
    for name in ENGINES.into_iter().filter(|name| chosen(name)) {
        eprintln!("measuring {name}");
        let measured = match measure(name, rounds) {
            Ok(rounds) => JudgedEngine::of(name, &rounds),
            Err(reason) => JudgedEngine::not_measured(name, reason),
        };
        eprintln!("{}", measured.row());
        judged.push(measured);
    }
    report(&judged)
}

fn measure(name: &str, rounds: usize) -> Result<BenchRounds, String> {
    let text = |error: std::io::Error| error.to_string();
    let home = tempfile::tempdir().map_err(text)?;
    fs::create_dir(home.path().join("workspace")).map_err(text)?;
    let (config, _model) = engine_config(name, home.path())?;
    let daemon = BenchDaemon::build(name, home.path(), config)?;
    // The first turn of each side creates folders, databases and caches.
    let kind = daemon.turn()?.kind;
    let warm = bare::turn(&daemon.entry, kind, home.path(), &daemon.env)?;
    let rounds = if warm.total > LONG_TURN_MICROS { rounds.min(LONG_TURN_ROUNDS) } else { rounds };
    let mut measured = BenchRounds { bare: Vec::new(), ours: Vec::new() };
    for round in 0..rounds {
        // The second measurement finds warmer caches, so the order alternates.
        if round % 2 == 0 {
            measured.bare.push(bare::turn(&daemon.entry, kind, home.path(), &daemon.env)?);
            measured.ours.push(daemon.turn()?);
        } else {
            measured.ours.push(daemon.turn()?);
            measured.bare.push(bare::turn(&daemon.entry, kind, home.path(), &daemon.env)?);
        }
    }
    let is_sticky = if kind == ProfileKind::StickyProcess { ", held" } else { "" };
    eprintln!("  {rounds} rounds{is_sticky}; the bare turn before them took {}", ms(warm.total));
    Ok(measured)
}

/// Returns the engine's configuration, and the model that it uses.
fn engine_config(name: &str, home: &Path) -> Result<(EngineConfig, Option<ModelServer>), String> {
    if name == PARROT {
        let env = [("HOME".to_owned(), home.to_string_lossy().into_owned())].into();
        return Ok((EngineConfig { env, ..EngineConfig::default() }, None));
    }
    let program = installed(name).ok_or("its program is not installed; `cargo xtask engines` says why")?;
    let model = ModelServer::start(
        ModelScript::new().with_default(ScriptedAnswer::say("It lies.")).require_key(API_KEY),
    );
    Ok((write_config(&program, home, &model.url("")), Some(model)))
}
