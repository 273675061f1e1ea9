//! Formats the measurements for the terminal and for the document that `--write` creates.

use std::fmt::Write;
use std::time::Duration;

pub(super) struct PeerReport {
    pub(super) date: String,
    pub(super) abide: String,
    /// The load average of the machine.
    pub(super) load: String,
    pub(super) rows: Vec<PeerRow>,
    pub(super) controls: Vec<PeerRow>,
}

pub(super) struct PeerRow {
    pub(super) name: &'static str,
    pub(super) does: &'static str,
    pub(super) differs: &'static str,
    pub(super) outcome: PeerOutcome,
}

pub(super) enum PeerOutcome {
    Measured(PeerFigures),
    /// Not measured, with the reason.
    NotMeasured(String),
}

/// The figures of one peer, and those of ours and the floor in the alternating rounds.
pub(super) struct PeerFigures {
    version: String,
    ours: TimeSpread,
    floor: TimeSpread,
    theirs: TimeSpread,
}

struct TimeSpread {
    p50: Duration,
    p99: Duration,
    samples: usize,
}

impl PeerFigures {
    pub(super) fn new(
        version: String,
        ours: Vec<Duration>,
        floor: Vec<Duration>,
        theirs: Vec<Duration>,
    ) -> Self {
        Self {
            version,
            ours: TimeSpread::of(ours),
            floor: TimeSpread::of(floor),
            theirs: TimeSpread::of(theirs),
        }
    }

    /// Returns one line for the progress display.
    pub(super) fn summary(&self) -> String {
        let [theirs, ours, floor] = [&self.theirs, &self.ours, &self.floor].map(|spread| millis(spread.p50));
        format!("p50 {theirs} ms, ours {ours} ms, floor {floor} ms, ahead {}", times(self.speedup()))
    }

    fn speedup(&self) -> f64 {
        ratio(self.theirs.p50, self.ours.p50)
    }

    fn over_floor(&self) -> f64 {
        ratio(self.theirs.p50, self.floor.p50)
    }

    fn ours_over_floor(&self) -> f64 {
        ratio(self.ours.p50, self.floor.p50)
    }
}

impl TimeSpread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
        Self { p50: at(50), p99: at(99), samples: times.len() }
    }
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64().max(1e-9)
}

/// Formats a ratio with two significant digits.
fn times(ratio: f64) -> String {
    let digits = if ratio < 10.0 { 1 } else { 0 };
    format!("{ratio:.digits$}x")
}

fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    let digits = if millis < 10.0 { 3 } else { 1 };
    format!("{millis:.digits$}")
}

