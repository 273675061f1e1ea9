//! The command line: the commands, their help, and their exit codes.
//!
//! Each command is implemented in the file of its name.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Parser, Subcommand};

use crate::crash_tests::{self, CrashTestKind, FigureOutput};
use crate::workspace::CargoWorkspace;
use crate::{bench, ci, engines, playground, schemathesis, shell, sim, stops, test, tidy, up};

/// The development commands of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct XtaskArguments {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Build the `abide` binary, start the daemon in the background, and print commands to try.
    #[command(after_help = "Examples:\n  cargo xtask up\n  cargo xtask up --release --listen 127.0.0.1:5000")]
    Up {
        /// `--release` for the optimised build; everything else is passed on to `abide up`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Install the requirements of the tests, start a temporary Postgres, and run every test.
    #[command(after_help = "Examples:\n  cargo xtask test\n  cargo xtask test reply_to_another\n\n\
        With a FILTER only the tests whose name contains it run: no doc tests, no simulator.\n\
        Tests find the database in ABIDE_TEST_POSTGRES_URL, and the list of agent programs in ABIDE_TEST_ENGINES.\n\
        With ABIDE_REQUIRE_ENGINES=1 an agent program that cannot be installed is a failure.")]
    Test {
        /// Parts of test names; without any, everything runs.
        filter: Vec<String>,
    },
    /// Install the agent programs that the tests drive, and show which of them run.
    #[command(after_help = "Examples:\n  cargo xtask engines\n  cargo xtask engines --json\n  \
        cargo xtask engines --write    # docs/engines.md, from the results of `cargo xtask test`\n\n\
        They go to .cache/engines, about 1.5 GB, at the versions in xtask/engines. The table is on standard error.\n\
        With ABIDE_REQUIRE_ENGINES=1 one that is not verified is a failure.")]
    Engines {
        /// Also print the list for the tests: each engine's command and environment.
        #[arg(long)]
        json: bool,
        /// Write docs/engines.md from the last results of the tests.
        #[arg(long, conflicts_with = "json")]
        write: bool,
    },
    /// Try Abide with a real agent program and without an account; a scripted model answers on the loopback interface.
    #[command(after_help = "Examples:\n  cargo xtask playground codex\n  cargo xtask playground claude\n\n\
        Needs no account and no key. The program goes to .cache/engines, Abide's home and the project to\n\
        target/playground.")]
    Playground {
        /// A program that `cargo xtask engines` lists.
        engine: String,
    },
    /// Test a daemon against its OpenAPI document, with schemathesis.
    #[command(
        after_help = "Examples:\n  cargo xtask schemathesis\n  cargo xtask schemathesis --include-path /v1/runs\n\n\
        schemathesis goes to .cache/schemathesis, at the versions in xtask/schemathesis."
    )]
    Schemathesis {
        /// Passed on to schemathesis.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run the simulator, optimised and with every assertion on.
    #[command(after_help = "Examples:\n  cargo xtask sim --seeds 20000\n  \
        cargo xtask sim --seed 4711     # replay one history and print its events\n  \
        cargo xtask sim --mutants       # show that each deliberate fault is detected")]
    Sim {
        /// Passed on to the simulator.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Kill the real daemon with SIGKILL, at every commit point and at random times, and check the result.
    #[command(after_help = "Examples:\n  cargo xtask kill                         # 100 kills, as in CI\n  \
        cargo xtask kill --kills 1000 --write    # the nightly form; figures go to docs/reliability.md\n  \
        cargo xtask kill --seed 7")]
    Kill {
        /// Write the figures to docs/reliability.md.
        #[arg(long)]
        write: bool,
        /// The minimum number of kills.
        #[arg(long, default_value_t = 100)]
        kills: u64,
        /// The seed of the random choices.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Stop commands of terminal sessions at random times, on every shell, and check that none of their processes continues.
    #[command(after_help = "Examples:\n  cargo xtask stops                 # 72 stops, as in CI\n  \
        cargo xtask stops --count 1000")]
    Stops {
        /// The number of commands to stop.
        #[arg(long, default_value_t = 72)]
        count: u32,
    },
    /// Test the release build with many waiting runs, many active runs and readers, and one turn with much output.
    #[command(after_help = "Examples:\n  cargo xtask load --write\n  \
        cargo xtask load --waiting 1000 --runs 40 --readers 20 --output 300000000")]
    Load {
        /// Write the figures to docs/reliability.md.
        #[arg(long)]
        write: bool,
        /// The number of waiting runs.
        #[arg(long, default_value_t = 10_000)]
        waiting: u32,
        /// The number of concurrent active runs.
        #[arg(long, default_value_t = 200)]
        runs: u32,
        /// The number of event readers of the active runs.
        #[arg(long, default_value_t = 100)]
        readers: u32,
        /// The number of bytes that one turn prints, with two restarts of the daemon.
        #[arg(long, default_value_t = 10_000_000_000)]
        output: u64,
    },
    /// Replace a busy daemon of an earlier commit by the binary of the current tree.
    #[command(after_help = "Examples:\n  cargo xtask upgrade --from HEAD~1 --write")]
    Upgrade {
        /// Write the figures to docs/reliability.md.
        #[arg(long)]
        write: bool,
        /// The commit whose daemon is replaced; it is built once, below target/crash-tests.
        #[arg(long, default_value = "HEAD~1")]
        from: String,
    },
    /// Run a benchmark.
    #[command(
        after_help = "Examples:\n  cargo xtask bench store\n  cargo xtask bench agent --only-restart\n  cargo xtask bench engines --only codex\n  cargo xtask bench terminal\n  \
        cargo xtask bench terminal --no-peers            # only our own figures\n  \
        cargo xtask bench terminal --only-peers --write  # only the comparison, into docs/benchmarks.md\n  \
        cargo xtask bench terminal --against HEAD~1      # this tree beside that commit: is anything slower?\n\n\
        The terminal's peers are installed into .cache/peers and the agent programs into .cache/engines, unless\n\
        ABIDE_TEST_ENGINES names a list of them; they are no part of CI."
    )]
    Bench {
        /// The benchmark; an unknown name lists the known ones.
        name: String,
        /// Compare with this commit: build it, measure both alternately, and fail if the current tree is slower.
        #[arg(long, value_name = "COMMIT")]
        against: Option<String>,
        /// Passed on to the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Check documents, dependencies between crates, file headers, links, names and words.
    Tidy,
    /// Run every check that a change must pass.
    #[command(after_help = "Examples:\n  cargo xtask ci\n  cargo xtask ci --step clippy\n  \
        cargo xtask ci --step deny --step typos")]
    Ci {
        /// Run only this step; may be given several times.
        #[arg(long = "step", value_enum)]
        steps: Vec<ci::CiStep>,
    },
}

pub(crate) fn main() -> ExitCode {
    let args = XtaskArguments::parse();
    let done = shell::watch_signals().and_then(|()| CargoWorkspace::load()).and_then(|workspace| match args
        .command
    {
        XtaskCommand::Up { args } => up::run(&workspace, &args),
        XtaskCommand::Test { filter } => test::run(&workspace, &filter),
        XtaskCommand::Engines { json, write } => {
            let format = match (json, write) {
                (true, _) => engines::EngineListFormat::Json,
                (false, true) => engines::EngineListFormat::Document,
                (false, false) => engines::EngineListFormat::Table,
            };
            engines::run(&workspace, format)
        }
        XtaskCommand::Playground { engine } => playground::run(&workspace, &engine),
        XtaskCommand::Schemathesis { args } => schemathesis::run(&workspace, &args),
        XtaskCommand::Sim { args } => sim::run(&workspace, &args),
        XtaskCommand::Kill { write, kills, seed } => {
            let args = ["--kills".to_owned(), kills.to_string(), "--seed".to_owned(), seed.to_string()];
            crash_tests::run(&workspace, CrashTestKind::Kill, FigureOutput::from(write), &args)
        }
        XtaskCommand::Stops { count } => stops::run(&workspace, count),
        XtaskCommand::Load { write, waiting, runs, readers, output } => {
            let [waiting, runs, readers] = [waiting, runs, readers].map(u64::from);
            let figures =
                [("--waiting", waiting), ("--runs", runs), ("--readers", readers), ("--output", output)];
            let args: Vec<String> =
                figures.iter().flat_map(|(name, n)| [(*name).to_owned(), n.to_string()]).collect();
            crash_tests::run(&workspace, CrashTestKind::Load, FigureOutput::from(write), &args)
        }
        XtaskCommand::Upgrade { write, from } => {
            crash_tests::upgrade(&workspace, FigureOutput::from(write), &from)
        }
        XtaskCommand::Bench { name, against: None, args } => bench::run(&workspace, &name, &args),
        XtaskCommand::Bench { name, against: Some(commit), args } => match args.as_slice() {
            [] => bench::compare_with(&workspace, &name, &commit),
            _ => Err(anyhow!("--against takes no further arguments")),
        },
        XtaskCommand::Tidy => tidy::run(&workspace),
        XtaskCommand::Ci { steps } => ci::run(&workspace, &steps),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if shell::interrupted() => {
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{XtaskArguments, XtaskCommand};

    #[test]
    fn the_command_line_is_well_formed() {
        XtaskArguments::command().debug_assert();
    }

    #[test]
    fn a_benchmark_is_compared_with_a_commit_or_gets_the_arguments() {
        let parsed =
            XtaskArguments::try_parse_from(["xtask", "bench", "runs", "--against", "abc123"]).unwrap();
        assert!(matches!(parsed.command, XtaskCommand::Bench { against: Some(commit), args, .. }
            if commit == "abc123" && args.is_empty()));
        let parsed = XtaskArguments::try_parse_from(["xtask", "bench", "runs", "--only-cycles"]).unwrap();
        assert!(
            matches!(parsed.command, XtaskCommand::Bench { against: None, args, .. } if args == ["--only-cycles"])
        );
    }
}
