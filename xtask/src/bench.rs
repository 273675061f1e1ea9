//! The list of benchmarks and their requirements. Each benchmark is implemented in its crate. The exception are the
//! terminal's peers: programs of other projects, on which no crate should depend.

mod against;
mod peers;

use std::env;

use anyhow::{Context, Result, bail};

use crate::engines::{self, InstalledEngines};
use crate::postgres::{self, PostgresServer};
use crate::shell::EchoedCommand;
use crate::tools;
use crate::workspace::CargoWorkspace;

struct BenchmarkSpec {
    name: &'static str,
    package: &'static str,
    about: &'static str,
    needs: BenchmarkNeeds,
}

#[derive(Clone, Copy)]
enum BenchmarkNeeds {
    /// The release binary of the project, and the peers.
    BinaryAndPeers,
    /// The agent programs.
    Engines,
    Postgres,
    Nothing,
}

const BENCHES: &[BenchmarkSpec] = &[
    BenchmarkSpec {
        name: "agent",
        package: "abide",
        about: "the native agent's own time in an iteration and at a restart, with a long journal (--only-iterations, --only-restart)",
        needs: BenchmarkNeeds::Nothing,
    },
    BenchmarkSpec {
        name: "engines",
        package: "abide",
        about: "our share of a turn of each agent program, and the parsing speed of its output (--only NAME, --rounds N)",
        needs: BenchmarkNeeds::Engines,
    },
    BenchmarkSpec {
        name: "runs",
        package: "abide",
        about: "whole runs a second beside a bare commit loop, and growth (--only-cycles, --only-growth, --runs N)",
        needs: BenchmarkNeeds::Nothing,
    },
    BenchmarkSpec {
        name: "store",
        package: "abide-store",
        about: "durable appends a second, beside a bare commit loop and a bare sync loop",
        needs: BenchmarkNeeds::Postgres,
    },
    BenchmarkSpec {
        name: "terminal",
        package: "abide-terminal",
        about: "commands and output through persistent shells; peers too (--no-peers, --only-peers, --write)",
        needs: BenchmarkNeeds::BinaryAndPeers,
    },
];

/// Measures an earlier commit and the present tree alternately, and fails if the present tree is slower.
pub(crate) fn compare_with(workspace: &CargoWorkspace, name: &str, commit: &str) -> Result<()> {
    against::run(workspace, find(name)?, commit)
}

pub(crate) fn run(workspace: &CargoWorkspace, name: &str, args: &[String]) -> Result<()> {
    let bench = find(name)?;
    workspace
        .member(bench.package)
        .with_context(|| format!("nothing to measure yet: the package {} is missing", bench.package))?;
    let cargo = |args: &[String]| {
        EchoedCommand::new("cargo")
            .args(["bench", "--package", bench.package, "--bench", bench.name, "--"])
            .args(args)
            .dir(&workspace.root)
    };
    match bench.needs {
        BenchmarkNeeds::BinaryAndPeers => {
            let (selection, args) = peers::PeerSelection::split(args)?;
            EchoedCommand::new("cargo")
                .args(["build", "--release", "--package", "abide"])
                .dir(&workspace.root)
                .run()?;
            if selection.own_figures() {
                cargo(&args).run()?;
            }
            peers::run(workspace, selection)
        }
        BenchmarkNeeds::Engines => match env::var_os(engines::ENGINES_VARIABLE) {
            // The programs are installed elsewhere.
            Some(list) => cargo(args).env(engines::ENGINES_VARIABLE, list).run(),
            None => {
                let engines = InstalledEngines::prepare(workspace)?;
                engines.report();
                cargo(args).env(engines::ENGINES_VARIABLE, engines.list_path()).run()
            }
        },
        BenchmarkNeeds::Nothing => cargo(args).run(),
        BenchmarkNeeds::Postgres => {
            tools::for_tests()?;
            let server = PostgresServer::start(workspace)?;
            cargo(args).env(postgres::URL_VARIABLE, server.url()).run()
        }
    }
}

fn find(name: &str) -> Result<&'static BenchmarkSpec> {
    match BENCHES.iter().find(|bench| bench.name == name) {
        Some(bench) => Ok(bench),
        None => {
            let list: String =
                BENCHES.iter().map(|bench| format!("\n  {:<10}{}", bench.name, bench.about)).collect();
            bail!("there is no benchmark `{name}`; the benchmarks are:{list}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn an_unknown_name_lists_the_known() {
        let error = find("speed").err().unwrap().to_string();
        assert!(error.starts_with("there is no benchmark `speed`; the benchmarks are:\n  agent "), "{error}");
        assert!(error.contains("\n  store ") && error.contains("\n  terminal "), "{error}");
    }
}