impl PeerReport {
    /// Returns the peers that are at least as fast as ours.
    pub(super) fn faster_peers(&self) -> Vec<&'static str> {
        self.measured().filter(|(_, figures)| figures.speedup() <= 1.0).map(|(row, _)| row.name).collect()
    }

    fn measured(&self) -> impl Iterator<Item = (&PeerRow, &PeerFigures)> {
        self.rows.iter().filter_map(|row| match &row.outcome {
            PeerOutcome::Measured(figures) => Some((row, figures)),
            PeerOutcome::NotMeasured(_) => None,
        })
    }

    fn table(&self) -> Vec<Vec<String>> {
        let head = [
            "peer",
            "Abide is faster by",
            "peer/floor",
            "Abide/floor",
            "peer p50 ms",
            "peer p99 ms",
            "Abide p50 ms",
            "Abide p99 ms",
            "floor p50 ms",
            "samples",
            "version",
        ];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        for row in &self.rows {
            table.push(match &row.outcome {
                PeerOutcome::Measured(figures) => vec![
                    row.name.to_owned(),
                    times(figures.speedup()),
                    times(figures.over_floor()),
                    times(figures.ours_over_floor()),
                    millis(figures.theirs.p50),
                    millis(figures.theirs.p99),
                    millis(figures.ours.p50),
                    millis(figures.ours.p99),
                    millis(figures.floor.p50),
                    figures.theirs.samples.to_string(),
                    figures.version.clone(),
                ],
                PeerOutcome::NotMeasured(reason) => {
                    vec![row.name.to_owned(), format!("NOT MEASURED: {reason}")]
                }
            });
        }
        table
    }

    pub(super) fn for_terminal(&self) -> String {
        let table = self.table();
        // A reason may be longer than any figure. It is the last cell of its line and is ignored for the column width.
        let width = |column: usize| {
            let cells = table.iter().filter(|line| line.len() > 2 || column == 0);
            cells.filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut out = format!("`true` in one session, {}, {}\n", self.abide, self.load);
        for line in &table {
            let cells: Vec<String> =
                line.iter().enumerate().map(|(at, cell)| format!("{cell:<0$}", width(at))).collect();
            out.push_str(cells.join("  ").trim_end());
            out.push('\n');
        }
        for row in &self.rows {
            line(&mut out, &format!("{}: {}; {}", row.name, row.does, row.differs));
        }
        line(&mut out, &format!("client's language: {}", self.format_controls()));
        out
    }

    fn format_controls(&self) -> String {
        let parts: Vec<String> = self
            .controls
            .iter()
            .map(|row| match &row.outcome {
                PeerOutcome::Measured(figures) => format!(
                    "{} p50 {} ms ({} the time of the Rust client in the same rounds)",
                    row.name,
                    millis(figures.theirs.p50),
                    times(figures.speedup())
                ),
                PeerOutcome::NotMeasured(reason) => format!("{} NOT MEASURED: {reason}", row.name),
            })
            .collect();
        parts.join(", ")
    }

    pub(super) fn for_document(&self) -> String {
        let mut out = String::from("# Benchmarks\n\n");
        line(&mut out, "Written by `cargo xtask bench terminal --write`. Do not edit.\n");
        line(&mut out, "## Terminal compared with other tools\n");
        line(&mut out, &format!("Measured on {}, {}, {}.\n\n{METHOD}\n", self.date, self.abide, self.load));
        for (index, cells) in self.table().iter().enumerate() {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            line(&mut out, &format!("| {} |", cells.join(" | ")));
            if index == 0 {
                line(&mut out, &"|---".repeat(cells.len()).chars().chain(['|']).collect::<String>());
            }
        }
        line(&mut out, "\nMethod of each peer for one command, and differences that limit the comparison:\n");
        for row in &self.rows {
            line(&mut out, &format!("- {}: {}; {}.", row.name, row.does, row.differs));
        }
        line(&mut out, &format!("\nCost of the client's language: {}.", self.format_controls()));
        out
    }
}

const METHOD: &str = "\
Each peer keeps one session of its own kind and runs `true` in it repeatedly. Peer, Abide and floor are measured
alternately in ten rounds, so that noise of the machine affects all of them equally. Each row has its own Abide figures.

- Abide: `abide rpc` with bash.
- Floor: a bare bash that reads a line and prints a marker.
- Time: from writing the request until the response is parsed.
- Clients are written in the language of the peer's users. Environment and home are empty, and nothing is sent to
  other machines.

Ratios are ratios of medians. They are more meaningful than the times, which depend on the machine. On a busy machine,
peers that start processes fall further behind.";

fn line(out: &mut String, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{PeerFigures, PeerOutcome, PeerReport, PeerRow};

    fn report(theirs: u64) -> PeerReport {
        let all = |micros| vec![Duration::from_micros(micros); 10];
        let figures = PeerFigures::new("peer 1.0".to_owned(), all(50), all(25), all(theirs));
        let row = |name, outcome| PeerRow { name, does: "polls", differs: "no session", outcome };
        let rows = vec![
            row("fast", PeerOutcome::Measured(figures)),
            row("gone", PeerOutcome::NotMeasured("no tmux".to_owned())),
        ];
        let owned = |text: &str| text.to_owned();
        PeerReport {
            date: owned("2000-01-01"),
            abide: owned("abide 0"),
            load: owned("idle"),
            rows,
            controls: vec![],
        }
    }

    #[test]
    fn ratios_are_of_medians() {
        let document = report(600).for_document();
        assert!(
            document.contains(
                "| fast | 12x | 24x | 2.0x | 0.600 | 0.600 | 0.050 | 0.050 | 0.025 | 10 | peer 1.0 |"
            ),
            "{document}"
        );
    }

    #[test]
    fn a_peer_that_was_not_measured_is_told_with_its_reason() {
        for report_text in [report(600).for_document(), report(600).for_terminal()] {
            assert!(report_text.contains("NOT MEASURED: no tmux"), "{report_text}");
        }
    }

    #[test]
    fn a_peer_that_is_as_fast_is_named() {
        assert_eq!(report(50).faster_peers(), ["fast"]);
        assert!(report(51).faster_peers().is_empty());
    }
}
