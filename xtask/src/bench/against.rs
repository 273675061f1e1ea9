//! Compares a benchmark of an earlier commit with the present tree, in alternating rounds, and reports regressions.
//!
//! If a binary is measured, the present tree's benchmark drives both binaries, so that both get the same requests. If a
//! benchmark links the crates, each tree's own benchmark runs. All figures are times, so less is better.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{BenchmarkNeeds, BenchmarkSpec};
use crate::earlier::{BuildProfile, EarlierCommit, executable};
use crate::shell::{self, EchoedCommand};
use crate::workspace::CargoWorkspace;

/// The number of measurements of each side.
const ROUNDS: usize = 12;
/// A ratio up to this value is not a regression, whatever the confidence interval.
const MAX_RATIO: f64 = 1.05;

/// The values of one figure in all rounds, as pairs of old and new.
#[derive(Debug)]
struct PairedFigure {
    name: String,
    unit: String,
    pairs: Vec<(f64, f64)>,
}

/// The comparison of one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
struct FigureComparison {
    old: f64,
    new: f64,
    /// The ratio of the medians, new to old.
    ratio: f64,
    /// The interval that contains the median of the rounds' ratios with at least 95 % confidence.
    interval: (f64, f64),
}

/// The command that measures one side.
struct BenchmarkSide {
    program: PathBuf,
    args: Vec<String>,
    env: Option<(&'static str, PathBuf)>,
}

pub(super) fn run(workspace: &CargoWorkspace, bench: &BenchmarkSpec, commit: &str) -> Result<()> {
    let earlier = EarlierCommit::check_out(workspace, commit)?;
    let [old, new] = sides(workspace, bench, &earlier)?;
    eprintln!("measuring {} at {} and now, {ROUNDS} times in turns", bench.name, &earlier.commit[..7]);
    // The first run warms the caches and is not counted.
    let mut figures: Vec<PairedFigure> = Vec::new();
    old.measure(bench)?;
    new.measure(bench)?;
    for round in 0..ROUNDS {
        // The sides alternate in going first.
        let (first, second) = if round % 2 == 0 { (&old, &new) } else { (&new, &old) };
        let (first, second) = (first.measure(bench)?, second.measure(bench)?);
        let (before, now) = if round % 2 == 0 { (first, second) } else { (second, first) };
        add_round(&mut figures, &before, &now);
        eprint!(".");
    }
    eprintln!();
    ensure!(!figures.is_empty(), "the benchmark {} printed no figure that both commits have", bench.name);
    println!(
        "\n{:<44} {:>12} {:>12} {:>7}  {:<15}",
        "median of each side",
        &earlier.commit[..7],
        "now",
        "ratio",
        "spread (95 %)"
    );
    let mut slower = Vec::new();
    for figure in &figures {
        let compared = figure.compare();
        let verdict = if compared.is_slower() { "SLOWER" } else { "not slower" };
        println!(
            "{:<44} {:>12} {:>12} {:>7.2}  {:<15} {verdict}",
            figure.name,
            format!("{:.3} {}", compared.old, figure.unit),
            format!("{:.3} {}", compared.new, figure.unit),
            compared.ratio,
            format!("{:.2} to {:.2}", compared.interval.0, compared.interval.1),
        );
        if compared.is_slower() {
            slower.push(figure.name.as_str());
        }
    }
    println!(
        "\nnot slower: 1.00 does not lie below the spread, or the ratio is at most {MAX_RATIO}; {ROUNDS} rounds of each side"
    );
    match slower.as_slice() {
        [] => Ok(()),
        slower => bail!("slower than {}: {}", &earlier.commit[..7], slower.join(", ")),
    }
}

/// Returns the old side and the new side.
fn sides(
    workspace: &CargoWorkspace,
    bench: &BenchmarkSpec,
    earlier: &EarlierCommit,
) -> Result<[BenchmarkSide; 2]> {
    let binaries = || -> Result<[PathBuf; 2]> {
        let old = earlier.binary(BuildProfile::Release)?;
        let build = ["build", "--quiet", "--release", "--package", "abide"];
        EchoedCommand::new("cargo").args(build).dir(&workspace.root).run()?;
        Ok([old, copy_binary(workspace)?])
    };
    match bench.needs {
        BenchmarkNeeds::BinaryAndPeers => {
            let program = present_bench(workspace, bench)?;
            Ok(binaries()?.map(|binary| BenchmarkSide {
                program: program.clone(),
                args: vec!["--figures".into()],
                env: Some(("ABIDE_BIN", binary)),
            }))
        }
        BenchmarkNeeds::Nothing if bench.name == "runs" => {
            EchoedCommand::new("cargo")
                .args(["build", "--quiet", "--release", "--package", "abide-crash-tests"])
                .dir(&workspace.root)
                .run()?;
            let program = workspace.target.join("release/abide-crash-tests");
            Ok(binaries()?.map(|binary| BenchmarkSide {
                program: program.clone(),
                args: vec!["measure".into(), "--program".into(), binary.to_string_lossy().into_owned()],
                env: None,
            }))
        }
        BenchmarkNeeds::Postgres => {
            let old = earlier.bench(bench.package, bench.name)?;
            let new = present_bench(workspace, bench)?;
            Ok([old, new].map(|program| BenchmarkSide { program, args: vec![], env: None }))
        }
        BenchmarkNeeds::Engines | BenchmarkNeeds::Nothing => {
            bail!(
                "--against knows terminal, runs and store; {} is compared by running it in both trees",
                bench.name
            )
        }
    }
}

fn present_bench(workspace: &CargoWorkspace, bench: &BenchmarkSpec) -> Result<PathBuf> {
    let json = EchoedCommand::new("cargo")
        .args(["bench", "--quiet", "--no-run", "--message-format", "json", "--package", bench.package])
        .args(["--bench", bench.name])
        .dir(&workspace.root)
        .read()?;
    executable(&json).with_context(|| format!("cargo built no benchmark {}", bench.name))
}

/// Copies the binary, so that a later build does not change it during the measurement.
fn copy_binary(workspace: &CargoWorkspace) -> Result<PathBuf> {
    let (built, kept) =
        (workspace.target.join("release/abide"), workspace.target.join("crash-tests/against"));
    fs::create_dir_all(&kept).with_context(|| format!("could not create {}", kept.display()))?;
    let kept = kept.join("abide");
    // The file does not exist at the first run.
    fs::remove_file(&kept).ok();
    fs::copy(&built, &kept).with_context(|| format!("could not copy {}", built.display()))?;
    Ok(kept)
}

impl BenchmarkSide {
    /// Returns the figures of one round. The benchmark may miss its own limits; only its figures are used here.
    fn measure(&self, bench: &BenchmarkSpec) -> Result<Vec<(String, f64, String)>> {
        let mut command = EchoedCommand::new(&self.program).args(&self.args).dir(Path::new("/"));
        if let Some((name, value)) = &self.env {
            command = command.env(name, value);
        }
        let output = command.read_even_on_failure()?;
        if shell::interrupted() {
            bail!("interrupted");
        }
        let figures: Vec<_> = match bench.needs {
            BenchmarkNeeds::Postgres => output.lines().filter_map(rate).collect(),
            BenchmarkNeeds::BinaryAndPeers | BenchmarkNeeds::Engines | BenchmarkNeeds::Nothing => {
                output.lines().filter_map(figure).collect()
            }
        };
        ensure!(!figures.is_empty(), "{} printed no figure:\n{output}", self.program.display());
        Ok(figures)
    }
}

/// Parses a line such as `figure 0.123 ms name of it`.
fn figure(line: &str) -> Option<(String, f64, String)> {
    let (value, rest) = line.strip_prefix("figure ")?.split_once(' ')?;
    let (unit, name) = rest.split_once(' ')?;
    Some((name.to_owned(), value.parse().ok()?, unit.to_owned()))
}

/// Parses a row of the store's table such as `sqlite, 1 writer    812  0.97  0.55`, and converts the rate per second to
/// a time.
fn rate(line: &str) -> Option<(String, f64, String)> {
    let (name, rest) = line.split_once("  ")?;
    if !name.contains("writer") {
        return None;
    }
    let rate: f64 = rest.split_whitespace().next()?.parse().ok()?;
    Some((name.trim().to_owned(), 1_000.0 / rate, "ms".to_owned()))
}

/// Adds the figures of one round. Figures that only one side has are left out.
fn add_round(
    figures: &mut Vec<PairedFigure>,
    before: &[(String, f64, String)],
    now: &[(String, f64, String)],
) {
    for (name, new, unit) in now {
        let Some((_, old, _)) = before.iter().find(|(old_name, _, _)| old_name == name) else { continue };
        match figures.iter_mut().find(|figure| figure.name == *name) {
            Some(figure) => figure.pairs.push((*old, *new)),
            None => figures.push(PairedFigure {
                name: name.clone(),
                unit: unit.clone(),
                pairs: vec![(*old, *new)],
            }),
        }
    }
}

impl PairedFigure {
    fn compare(&self) -> FigureComparison {
        let old = median(self.pairs.iter().map(|(old, _)| *old).collect());
        let new = median(self.pairs.iter().map(|(_, new)| *new).collect());
        let ratios: Vec<f64> = self.pairs.iter().map(|(old, new)| new / old).collect();
        FigureComparison { old, new, ratio: new / old, interval: median_interval(ratios) }
    }
}

impl FigureComparison {
    fn is_slower(self) -> bool {
        let within = self.interval.0 <= 1.0;
        !within && self.ratio > MAX_RATIO
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    match (values.get(low), values.get(high)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        (_, _) => f64::NAN,
    }
}

/// Returns the order statistics between which the median lies with at least 95 % confidence, for any distribution. At
/// each end, as many values are left out as the binomial distribution allows with a probability of 2.5 %.
fn median_interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // The probabilities of exactly k and of at most k heads.
    let (mut exactly, mut at_most, mut left_out) = (0.5_f64.powi(count as i32), 0.0, 0);
    for k in 0..count {
        at_most += exactly;
        if at_most > 0.025 {
            break;
        }
        left_out = k + 1;
        exactly *= (count - k) as f64 / (k + 1) as f64;
    }
    // With at most k values below the median, value k+1 is a bound.
    let low = left_out.saturating_sub(1);
    match (values.get(low), values.get(count.saturating_sub(left_out.max(1)))) {
        (Some(low), Some(high)) => (*low, *high),
        (_, _) => (f64::NAN, f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use super::{PairedFigure, add_round, figure, median, median_interval, rate};

    fn compared(pairs: &[(f64, f64)]) -> super::FigureComparison {
        PairedFigure { name: "x".into(), unit: "ms".into(), pairs: pairs.to_vec() }.compare()
    }

    #[test]
    fn lines_of_both_kinds_of_benchmarks_are_read() {
        assert_eq!(
            figure("figure 0.125 ms exec.run true, bash"),
            Some(("exec.run true, bash".into(), 0.125, "ms".into()))
        );
        assert_eq!(figure("exec.run true"), None);
        assert_eq!(
            rate("sqlite, 64 writers                    2000       1.00        2.00"),
            Some(("sqlite, 64 writers".into(), 0.5, "ms".into()))
        );
        assert_eq!(rate("sqlite: 64 writers give 10.1 x the single writer's rate"), None);
    }

    #[test]
    fn the_interval_of_twelve_leaves_out_two_at_each_end_and_of_few_nothing() {
        let values = |count: usize| (1..=count).map(|n| n as f64).collect::<Vec<_>>();
        // At most 2 of 12 heads have a probability of 1.9 %, at most 3 of 7.3 %.
        assert_eq!(median_interval(values(12)), (3.0, 10.0));
        assert_eq!(median_interval(values(10)), (2.0, 9.0));
        assert_eq!(median_interval(values(3)), (1.0, 3.0));
        assert_eq!(median(values(4)), 2.5);
    }

    #[test]
    fn slower_is_what_is_above_the_tolerance_and_clearly_so() {
        let noisy: Vec<(f64, f64)> = (0..12).map(|n| (1.0, if n % 2 == 0 { 0.8 } else { 1.5 })).collect();
        assert!(!compared(&noisy).is_slower());
        let slightly: Vec<(f64, f64)> = vec![(1.0, 1.04); 12];
        assert!(!compared(&slightly).is_slower());
        let clearly: Vec<(f64, f64)> = vec![(1.0, 1.10); 12];
        assert!(compared(&clearly).is_slower());
        let faster: Vec<(f64, f64)> = vec![(1.0, 0.5); 12];
        assert!(!compared(&faster).is_slower());
    }

    #[test]
    fn a_figure_that_only_one_side_has_is_left_out() {
        let row = |name: &str| (name.to_owned(), 1.0, "ms".to_owned());
        let mut figures = Vec::new();
        add_round(&mut figures, &[row("a")], &[row("a"), row("b")]);
        add_round(&mut figures, &[row("a")], &[row("a")]);
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].pairs.len(), 2);
    }
}
